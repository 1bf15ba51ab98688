"""What the figures of splits have in common: colours, frames, and files.

Categories differ in lightness first and in hue second, so that the figures survive grey printers and colour-blind
eyes. Nothing here touches pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.base.errors import OptionError
from fedagentgym.base.extras import require
from fedagentgym.base.files import write_atomic

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
    """A row of panels of these widths, with room for a title above."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.1), dpi=160, facecolor="white")
    axes = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    figure.subplots_adjust(left=0.068, right=0.98, top=0.76, bottom=0.125, wspace=0.17)
    return figure, axes


def save_figure(figure: Any, path: str | Path) -> None:
    """Save as PNG or SVG, by the name; the same figure gives the same bytes."""
    path = validate_figure_path(path)
    metadata = {"Date": None, "Creator": "fedagentgym"} if path.suffix == ".svg" else {"Software": "fedagentgym"}
    drawn = BytesIO()
    matplotlib = require("matplotlib", "plots")
    with matplotlib.rc_context({"svg.hashsalt": "fedagentgym"}):  # otherwise the ids in an SVG are random
        figure.savefig(drawn, format=path.suffix[1:], metadata=metadata)
    write_atomic(path, drawn.getvalue())


def validate_figure_path(path: str | Path) -> Path:
    """Refuse other formats before anything is computed."""
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
    """A row of square colour samples above a panel or a figure."""
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
