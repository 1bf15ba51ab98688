"""Tries a tokenizer from elsewhere within limits of time and memory: `python trial.py FOLDER SECONDS BYTES`. The exit status is
the result.

A normalizer may turn each character into a thousand, and a chat template is a program. Neither can be stopped from inside the
process that runs it, so both are tried in this process first. Other errors are ignored here, since they are raised again, with
a message, where the tokenizer is loaded. This file imports nothing of the package, so that the process starts fast. The tokenizer
may take SECONDS of processor time, and the templates as many again; the time to import the libraries does not count.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEXT = "A sentence of 12 words, or so: caf\u00e9, \u4f60\u597d, <b>x</b>!\n" * 20
TALK = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Go."},
]
MAX_RENDERED_LENGTH = 1 << 20
"""The most characters that a chat template may make of `TALK`."""
NO_MEMORY, TOO_LONG = 3, 4
"""Exit statuses. A signal ends the process when its time is over; any other failure is a traceback."""


def read_templates(folder: Path) -> list[str]:
    """Return the chat templates of a folder."""
    found: list[Any] = [file.read_text("utf-8") for file in folder.rglob("chat_template*.jinja")]
    for name in ("tokenizer_config.json", "chat_template.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stated = json.loads((folder / name).read_text("utf-8")).get("chat_template")
            found += [one.get("template") for one in stated] if isinstance(stated, list) else [stated]
    return [one for one in found if isinstance(one, str)]


@contextlib.contextmanager
def leave_to_loader() -> Iterator[None]:
    """Ignore every error except `MemoryError`."""
    try:
        yield
    except MemoryError:
        raise
    except Exception:
        return


def limit_time(seconds: int | None) -> None:
    """End the process after this many more seconds of processor time; `None` lifts the limit."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = most if seconds is None else math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, most))


def main(folder: Path, seconds: int) -> int:
    with leave_to_loader():
        from tokenizers import Tokenizer

        limit_time(seconds)
        fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
        fast.decode(fast.encode(TEXT).ids)
    templates: list[str] = []
    with leave_to_loader():
        templates = read_templates(folder)
    if not templates:
        return 0
    limit_time(None)
    from transformers.utils.chat_template_utils import render_jinja_template

    limit_time(seconds)
    for template in templates:
        for talk in (TALK[:1], TALK, [{"role": "system", "content": "Be brief."}, *TALK]):
            with leave_to_loader():
                (text,), _ = render_jinja_template([talk], chat_template=template, add_generation_prompt=True)
                if len(text) > MAX_RENDERED_LENGTH:
                    return TOO_LONG
    return 0


if __name__ == "__main__":
    seconds, memory = int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    try:
        status = main(Path(sys.argv[1]), seconds)
    except MemoryError:
        status = NO_MEMORY
    sys.exit(status)
