"""Fixtures of the rows: installed data, models by their hub ids, labels, and results that are kept while the tests run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.cli.main import main
from fedagentgym.envs.reasoning.sources import find_source
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import RunResult, train

from .data import SUBSETS, WRITERS
from .sizes import iter_leaves, shrink

WORLDS = {"fedagentgym/WebShop-v0": "webshop", "fedagentgym/ALFWorld-v0": "alfworld"}
OPTIONS = {
    "fedagentgym/WebShop-v0": ("data=installed", "goal_order=fedagent"),
    "fedagentgym/ALFWorld-v0": ("games=installed",),
}
"""The worlds that take commands, and the options by which their tasks are those of the papers."""


@dataclass(frozen=True)
class Workshop:
    """A folder with data and models; each is made when a row first asks for it."""

    folder: Path
    done: dict[str, RunResult] = field(default_factory=dict)

    def install(self, name: str) -> None:
        """Write a data set and install it as a user would."""
        if not (self.folder / "data" / name).exists():
            source = self.folder / "published" / name
            WRITERS[name](source)
            subset = ["--subset", SUBSETS[name]] if name in SUBSETS else []
            assert main(["data", "add", name, "--from", str(source), *subset]) == 0

    def find_model(self, hub_id: str, said: str) -> str:
        """The folder of the small form of a model."""
        from .models import make_model

        folder = self.folder / "models" / said / hub_id.rpartition("/")[2]
        return str(folder if folder.exists() else make_model(hub_id, said, folder))

    def find_labels(self, world: str) -> Path:
        """Hardness labels of a world's tasks, by the command that the docs name."""
        file = self.folder / f"labels-{WORLDS[world]}.jsonl"
        if not file.exists():
            options = [part for option in OPTIONS[world] for part in ("--env-set", option)]
            assert main(["label", world, "--out", str(file), *options]) == 0
        return file

    def shrink(self, row: tuple[str, ...]) -> dict[str, Any]:
        """The configuration of a row as it is run here, with all that it names in place."""
        plain = load_config(row[0], row[1:]).plain()
        world = plain["env"]["id"]
        for name in name_data(plain):
            self.install(name)
        labels = self.find_labels(world) if plain["partition"]["sampler"] == "hardness" else Path("none")
        find_model = partial(self.find_model, said=choose_replies(plain))
        return shrink(row, find_model, self.folder / "runs" / "row", labels)

    def run(self, row: tuple[str, ...]) -> RunResult:
        """The result of a row; rows that are one and the same at this size are run once."""
        plain = self.shrink(row)
        digest = load_config(plain).digest
        if digest not in self.done:
            plain["output"]["folder"] = str(self.folder / "runs" / digest.removeprefix("sha256:")[:16])
            self.done[digest] = train(plain, force=True)  # its weights are random
        return self.done[digest]


def choose_replies(plain: dict[str, Any]) -> str:
    """The replies of a row's models: as asked for there, so that some of it is right."""
    if plain["env"]["id"] in WORLDS:
        return "actions"
    if (by_method := {"dpsda-fl": "problems", "fedgrpo": "sums"}.get(plain["algorithm"]["name"])) is not None:
        return by_method
    return "letters" if "medqa" in str(plain["env"]["options"]) else "answers"


def name_data(plain: dict[str, Any]) -> list[str]:
    """The data sets that a configuration names, in its environment and in its evaluation sets."""
    named = [WORLDS[value] for path, value in iter_leaves(plain) if path == "env.id" and value in WORLDS]
    named += [find_source(value) for path, value in iter_leaves(plain) if path.endswith("options.source")]
    sets = plain["evaluation"]["sets"]
    named += [find_source(one["name"]) for one in sets if one["options"] is None and one["name"] in WRITERS]
    return sorted(set(named))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def workshop(made: Workshop) -> Iterator[Workshop]:
    """The workshop, while its folders are those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAGENTGYM_DATA", str(made.folder / "data"))
        patch.setenv("FEDAGENTGYM_CACHE", str(made.folder / "cache"))
        yield made
