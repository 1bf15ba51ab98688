"""Screenshots of the demo's report, its episodes, and the leaderboard's page, by a headless Chromium.

`make screenshots` first makes the pages: demo-report and build/leaderboard.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from benchmarks.pictures import PICTURES
from fedagentgym.base.errors import DataError
from fedagentgym.base.imports import require

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCALE = 1.5
"""The number of pixels of a picture for each pixel of the page."""


@dataclass(frozen=True)
class Screen:
    """A page, the size of the part that is shown, and a script that moves this part to the top of the page.

    The documentation shows pictures about 700 pixels wide."""

    page: str
    width: int
    height: int
    script: str = ""


SKIP_TO = """
const main = document.querySelector("main"), heads = [...main.querySelectorAll("h2")];
const from = heads.find(one => one.textContent === {title!r});
while (main.firstChild !== from) main.firstChild.remove();
main.style.paddingTop = 0;
"""
NEWLY_SOLVED = """
window.addEventListener("load", () => {
  const marked = (one, marks) => one.querySelector(".marks").textContent.startsWith(marks);
  [...document.querySelectorAll(".tasks button")].find(one => marked(one, "\u2717\u2713")).click();
});
"""
ONE_TABLE = """
location.hash = "skills-fedagent-v1";
for (const one of document.querySelectorAll(".facts, section.suite > details")) one.remove();
"""
SCREENS = {
    "report": Screen("demo-report/index.html", 800, 588),
    "alone-and-together": Screen("demo-report/index.html", 700, 616, SKIP_TO.format(title="Alone and together")),
    "episodes": Screen("demo-report/index.html", 860, 700, SKIP_TO.format(title="Episodes") + NEWLY_SOLVED),
    "leaderboard": Screen("build/leaderboard/index.html", 960, 1180, ONE_TABLE),
}


def take_all(quick: bool = False) -> list[Measurement]:
    """Take the screenshots of the documentation; needs Chromium, demo-report and build/leaderboard."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise DataError(f"screenshots need one of {', '.join(BROWSERS)}")
    missing = [screen.page for screen in SCREENS.values() if not (ROOT / screen.page).is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing: make screenshots makes it")
    return [_take(browser, name, screen) for name, screen in SCREENS.items()]


def _take(browser: str, name: str, screen: Screen) -> Measurement:
    page, taken = (ROOT / screen.page).read_text("utf-8"), PICTURES / f"{name}.png"
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(page.replace("</body>", f"<script>{screen.script}</script></body>"), "utf-8")
        options = [
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--force-device-scale-factor={SCALE}",
            "--virtual-time-budget=3000",
        ]
        size = [
            f"--user-data-dir={folder}/profile",
            f"--window-size={screen.width},{screen.height}",
            f"--screenshot={taken}",
        ]
        subprocess.run([browser, *options, *size, copy.as_uri()], check=True, capture_output=True, timeout=120)
    image = require("PIL.Image", "plots")
    image.open(taken).convert("RGB").quantize(48).save(taken, optimize=True)
    return Measurement(f"docs/pictures/{taken.name}", taken.stat().st_size / 1000, "kB", "at most 120")
