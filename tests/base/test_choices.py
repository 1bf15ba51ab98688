"""Settings whose class is found by name in a registry."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import Registry
from fedagentgym.base.settings import Choice, NamedSettings, Settings


class Rule(NamedSettings):
    @abstractmethod
    def apply(self) -> float: ...


class Unfinished(Rule):
    pass


class Mean(Rule):
    name: Literal["mean"] = "mean"

    def apply(self) -> float:
        return 0.0


class Momentum(Rule):
    beta: float = Field(default=0.5, ge=0)

    def apply(self) -> float:
        return self.beta


RULES = Registry("rule", {"odd": "collections:OrderedDict"})
RULES.register("mean", Mean)
RULES.register("momentum", Momentum)
RULES.register("unfinished", Unfinished)


class Server(Settings):
    rule: Annotated[Rule, Choice(RULES)] = Mean()
    rules: tuple[Annotated[Rule, Choice(RULES, "momentum")], ...] = ()
    maybe: Annotated[Rule, Choice(RULES)] | None = None


class Run(Settings):
    server: Server = Server()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Server()),
        ({"rule": "momentum"}, Server(rule=Momentum(name="momentum"))),
        ({"rule": {"name": "momentum", "beta": 0.7}}, Server(rule=Momentum(name="momentum", beta=0.7))),
        ({"rule": Mean()}, Server(rule=Mean())),
        ({"rules": ["mean", {"beta": 3}]}, Server(rules=(Mean(), Momentum(name="momentum", beta=3)))),
        ({"maybe": "mean"}, Server(maybe=Mean())),
    ],
)
def test_a_name_or_mapping_becomes_its_class_and_survives_a_dump(given: dict[str, Any], expected: Server) -> None:
    run = Run.load({"server": given})
    assert run.server == expected
    assert Run.load(run.model_dump(mode="json")) == run
    assert Run.load(run.model_dump(mode="json", exclude_unset=True)) == run


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rule": "momentun"}, "server.rule: unknown rule 'momentun': did you mean 'momentum'?"),
        ({"rule": "zzz"}, "server.rule: unknown rule 'zzz': known are odd, mean, momentum, unfinished"),
        ({"rule": {"beta": 1}}, "the key 'server.rule.name' is missing"),
        ({"rule": 3}, "server.rule: give the name of the rule"),
        ({"rule": "odd"}, "server.rule: rule 'odd' is not a class derived from Rule"),
        ({"rule": "unfinished"}, "server.rule: rule 'unfinished' does not define apply"),
        ({"rule": {"name": "momentum", "bet": 1}}, "unknown key 'server.rule.bet': did you mean 'beta'?"),
        ({"rule": {"name": "mean", "beta": 1}}, "unknown key 'server.rule.beta': known keys are name"),
        ({"rule": {"name": "momentum", "beta": -1}}, "server.rule.beta: it must be at least 0"),
        ({"rules": ["mean", {"bet": 1}]}, "unknown key 'server.rules.1.bet': did you mean 'beta'?"),
        ({"maybe": {"name": "momentum", "bet": 1}}, "unknown key 'server.maybe.bet': did you mean 'beta'?"),
    ],
)
def test_a_fault_is_one_sentence_that_names_the_key(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        Run.load({"server": given})
    assert str(caught.value).startswith(sentence)
