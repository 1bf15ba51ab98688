"""A method's card: its defaults, its composition, what reads it, and how a run refutes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from fedagentgym.algorithms import ALGORITHMS, Averaging, AveragingSettings, BaseAlgorithm, Card, Scale, Sent, Work
from fedagentgym.algorithms.base import describe_method
from fedagentgym.algorithms.card import CLIENTS, SPLIT
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.plan import plan_run
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState
from fedagentgym.partitions import federate
from fedagentgym.testing import check_algorithm
from tests.federation.test_rules import register


class OwnSettings(AveragingSettings):
    name: Literal["own"] = "own"  # type: ignore[assignment]


class Own(Averaging[OwnSettings]):
    """One that overrides nothing."""

    settings_class: ClassVar[type[Settings]] = OwnSettings


class Bare(BaseAlgorithm[OwnSettings]):
    """One from scratch that describes nothing."""

    settings_class: ClassVar[type[Settings]] = OwnSettings

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        return RoundResult(state)


class Busy(Bare):
    """One whose server plays and learns."""

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        return RoundResult(state, metrics={"episodes": 6.0, "optimizer_steps": 2.0})


class Opening(Own):
    """One that opens tasks of a role that its card does not name."""

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        assert self.runtime.open_role_env("public").pool
        return super().run_round(state, this_round)


def test_a_method_that_overrides_nothing_has_the_card_of_fedagent(monkeypatch: pytest.MonkeyPatch) -> None:
    register(ALGORITHMS, monkeypatch, "own", Own)
    scale = Scale(clients=5, asked=3)
    assert describe_method({"name": "own"}, scale) == describe_method({"name": "fedagent"}, scale)
    check_algorithm("own", workers=0)


def test_a_method_from_scratch_has_a_card_of_unknown_work(monkeypatch: pytest.MonkeyPatch) -> None:
    register(ALGORITHMS, monkeypatch, "own", Bare)
    assert describe_method({"name": "own"}, Scale()) == Card()
    with pytest.raises(OptionError, match="name it in the card that `describe` returns"):
        plan_run(load_config("paper-webshop", ["algorithm={name: own}"]))
    check_algorithm("own", workers=0)


def describe(monkeypatch: pytest.MonkeyPatch, method: type[BaseAlgorithm[OwnSettings]] = Own, **fields: Any) -> None:
    """Register a method with these fields of its card."""

    class Described(method):  # type: ignore[misc,valid-type]
        @classmethod
        def describe(cls, settings: OwnSettings, scale: Scale) -> Card:
            return replace(super().describe(settings, scale), **fields)

    register(ALGORITHMS, monkeypatch, "own", Described)


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("method", "fields", "says"),
    [
        (Busy, {"round": Work(episodes=5, optimizer_steps=2)}, "12 episodes in a run, and its card says 10"),
        (Busy, {"round": Work(episodes=6, optimizer_steps=1)}, "4 optimizer steps in a run, and its card says 2"),
        (Own, {"round": Work(models_down=2, episodes=99, optimizer_steps=99)}, "bytes of parameters from the clients in a run"),
        (Own, {"round": Work(models_up=2, episodes=99, optimizer_steps=99)}, "bytes of parameters to the clients in a run"),
        (Own, {"sent": (Sent("metrics", "means"),)}, "its replies carry weights, but its card names none of parameters"),
        (Opening, {}, "it opens tasks of the role 'public', which its card does not name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_card_that_a_run_refutes_fails_the_check(
    method: type[BaseAlgorithm[OwnSettings]], fields: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(monkeypatch, method, **fields)
    with pytest.raises(AssertionError, match=says):
        check_algorithm("own", workers=0)


@pytest.mark.parametrize(
    ("method", "fields"),
    [(Opening, {"roles": ("public",)}), (Busy, {"round": Work(episodes=6, optimizer_steps=2)})],
    ids=["roles", "work"],
)
def test_a_card_that_is_true_passes(
    method: type[BaseAlgorithm[OwnSettings]], fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(monkeypatch, method, **fields)
    check_algorithm("own", workers=0)


def test_replies_beyond_the_card_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    describe(monkeypatch, round=Work(models_down=2, models_up=2, episodes=99))
    with pytest.raises(AssertionError, match=r"'optimizer_steps' is '2[.]0', it can be a whole number from 0 to 0"):
        check_algorithm("own", workers=0)


def test_labelled_tasks_follow_from_their_sources() -> None:
    client_split = federate(
        "fedagentgym/Guess-v0", clients=3, seed=0, tasks_per_client=4, roles={"public": 5, "server": 6}
    )
    held = {task for client in client_split for task in client.tasks}
    roles = client_split.record.roles
    for card, tasks in (
        (Card(), held),
        (Card(roles=("public", "server")), held | {*roles["public"]}),
        (Card(roles=("public",), labelled=()), set()),
        (Card(labelled=(CLIENTS,)), held),
        (Card(labelled=(1,)), {*client_split.client(1).tasks}),
        (Card(labelled=(SPLIT,)), {*client_split.pool.ids}),
        (Card(labelled=("public",)), {*roles["public"]}),
    ):
        assert card.list_labelled(client_split) == tasks


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_only_the_work_depends_on_the_scale(name: str) -> None:
    scales = (Scale(), Scale(clients=7, asked=3, rows_per_episode=5, roles={"auxiliary": 4, "server": 6}))
    first, second = (replace(describe_method({"name": name}, scale), round=None, preparation=None) for scale in scales)
    assert first == second


def test_preparations_are_counted() -> None:
    assert [Card().count_preparations(rounds) for rounds in range(4)] == [1, 1, 1, 1]
    assert [Card(renewal=2).count_preparations(rounds) for rounds in range(6)] == [1, 1, 1, 2, 2, 3]


def format_cards() -> str:
    """The cards of the package's methods under their default settings as a table in Markdown; other tests register more."""
    lines = [
        "| method | tasks set aside | answers used | clients send | tasks that clients hold |",
        "|---|---|---|---|---|",
    ]
    for method in ALGORITHMS.names():
        if not ALGORITHMS.get(method).__module__.startswith("fedagentgym."):
            continue
        card = describe_method({"name": method}, Scale())
        roles = (*card.roles, *(f"{name} if there are" for name in card.optional_roles))
        sent = [one.kind for one in card.sent] if card.metered else []
        held = f"no: {card.held_refusal}" if card.held_refusal else "yes"
        cells = (", ".join(roles), _list_sources(card), ", ".join(sent), held)
        lines.append(f"| `{method}` | {' | '.join(cell or 'none' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _list_sources(card: Card) -> str:
    """The sources of the answers that a method may use, in words."""
    words = {CLIENTS: "the clients'", SPLIT: "the whole split's"}
    return ", ".join(f"client {one}'s" if isinstance(one, int) else words.get(one, one) for one in card.label_sources)


def test_the_page_of_methods_has_their_cards() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "methods" / "index.md"
    assert format_cards() in page.read_text("utf-8"), "put what format_cards() of this test returns on the page"
