"""Small charts as SVG text: lines with a band, and dots, on one pair of axes. No script, no library, colours from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 30, 40


@dataclass(frozen=True)
class Series:
    """Points of one thing. `kind` is line, dots, or path: a way through the plane, whose start is open and whose end is named
    by the last label. `band` gives a lower and an upper value for each point of a line. Without a name it has no key."""

    name: str
    points: Sequence[tuple[float, float]]
    kind: str = "line"
    band: Sequence[tuple[float, float]] = ()
    labels: Sequence[str] = ()
    colour: int = 1
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Several series on one pair of axes. `plane`: the horizontal axis is a quantity as well, and neither starts at zero."""

    title: str
    series: Sequence[Series]
    x: str = "round"
    y: str = ""
    limits: tuple[float, float] | None = None
    plane: bool = False

    def to_svg(self) -> str:
        """The chart; a note in its place when there is nothing to show."""
        shown = [one for one in self.series if one.points]
        if not shown:
            return f'<p class="empty">{escape(self.title)}: nothing to show.</p>'
        scale = self._make_scale(shown)
        parts = [scale.draw_axes(self.x, self.y), *(_draw(one, scale) for one in shown), _draw_legend(shown)]
        label = escape(self.title, quote=True)
        body = "".join(parts)
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}"><title>{label}</title>{body}</svg>'

    def _make_scale(self, shown: Sequence[Series]) -> _Scale:
        xs = [x for one in shown for x, _ in one.points]
        ys = [y for one in shown for _, y in one.points] + [y for one in shown for pair in one.band for y in pair]
        if self.plane:
            return _Scale(*_pad_range(min(xs), max(xs)), *_pad_range(min(ys), max(ys)), whole=False)
        low, high = self.limits or (min(0.0, *ys), max(ys))
        high = high if high > low else low + 1
        if self.limits is None:
            marks = compute_ticks(low, high)
            high = max(high, 2 * marks[-1] - marks[-2]) if high > marks[-1] else high
        return _Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, low, high)


@dataclass(frozen=True)
class _Scale:
    left: float
    right: float
    low: float
    high: float
    whole: bool = True

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.left) / (self.right - self.left)
        up = (min(max(y, self.low), self.high) - self.low) / (self.high - self.low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def draw_axes(self, x_name: str, y_name: str) -> str:
        parts = []
        for value in compute_ticks(self.low, self.high):
            _, y = self.to_pixels(self.left, value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(format_tick(value))}</text>')
        for value in compute_ticks(self.left, self.right, whole=self.whole):
            x, _ = self.to_pixels(value, self.low)
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(format_tick(value))}</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text class="name" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_name)}</text>')
        if y_name:
            up = (TOP + HEIGHT - BOTTOM) / 2
            turn = f'transform="rotate(-90 13 {up})"'
            parts.append(f'<text class="name" x="13" y="{up}" text-anchor="middle" {turn}>{escape(y_name)}</text>')
        return "".join(parts)


def _draw(series: Series, scale: _Scale) -> str:
    places = [scale.to_pixels(x, y) for x, y in series.points]
    names = [*series.labels, *[""] * (len(places) - len(series.labels))]
    if series.kind == "path":
        return _draw_path(places, names, series.colour)
    if series.kind == "dots":
        return "".join(
            f'<circle class="c{series.colour} dot" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(name)}</title></circle>'
            for (x, y), name in zip(places, names, strict=True)
        )
    parts = []
    if series.band:
        xs = [x for x, _ in series.points]
        upper = [scale.to_pixels(x, high) for x, (_, high) in zip(xs, series.band, strict=True)]
        lower = [scale.to_pixels(x, low) for x, (low, _) in zip(xs, series.band, strict=True)]
        parts.append(f'<polygon class="c{series.colour} band" points="{_format_points([*upper, *reversed(lower)])}"/>')
    dash = " dashed" if series.dashed else ""
    parts.append(f'<polyline class="c{series.colour} line{dash}" points="{_format_points(places)}"/>')
    if not series.dashed:
        parts += [f'<circle class="c{series.colour} mark" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in places]
    return "".join(parts)


def _draw_path(places: Sequence[tuple[float, float]], names: Sequence[str], colour: int) -> str:
    (x0, y0), (x, y) = places[0], places[-1]
    parts = [f'<polyline class="c{colour} line" points="{_format_points(places)}"/>']
    parts += [
        f'<circle class="c{colour} mark" cx="{px:.1f}" cy="{py:.1f}" r="2.6"><title>{escape(name)}</title></circle>'
        for (px, py), name in zip(places, names, strict=True)
    ]
    parts.append(f'<circle class="c{colour} open" cx="{x0:.1f}" cy="{y0:.1f}" r="8"/>')
    parts.append(
        f'<circle class="c{colour} mark" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(names[-1])}</title></circle>'
    )
    side, anchor = (-12, "end") if x > (LEFT + WIDTH - RIGHT) / 2 else (12, "start")
    height = y + 18 if y < TOP + 20 else y - 9
    parts.append(
        f'<text class="name" x="{x + side:.1f}" y="{height:.1f}" text-anchor="{anchor}">{escape(names[-1])}</text>'
    )
    return "".join(parts)


def _draw_legend(shown: Sequence[Series]) -> str:
    parts, x = [], LEFT + 6.0
    for one in (one for one in shown if one.name):
        parts.append(f'<rect class="c{one.colour} key" x="{x:.0f}" y="{TOP - 25}" width="10" height="10" rx="2"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="{TOP - 16}">{escape(one.name)}</text>')
        x += 30 + 6.6 * len(one.name)
    return "".join(parts)


def _pad_range(low: float, high: float) -> tuple[float, float]:
    """A little room on both sides, and some where all values are the same."""
    room = 0.06 * (high - low) or 0.06 * abs(high) or 0.06
    return low - room, high + room


def _format_points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


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
