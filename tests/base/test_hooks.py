"""A hook that a user misspells is named when the class is registered; a helper with another name is not."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, ClassVar

import pytest

import fedagentgym
from fedagentgym.algorithms import ALGORITHMS, Averaging, AveragingSettings
from fedagentgym.base.hooks import count_edits, find_misspelt_hooks
from fedagentgym.envs import TextEnv
from fedagentgym.federation import AggregationRule
from fedagentgym.partitions import Sampler


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))


class Half(Averaging[AveragingSettings]):
    settings_class = AveragingSettings

    def client_weight(self, replies: Any, this_round: Any) -> Any: ...


class Lamp(TextEnv):
    def advanced(self, state: Any, action: Any) -> Any: ...

    def begn(self, task: Any, seed: Any) -> Any: ...


class Last(AggregationRule):
    use_weights: ClassVar[bool] = True


class Deal(Sampler):
    need_labels: bool = True


class Player(fedagentgym.Agent):
    def replly(self, observation: Any, info: Any) -> str: ...


class Careful(Averaging[AveragingSettings]):
    """Helpers: one beside the hook that it resembles, others with names of their own."""

    settings_class = AveragingSettings

    def client_weights(self, replies: Any, this_round: Any) -> Any: ...

    def client_weight(self, reply: Any) -> float: ...

    def weigh(self) -> float: ...

    def _client_weightz(self) -> float: ...


class More(Careful):
    def client_weightss(self) -> float: ...


@pytest.mark.parametrize(
    ("cls", "named"),
    [
        (Half, {"client_weight": "client_weights"}),
        (Lamp, {"advanced": "advance", "begn": "begin"}),
        (Last, {"use_weights": "uses_weights"}),
        (Deal, {"need_labels": "needs_labels"}),
        (Player, {"replly": "reply"}),
        (Careful, {}),
        (More, {}),
        (dict, {}),
    ],
)
def test_what_is_almost_a_hook_and_replaces_nothing_is_named(cls: type, named: dict[str, str]) -> None:
    assert {one.name: one.meant for one in find_misspelt_hooks(cls)} == named


def test_it_is_said_once_when_the_class_is_registered(caplog: pytest.LogCaptureFixture) -> None:
    class Third(Averaging[AveragingSettings]):
        settings_class = AveragingSettings

        def client_weight(self, replies: Any, this_round: Any) -> Any: ...

    for name in ("third", "third-again"):
        fedagentgym.register_algorithm(name, Third, replace=True)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "Third.client_weight replaces nothing of " in said and "did you mean 'client_weights'?" in said


def test_a_class_that_is_registered_by_its_name_is_read_when_it_is_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fourth(Averaging[AveragingSettings]):
        settings_class = AveragingSettings

        def client_weight(self, replies: Any, this_round: Any) -> Any: ...

    module = ModuleType("my_methods")
    module.Fourth = Fourth  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_methods", module)
    fedagentgym.register_algorithm("fourth", "my_methods:Fourth", replace=True)
    assert not caplog.records
    assert ALGORITHMS.get("fourth") is Fourth and "client_weights" in caplog.text


def test_edits_are_counted() -> None:
    assert [count_edits("begin", other) for other in ("begin", "begni", "bgin", "beginn", "began", "end")] == [
        *(0, 1, 1, 1, 1),
        4,
    ]
