"""Count the functions and files of the package that one federated round touches: two clients, Guess, in this process.

    python tests/count_round.py [--files | --functions] [--report]

prints two numbers, with an option the names as well. Counted are the named functions of the package that run inside one
`fedagentgym.train` of one round once everything is imported: its checks, its evaluation and its files included, lambdas and
comprehensions not. With `--report` the run writes its page too.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import fedagentgym
from fedagentgym.learning import memory

PACKAGE = str(Path(fedagentgym.__file__).parent) + "/"
CONFIG = {
    "name": "round",
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"clients": 2, "tasks_per_client": 8},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 2, "group_size": 3},
    "federation": {"rounds": 1},
    "evaluation": {"tasks": 10},
}


def find_touched(report: bool = False) -> set[tuple[str, int, str]]:
    """The functions that a round touches: file, line and name."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    memory._read_free_share = lambda second: 1 << 30  # it is read once a second, in some rounds and not in others
    changes = [f"output.report={'html' if report else 'none'}"]
    with tempfile.TemporaryDirectory() as folder:
        fedagentgym.train(CONFIG, [*changes, f"output.folder={folder}/warm"])
        sys.setprofile(note)
        try:
            fedagentgym.train(CONFIG, [*changes, f"output.folder={folder}/counted"])
        finally:
            sys.setprofile(None)
    own = [code for code in codes if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<")]
    return {(code.co_filename.removeprefix(PACKAGE), code.co_firstlineno, code.co_qualname) for code in own}


if __name__ == "__main__":
    touched = sorted(find_touched("--report" in sys.argv))
    by_file = Counter(file for file, _, _ in touched)
    lines = [f"{count:4d} {file}" for file, count in by_file.items()] if "--files" in sys.argv else []
    lines += [f"{file}:{line} {name}" for file, line, name in touched] if "--functions" in sys.argv else []
    sys.stdout.write("\n".join([*lines, f"{len(touched)} functions in {len(by_file)} files\n"]))
