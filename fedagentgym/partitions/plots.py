"""Figures of splits, like figures 5-16 of the FedAgent paper: mixtures, sizes, overlap, solved shares.

A function that draws one panel takes `axes` to draw into, or makes a figure, and returns the axes. Categories differ in
lightness first and in hue second, so that figures stay readable in grey and for colour-blind readers. Nothing here changes
pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError, check_choice, require_type
from fedagentgym.base.files import write_atomic
from fedagentgym.base.imports import require
from fedagentgym.base.rounding import count_things, format_fixed, format_share
from fedagentgym.envs.tasks import plain_name
from fedagentgym.partitions.record import SplitRecord
from fedagentgym.partitions.statistics import Statistics

TEXT_COLOR, MUTED_COLOR, GRID_COLOR, ACCENT_COLOR = "#1b2733", "#5b6875", "#dfe4e8", "#c2410c"
DARK_COLOR, MEDIUM_COLOR, LIGHT_COLOR = "#1f4e79", "#7fa8c9", "#dbe7f0"
BAR_EDGE = {"edgecolor": "white", "linewidth": 0.35}
_PALETTE_COLORS = ("#16324f", "#1f5f7a", "#2f8a86", "#74b06f", "#cfcf5a", "#fbe7a1")
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": MUTED_COLOR,
    "axes.labelcolor": MUTED_COLOR,
    "axes.titlecolor": TEXT_COLOR,
    "xtick.color": MUTED_COLOR,
    "ytick.color": MUTED_COLOR,
    "svg.hashsalt": "fedagentgym",
    "svg.fonttype": "path",
}


def make_figure(widths: Sequence[float]) -> tuple[Any, Any]:
    """A figure with a row of panels of these relative widths and space for a title above, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.1), dpi=160, facecolor="white")
    axes = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    figure.subplots_adjust(left=0.068, right=0.98, top=0.76, bottom=0.125, wspace=0.17)
    return figure, axes


def add_title(figure: Any, text: str, x: float = 0.012) -> None:
    figure.suptitle(text, x=x, y=0.985, ha="left", va="top", fontsize=12.5, color=TEXT_COLOR, weight="bold")


def save_figure(figure: Any, path: str | Path | None) -> None:
    """Save as PNG or SVG, by the suffix of the path; without a path do nothing. The same figure gives the same bytes."""
    if path is None:
        return
    path = validate_figure_path(path)
    metadata = {"Date": None, "Creator": "fedagentgym"} if path.suffix == ".svg" else {"Software": "fedagentgym"}
    drawn = BytesIO()
    matplotlib = require("matplotlib", "plots")
    with matplotlib.rc_context({"svg.hashsalt": "fedagentgym"}):  # otherwise the ids in an SVG are random
        figure.savefig(drawn, format=path.suffix[1:], metadata=metadata)
    write_atomic(path, drawn.getvalue())


def validate_figure_path(path: str | Path) -> Path:
    """Refuse a path that is neither .png nor .svg, before anything is computed."""
    require_type("a figure is written to a path", path, str, Path)
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise OptionError(f"figures are written as .png or .svg, got {path.name!r}")
    return path


def make_palette(count: int) -> list[Any]:
    """Colours from dark to light, equally spaced."""
    from matplotlib.colors import LinearSegmentedColormap

    ramp = LinearSegmentedColormap.from_list("fedagentgym", _PALETTE_COLORS)
    return [ramp(position) for position in np.linspace(0, 1, max(count, 2))][:count]


