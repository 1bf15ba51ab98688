"""Krum, Multi-Krum and q-FedAvg against references in NumPy and Flower's; every rule's use of weights, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.algorithms import ALGORITHMS, Averaging, AveragingSettings, Card, Scale
from fedagentgym.algorithms.averaging import AcceptedReply
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.imports import Registry
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.federation.aggregation import (
    AGGREGATION_RULES,
    AggregationRule,
    Mean,
    Median,
    TrimmedMean,
    WeightedMean,
    aggregate,
)
from fedagentgym.federation.algorithm import Round, ServerState
from fedagentgym.federation.rules.krum import Krum, MultiKrum
from fedagentgym.federation.rules.qfedavg import QFedAvg
from fedagentgym.testing import check_aggregation, check_algorithm

NAMES = [name for name in AGGREGATION_RULES.names() if isinstance(AGGREGATION_RULES.get_target(name), str)]
IGNORING = [name for name in NAMES if not AGGREGATION_RULES.get(name).uses_weights]
SHAPES = {"a": (3, 2), "b": (7,)}
Updates = list[dict[str, np.ndarray]]


def make(count: int, seed: int) -> tuple[ServerState, Updates]:
    draw = np.random.default_rng(seed)
    one, *others = (
        {name: draw.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(count + 1)
    )
    return ServerState(one), others


def apply(
    rule: AggregationRule,
    state: ServerState,
    updates: Updates,
    weights: Sequence[float] | None = None,
    losses: Sequence[float] = (),
) -> dict[str, np.ndarray]:
    pairs = zip(updates, weights or [1.0] * len(updates), strict=True)
    return dict(aggregate(rule, state, pairs, losses or [0.5] * len(updates)).parameters)


def flatten(parameters: Any) -> np.ndarray:
    return np.concatenate([np.asarray(parameters[name], np.float64).ravel() for name in SHAPES])


def same_bits(first: Any, second: Any) -> bool:
    return all(first[name].tobytes() == second[name].tobytes() for name in SHAPES)


def score(updates: Updates, byzantine: int) -> list[float]:
    """Krum's scores, word for word."""
    points, count = [flatten(update) for update in updates], len(updates)
    scores = []
    for one in range(count):
        distances = sorted(float(((points[one] - points[j]) ** 2).sum()) for j in range(count) if j != one)
        scores.append(sum(distances[: max(count - byzantine - 2, 1)]))
    return scores


counts = st.integers(0, 3).flatmap(lambda f: st.tuples(st.just(f), st.integers(2 * f + 3, 2 * f + 9)))


# ---- Krum and Multi-Krum --------------------------------------------------------------------------------------------


@given(counts, st.integers(0, 10_000), st.data())
def test_krum_and_multi_krum_are_their_definitions(sizes: tuple[int, int], seed: int, data: st.DataObject) -> None:
    byzantine, count = sizes
    state, updates = make(count, seed)
    order = sorted(range(count), key=score(updates, byzantine).__getitem__)
    assert same_bits(apply(Krum(byzantine=byzantine), state, updates), updates[order[0]])
    chosen = data.draw(st.integers(1, count - byzantine))
    found = flatten(apply(MultiKrum(byzantine=byzantine, chosen=chosen), state, updates))
    assert np.allclose(found, np.mean([flatten(updates[place]) for place in order[:chosen]], axis=0), atol=1e-6)
    default = flatten(apply(MultiKrum(byzantine=byzantine), state, updates))
    expected = np.mean([flatten(updates[place]) for place in order[: count - byzantine]], axis=0)
    assert np.allclose(default, expected, atol=1e-6)
    assert same_bits(
        apply(MultiKrum(byzantine=byzantine, chosen=1), state, updates),
        apply(Krum(byzantine=byzantine), state, updates),
    )


