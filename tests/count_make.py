"""Count the functions and files of the package that `gymnasium.make` of a client runs through, once everything is imported.

    python tests/count_make.py [--functions]

prints the numbers for a split in memory and for one in a file, with the option the names as well.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gymnasium

import fedagentgym

PACKAGE = str(Path(fedagentgym.__file__).parent) + "/"
ENV = "fedagentgym/Guess-v0"


def find_touched(client_split: Any) -> set[tuple[str, int, str]]:
    """The functions that making a client's environment runs through: file, line and name."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    gymnasium.make(ENV, client_split=client_split, client=1)
    sys.setprofile(note)
    try:
        gymnasium.make(ENV, client_split=client_split, client=2)
    finally:
        sys.setprofile(None)
    own = [code for code in codes if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")]
    return {(code.co_filename.removeprefix(PACKAGE), code.co_firstlineno, code.co_qualname) for code in own}


def count_both() -> dict[str, set[tuple[str, int, str]]]:
    """The functions for a split in memory, and for one in a file."""
    made = fedagentgym.federate(ENV, clients=4, tasks_per_client=5)
    with tempfile.TemporaryDirectory() as folder:
        stored = made.save(Path(folder) / "split.json")
        return {"in memory": find_touched(made), "in a file": find_touched(stored)}


if __name__ == "__main__":
    for name, touched in count_both().items():
        names = [f"  {file}:{line} {function}\n" for file, line, function in sorted(touched)]
        files = {file for file, _, _ in touched}
        sys.stdout.write("".join(names if "--functions" in sys.argv else ()))
        sys.stdout.write(f"{name}: {len(touched)} functions in {len(files)} files\n")
