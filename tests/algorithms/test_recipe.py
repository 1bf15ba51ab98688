"""A server's requests to a node: every setting of a recipe has a rule, and the rules hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from fedagentgym.agents.model.pretrained import list_shipped
from fedagentgym.agents.model.store import identify_model
from fedagentgym.algorithms import APPLICATION
from fedagentgym.algorithms.recipe import (
    Owner,
    admit_recipe,
    build_algorithm,
    check_recipe,
    make_recipe,
)
from fedagentgym.algorithms.runtime import ExperimentSpec
from fedagentgym.base.errors import DataError, RefusedError
from fedagentgym.base.settings import merge
from fedagentgym.federation.backends.resident import NodeConfig, ResidentWorker
from fedagentgym.federation.exchange import Request, StateName
from tests.experiment.test_foreign import AGENTS_OF_OTHERS, OPTIONS_OF_OTHERS, PATHS_OF_OTHERS

SMALL: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0"},
    "partition": {"clients": 2, "tasks_per_client": 4},
    "agent": {"name": "tiny"},
    "algorithm": {"name": "fedagent"},
}


def list_keys(settings: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every leaf of a tree of settings, those of lists and of optional parts included."""
    for name, field in settings.model_fields.items():
        parts = [one for one in _find_models(field.annotation) if one is not settings]
        if not parts:
            yield f"{above}{name}"
        for part in parts:
            yield from list_keys(part, f"{above}{name}.")


def _find_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for one in get_args(annotation) for found in _find_models(one)]


def read_rules(page: Path) -> dict[str, tuple[str, str]]:
    """The table of the page: a setting, or all settings below a key; who decides, and what a node admits."""
    _, _, table = page.read_text("utf-8").partition(
        "| setting of a recipe | who decides | what a node admits |\n|---|---|---|\n"
    )
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    return {key.strip("`"): (who, node) for keys, who, node in rows for key in keys.split(", ")}


def test_every_setting_of_a_recipe_has_a_rule(root: Path) -> None:
    """Free-form settings, and those that could name outside objects, have rules of their own, not that of the part above them."""
    rules = read_rules(root / "SECURITY.md")
    keys = list(list_keys(ExperimentSpec))
    assert len(keys) > 80 and "evaluation.sets.options" in keys
    found = {key: [own for own in rules if key == own or key.startswith(f"{own}.")] for key in keys}
    assert [key for key, above in found.items() if not above] == []
    longest = {key: max(above, key=len) for key, above in found.items()}
    assert set(rules) - set(longest.values()) == {"target", "plugins", "client"}
    outside = ("file", "path", "folder", "url", "key", "model", "options", "labels", "data", "variable", "plugins")
    whole = {rules[part] for part in ("agent", "learning", "evaluation")}
    assert [key for key in keys if key.rpartition(".")[2] in outside and rules[longest[key]] in whole] == []


def ask(**changes: Any) -> ExperimentSpec:
    return ExperimentSpec.load(merge(SMALL, changes), "spec")


FORBIDDEN: dict[str, dict[str, Any]] = {
    **{f"agent: {what}": {"agent": one} for what, one in AGENTS_OF_OTHERS.items()},
    **{
        f"expert agent: {what}": {"algorithm": {"name": "fedgrpo", "expert_agent": one}}
        for what, one in AGENTS_OF_OTHERS.items()
    },
    **{
        f"env: {what}": {"env": {"id": name, "options": one}}
        for what, (name, one) in {**OPTIONS_OF_OTHERS, **PATHS_OF_OTHERS}.items()
    },
    **{
        f"set: {what}": {"evaluation": {"sets": [{"name": "x", "env": name, "options": one}]}}
        for what, (name, one) in {**OPTIONS_OF_OTHERS, **PATHS_OF_OTHERS}.items()
    },
    **{
        f"model {path}": {"agent": {"model": path}}
        for path in ("/root/model", "~/model", "../model", "a/b/c", "./x", "a/../b")
    },
    "a judges' model": {"algorithm": {"name": "fedgrpo", "expert_agent": {"name": "tiny", "model": "/etc"}}},
    "labels": {"partition": {"labels": "/etc/passwd"}},
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_only_the_owner_decides_is_refused(what: str) -> None:
    with pytest.raises(RefusedError):
        build_algorithm(merge(SMALL, FORBIDDEN[what]), owner={})


def test_a_split_file_of_the_node_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"partition\.file names a file of this machine"):
        build_algorithm({**SMALL, "partition": {"file": "/srv/split.json"}}, owner={})


def test_what_a_server_may_ask_is_admitted() -> None:
    for spec in (
        ask(),
        ask(agent={"model": "smollm2"}),
        ask(agent={"model": "sha256:" + "0" * 64}),
        ask(agent={"model": "a/b"}),
    ):
        assert admit_recipe(spec, Owner()) == spec


def test_the_owner_alone_lets_a_protection_be_missing() -> None:
    spec = ask(env={"id": "fedagentgym/Code-v0", "options": {"size": "tiny"}})
    assert admit_recipe(spec, Owner()).env.options == {"size": "tiny"}
    admitted = admit_recipe(spec, Owner(("other user",)))
    assert admitted.env.options == {"size": "tiny", "sandbox": {"accept": ["other user"]}}
    assert admit_recipe(ask(), Owner(("other user",))) == ask(), "Guess runs no programs"


def test_a_models_folder_is_sent_as_its_digest() -> None:
    """A tiny agent of the server's package is found in the node's, wherever both are installed."""
    folder = list_shipped()[0].folder
    sent = make_recipe(ask(agent={"model": str(folder)}))
    assert sent.agent.model == identify_model(folder)
    from fedagentgym.agents.model.store import locate_model

    assert locate_model(str(sent.agent.model)) == folder
    named = {"name": "transformers", "model": str(folder)}
    for method in (
        {"name": "fedgrpo", "expert_agent": named},
        {"name": "hacpo", "agents": [named, {"name": "tiny"}]},
    ):
        asked = make_recipe(ask(algorithm=method))
        assert str(folder) not in str(asked.to_plain()) and identify_model(folder) in str(asked.algorithm)
        check_recipe(asked)
    assert make_recipe(ask(algorithm={"name": "fedprox", "proximal": 1})).algorithm == {
        "name": "fedprox",
        "proximal": 1,
    }
    with pytest.raises(DataError, match="there is no model with the files sha256:"):
        locate_model("sha256:" + "0" * 64)


@pytest.mark.parametrize("what", ["env: a missing protection", "agent: a server and a key", "model /root/model"])
def test_a_node_answers_with_one_sentence(what: str, tmp_path: Path) -> None:
    node = NodeConfig.from_node_config(
        {"clients": "0", "workplace": str(tmp_path), "trust": APPLICATION, "accept": "files"}
    )
    assert NodeConfig.from_node_config(node.to_plain()) == node and node.owner == {
        "accept": ("files",),
        "harness": (),
        "processes": 4,
    }
    request = Request(0, StateName(1, 0), "train", b"", None, 0, 0, 1, 1)
    recipe = {"target": APPLICATION, "arguments": {"spec": merge(SMALL, FORBIDDEN[what])}, "plugins": []}
    told, _ = ResidentWorker(node).handle_request(request, recipe)
    assert told["status"] == "error" and "Error:" not in told["error"] and "\n" not in told["error"]
    for name in ("owner", "device"):
        odd = {**recipe, "arguments": {"spec": SMALL, name: None}}
        told, _ = ResidentWorker(node).handle_request(request, odd)
        assert f"a recipe does not decide {name!r}" in told["error"]
