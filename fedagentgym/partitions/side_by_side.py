"""Several splits of one pool in one figure: a row of panels with the same categories in the same colours, one legend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from fedagentgym.base.errors import OptionError, require_type
from fedagentgym.base.imports import require
from fedagentgym.base.rounding import count_things, format_fixed
from fedagentgym.envs.tasks import plain_name
from fedagentgym.partitions.client_split import ClientSplit
from fedagentgym.partitions.division import Sampler
from fedagentgym.partitions.plots import (
    MUTED_COLOR,
    STYLE,
    SYMBOLS,
    TEXT_COLOR,
    add_legend,
    add_title,
    plot_mixture_bars,
    save_figure,
)
from fedagentgym.partitions.record import SplitRecord
from fedagentgym.partitions.samplers import SAMPLERS

MAX_PANELS = 12
"""Maximum number of panels. They are in one row; more panels would be too narrow to read."""
_MAX_PANEL_TITLE = 36
"""Maximum number of characters of a line above a panel; longer lines would overlap those of the next panel."""
_SIZES = ("tasks_per_client", "mean_tasks", "min_tasks", "max_tasks")


def refuse_other_pools(client_splits: Sequence[ClientSplit]) -> None:
    """Raise unless all splits divide the same pool."""
    first = client_splits[0].record
    for made in client_splits[1:]:
        if made.record.pool_digest != first.pool_digest:
            raise OptionError(
                f"only splits of the same tasks can be compared: {made.record.sampler} divides another pool "
                f"({made.record.env_id}, {dict(made.record.env_options)}) than {first.sampler} ({first.env_id}, "
                f"{dict(first.env_options)})"
            )


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
        OptionError: If there is no split, more than twelve, splits of different pools, an unknown unit, or not one title per
            split.
        MissingExtraError: If matplotlib is not installed.
    """
    require_type("splits are a list of ClientSplit", client_splits, list, tuple)
    for made in client_splits:
        require_type("splits are a list of ClientSplit", made, ClientSplit)
    if not 1 <= len(client_splits) <= MAX_PANELS:
        raise OptionError(f"one figure shows 1 to {MAX_PANELS} splits side by side, got {len(client_splits)}")
    refuse_other_pools(client_splits)
    if titles is not None and len(titles) != len(client_splits):
        raise OptionError(f"{len(client_splits)} splits were given {len(titles)} titles")
    matplotlib = require("matplotlib", "plots")
    with matplotlib.rc_context(STYLE):
        from matplotlib.figure import Figure

        panels = len(client_splits)
        width = max(6.0, 1.0 + 2.6 * panels)
        figure = Figure(figsize=(width, 4.1), dpi=160, facecolor="white")
        axes = figure.subplots(1, panels, squeeze=False, sharey=unit == "tasks")[0]
        figure.subplots_adjust(left=0.68 / width, right=1 - 0.15 / width, top=0.74, bottom=0.18, wspace=0.22)
        for number, (made, panel) in enumerate(zip(client_splits, axes, strict=True)):
            statistics = made.statistics()
            plot_mixture_bars(statistics, panel, unit=unit, legend=False)
            # three lines above the panel: name, parameters, and measured sizes and distance
            name, parameters = (titles[number], "") if titles is not None else describe_sampler(made.record)
            low, high = int(statistics.sizes.min()), int(statistics.sizes.max())
            sizes = f"{count_things(low, 'task')} each" if low == high else f"{low:,} to {high:,} tasks"
            clients = f"{sizes}, distance {format_fixed(statistics.distances.mean(), 2)}"
            lines = ((33, 10.5, TEXT_COLOR, name), (19, 8.5, TEXT_COLOR, parameters), (6, 8.5, MUTED_COLOR, clients))
            for height, size, colour, text in lines:
                panel.annotate(
                    shorten(text, _MAX_PANEL_TITLE, placeholder=" \u2026").replace("$", "\\$"),
                    (0, 1),
                    xycoords="axes fraction",
                    xytext=(0, height),
                    textcoords="offset points",
                    fontsize=size,
                    color=colour,
                )
            if number:
                panel.set_ylabel("")
        handles, labels = axes[0].get_legend_handles_labels()
        add_legend(figure, handles, labels, loc="lower left", bbox_to_anchor=(0.5 / width, 0.0))
        tasks = f"{plain_name(client_splits[0].record.env_id)}  \u00b7  {len(client_splits[0].pool):,} tasks"
        add_title(figure, tasks, x=0.12 / width)
        save_figure(figure, path)
    return axes


def describe_sampler(record: SplitRecord) -> tuple[str, str]:
    """The name of a split's sampler, and its parameters except sizes and those with their default value."""
    target = SAMPLERS.get(record.sampler) if record.sampler in SAMPLERS else None
    fields = target.model_fields if isinstance(target, type) and issubclass(target, Sampler) else {}
    parts = []
    for key, value in record.parameters.items():
        if key in _SIZES or (key in fields and fields[key].default == value):
            continue
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{SYMBOLS.get(key, key.replace('_', ' '))} = {shown}")
    return record.sampler.replace("_", " ").capitalize(), ", ".join(parts)
