"""Small charts for pages: lines with a band, dots, paths through a plane, and reference lines, on one pair of axes.

Shapes are SVG that is stretched to the width of the page; all text is HTML outside the SVG, so that it has the same size on a
phone as on a wide screen. No script, no library, colours from the page (`report.css`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedagentgym.experiment.report.markup import show

SIZE = 1000
"""Width and height of a drawing, in its own units."""
LABEL_GAP = 7.5
"""Minimum distance of the labels of two reference lines, in hundredths of the height."""


@dataclass(frozen=True)
class Series:
    """Points of one series. `kind` is line, dots, or path: a curve in the plane whose start is open and whose end is named
    by the last label. `band` gives a lower and an upper value for each point of a line. Without a name it is not in the key."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str = "line"
    band: Sequence[tuple[float, float]] = ()
    labels: Sequence[str] = ()
    colour: int = 1
    dashed: bool = False
    key: str = ""
    """Names the series for a script that highlights it."""


@dataclass(frozen=True)
class Reference:
    """A value to compare with: a horizontal line across the chart, with its name."""

    name: str
    value: float


@dataclass(frozen=True)
class Chart:
    """Several series on one pair of axes. `plane`: the horizontal axis is a quantity as well, and neither starts at zero."""

    title: str
    series: Sequence[Series]
    x: str = "round"
    y: str = ""
    limits: tuple[float, float] | None = None
    plane: bool = False
    references: Sequence[Reference] = ()
    percent: bool = False
    """The vertical axis is a share: its ticks are percentages."""
    x_labels: Sequence[str] = ()
    """Names of the positions 0, 1, ... of the horizontal axis, if these are not numbers."""

    def to_html(self) -> str:
        """The chart, or a note if there is nothing to show."""
        shown = [one for one in self.series if one.points]
        if not shown:
            return f'<p class="empty">{show(self.title)}: nothing to show.</p>'
        scale = self._make_scale(shown)
        shapes = [scale.draw_grid(), *(_draw(one, scale) for one in shown)]
        shapes += [_draw_reference(one, scale) for one in self.references]
        texts = [self._write_ticks(scale), _write_references(self.references, scale)]
        texts += [_write_end(one, scale) for one in shown if one.kind == "path"]
        drawing = (
            f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img"'
            f' aria-label="{show(self.title)}">{"".join(shapes)}</svg>'
        )
        name = f'<div class="y-name">{show(self.y)}</div>' if self.y else ""
        return (
            f'<div class="chart">{_write_key(shown)}{name}<div class="plot">{drawing}{"".join(texts)}</div>'
            f'<div class="x-name">{show(self.x)}</div></div>'
        )

    def _write_ticks(self, scale: Scale) -> str:
        parts = []
        for value in compute_ticks(scale.low, scale.high):
            text = f"{100 * value:g} %" if self.percent else format_tick(value)
            parts.append(f'<span class="y" style="bottom:{scale.share_up(value):.2f}%">{show(text)}</span>')
        places: Sequence[tuple[float, str]]
        if self.x_labels:
            places = [(float(place), name) for place, name in enumerate(self.x_labels)]
        else:
            places = [
                (value, format_tick(value)) for value in compute_ticks(scale.left, scale.right, whole=not self.plane)
            ]
        for value, text in places:
            parts.append(f'<span class="x" style="left:{scale.share_across(value):.2f}%">{show(text)}</span>')
        return "".join(parts)

    def _make_scale(self, shown: Sequence[Series]) -> Scale:
        xs = [x for one in shown for x, _ in one.points]
        ys = [y for one in shown for _, y in one.points] + [y for one in shown for pair in one.band for y in pair]
        ys += [one.value for one in self.references]
        if self.plane and self.limits is None:
            return Scale(*pad_range(min(xs), max(xs)), *pad_range(min(ys), max(ys)))
        if self.plane and self.limits is not None:
            return Scale(*pad_range(min(xs), max(xs)), *self.limits)
        low, high = self.limits or (min(0.0, *ys), max(ys))
        high = high if high > low else low + 1
        if self.limits is None:
            marks = compute_ticks(low, high)
            high = max(high, 2 * marks[-1] - marks[-2]) if high > marks[-1] else high
        left, right = (0, len(self.x_labels) - 1) if self.x_labels else (min(xs), max(xs))
        return Scale(left, right if right > left else left + 1, low, high)


