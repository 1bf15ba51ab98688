"""Small charts for pages: lines with a band, dots, paths in a plane and reference lines on one pair of axes, and dumbbells.

This module computes all positions, and `templates/charts.html` draws them. Shapes are SVG that is stretched to the width of the
page. All text is HTML outside the SVG, so that it has the same size on a phone as on a wide screen. Charts need no script and no
library, and take their colours from the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedagentgym.base.statistics import Estimate
from fedagentgym.pages.render import format_bound, format_percent, format_points

SIZE = 1000
"""Width and height of a drawing, in its own units."""
LABEL_GAP = 7.5
"""Minimum distance of the labels of two reference lines, in hundredths of the height."""
Points = Sequence[tuple[float, float]]
Shape = tuple[str, str, str]
"""An SVG path: class, path data, and title."""


@dataclass(frozen=True)
class Series:
    """The points of one series. `kind` is `line`, `dots`, or `path`, a curve in a plane with an open dot at its start and the
    last label at its end. `band` has a lower and an upper value for each point of a line. A series without a name is not in the
    key."""

    name: str
    points: Points
    kind: str = "line"
    band: Points = ()
    labels: Sequence[str] = ()
    colour: int = 1
    dashed: bool = False
    key: str = ""
    """The name by which a script finds the series, to highlight it."""

    def draw(self, scale: Scale) -> list[Shape]:
        """Return the SVG paths of the series. The title of a path is shown when the pointer is over it."""
        places = scale.to_units(self.points)
        names = [*self.labels, *[""] * (len(places) - len(self.labels))]
        if self.kind == "dots":
            return _draw_dots("dot", places, names)
        shapes = [("line dashed" if self.dashed else "line", _join_points(places), "")]
        shapes += [] if self.dashed else _draw_dots("mark", places, names)
        if self.kind == "path":
            shapes += [*_draw_dots("large", places[:1], [""]), *_draw_dots("open", places[:1], names)]
            shapes += _draw_dots("end", places[-1:], names[-1:])
        if self.band:
            xs = [x for x, _ in self.points]
            upper = scale.to_units([(x, high) for x, (_, high) in zip(xs, self.band, strict=True)])
            lower = scale.to_units([(x, low) for x, (low, _) in zip(xs, self.band, strict=True)])
            shapes.insert(0, ("band", f"{_join_points([*upper, *reversed(lower)])}Z", ""))
        return shapes


@dataclass(frozen=True)
class Reference:
    """A reference value, drawn as a horizontal line with a name."""

    name: str
    value: float


@dataclass(frozen=True)
class Chart:
    """Several series on one pair of axes. With `plane`, both axes are quantities, and neither has to start at zero."""

    title: str
    series: Sequence[Series]
    x: str = "round"
    y: str = ""
    limits: tuple[float, float] | None = None
    plane: bool = False
    references: Sequence[Reference] = ()
    percent: bool = False
    """True if the vertical axis is a share with percentages as ticks."""
    x_labels: Sequence[str] = ()
    """Names of the positions 0, 1, ... of the horizontal axis; without names, positions are numbers."""

    @property
    def is_empty(self) -> bool:
        return not any(one.points for one in self.series)

    @property
    def shown(self) -> list[Series]:
        return [one for one in self.series if one.points]

    def list_y_ticks(self, scale: Scale) -> list[tuple[float, str]]:
        """Return the ticks of the vertical axis with their labels."""
        ticks = compute_ticks(scale.low, scale.high)
        return [(value, f"{100 * value:g} %" if self.percent else format_tick(value)) for value in ticks]

    def list_x_ticks(self, scale: Scale) -> list[tuple[float, str]]:
        """Return the ticks of the horizontal axis with their labels."""
        if self.x_labels:
            return [(float(place), name) for place, name in enumerate(self.x_labels)]
        ticks = compute_ticks(scale.left, scale.right, whole=not self.plane)
        return [(value, format_tick(value)) for value in ticks]

    def place_references(self, scale: Scale) -> list[tuple[float, str]]:
        """Return the heights and the names of reference lines, moved apart where names would overlap."""
        placed = []
        ceiling = 107.0
        for one in sorted(self.references, key=lambda one: -one.value):
            ceiling = min(scale.share_up(one.value), ceiling - LABEL_GAP)
            placed.append((ceiling, one.name))
        return placed

    def make_scale(self) -> Scale:
        """Return the scale of the axes; the chart must have points."""
        xs = [x for one in self.shown for x, _ in one.points]
        ys = [y for one in self.shown for y in (*(y for _, y in one.points), *(y for pair in one.band for y in pair))]
        ys += [one.value for one in self.references]
        if self.plane:
            return Scale(*pad_range(min(xs), max(xs)), *(self.limits or pad_range(min(ys), max(ys))))
        low, high = self.limits or (min(0.0, *ys), max(ys))
        high = high if high > low else low + 1
        if self.limits is None:
            marks = compute_ticks(low, high)
            high = max(high, 2 * marks[-1] - marks[-2]) if high > marks[-1] else high
        left, right = (0, len(self.x_labels) - 1) if self.x_labels else (min(xs), max(xs))
        return Scale(left, right if right > left else left + 1, low, high)


@dataclass(frozen=True)
class Scale:
    """The limits of both axes, which convert values to positions in the drawing."""

    left: float
    right: float
    low: float = 0.0
    high: float = 1.0

    def share_across(self, x: float) -> float:
        """Return a horizontal position in per cent of the width, from the left."""
        return 100 * (x - self.left) / (self.right - self.left)

    def share_up(self, y: float) -> float:
        """Return a vertical position in per cent of the height, from the bottom."""
        return 100 * (min(max(y, self.low), self.high) - self.low) / (self.high - self.low)

    def to_height(self, y: float) -> float:
        """Return a vertical position in units of the drawing, from the top."""
        return SIZE - SIZE / 100 * self.share_up(y)

    def to_units(self, points: Points) -> list[tuple[float, float]]:
        return [(SIZE / 100 * self.share_across(x), self.to_height(y)) for x, y in points]


# ---- shapes and ticks ---------------------------------------------------------------------------------------------


def _draw_dots(kind: str, places: Points, names: Sequence[str]) -> list[Shape]:
    """Return dots as lines without length. Their round caps stay round however the drawing is stretched."""
    return [(kind, f"M{x:.1f} {y:.1f}h.01", name) for (x, y), name in zip(places, names, strict=False)]


def _join_points(places: Points) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def pad_range(low: float, high: float) -> tuple[float, float]:
    """Return the range with a margin on both sides, also if all values are equal."""
    room = 0.06 * (high - low) or 0.06 * abs(high) or 0.06
    return low - room, high + room


def compute_ticks(low: float, high: float, about: int = 5, *, whole: bool = False) -> list[float]:
    """Return round numbers between two limits, only integers with `whole`.

    >>> compute_ticks(0, 20)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    raw = max((high - low) / about, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def format_tick(value: float) -> str:
    """Return the label of a tick."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


# ---- dumbbells ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dumbbell:
    """A share before and after, each with an interval. `before` is None if there is only one value.

    `change` is the paired difference, if it was computed. It is written with its interval, and the interval of `before` is drawn
    too.
    """

    name: str
    before: Estimate | None
    after: Estimate
    change: Estimate | None = None

    @property
    def value(self) -> str:
        start = "" if self.before is None else f"{format_percent(self.before.mean)} → "
        return f"{start}{format_percent(self.after.mean)}"

    @property
    def difference(self) -> str:
        """The change in percentage points; empty if there is only one value."""
        if self.before is None:
            return ""
        if self.change is None:
            return format_points(self.after.mean, self.before.mean)
        low, high = format_bound(self.change.low), format_bound(self.change.high)
        return f"{format_points(self.after.mean, self.before.mean, self.change.mean)} [{low}, {high}]"