def add_mean_line(axes: Any, value: float, text: str) -> None:
    from matplotlib.patheffects import withStroke

    axes.axhline(value, color=ACCENT_COLOR, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.annotate(
        text,
        (0.008, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        color=ACCENT_COLOR,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )


def format_as_percent(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def style_axes(axes: Any, *, grid: bool = True) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis="y", color=GRID_COLOR, linewidth=0.8)
    axes.tick_params(axis="y", length=0)


def add_legend(owner: Any, handles: Sequence[Any], labels: Sequence[str], **place: Any) -> None:
    """Draw a row of square colour samples above a panel or a figure."""
    owner.legend(
        handles,
        labels,
        ncols=min(len(labels), 8),
        frameon=False,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.3,
        handletextpad=0.5,
        labelcolor=MUTED_COLOR,
        borderaxespad=0.2,
        **place,
    )


# ---- figures ----------------------------------------------------------------------------------------------------------


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_BARS = 100
MAX_CATEGORIES = 8
SYMBOLS = {"omega": "\u03c9", "xi": "\u03be", "beta": "\u03b2"}


def plot_client_split(record: SplitRecord, statistics: Statistics, path: str | Path | None = None) -> Any:
    """Draw the figure that fits the sampler of a client split and return the array of its axes."""
    matplotlib = require("matplotlib", "plots")
    with matplotlib.rc_context(STYLE):
        if record.sampler == "hardness" and statistics.solved is not None:
            figure, axes = make_figure([3, 1])
            plot_solved_bars(statistics, axes[0])
            plot_solved_histogram(statistics, axes[1])
        elif record.sampler == "coverage":
            figure, axes = make_figure([2, 1])
            plot_size_bars(statistics, axes[0])
            plot_copies_histogram(statistics, axes[1])
        elif np.ptp(statistics.sizes) > 1:
            figure, axes = make_figure([2, 1])
            plot_mixture_bars(statistics, axes[0])
            plot_size_bars(statistics, axes[1])
        else:
            figure, axes = make_figure([1])
            plot_mixture_bars(statistics, axes[0])

        symbols = {**SYMBOLS, "xi": "\u03be\u2032"} if record.sampler == "hardness" else SYMBOLS
        numbers = [(symbol, record.parameters.get(key)) for key, symbol in symbols.items()]
        shown = ", ".join(f"{symbol} = {number:g}" for symbol, number in numbers if isinstance(number, int | float))
        name = record.sampler.replace("_", " ").replace("$", "\\$").capitalize()
        add_title(figure, f"{plain_name(record.env_id)}  \u00b7  {f'{name} {shown}'.strip()}")

        sizes, (measure, value) = statistics.sizes, statistics.dispersion()
        each = f"{sizes.min():,} to {sizes.max():,} tasks, mean {format_fixed(sizes.mean())}"
        if not np.ptp(sizes):
            each = f"{count_things(sizes[0], 'task')} each"
        subtitle = (
            f"{count_things(len(sizes), 'client')}, {each}, pool of {statistics.tasks_in_pool:,}; {measure}"
            f" {format_fixed(value, 3)}; seed {record.seed}"
        )
        figure.text(0.012, 0.915, subtitle, ha="left", va="top", fontsize=9, color=MUTED_COLOR)
        save_figure(figure, path)
    return axes


def plot_curve(title: str, points: Sequence[Mapping[str, Any]], path: str | Path | None = None) -> Any:
    """Draw the success of a run over its rounds, with confidence intervals, and return the axes."""
    matplotlib = require("matplotlib", "plots")
    with matplotlib.rc_context(STYLE):
        figure, (axes,) = make_figure([1])
        rounds = [point["round"] for point in points]
        axes.fill_between(
            rounds, [one["low"] for one in points], [one["high"] for one in points], alpha=0.2, linewidth=0
        )
        axes.plot(rounds, [point["success"] for point in points], marker="o", markersize=3)
        axes.set(xlabel="round", ylabel="success on held-out tasks", ylim=(0, 1))
        style_axes(axes)
        add_title(figure, title)
        save_figure(figure, path)
    return axes


def plot_mixture_bars(
    statistics: Statistics, axes: Any = None, *, unit: Literal["share", "tasks"] = "share", legend: bool = True
) -> Any:
    """Draw the categories of every client as stacked bars, the most common category at the bottom.

    Bars show shares of the client's tasks, with a bar of the pool at the right, or with `unit="tasks"` numbers of tasks, the
    largest client first.
    """
    check_choice("unit", unit, ("share", "tasks"))
    axes = axes if axes is not None else make_figure([1])[1][0]
    names, shares, pool = _select_main_categories(statistics)
    if unit == "share":
        order = _subsample_clients(np.lexsort(shares.T[::-1])[::-1])
        heights = np.vstack([shares[order], pool])
    else:
        order = _subsample_clients(np.argsort(-statistics.sizes, kind="stable"))
        heights = shares[order] * statistics.sizes[order, None]
    positions, widths = np.arange(len(order), dtype=float), np.ones(len(order))
    if unit == "share":  # the pool's bar is apart from the clients' and never too narrow to see
        gap = max(1.0, len(order) * 0.015)
        positions = np.append(positions, len(order) - 0.5 + gap + 0.02 * len(order))
        widths = np.append(widths, max(1.0, 0.04 * len(order)))
    base = np.zeros(len(heights))
    for column, colour in enumerate(make_palette(len(names))):
        axes.bar(positions, heights[:, column], widths, bottom=base, color=colour, label=names[column], **BAR_EDGE)
        base += heights[:, column]
    axes.set_xlim(-0.8, positions[-1] + widths[-1] / 2 + 0.3)
    middle, label = (len(order) - 1) / 2, _format_clients_label(statistics)
    if unit == "share":
        axes.set_ylim(0, 1)
        format_as_percent(axes.yaxis)
        axes.set_xticks([middle, positions[-1]], [label, "pool"])
    else:
        axes.set_xticks([middle], [label])
    axes.set_ylabel("share of the client's tasks" if unit == "share" else "tasks of the client")
    axes.tick_params(axis="x", length=0)
    style_axes(axes, grid=False)
    if legend:
        add_legend(axes, *axes.get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(-0.005, 1.0))
    return axes


def plot_size_bars(statistics: Statistics, axes: Any = None) -> Any:
    """Draw the sizes of the clients as bars in ascending order, with their mean."""
    axes = axes if axes is not None else make_figure([1])[1][0]
    sizes = np.sort(statistics.sizes)
    shown = sizes[np.sort(_subsample_clients(np.arange(len(sizes))))]
    axes.bar(np.arange(len(shown)), shown, 1.0, color=DARK_COLOR, **BAR_EDGE)
    add_mean_line(axes, float(sizes.mean()), f"mean {format_fixed(sizes.mean())}")
    axes.set_xlim(-0.8, len(shown) - 0.2)
    axes.set_xticks([(len(shown) - 1) / 2], [_format_clients_label(statistics)])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("tasks of the client")
    axes.set_ylim(0, max(float(sizes.max()), 1.0) * 1.08)
    style_axes(axes)
    return axes


def plot_copies_histogram(statistics: Statistics, axes: Any = None) -> Any:
    """Draw a histogram of the number of clients that hold a task."""
    axes = axes if axes is not None else make_figure([1])[1][0]
    values, counts = np.unique(statistics.copies, return_counts=True)
    axes.bar(values, counts / counts.sum(), 0.62, color=MEDIUM_COLOR, linewidth=0)
    for value, count in zip(values, counts, strict=True):
        if len(values) <= 6:
            axes.annotate(
                f"{count:,}",
                (value, count / counts.sum()),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                color=MUTED_COLOR,
            )
    axes.set_xlim(values.min() - 1.2, values.max() + 1.2)
    if len(values) <= 12:
        axes.set_xticks(values)
    axes.set_ylim(0, float((counts / counts.sum()).max()) * 1.15)
    format_as_percent(axes.yaxis)
    axes.set_xlabel("clients that hold a task")
    axes.set_ylabel("share of tasks")
    style_axes(axes)
    return axes


def plot_solved_bars(statistics: Statistics, axes: Any = None) -> Any:
    """Draw the solved and unsolved share of every client as bars, in ascending order of the solved share."""
    axes = axes if axes is not None else make_figure([1])[1][0]
    shares = _get_solved_shares(statistics)
    shown = np.sort(shares)[np.sort(_subsample_clients(np.arange(len(shares))))]
    places = np.arange(len(shown))
    axes.bar(places, shown, 1.0, color=DARK_COLOR, **BAR_EDGE, label="solved by the reference policy")
    axes.bar(places, 1 - shown, 1.0, bottom=shown, color=LIGHT_COLOR, **BAR_EDGE, label="not solved")
    add_mean_line(axes, float(shares.mean()), f"mean {format_share(shares.mean())}")
    axes.set_xlim(-0.8, len(shown) - 0.2)
    axes.set_ylim(0, 1)
    format_as_percent(axes.yaxis)
    axes.set_xticks([(len(shown) - 1) / 2], [_format_clients_label(statistics)])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("share of the client's tasks")
    style_axes(axes, grid=False)
    add_legend(axes, *axes.get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(-0.005, 1.0))
    return axes


def plot_solved_histogram(statistics: Statistics, axes: Any = None) -> Any:
    """Draw a histogram of the clients' solved shares."""
    axes = axes if axes is not None else make_figure([1])[1][0]
    shares = _get_solved_shares(statistics)
    edges = np.linspace(0, 1, 21)
    counts, _ = np.histogram(shares, edges)
    axes.bar(edges[:-1] + 0.025, counts, 0.044, color=MEDIUM_COLOR, linewidth=0)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(0, max(int(counts.max()), 1) * 1.1)
    format_as_percent(axes.xaxis)
    axes.set_xlabel("solved share")
    axes.set_ylabel("clients")
    style_axes(axes)
    return axes


# ---- shared helpers ---------------------------------------------------------------------------------------------


def _select_main_categories(statistics: Statistics) -> tuple[list[str], Floats, Floats]:
    """Names, client shares and pool shares of the categories, the most common first. Of more than eight categories, those after
    the seventh are summed up."""
    order = np.argsort(-statistics.pool_shares, kind="stable")
    names = [statistics.categories[code] for code in order.tolist()]
    shares, pool = statistics.shares[:, order], statistics.pool_shares[order]
    if len(names) <= MAX_CATEGORIES:
        return names, shares, pool
    head = MAX_CATEGORIES - 1
    rest = shares[:, head:].sum(axis=1, keepdims=True)
    return (
        [*names[:head], f"{len(names) - head} others"],
        np.hstack([shares[:, :head], rest]),
        np.append(pool[:head], pool[head:].sum()),
    )


def _get_solved_shares(statistics: Statistics) -> Floats:
    shares = statistics.solved_shares
    if shares is None:
        raise OptionError("the split has no labels, so there is no solved share to draw")
    return shares


def _subsample_clients(order: Ints) -> Ints:
    """All clients, or, of more than a hundred, a hundred at equal distances in the order."""
    if len(order) <= MAX_BARS:
        return order
    return order[np.linspace(0, len(order) - 1, MAX_BARS).round().astype(np.int64)]


def _format_clients_label(statistics: Statistics) -> str:
    count = len(statistics.sizes)
    return (
        f"{count_things(count, 'client')}, sorted"
        if count <= MAX_BARS
        else f"{MAX_BARS} of {count_things(count, 'client')}, sorted"
    )
