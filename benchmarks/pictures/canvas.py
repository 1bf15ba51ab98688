"""A drawing of boxes, lines and words in SVG. It has a background and two sets of colours, one of them for dark systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from fedagentgym.base.files import write_atomic

WIDTH = 820
"""The width of pictures in the documentation; it is the same for all, so that their words have the same size."""
NARROW = 420
"""The width of README's pictures; a phone shows them at 0.8 of their size."""
SIZE = 15
"""The size of words in pixels at full width; the documentation shows pictures at no less than 0.8 of it."""
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
COLORS = {
    "card": ("#ffffff", "#0d1117"),
    "panel": ("#f2f5f8", "#1b222c"),
    "edge": ("#cfd7df", "#3d4752"),
    "text": ("#1f2933", "#e6edf3"),
    "muted": ("#55616d", "#a3aeb9"),
    "blue": ("#2166ac", "#6cb0f0"),
    "green": ("#1b7837", "#5cc374"),
    "red": ("#b2182b", "#f2838c"),
    "orange": ("#b35806", "#f0a04b"),
    "violet": ("#6a4fa3", "#b9a0f0"),
    "teal": ("#147a78", "#4fc3c0"),
    "yellow": ("#c79a00", "#e6c34a"),
}
"""Name -> the colour on a light and on a dark background."""
SERIES = ("blue", "teal", "green", "yellow", "orange", "violet")
Anchor = Literal["start", "middle", "end"]


@dataclass
class Drawing:
    """Shapes in the order in which they are drawn. Coordinates are pixels from the top left corner."""

    title: str
    height: float
    width: float = WIDTH
    style: str = ""
    parts: list[str] = field(default_factory=list)

    def add_box(
        self, x: float, y: float, width: float, height: float, fill: str = "panel", edge: str = "", radius: float = 0
    ) -> None:
        shape = f'x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" height="{_short(height)}"'
        shape += f' rx="{_short(radius)}"' if radius else ""
        self.parts.append(f"<rect {shape}{_list_classes(fill, edge)}/>")

    def add_circle(self, x: float, y: float, radius: float, fill: str = "panel", edge: str = "") -> None:
        shape = f'cx="{_short(x)}" cy="{_short(y)}" r="{_short(radius)}"'
        self.parts.append(f"<circle {shape}{_list_classes(fill, edge)}/>")

    def add_text(
        self, x: float, y: float, words: str, color: str = "text", size: float = SIZE, anchor: Anchor = "start",
        *, bold: bool = False, mono: bool = False, kind: str = "", style: str = "", turned: bool = False,
    ) -> None:  # fmt: skip
        """Add words with their baseline at y or, if `turned`, reading upwards. `kind` is a class of the drawing's own style."""
        classes = " ".join(
            ["f-" + color, *(["b"] if bold else []), *(["m"] if mono else []), *([kind] if kind else [])]
        )
        place = f'x="{_short(x)}" y="{_short(y)}"' + (f' font-size="{_short(size)}"' if size != SIZE else "")
        place += f' text-anchor="{anchor}"' if anchor != "start" else ""
        place += f' style="{style}"' if style else ""
        place += f' transform="rotate(-90 {_short(x)} {_short(y)})"' if turned else ""
        self.parts.append(f'<text {place} class="{classes}">{escape(words)}</text>')

    def add_lines(
        self, x: float, y: float, lines: Sequence[str], color: str = "muted", anchor: Anchor = "start"
    ) -> None:
        """Add several lines of words, the first with its baseline at y."""
        for number, line in enumerate(lines):
            self.add_text(x, y + 1.35 * SIZE * number, line, color, anchor=anchor)

    def add_line(
        self,
        points: Sequence[tuple[float, float]],
        color: str,
        width: float = 2,
        *,
        dashed: bool = False,
        arrow: bool = False,
    ) -> None:
        """Add a line through points, with an arrow at its end if `arrow`."""
        path = "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)
        dashes = ' stroke-dasharray="4 5"' if dashed else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke-width="{_short(width)}"{dashes} class="s-{color}"/>')
        if arrow:
            self._add_head(points[-2], points[-1], color)

    def add_area(self, points: Sequence[tuple[float, float]], color: str, opacity: float) -> None:
        path = "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points) + "Z"
        self.parts.append(f'<path d="{path}" opacity="{opacity}" class="f-{color}"/>')

    def _add_head(self, before: tuple[float, float], end: tuple[float, float], color: str) -> None:
        """Add the head of an arrow that comes from `before`."""
        across, down = end[0] - before[0], end[1] - before[1]
        length = (across**2 + down**2) ** 0.5
        ux, uy = across / length, down / length
        wings = [(end[0] - 9 * ux + side * 5 * uy, end[1] - 9 * uy - side * 5 * ux) for side in (-1, 1)]
        self.add_area([end, *wings], color, 1)

    def format(self) -> str:
        """The text of the SVG file."""
        size = f'width="{_short(self.width)}" height="{_short(self.height)}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_short(self.width)} {_short(self.height)}"'
        )
        outline = f'x=".5" y=".5" width="{_short(self.width - 1)}" height="{_short(self.height - 1)}" rx="8"'
        return "\n".join(
            [
                f'{head} role="img" aria-label={quoteattr(self.title)}>',
                f"<title>{escape(self.title)}</title>",
                f"<style>{_list_styles()}{self.style}</style>",
                f'<rect {outline} class="f-card s-edge"/>',
                *self.parts,
                "</svg>\n",
            ]
        )

    def save(self, path: Path) -> None:
        write_atomic(path, self.format().encode())


def _list_styles() -> str:
    light = "".join(f".f-{name}{{fill:{one}}}.s-{name}{{stroke:{one}}}" for name, (one, _) in COLORS.items())
    dark = "".join(f".f-{name}{{fill:{one}}}.s-{name}{{stroke:{one}}}" for name, (_, one) in COLORS.items())
    text = f"text{{font-family:{FONT};font-size:{SIZE}px;white-space:pre}}.m{{font-family:{MONOSPACE}}}.b{{font-weight:600}}"
    return f"{text}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _list_classes(fill: str, edge: str) -> str:
    return f' class="f-{fill}{f" s-{edge}" if edge else ""}"'


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def spread_apart(places: Sequence[float], gap: float) -> list[float]:
    """Places that are at least `gap` apart, each moved as little as possible; the order by size is kept."""
    order = sorted(range(len(places)), key=lambda one: places[one])
    moved = [places[one] for one in order]
    for _ in range(50):
        for low in range(len(moved) - 1):
            lack = gap - (moved[low + 1] - moved[low])
            if lack > 0:
                moved[low] -= lack / 2
                moved[low + 1] += lack / 2
    back = dict(zip(order, moved, strict=True))
    return [back[one] for one in range(len(places))]