@dataclass(frozen=True)
class Scale:
    """Where a value lies within the drawing."""

    left: float
    right: float
    low: float
    high: float

    def share_across(self, x: float) -> float:
        """Hundredths of the width from the left."""
        return 100 * (x - self.left) / (self.right - self.left)

    def share_up(self, y: float) -> float:
        """Hundredths of the height from the bottom."""
        return 100 * (min(max(y, self.low), self.high) - self.low) / (self.high - self.low)

    def to_units(self, x: float, y: float) -> tuple[float, float]:
        return SIZE / 100 * self.share_across(x), SIZE - SIZE / 100 * self.share_up(y)

    def draw_grid(self) -> str:
        heights = (self.to_units(self.left, value)[1] for value in compute_ticks(self.low, self.high))
        return "".join(f'<path class="grid" d="M0 {height:.1f}H{SIZE}"/>' for height in heights)


# ---- shapes ------------------------------------------------------------------------------------------------------


def _draw(series: Series, scale: Scale) -> str:
    places = [scale.to_units(x, y) for x, y in series.points]
    names = [*series.labels, *[""] * (len(places) - len(series.labels))]
    if series.kind == "path":
        shapes = _draw_path(places, names)
    elif series.kind == "dots":
        shapes = "".join(_draw_dot("dot", place, name) for place, name in zip(places, names, strict=True))
    else:
        shapes = _draw_line(series, scale, places, names)
    key = f' data-key="{show(series.key)}"' if series.key else ""
    return f'<g class="series c{series.colour}"{key}>{shapes}</g>'


def _draw_line(series: Series, scale: Scale, places: Sequence[tuple[float, float]], names: Sequence[str]) -> str:
    parts = []
    if series.band:
        xs = [x for x, _ in series.points]
        upper = [scale.to_units(x, high) for x, (_, high) in zip(xs, series.band, strict=True)]
        lower = [scale.to_units(x, low) for x, (low, _) in zip(xs, series.band, strict=True)]
        parts.append(f'<path class="band" d="{_join_points([*upper, *reversed(lower)])}Z"/>')
    dash = " dashed" if series.dashed else ""
    parts.append(f'<path class="line{dash}" d="{_join_points(places)}"/>')
    if not series.dashed:
        parts += [_draw_dot("mark", place, name) for place, name in zip(places, names, strict=True)]
    return "".join(parts)


def _draw_path(places: Sequence[tuple[float, float]], names: Sequence[str]) -> str:
    parts = [f'<path class="line" d="{_join_points(places)}"/>']
    parts += [_draw_dot("mark", place, name) for place, name in zip(places, names, strict=True)]
    parts += [_draw_dot("large", places[0]), _draw_dot("open", places[0], names[0])]
    parts.append(_draw_dot("end", places[-1], names[-1]))
    return "".join(parts)


def _draw_dot(kind: str, place: tuple[float, float], name: str = "") -> str:
    """A dot that stays round however the drawing is stretched: the round cap of a line without length."""
    told = f"<title>{show(name)}</title>" if name else ""
    return f'<path class="{kind}" d="M{place[0]:.1f} {place[1]:.1f}h.01">{told}</path>'


def _draw_reference(reference: Reference, scale: Scale) -> str:
    _, height = scale.to_units(scale.left, reference.value)
    return f'<path class="reference" d="M0 {height:.1f}H{SIZE}"/>'


def _join_points(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


# ---- texts -------------------------------------------------------------------------------------------------------


def _write_references(references: Sequence[Reference], scale: Scale) -> str:
    """The names of the reference lines, moved apart where they would overlap."""
    parts = []
    ceiling = 107.0
    for one in sorted(references, key=lambda one: -one.value):
        height = min(scale.share_up(one.value), ceiling - LABEL_GAP)
        ceiling = height
        parts.append(f'<span class="reference" style="bottom:{height:.2f}%">{show(one.name)}</span>')
    return "".join(parts)


def _write_end(series: Series, scale: Scale) -> str:
    if not series.labels:
        return ""
    x, y = series.points[-1]
    across, up = scale.share_across(x), scale.share_up(y)
    side = f"right:{100 - across:.2f}%" if across > 50 else f"left:{across:.2f}%"
    return f'<span class="end" style="{side};bottom:{up:.2f}%">{show(series.labels[-1])}</span>'


def _write_key(shown: Sequence[Series]) -> str:
    named = [one for one in shown if one.name]
    if not named:
        return ""
    items = "".join(
        f'<li class="c{one.colour}"><i class="{"dashed" if one.dashed else one.kind}"></i>{show(one.name)}</li>'
        for one in named
    )
    return f'<ul class="key">{items}</ul>'


def pad_range(low: float, high: float) -> tuple[float, float]:
    """Add a margin on both sides, also if all values are the same."""
    room = 0.06 * (high - low) or 0.06 * abs(high) or 0.06
    return low - room, high + room


def compute_ticks(low: float, high: float, about: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers between two limits, integers only if `whole`.

    >>> compute_ticks(0, 20)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    raw = max((high - low) / about, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def format_tick(value: float) -> str:
    """A tick's label."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
