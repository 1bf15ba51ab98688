"""Every check says in one sentence what is wrong with what a user wrote, whatever error that raises or causes; and what a run or
a split gets from it is checked where it comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from fedagentgym.agents.text.prompts import TEMPLATES, Template
from fedagentgym.base.errors import MissingExtraError, OptionError
from fedagentgym.envs import ClientVariant, Variant, variants
from fedagentgym.envs.variants import register_variant
from fedagentgym.experiment.trackers import TRACKERS
from fedagentgym.federation.aggregation import AGGREGATION_RULES, AggregationRule
from fedagentgym.learning.advantages import ADVANTAGES, OBJECTIVES, AdvantageEstimator
from fedagentgym.learning.losses import LOSSES, PolicyLoss
from fedagentgym.partitions import SAMPLERS, federate
from fedagentgym.testing import (
    check_advantage,
    check_aggregation,
    check_loss,
    check_objective,
    check_sampler,
    check_template,
    check_tracker,
    check_variant,
)
from fedagentgym.testing.conditions import errors_as_failures

GUESS = "fedagentgym/Guess-v0"


@pytest.fixture(autouse=True)
def registries_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ADVANTAGES, AGGREGATION_RULES, LOSSES, OBJECTIVES, SAMPLERS, TEMPLATES, TRACKERS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(variants, "_REGISTERED", {})


def returns_none(*given: Any) -> Any:
    return None


def returns_a_number(*given: Any) -> Any:
    return 3


def takes_nothing() -> Any:
    return None


def divides(*given: Any) -> Any:
    return 1 / 0


def looks_up(*given: Any) -> Any:
    return {}["missing"]


MISTAKES = {
    "returns None": returns_none,
    "returns a number": returns_a_number,
    "takes nothing": takes_nothing,
    "raises ZeroDivisionError": divides,
    "raises KeyError": looks_up,
}


class Letters(ClientVariant):
    capitals: bool = False


def make_class(base: type[Any], method: str, function: Any, **members: Any) -> type[Any]:
    body = {method: function, "__module__": __name__, **members}
    return type("Mine", (base,), body)


def try_sampler(function: Any) -> None:
    SAMPLERS.register("mine", function)
    check_sampler("mine")


def try_rule(function: Any) -> None:
    AGGREGATION_RULES.register("mine", make_class(AggregationRule, "begin", function))
    check_aggregation("mine")


def try_loss(function: Any) -> None:
    LOSSES.register("mine", make_class(PolicyLoss, "compute", function))
    check_loss("mine")


def try_advantage(function: Any) -> None:
    ADVANTAGES.register("mine", make_class(AdvantageEstimator, "estimate", function))
    check_advantage("mine")


def try_objective(function: Any) -> None:
    OBJECTIVES.register("mine", function)
    check_objective("mine")


def try_template(function: Any) -> None:
    made = make_class(Template, "render_first", function)
    globals()["Mine"] = made  # a template is sent to worker processes, so it is a class of a module
    TEMPLATES.register("mine", made)
    check_template("mine")


def try_tracker(function: Any) -> None:
    TRACKERS.register("mine", function)
    check_tracker("mine")


def try_variant(function: Any) -> None:
    members = {"kind": "mine", "client_variant": Letters, "__annotations__": {}}
    register_variant(GUESS, make_class(Variant, "draw", function, **members))
    check_variant(GUESS, "mine")


KINDS: dict[str, Callable[[Any], None]] = {
    "sampler": try_sampler,
    "aggregation rule": try_rule,
    "policy loss": try_loss,
    "advantage estimator": try_advantage,
    "objective": try_objective,
    "template": try_template,
    "tracker": try_tracker,
    "variant": try_variant,
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mistake_is_one_sentence(kind: str, mistake: str) -> None:
    if kind in ("policy loss", "advantage estimator"):
        pytest.importorskip("torch")
    with pytest.raises(AssertionError) as caught:
        KINDS[kind](MISTAKES[mistake])
    said = str(caught.value)
    assert "\n" not in said and len(said) < 500 and kind in said, said
    if mistake.startswith(("takes", "raises")) and "test_conditions.py, line" not in said:
        assert kind == "tracker" and mistake == "takes nothing", said
    if mistake.startswith("raises"):
        assert f"{mistake}: " in said.replace("raised", "raises"), said


class UpperView(ClientVariant):
    how: Literal["text", "grade", "action"] = "text"
    loud: bool = False

    def change_view(self, view: Any) -> Any:
        if not self.loud or self.how == "action":
            return view
        return view.observation if self.how == "text" else view._replace(score=1.0)

    def change_action(self, action: str) -> Any:
        return None if self.how == "action" else action


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("text", "UpperView.change_view returned 'I think of"),
        ("action", "UpperView.change_action returned 'None': it returns a text"),
        ("grade", "UpperView.change_view changes the score of a view from 0.0 to 1.0"),
    ],
)
def test_what_a_clients_variant_may_not_do(how: Any, says: str) -> None:
    def draw(self: Any, seed: int, client: int) -> UpperView:
        return UpperView(how=how, loud=bool(client % 2))

    members = {"kind": "mine", "client_variant": UpperView, "__annotations__": {}}
    register_variant(GUESS, make_class(Variant, "draw", draw, **members))
    with pytest.raises(AssertionError, match=says):
        check_variant(GUESS, "mine")


@pytest.mark.parametrize(
    "found",
    [None, 3, "guess/train/00001", [[0, 1]], ["guess/train/00001"] * 2],
    ids=["none", "number", "text", "numbers", "texts"],
)
def test_a_split_refuses_what_a_function_is_not_to_return(found: Any) -> None:
    SAMPLERS.register("mine", lambda table, clients, seed: found)
    with pytest.raises(
        OptionError, match=r"the sampler 'mine' returned .*: it returns an Assignment, or a list of task ids"
    ):
        federate("Guess", partition="mine", clients=2)


def test_a_missing_library_is_no_fault_of_what_is_checked() -> None:
    with pytest.raises(MissingExtraError, match=r"the extra \[train\]"), errors_as_failures():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
