"""A grammar of values that nobody means well with, and the files that go with them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {k: 1}\n" + "".join(
    f"a{level}: &a{level} {{'<<': [{','.join([f'*a{level - 1}'] * 10)}]}}\n" for level in range(1, 12)
)

TEXTS = (
    "",
    " ",
    "-",
    "--",
    "=",
    ".",
    "..",
    "~",
    "null",
    "true",
    "nan",
    "-inf",
    "1e999",
    "0x10",
    "1_000",
    "1:30",
    "2024-13-45",
    "-1",
    "0",
    "1",
    "3",
    "0.5",
    str(10**20),
    str(2**63),
    "9" * 5000,
    "1" + "0" * 4000 + ".5",
    "\0",
    "a\0b",
    "\ud800",
    "\udcff",
    "\x1b[31mred",
    "[red]x[/bold]",
    "[/]",
    "[link=x]",
    ":smile:",
    "\u202egnp.",
    "\N{COMBINING ACUTE ACCENT}" * 50,
    "é" * 300,
    "a" * 300,
    "a/" * 3000,
    "x" * 200_000,
    "{}",
    "[]",
    "{" * 2000,
    "[" * 20_000,
    "- " * 3000,
    "{a: " * 3000,
    "&a [*a]",
    "!!python/object:os.system x",
    "!!binary aGVsbG8=",
    "? [a]\n: b",
    '"\\0"',
    '"\\ud800"',
    "%s%n{0}{x}",
    "$(reboot)",
    "a:b:c",
    "os:system",
    "Guess",
    "fedagentgym/Guess-v0",
    "fedagentgym/Nowhere-v0",
    "uniform",
    "hardness",
    "train",
    "val",
    "demo",
    "demo:",
    "demo:nothing",
    BOMB,
    MERGE_BOMB,
)
"""Texts that are no name of a file; some are good values, for what comes after they were admitted."""

SECTIONS = (
    "name",
    "seed",
    "env",
    "partition",
    "agent",
    "learning",
    "algorithm",
    "federation",
    "evaluation",
    "output",
    "warm_start",
    "plugins",
    "variants",
    "[red]x[/bold]",
)
ENV_KEYS = ("max_turns", "split", "tasks", "pool", "variant", "seed", "reward", "render_mode", "variant.kind", "size")
KEYS = (
    "steps",
    "size",
    "clients",
    "omega",
    "name",
    "model",
    "context",
    "env.id",
    "env.options.seed",
    "env.split",
    "federation.rounds",
    "federation.workers",
    "federation.backend",
    "partition.clients",
    "partition.sampler",
    "partition.variant",
    "partition.file",
    "partition.roles",
    "algorithm",
    "algorithm.name",
    "algorithm.local_steps",
    "algorithm.aggregation",
    "agent",
    "agent.name",
    "agent.model",
    "agent.decoding.temperature",
    "evaluation.split",
    "output.folder",
    "output.report",
    "plugins",
    "seed",
    "learning.learning_rate",
    "learning.advantage",
    "warm_start.steps",
    "a.b.c",
    "split",
    "pool",
    "labels",
    "roles",
    ".".join("a" * 500),
)

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(5000),
    "noise": bytes(range(256)) * 20,
    "deep.json": b"[" * 100_000,
    "deeper.json": b'{"a":' * 500 + b"1" + b"}" * 500,
    "digits.json": b"9" * 100_000,
    "nan.json": b'{"clients": [NaN, Infinity], "seed": 1e999}',
    "twice.json": b'{"a": 1, "a": 2}',
    "half.json": b'{"clients": [["guess/train/0000',
    "surrogate.json": b'{"env_id": "\\ud800", "clients": [["\\u0000"]]}',
    "list.json": b"[1, 2, 3]",
    "markup.json": b'{"schema": "[red]x[/bold]", "env_id": "[/]"}',
    "bomb.yaml": BOMB.encode(),
    "merge.yaml": MERGE_BOMB.encode(),
    "deep.yaml": b"[" * 20_000,
    "indented.yaml": b"- " * 20_000,
    "digits.yaml": b"seed: " + b"9" * 5000,
    "date.yaml": b"seed: 2024-13-45",
    "loop.yaml": b"env: &a {id: *a}",
    "object.yaml": b"env: !!python/object:os.system x",
    "wide.yaml": b"- x\n" * 30_000,
    "keys.yaml": b"{1: 2, null: 3, true: 4, [a]: 5}",
    "text.yaml": b"just text",
    "good.yaml": b"env: {id: fedagentgym/Guess-v0}\npartition: {clients: 3}\nagent: random\n",
    "many.yaml": b"env: {id: fedagentgym/Guess-v0}\npartition: {clients: 100000000000000000000}\nagent: random\n",
    "raises.py": b"raise ValueError('[red]x[/bold]')",
    "unsayable.py": b"class E(Exception):\n    def __str__(self): return 1 / 0\nraise E",
    "exits.py": b"import sys; sys.exit(0)",
    "base.py": b"class E(BaseException): pass\nraise E",
    "generator.py": b"raise GeneratorExit",
    "wrong.py": b"def (",
    "nul.py": b"x = '\0'",
    "deep.py": b"x = " + b"(" * 5000,
    "silent.py": b"x = 1",
}
SPECIAL = (
    "folder",
    "pipe",
    "loop",
    "dangling",
    "sparse",
    "absent",
    "sealed/below",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
)
FILES = (*CONTENTS, *SPECIAL, "split.json", "run", "good.yaml/below", "nowhere/x.json", "x.png", "folder/x.svg")


def make_files(folder: Path) -> None:
    """The files that `FILES` names, below a folder."""
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_bytes(BOMB.encode())
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "sealed").write_bytes(b"a file where a folder is expected")
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 36)


plugins = st.sampled_from(
    [name for name in FILES if name.endswith((".py", "noise", "pipe", "loop", "folder", "sparse"))]
)
texts = st.one_of(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.text(max_size=10), st.integers().map(str))
files = st.sampled_from(FILES)
numbers = st.one_of(st.integers(-3, 10), st.integers(), st.floats()).map(str)
values = st.one_of(texts, files, numbers)


def assignments(keys: Sequence[str]) -> st.SearchStrategy[str]:
    """`key=value`, nearly always with a key that there is."""
    return st.one_of(*[st.tuples(st.sampled_from(keys), values).map("=".join)] * 9, values)


@st.composite
def configurations(draw: st.DrawFn) -> bytes:
    """The YAML of a run of which a part is nasty."""
    parts: dict[str, object] = {
        "env": {"id": "fedagentgym/Guess-v0", "options": {}},
        "partition": {"sampler": "uniform", "clients": 3, "tasks_per_client": 5},
        "agent": {"name": "random"},
        "output": {"folder": "run-of-a-case"},
    }
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in parts.items())
    name = draw(st.sampled_from(SECTIONS))
    value = draw(values)
    shape = draw(
        st.sampled_from(["{name}: {value}", "{name}: [{value}]", "{name}: {{name: {value}}}", "{name}: {quoted}"])
    )
    kept = "".join(line + "\n" for line in text.splitlines() if not line.startswith(f"{name}:"))
    said = shape.format(name=name, value=value, quoted=json.dumps(value))
    return (kept + said + "\n").encode("utf-8", "surrogatepass")
