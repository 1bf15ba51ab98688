"""Several splits of one pool in one figure: a row of panels with the same categories in the same colours, one legend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

from fedagentgym.base.errors import OptionError, require_type
from fedagentgym.base.imports import require
from fedagentgym.base.rounding import count_things, format_fixed
from fedagentgym.envs.tasks import plain_name
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.partitions.division import Sampler
from fedagentgym.partitions.plots import MUTED_COLOR, STYLE, TEXT_COLOR, add_legend, plot_mixture_bars, save_figure
from fedagentgym.partitions.samplers import SAMPLERS

if TYPE_CHECKING:
    from fedagentgym.partitions.record import SplitRecord
    from fedagentgym.partitions.statistics import Statistics


MOST_PANELS = 12
"""In one row; more of them are too narrow to be read."""
MOST_CHARACTERS = 36
"""Of a line above a panel; longer ones would run into the next panel's."""
_SYMBOLS = {"omega": "\u03c9", "xi": "\u03be", "beta": "\u03b2"}
_SIZES = ("tasks_per_client", "mean_tasks", "min_tasks", "max_tasks")


def plot_side_by_side(
    client_splits: Sequence[ClientSplit],
    path: str | Path | None = None,
    *,
    titles: Sequence[str] | None = None,
    unit: Literal["share", "tasks"] = "share",
) -> Any:
    """Draw the category mixtures of several splits of one pool in one row of panels (extra `[plots]`).

    Args:
        client_splits: One to twelve splits of the same pool.
        path: If given, the figure is written there, as .png or .svg.
        titles: Titles of the panels; by default the samplers and their parameters.
        unit: What a bar shows: the `share` of a client's tasks, or the number of `tasks`.

    Returns:
        The matplotlib axes, an array with one entry per panel.

    Raises:
        OptionError: If the splits are too many or of different pools, or the titles are not as many as the splits.
        MissingExtraError: If matplotlib is not installed.
    """
    _check_comparable(client_splits, titles)
    matplotlib = require("matplotlib", "plots")
    with matplotlib.rc_context(STYLE):
        figure, axes = _make_row(len(client_splits), share_heights=unit == "tasks")
        for number, (made, panel) in enumerate(zip(client_splits, axes, strict=True)):
            statistics = made.statistics()
            plot_mixture_bars(statistics, panel, unit=unit, legend=False)
            named = (titles[number], "") if titles is not None else describe_sampler(made.record)
            _add_title(panel, *named, _describe_clients(statistics))
            if number:
                panel.set_ylabel("")
        add_legend(
            figure, *axes[0].get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(_inches(figure, 0.5), 0.0)
        )
        record = client_splits[0].record
        figure.suptitle(
            f"{plain_name(record.env_id)}  \u00b7  {len(client_splits[0].pool):,} tasks",
            x=_inches(figure, 0.12),
            y=0.985,
            ha="left",
            va="top",
            fontsize=12.5,
            color=TEXT_COLOR,
            weight="bold",
        )
        if path is not None:
            save_figure(figure, path)
    return axes


def _check_comparable(client_splits: Sequence[ClientSplit], titles: Sequence[str] | None) -> None:
    require_type("splits are a list of ClientSplit", client_splits, list, tuple)
    for made in client_splits:
        require_type("splits are a list of ClientSplit", made, ClientSplit)
    if not 1 <= len(client_splits) <= MOST_PANELS:
        raise OptionError(f"one figure shows 1 to {MOST_PANELS} splits side by side, got {len(client_splits)}")
    first = client_splits[0].record
    for made in client_splits[1:]:
        if made.record.pool_digest != first.pool_digest:
            raise OptionError(
                f"splits are compared that divide the same tasks: {made.record.sampler} divides another pool "
                f"({made.record.env_id}, {dict(made.record.env_options)}) than {first.sampler} ({first.env_id}, "
                f"{dict(first.env_options)})"
            )
    if titles is not None and len(titles) != len(client_splits):
        raise OptionError(f"{len(client_splits)} splits were given {len(titles)} titles")


def describe_sampler(record: SplitRecord) -> tuple[str, str]:
    """The name of a split's sampler, and its parameters beside sizes and whatever was left as it is by default."""
    target = SAMPLERS.get(record.sampler) if record.sampler in SAMPLERS else None
    fields = target.model_fields if isinstance(target, type) and issubclass(target, Sampler) else {}
    parts = []
    for key, value in record.parameters.items():
        if key in _SIZES or (key in fields and fields[key].default == value):
            continue
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{_SYMBOLS.get(key, key.replace('_', ' '))} = {shown}")
    return record.sampler.replace("_", " ").capitalize(), ", ".join(parts)


def _describe_clients(statistics: Statistics) -> str:
    low, high = int(statistics.sizes.min()), int(statistics.sizes.max())
    sizes = f"{count_things(low, 'task')} each" if low == high else f"{low:,} to {high:,} tasks"
    return f"{sizes}, distance {format_fixed(statistics.distances.mean(), 2)}"


def _make_row(panels: int, *, share_heights: bool) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    width = max(6.0, 1.0 + 2.6 * panels)
    figure = Figure(figsize=(width, 4.1), dpi=160, facecolor="white")
    axes = figure.subplots(1, panels, squeeze=False, sharey=share_heights)[0]
    figure.subplots_adjust(left=0.68 / width, right=1 - 0.15 / width, top=0.74, bottom=0.18, wspace=0.22)
    return figure, axes


def _inches(figure: Any, length: float) -> float:
    """A length as a share of the figure's width."""
    return length / float(figure.get_figwidth())


def _add_title(panel: Any, name: str, parameters: str, clients: str) -> None:
    """Name, parameters and what came of them, in three lines above a panel."""
    lines = ((33, 10.5, TEXT_COLOR, name), (19, 8.5, TEXT_COLOR, parameters), (6, 8.5, MUTED_COLOR, clients))
    for height, size, colour, text in lines:
        panel.annotate(
            shorten(text, MOST_CHARACTERS, placeholder=" \u2026").replace("$", "\\$"),
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, height),
            textcoords="offset points",
            fontsize=size,
            color=colour,
        )
