"""Area and cost of reaching the target, counted again from a result by nothing but Python's own modules.

python tests/leaderboard/recount.py leaderboard/results/methods-tiny-skills-v2/pubswap.zip 10240 0.65
"""

import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any


def recount(archive: Path, budget: float, target: float) -> dict[str, dict[str, float]]:
    """For each run `area`, and what was spent when `target` was first reached: its round, its bytes."""
    found = {}
    with zipfile.ZipFile(archive) as packed:
        runs = {name: packed.read(name) for name in packed.namelist() if name.endswith(".tar.xz")}
    for name, data in runs.items():
        with tarfile.open(fileobj=io.BytesIO(data)) as run:
            curve = json.loads(run.extractfile("result.json").read())["curve"]  # type: ignore[union-attr]
            rounds = [one["round"] for one in curve]
            texts = [run.extractfile(f"evaluation/{number:04d}.jsonl").read() for number in rounds]  # type: ignore[union-attr]
        key = name.removesuffix(".tar.xz")
        solved = [[json.loads(line)["success"] for line in text.splitlines()] for text in texts]
        x = [one["spent"]["episodes"] for one in curve]
        y = [sum(each) / len(each) for each in solved]
        # flat until the first evaluation, while a method prepares, and after the last one
        x, y = [0, *x, max(budget, x[-1])], [y[0], *y, y[-1]]
        steps = zip(x, x[1:], y, y[1:], strict=False)
        area = sum((after - before) * (low + high) / 2 for before, after, low, high in steps)
        found[key] = {"area": area / x[-1] if x[-1] else y[-1]}
        for point, success in zip(curve, y[1:], strict=False):
            if success >= target and "rounds_to_target" not in found[key]:
                spent: dict[str, Any] = point["spent"]
                sent = float(spent["bytes_down"] + spent["bytes_up"])
                found[key] |= {"rounds_to_target": float(point["round"]), "bytes_to_target": sent}
    return found


def count_episodes(log: Path, until: int) -> int:
    """The episodes that the records of a run, its preparation in round 0 included, say were played until a round."""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    taken = [one["metrics"].get(name, 0) for one in records if one["round"] <= until for name in ("episodes", "scored")]
    return round(sum(taken))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(recount(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])), indent=1))