@given(counts, st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_order_of_the_clients_changes_nothing(sizes: tuple[int, int], seed: int, random: Any) -> None:
    byzantine, count = sizes
    count += 1  # with three clients and f = 0 the nearest two have the same score, and the first of them is chosen
    state, updates = make(count, seed)
    places = list(range(count))
    random.shuffle(places)
    mixed = [updates[place] for place in places]
    losses = [(place + 1) / count for place in range(count)]
    assert same_bits(apply(Krum(byzantine=byzantine), state, updates), apply(Krum(byzantine=byzantine), state, mixed))
    multi, fair = MultiKrum(byzantine=byzantine), QFedAvg()
    assert np.allclose(flatten(apply(multi, state, updates)), flatten(apply(multi, state, mixed)), atol=1e-6)
    first = apply(fair, state, updates, losses=losses)
    second = apply(fair, state, mixed, losses=[losses[place] for place in places])
    assert np.allclose(flatten(first), flatten(second), atol=1e-6)


@given(counts, st.integers(0, 10_000))
def test_krum_chooses_what_flower_chooses(sizes: tuple[int, int], seed: int) -> None:
    strategies = pytest.importorskip("flwr.server.strategy.aggregate")
    byzantine, count = sizes
    state, updates = make(count, seed)
    theirs = [([update[name] for name in SHAPES], 1) for update in updates]
    krum = strategies.aggregate_krum(theirs, byzantine, 0)
    assert same_bits(apply(Krum(byzantine=byzantine), state, updates), dict(zip(SHAPES, krum, strict=True)))
    chosen = count - byzantine
    multi = strategies.aggregate_krum(theirs, byzantine, chosen)
    ours = apply(MultiKrum(byzantine=byzantine, chosen=chosen), state, updates)
    assert np.allclose(flatten(ours), flatten(dict(zip(SHAPES, multi, strict=True))), atol=1e-6)


def test_of_equal_scores_the_first_client_is_chosen() -> None:
    state, (one, other) = make(2, 0)
    for updates in ([one, one, other, other], [other, other, one, one]):
        assert same_bits(apply(Krum(byzantine=0), state, updates), updates[0])
    assert same_bits(apply(MultiKrum(byzantine=0, chosen=2), state, [one, one, other, other]), one)


@pytest.mark.parametrize("far", [1e3, 1e30])
def test_liars_are_left_out(far: float) -> None:
    state, updates = make(7, 0)
    for liar in (1, 4):
        updates[liar] = {name: value + np.float32(far) for name, value in updates[liar].items()}
    honest = [update for place, update in enumerate(updates) if place not in (1, 4)]
    assert any(same_bits(apply(Krum(byzantine=2), state, updates), update) for update in honest)
    mean = np.mean([flatten(update) for update in honest], axis=0)
    assert np.allclose(flatten(apply(MultiKrum(byzantine=2), state, updates)), mean, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (Krum(), 5),
        (Krum(byzantine=2), 7),
        (MultiKrum(), 5),
        (MultiKrum(byzantine=1, chosen=6), 7),
        (Krum(byzantine=0), 1),
        (MultiKrum(byzantine=0), 1),
        (Mean(), 1),
        (QFedAvg(), 1),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_too_few_updates_are_refused(rule: AggregationRule, least: int) -> None:
    assert rule.least_updates == least
    state, updates = make(least, 0)
    apply(rule, state, updates)
    with pytest.raises(DataError, match="needs .* updates, and there are" if least > 1 else "no update was added"):
        apply(rule, state, updates[1:])


@pytest.mark.parametrize("rule", [Krum(byzantine=0), MultiKrum(byzantine=0), QFedAvg(q=0)], ids=lambda rule: rule.name)
def test_one_client_or_equal_clients_come_through_bit_for_bit(rule: AggregationRule) -> None:
    state, only = make(1, 0)
    for updates in (only, only * 2, only * 5):
        assert same_bits(apply(rule, state, updates), only[0])


# ---- q-FedAvg -------------------------------------------------------------------------------------------------------

unit = st.floats(0.0, 1.0)


@given(
    st.lists(st.tuples(unit, st.floats(0.1, 5.0)), min_size=1, max_size=8),
    st.floats(0.0, 5.0, allow_subnormal=False),
    st.floats(0.01, 100.0),
    st.integers(0, 10_000),
)
def test_qfedavg_is_its_formula(clients: list[tuple[float, float]], q: float, lipschitz: float, seed: int) -> None:
    state, updates = make(len(clients), seed)
    losses, weights = [loss for loss, _ in clients], [weight for _, weight in clients]
    rule = QFedAvg(q=q, lipschitz=lipschitz, epsilon=1e-3)
    start, steps, total = flatten(state.parameters), np.zeros(13), 0.0
    for loss, weight, update in zip(losses, weights, updates, strict=True):
        gradient = lipschitz * (start - flatten(update))
        steps += weight * (loss + 1e-3) ** q * gradient
        total += weight * (q * (loss + 1e-3) ** (q - 1) * gradient @ gradient + lipschitz * (loss + 1e-3) ** q)
    found = flatten(apply(rule, state, updates, weights, losses))
    assert np.allclose(found, start - steps / total, rtol=1e-5, atol=1e-6)


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(0, 10_000))
def test_with_q_of_zero_qfedavg_is_the_mean_bit_for_bit(count: int, seed: int) -> None:
    state, updates = make(count, seed)
    weights = [float(place + 1) for place in range(count)]
    losses = [place / count for place in range(count)]
    for given_ in (None, weights):
        assert same_bits(apply(QFedAvg(q=0), state, updates, given_, losses), apply(Mean(), state, updates, given_))


def test_qfedavg_agrees_with_flower() -> None:
    """Flower's strategy, in which all clients have the same loss, as its aggregation computes it."""
    strategies = pytest.importorskip("flwr.server.strategy.aggregate")
    state, updates = make(4, 0)
    rate, q, loss = 0.5, 0.2, 0.7 + 1e-10
    start = [state.parameters[name].astype(np.float64) for name in SHAPES]
    gradients = [[(start[n] - update[name]) / rate for n, name in enumerate(SHAPES)] for update in updates]
    squares = [sum(float((part**2).sum()) for part in gradient) for gradient in gradients]
    deltas = [[loss**q * part for part in gradient] for gradient in gradients]
    scales: Any = [q * loss ** (q - 1) * square + loss**q / rate for square in squares]
    theirs = strategies.aggregate_qffl(start, deltas, scales)
    ours = apply(QFedAvg(q=q, lipschitz=1 / rate), state, updates, losses=[0.7] * 4)
    assert np.allclose(flatten(ours), flatten(dict(zip(SHAPES, theirs, strict=True))), atol=1e-6)


def test_clients_that_fail_more_count_for_more() -> None:
    state, (one, other) = make(2, 0)
    towards = flatten(apply(QFedAvg(lipschitz=1e-6), state, [one, other], losses=[0.9, 0.1]))
    assert np.allclose(towards, 0.9 * flatten(one) + 0.1 * flatten(other), atol=1e-4)


def test_qfedavg_needs_a_loss_of_every_client() -> None:
    state, updates = make(3, 0)
    with pytest.raises(DataError, match="qfedavg needs the loss of every client"):
        aggregate(QFedAvg(), state, [(update, 1.0) for update in updates], [0.5, 0.5])


@pytest.mark.parametrize(
    ("rule", "option", "wrong"),
    [
        ("krum", "byzantine", -1),
        ("krum", "chosen", 2),
        ("multi_krum", "chosen", 0),
        ("qfedavg", "q", -0.1),
        ("qfedavg", "lipschitz", 0.0),
        ("qfedavg", "epsilon", 0.0),
    ],
)
def test_an_option_outside_of_its_range_is_refused(rule: str, option: str, wrong: float) -> None:
    with pytest.raises(OptionError, match=option):
        AGGREGATION_RULES.get(rule).load({"name": rule, option: wrong})


# ---- weights --------------------------------------------------------------------------------------------------------


def test_these_rules_ignore_weights() -> None:
    assert set(IGNORING) == {"median", "trimmed_mean", "krum", "multi_krum"}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_rule_says_about_weights_is_what_it_does(name: str) -> None:
    rule = AGGREGATION_RULES.get(name).load({"name": name})
    count = max(4, rule.least_updates)
    state, updates = make(count, 3)
    equal = apply(rule, state, updates)
    unequal = [apply(rule, state, updates, [float(1 + (k + n) % count) for k in range(count)]) for n in range(count)]
    assert all(same_bits(equal, found) != rule.uses_weights for found in unequal)
    assert same_bits(apply(rule, state, updates, [1.0] * count), equal)


class Silent(AggregationRule):
    """A rule that uses weights, and does not say so."""

    def begin(self, state: ServerState) -> Any:
        return Mean().begin(state)


class Careless(AggregationRule):
    """A rule that says that it uses weights, and does not."""

    uses_weights = True

    def begin(self, state: ServerState) -> Any:
        return Median().begin(state)


def register(registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str, target: Any) -> None:
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    registry.register(name, target, replace=True)


@pytest.mark.parametrize(
    ("rule", "says"),
    [(Silent, "does not say uses_weights = True"), (Careless, "equal and unequal weights give the same")],
)
def test_a_false_declaration_is_found(rule: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register(AGGREGATION_RULES, monkeypatch, "mine", rule)
    with pytest.raises(AssertionError, match=says):
        check_aggregation("mine")


# ---- runs -----------------------------------------------------------------------------------------------------------

UNEQUAL = {"sampler": "coverage", "clients": 5, "xi": 2.0, "mean_tasks": 8}
EQUAL = {"clients": 5, "tasks_per_client": 8}
RUN: dict[str, Any] = {
    "name": "weights",
    "env": {"id": "fedagentgym/Guess-v0", "options": {"max_turns": 3}},
    "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 6}},
    "learning": {"tasks_per_step": 2, "group_size": 2, "learning_rate": 1e-3},
    "federation": {"rounds": 1},
    "evaluation": None,
    "output": {"report": "none"},
}


def write(folder: Path, algorithm: dict[str, Any], partition: dict[str, Any], **more: Any) -> Path:
    own = {"algorithm": {"local_steps": 1, **algorithm}, "partition": partition, **more}
    plain = merge(RUN, merge(own, {"output": {"folder": str(folder / "run")}}))
    (folder / "run.yaml").write_text(yaml.safe_dump(plain))
    return folder / "run.yaml"


def refused(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence with which a run is refused, before anything is written."""
    capsys.readouterr()
    before = sorted(config.parent.rglob("*"))
    assert main(["--quiet", "train", str(config)]) == 2
    assert sorted(config.parent.rglob("*")) == before
    told = capsys.readouterr()
    (line,) = told.err.strip().splitlines()
    assert not told.out
    return line


@pytest.mark.parametrize("name", [*IGNORING, "mine"])
def test_unequal_weights_are_refused_by_a_rule_that_ignores_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    register(AGGREGATION_RULES, monkeypatch, "mine", Silent)
    said = refused(write(tmp_path, {"name": "fedavg-grpo", "aggregation": name}, UNEQUAL), capsys)
    assert f"algorithm.aggregation: {name} ignores weights, but fedavg-grpo weighs its clients by" in said
    assert "numbers of tasks, which differ: choose a rule that uses weights" in said


@pytest.mark.parametrize(
    ("algorithm", "partition"),
    [
        *(({"name": "fedavg-grpo", "aggregation": name}, EQUAL) for name in IGNORING),
        *(({"name": "fedagent", "aggregation": name}, UNEQUAL) for name in IGNORING),
        *(({"name": "fedavg-grpo", "aggregation": name}, UNEQUAL) for name in NAMES if name not in IGNORING),
    ],
    ids=lambda value: (
        value.get("sampler", "equal") if "clients" in value else f"{value['name']}-{value['aggregation']}"
    ),
)
def test_all_else_runs(algorithm: dict[str, Any], partition: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert main(["--quiet", "train", str(write(tmp_path, algorithm, partition)), "--force"]) == 0


class CarefulSettings(AveragingSettings):
    name: str = "careful"


class Careful(Averaging[CarefulSettings]):
    """README's method: weights by success."""

    settings_class = CarefulSettings
    deciding_metrics: ClassVar = {"success": (0.0, 1.0)}

    def client_weights(self, replies: Sequence[AcceptedReply], this_round: Round) -> list[float]:
        return [0.1 + reply.metrics["success"] + reply.client for reply in replies]


class Alike(Careful):
    """One that says that its weights are equal under its settings, and whose word is false unless `honest`."""

    honest = True

    @classmethod
    def describe(cls, settings: CarefulSettings, scale: Scale) -> Card:
        return replace(super().describe(settings, scale), gives_weights=False)

    def client_weights(self, replies: Sequence[AcceptedReply], this_round: Round) -> list[float]:
        return [2.0] * len(replies) if self.honest else super().client_weights(replies, this_round)


def test_a_method_with_weights_of_its_own_is_refused_beside_a_rule_that_ignores_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    register(ALGORITHMS, monkeypatch, "careful", Careful)
    said = refused(write(tmp_path, {"name": "careful", "aggregation": "median"}, EQUAL), capsys)
    assert "median ignores weights, but careful weighs its clients by its own weights: choose a rule" in said
    assert (
        main(
            ["--quiet", "train", str(write(tmp_path, {"name": "careful", "aggregation": "qfedavg"}, EQUAL)), "--force"]
        )
        == 0
    )


class BySizeSettings(AveragingSettings):
    name: str = "careful"

    def weigh(self, examples: Sequence[float]) -> list[float]:
        return [example**0.5 for example in examples]


class BySize(Averaging[BySizeSettings]):
    """One whose settings weigh by the numbers of tasks, whatever the rule."""

    settings_class = BySizeSettings


@pytest.mark.parametrize(("method", "by"), [(Careful, "its own weights"), (BySize, "their numbers of tasks")])
def test_a_method_with_weights_of_its_own_is_refused_beside_privacy(
    method: type[Any], by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    register(ALGORITHMS, monkeypatch, "careful", method)
    privacy = {"clip_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.01}
    said = refused(write(tmp_path, {"name": "careful", "privacy": privacy}, EQUAL), capsys)
    assert f"algorithm.privacy weighs all clients alike, but careful weighs its clients by {by}" in said


def test_weights_that_are_known_late_are_refused_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    register(ALGORITHMS, monkeypatch, "careful", Alike)
    (tmp_path / "honest").mkdir()
    (tmp_path / "false").mkdir()
    algorithm = {"name": "careful", "aggregation": "median"}
    assert main(["--quiet", "train", str(write(tmp_path / "honest", algorithm, EQUAL)), "--force"]) == 0
    monkeypatch.setattr(Alike, "honest", False)
    capsys.readouterr()
    assert main(["--quiet", "train", str(write(tmp_path / "false", algorithm, EQUAL)), "--force"]) == 2
    assert "median ignores weights, but careful weighs its clients" in capsys.readouterr().err
    assert not list((tmp_path / "false" / "run" / "rounds").glob("*0001*"))


def test_a_round_of_too_few_clients_is_refused_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    config = write(tmp_path, {"name": "fedagent", "aggregation": "krum"}, EQUAL, federation={"clients_per_round": 4})
    assert "krum needs the updates of 5 clients, and 4 take part in a round" in refused(config, capsys)


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"name": "fedpetuning", "objective": "sft", "aggregation": "qfedavg"}, "imitation does not measure"),
        ({"name": "pubswap", "swap_period": 1, "aggregation": "qfedavg"}, "set swap_period to 2 or more"),
        ({"name": "fedagent", "aggregation": "qfedavg", "privacy": {"clip_norm": 1, "noise_multiplier": 1, "delta": 0.01}},
         "privacy is for the plain mean"),
    ],
)  # fmt: skip
def test_methods_without_a_success_refuse_qfedavg(
    algorithm: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(write(tmp_path, algorithm, EQUAL), capsys)


def test_a_success_that_no_client_can_have_is_refused() -> None:
    pytest.importorskip("torch")
    plain = {key: value for key, value in RUN.items() if key in ("env", "agent", "learning")}
    algorithm = {"name": "fedagent", "local_steps": 1, "aggregation": "qfedavg"}
    spec = ExperimentSpec.load({**plain, "partition": EQUAL, "algorithm": algorithm})
    method: Any = make_algorithm(spec, Runtime(spec))
    state = method.initial_state()
    from fedagentgym.federation.message import Message

    for metrics, accepted in (({"success": 0.5}, True), ({"success": 1.5}, False), ({}, False)):
        reply = Message(weights=state.parameters, control={"examples": 8}, report={"metrics": metrics})
        assert isinstance(method.accept(1, reply, state), AcceptedReply) == accepted
    assert method.card.needs_metrics and not method.card.needs_counts


@pytest.mark.parametrize(
    "rule",
    [{"name": "krum"}, {"name": "multi_krum", "chosen": 2}, {"name": "qfedavg", "q": 2.0}],
    ids=lambda r: r["name"],
)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_runs_resume_and_workers_give_the_same_bits(rule: dict[str, Any], workers: int) -> None:
    """A server with workers aggregates as one without does, so that workers are for the night."""
    pytest.importorskip("torch")
    alike = {"partition": {"clients": 5}, "federation": {"clients_per_round": 5}}
    record = check_algorithm("fedagent", workers=workers, local_steps=1, aggregation=rule, config=alike).record
    assert record["rounds"] == 2


def test_rules_that_decide_weights_are_heeded_by_a_method_of_weights() -> None:
    """`mean` and `fedadam` weigh all alike, whatever the method; a rule that does not say leaves it to the method."""
    settings_class = ALGORITHMS.get("fedavg-grpo").settings_class
    for name in NAMES:
        weights = settings_class.load({"name": "fedavg-grpo", "aggregation": name}).weigh([1.0, 3.0])
        assert weights == ([1.0, 1.0] if name in ("mean", "fedadam") else [1.0, 3.0]), name
    assert isinstance(settings_class.load({"name": "fedavg-grpo"}).rule, WeightedMean)
    assert TrimmedMean().weigh([1.0, 3.0]) == [1.0, 1.0], "a rule alone weighs all alike"
