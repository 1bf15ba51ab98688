"""Print how many lines of each package the tests execute, and the modules below a share: the last step of `make coverage`.

    coverage run -m pytest tests/base && coverage combine && python tests/lines_of_packages.py --below 85

It counts the statements of `fedagentgym/`, in all processes that the tests started and that ended by themselves.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from coverage import Coverage

PACKAGE = Path(__file__).resolve().parents[1] / "fedagentgym"
Lines = tuple[int, int]
"""Lines that were executed, and all lines."""


def count_lines(data: Path) -> dict[Path, Lines]:
    """The lines of each module, of the package alone."""
    coverage = Coverage(data_file=str(data), config_file=str(PACKAGE.parent / "pyproject.toml"))
    coverage.load()
    counted = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        _, statements, _, missing, _ = coverage.analysis2(str(path))
        if statements:
            counted[path.relative_to(PACKAGE)] = (len(statements) - len(missing), len(statements))
    return counted


def sum_by_package(counted: Mapping[Path, Lines]) -> dict[str, Lines]:
    sums: dict[str, Lines] = defaultdict(lambda: (0, 0))
    for path, (executed, lines) in counted.items():
        for package in (path.parts[0] if len(path.parts) > 1 else "(top)", "all"):
            sums[package] = (sums[package][0] + executed, sums[package][1] + lines)
    return {name: sums[name] for name in sorted(sums, key=lambda name: (name == "all", name))}


def format_report(counted: Mapping[Path, Lines], below: float) -> Iterator[str]:
    for name, (executed, lines) in sum_by_package(counted).items():
        yield f"{name:16} {executed:6,} of {lines:6,} lines {executed / lines:7.1%}"
    low = {path: (executed, lines) for path, (executed, lines) in counted.items() if 100 * executed < below * lines}
    if low:
        yield f"modules below {below:g} %:"
    for path, (executed, lines) in sorted(low.items(), key=lambda item: item[1][0] / item[1][1]):
        yield f"  {executed / lines:6.1%} of {lines:4} lines  {path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(".coverage"), help="what `coverage combine` wrote")
    parser.add_argument("--below", type=float, default=85.0, help="per cent below which a module is listed")
    given = parser.parse_args()
    if not given.data.is_file():
        sys.exit(f"{given.data} is not there: run `coverage run -m pytest` and `coverage combine` first")
    sys.stdout.writelines(f"{line}\n" for line in format_report(count_lines(given.data), given.below))


if __name__ == "__main__":
    main()
