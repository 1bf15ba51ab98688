"""A command in a terminal of 80 columns, recorded with its times, and the recording as an animated drawing.

`python -m benchmarks record-demo` writes demo.jsonl beside this file; a viewer without animation sees the last state.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from benchmarks.pictures.canvas import Drawing
from fedagentgym.base.files import write_atomic

KEPT = Path(__file__).with_name("demo.jsonl")
COLUMNS, LINE = 80, 21
CLEAR = "\r\x1b[2K"
"""The sequence that clears the line of progress."""
WEIGHT = re.compile(r"\x1b\[[\d;]*m")
"""The sequences that switch styles such as bold."""
APART = 2.0
"""The least seconds between two lines of progress that are kept."""
PLAYED = 12.0
"""The length of the animation in seconds."""
MOTION = """
@keyframes show{from{opacity:0}to{opacity:1}}@keyframes pass{from,to{opacity:1}}
.l{animation:show 1ms backwards}.p{opacity:0;animation:pass 1s}
@media (prefers-reduced-motion:reduce){.l,.p{animation:none}}"""


def record_demo(quick: bool = False) -> list[Measurement]:
    """Run the demo in a terminal, and keep its output for the drawing and its report in demo-report for screenshots."""
    events = list(record([sys.executable, "-m", "fedagentgym", "demo"], ROOT))
    write_atomic(KEPT, "".join(f"{json.dumps(event)}\n" for event in events).encode())
    return [Measurement("length of the demo", events[-1][0], "s")]


def record(command: Sequence[str], folder: Path = ROOT) -> Iterator[tuple[float, str]]:
    """The texts that a command writes into a terminal, each with the seconds since the start."""
    began = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvp(command[0], list(command))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    last = -APART
    while text := _read(terminal):
        now = round(time.monotonic() - began, 1)
        if "\n" in text or text == CLEAR or now - last >= APART:
            last = now
            yield now, text
    os.waitpid(child, 0)


def _read(terminal: int) -> str:
    """The next text; an empty text at the end."""
    try:
        return os.read(terminal, 65_536).decode("utf-8", "replace")
    except OSError:
        return ""


def draw_demo() -> Drawing:
    events = [json.loads(line) for line in KEPT.read_text("utf-8").splitlines()]
    return draw_recording("make demo", [(float(seconds), str(text)) for seconds, text in events])


def draw_recording(command: str, events: Sequence[tuple[float, str]]) -> Drawing:
    """Draw a recording. A line appears at the time at which it was written; the next line of progress replaces the last one."""
    written, passing = _read_screen(events)
    drawing = Drawing(f"What {command} prints", 70 + LINE * len(written), style=MOTION)
    pace = PLAYED / max(events[-1][0], 1e-9)
    drawing.add_text(24, 36, f"$ {command}", bold=True, mono=True)
    for number, (seconds, line) in enumerate(written):
        if line.strip():
            style = f"animation-delay:{seconds * pace:.2f}s"
            drawing.add_text(24, 64 + LINE * number, line, mono=True, kind="l", style=style)
    for number, begins, ends, line in passing:
        style = f"animation-delay:{begins * pace:.2f}s;animation-duration:{(ends - begins) * pace:.2f}s"
        drawing.add_text(24, 64 + LINE * number, line, "muted", mono=True, kind="p", style=style)
    return drawing


def _read_screen(
    events: Sequence[tuple[float, str]],
) -> tuple[list[tuple[float, str]], list[tuple[int, float, float, str]]]:
    """The lines that stay, with their times, and the lines of progress: line number, times of begin and end, text."""
    written: list[tuple[float, str]] = []
    passing: list[tuple[int, float, float, str]] = []
    now, since = "", 0.0
    for seconds, text in events:
        for part in WEIGHT.sub("", text).replace("\r\n", "\n").replace(CLEAR, "\0").splitlines(keepends=True):
            *cleared, rest = part.split("\0")
            if cleared:
                if shown := (now + cleared[0]).strip():
                    passing.append((len(written), since, seconds, shown))
                now, since = "", seconds
            now += rest
            if now.endswith("\n"):
                written.append((seconds, now.rstrip()))
                now, since = "", seconds
    return written, passing
