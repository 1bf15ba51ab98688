"""The page of a comparison: one table and a drawing of the intervals, self-contained."""

from __future__ import annotations

from html import escape

from fedagentgym.leaderboard.compare import Comparison
from fedagentgym.leaderboard.record import Interval

STYLE = """
:root { color-scheme: light dark; --line: light-dark(#ccc, #555); --dot: light-dark(#1f5fa8, #7ab6f5); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .8rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
svg { width: 14rem; height: 1.2rem; } line { stroke: var(--dot); stroke-width: 2; } circle { fill: var(--dot); }
"""


def write_comparison(comparison: Comparison) -> str:
    """The page."""
    rows = "".join(_write_row(comparison, name) for name in comparison.names)
    title = f"{comparison.measure} of {len(comparison.names)} runs"
    first = escape(comparison.names[0])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f'<div class="wide" tabindex="0" role="region" aria-label="comparison"><table><thead><tr><th>run</th>'
        f"<th>{escape(comparison.measure)}</th><th>95 % interval</th><th>difference to {first}</th><th>p, corrected</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div><p>{escape(comparison.pairing)}. Intervals by bootstrap, p-values"
        " corrected for the number of comparisons (Holm).</p></main></body></html>\n"
    )


def _write_row(comparison: Comparison, name: str) -> str:
    found = comparison.measured[name][comparison.measure]
    more = comparison.differences.get(name)
    cells = [f"{found.mean:.3f}", _draw(found, _find_end(comparison))]
    cells += (
        ["", ""] if more is None else [f"{more.mean:+.3f} [{more.low:+.3f}, {more.high:+.3f}]", f"{more.adjusted:.4f}"]
    )
    return f"<tr><th scope='row'>{escape(name)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _find_end(comparison: Comparison) -> float:
    """The right end of the axis: 1 for shares."""
    return max(1.0, *(found[comparison.measure].high for found in comparison.measured.values()))


def _draw(found: Interval, end: float) -> str:
    low, middle, high = (100 * value / end for value in (found.low, found.mean, found.high))
    told = f"{found.low:.3f} to {found.high:.3f}"
    return (
        f'<svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{told}"><title>{told}</title>'
        f'<line x1="{low:.2f}" x2="{high:.2f}" y1="5" y2="5"/><circle cx="{middle:.2f}" cy="5" r="2.5"/></svg>'
    )
