"""Methods that average adapters: what each gives from the clients' factors, against plain numpy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.model import loading
from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.algorithms import flexlora
from fedagentgym.algorithms.adapters import cut_rank, fill_rank
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.factors import Pair, add_change, read_changes, read_pairs
from fedagentgym.algorithms.fedex_lora import FedExRule
from fedagentgym.algorithms.flexlora import FlexLoRARule
from fedagentgym.algorithms.flora import FLoRARule
from fedagentgym.algorithms.ram import RAMRule
from fedagentgym.algorithms.ranks import RankLaw, find_rank
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.process import Ability
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.plan import format_plan, make_plain, plan_run
from fedagentgym.experiment.run import train
from fedagentgym.federation.aggregation import Mean, aggregate
from fedagentgym.federation.algorithm import FederationSettings, ServerState
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit, CommitStore
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import Message
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.state import SiteState
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.algorithms.test_inherited_options import PRIVACY, SPEC

ADAPTER: dict[str, Any] = {"agent": {"adapter": {"rank": 3, "alpha": 6.0}}}


def make(algorithm: dict[str, Any], *changes: dict[str, Any]) -> Any:
    plain = merge(SPEC, merge(ADAPTER, {"algorithm": {"local_steps": 1, **algorithm}}))
    for change in changes:
        plain = merge(plain, change)
    spec = ExperimentSpec.load(plain)
    return make_algorithm(spec, Runtime(spec))


def go(folder: Path, algorithm: Any, rounds: int, asked: int | None = None) -> Commit:
    plan = ServerConfig(folder, 0, FederationSettings(rounds=rounds, clients_per_round=asked))
    return run_rounds(algorithm, SequentialBackend(algorithm, folder / "states"), plan).commit


def same(first: Commit, second: Commit) -> bool:
    ours, theirs = first.state.parameters, second.state.parameters
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_fedit_is_fedagent_on_an_adapter_bit_for_bit(tmp_path: Path) -> None:
    found, plain = (go(tmp_path / name, make({"name": name}), 2) for name in ("fedit", "fedagent"))
    assert same(found, plain) and same(go(tmp_path / "again", make({"name": "fedit"}), 2), found)


def test_ffa_trains_and_sends_b_alone_and_its_mean_is_exact(tmp_path: Path) -> None:
    only_b = {"agent": {"adapter": {"train": "B"}}}
    algorithm = make({"name": "ffa-lora"}, only_b)
    weights = algorithm.runtime.initial_weights
    assert weights and all(".lora_B." in name for name in weights)
    model = algorithm.runtime.agent.policy.model
    drawn = {name: value.detach().clone() for name, value in model.named_parameters() if ".lora_A." in name}
    commit = go(tmp_path, algorithm, 2)
    assert set(commit.state.parameters) == set(weights)
    assert all(bool((value == drawn[name]).all()) for name, value in model.named_parameters() if name in drawn)
    shared = make({"name": "fedit"}).runtime.initial_weights
    assert all(np.array_equal(value.numpy(), shared[name]) for name, value in drawn.items()), "the same draw"
    assert 0 < commit.record["bytes"]["up"]["weights"] < sum(value.nbytes for value in shared.values()) * 3


@pytest.mark.parametrize("share", ["A", "B"])
def test_fedsa_shares_one_factor_and_keeps_the_other(share: str, tmp_path: Path) -> None:
    algorithm = make({"name": "fedsa-lora", "share": share})
    commit = go(tmp_path, algorithm, 2)
    layers = {"name": "personal-layers", "layers": ["*lora_B*" if share == "A" else "*lora_A*"]}
    assert same(commit, go(tmp_path / "layers", make(layers), 2))
    assert all(f".lora_{share}." in name for name in commit.state.parameters)
    exported = algorithm.policy_parameters(commit.state)
    other = "B" if share == "A" else "A"
    start = algorithm.runtime.initial_weights
    assert all(np.array_equal(exported[name], start[name]) for name in start if f".lora_{other}." in name)


@pytest.mark.parametrize(
    ("algorithm", "agent", "told"),
    [
        ({"name": "fedit"}, {"adapter": None}, "fedit averages LoRA adapters: set agent.adapter"),
        (
            {"name": "fedit"},
            {"adapter": {"train": "B"}},
            "fedit trains both factors of the adapter: set agent.adapter.train",
        ),
        ({"name": "ffa-lora"}, {}, "ffa-lora leaves A as it was drawn: set agent.adapter.train to B, it is both"),
        ({"name": "fedsa-lora"}, {"adapter": None}, "fedsa-lora divides the two trained factors"),
        ({"name": "fedsa-lora"}, {"adapter": {"train": "B"}}, "fedsa-lora divides the two trained factors"),
    ],
)
def test_an_agent_without_the_factors_is_refused(algorithm: dict[str, Any], agent: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make(algorithm, {"agent": agent})


# ---- rules on random adapters -------------------------------------------------------------------------------------------

SHAPES = {"up": (5, 7), "down": (7, 4), "thin": (2, 6)}
EXACT = [FedExRule(), FLoRARule()]
EVERY = [*EXACT, FlexLoRARule(), FlexLoRARule(factors="left"), RAMRule(), RAMRule(density=0.3)]


def draw(seed: int, rank: int = 3, dtype: str = "float64", zero: bool = False) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    arrays = {}
    for layer, (outputs, inputs) in SHAPES.items():
        arrays[f"{layer}.lora_A.default.weight"] = random.normal(size=(rank, inputs)).astype(dtype)
        high = random.normal(size=(outputs, rank)).astype(dtype)
        arrays[f"{layer}.lora_B.default.weight"] = 0 * high if zero else high
    return arrays


def products(arrays: Any) -> dict[str, Any]:
    return {
        layer: arrays[f"{layer}.lora_B.default.weight"].astype(float)
        @ arrays[f"{layer}.lora_A.default.weight"].astype(float)
        for layer in SHAPES
    }


def combine(rule: Any, start: Any, updates: Any, weights: Any = None, state: ServerState | None = None) -> ServerState:
    begun = state or ServerState(start)
    weights = [1.0] * len(updates) if weights is None else weights
    return aggregate(rule, begun, zip(updates, weights, strict=True))


def whole(state: ServerState) -> dict[str, Any]:
    """The product with what lies in the base, in units of B A."""
    base = read_changes(state.memory.get("base", {}))
    return {layer: product + base.get(layer, 0.0) for layer, product in products(state.parameters).items()}


def mean_products(updates: Any, weights: Any) -> dict[str, Any]:
    shares = np.array(weights) / np.sum(weights)
    return {layer: sum(p * products(one)[layer] for p, one in zip(shares, updates, strict=True)) for layer in SHAPES}


WEIGHTS = [1.0, 3.0, 0.5, 2.0]


def test_the_error_of_fedit_is_the_covariance_of_the_factors() -> None:
    start, updates = draw(0), [draw(seed) for seed in range(1, 5)]
    after, shares = combine(Mean(), start, updates, WEIGHTS).parameters, np.array(WEIGHTS) / sum(WEIGHTS)
    for layer, exact in mean_products(updates, WEIGHTS).items():
        low, high = (f"{layer}.lora_{factor}.default.weight" for factor in "AB")
        error = sum(
            p * (one[high] - after[high]) @ (one[low] - after[low]) for p, one in zip(shares, updates, strict=True)
        )
        np.testing.assert_allclose(exact - after[high] @ after[low], error, atol=1e-12)
        fixed = [{**one, low: start[low]} for one in updates]
        same_low = combine(Mean(), start, fixed, WEIGHTS).parameters
        wanted = mean_products(fixed, WEIGHTS)[layer]
        np.testing.assert_allclose(same_low[high] @ same_low[low], wanted, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("weights", [[1.0] * 4, WEIGHTS])
@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
def test_exact_rules_give_the_mean_of_the_products_round_after_round(rule: Any, weights: Any, dtype: str) -> None:
    start = draw(0, dtype=dtype, zero=True)
    state = ServerState(start)
    for number in range(20):
        begun, before = products(state.parameters), whole(state)
        updates = [draw(10 * number + client, dtype=dtype) for client in range(1, 5)]
        state = combine(rule, None, updates, weights, state)
        for layer, mean in mean_products(updates, weights).items():
            wanted = before[layer] + mean - begun[layer]
            np.testing.assert_allclose(whole(state)[layer], wanted, atol=1e-10 if dtype == "float64" else 1e-6)
    shares = np.array(weights) / sum(weights)
    for layer in SHAPES:  # the mean is the product of the stacked factors
        low, high = (f"{layer}.lora_{factor}.default.weight" for factor in "AB")
        stacked = np.hstack([one[high] for one in updates]) @ np.vstack(
            [p * one[low] for p, one in zip(shares, updates, strict=True)]
        )
        np.testing.assert_allclose(stacked, mean_products(updates, weights)[layer], atol=1e-5)


def test_what_fedex_puts_into_the_base_has_the_rank_of_all_clients_but_one() -> None:
    for count in (1, 2, 3):
        after = combine(FedExRule(), draw(0, rank=1), [draw(seed, rank=1) for seed in range(count)])
        base = read_changes(after.memory["base"])
        found = {layer: np.linalg.matrix_rank(base.get(layer, np.zeros(SHAPES[layer])), tol=1e-9) for layer in SHAPES}
        assert found == {layer: min(count - 1, *shape) for layer, shape in SHAPES.items()}


@pytest.mark.parametrize("factors", ["balanced", "left"])
def test_flexlora_is_the_nearest_product_of_its_rank(factors: Any) -> None:
    updates = [draw(seed) for seed in range(1, 5)]
    after = combine(FlexLoRARule(factors=factors), draw(0), updates, WEIGHTS)
    again = combine(FlexLoRARule(factors=factors), draw(0), updates, WEIGHTS)
    for layer, exact in mean_products(updates, WEIGHTS).items():
        sizes = np.linalg.svd(exact, compute_uv=False)
        rest = np.linalg.norm(exact - products(after.parameters)[layer])
        assert rest == pytest.approx(np.sqrt((sizes[3:] ** 2).sum()), abs=1e-10)
        low, high = (
            after.parameters[f"{layer}.lora_A.default.weight"],
            after.parameters[f"{layer}.lora_B.default.weight"],
        )
        used = min(3, len(sizes))
        wanted = np.sqrt(sizes[:used]) if factors == "balanced" else sizes[:used]
        np.testing.assert_allclose(np.linalg.norm(high, axis=0)[:used], wanted, atol=1e-10)
        columns = high[np.abs(high).argmax(axis=0), np.arange(3)]
        assert (columns[:used] > 0).all() and not high[:, used:].any()
        assert np.array_equal(low[used:], draw(0)[f"{layer}.lora_A.default.weight"][used:])
    assert all(np.array_equal(after.parameters[name], again.parameters[name]) for name in after.parameters)
    still = combine(FlexLoRARule(factors=factors), draw(0, zero=True), [draw(0, zero=True)] * 2)
    assert all(not product.any() for product in products(still.parameters).values())
    assert all(still.parameters[name].any() for name in still.parameters if "lora_A" in name), (
        "else nothing could be learnt"
    )


@pytest.mark.parametrize("options", [{}, {"factors": "left"}, {"step": 1.7}, {"momentum": 0.5}], ids=str)
@pytest.mark.parametrize("shape", [(300, 280), (260, 700)], ids=str)
def test_flexlora_of_a_large_layer_is_the_same_without_its_product(
    options: dict[str, Any], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_update(seed: int, rank: int, scale: float = 1.0) -> Any:
        random = np.random.default_rng(seed)
        low, high = random.normal(size=(6, shape[1])), scale * random.normal(size=(shape[0], 6))
        low[rank:], high[:, rank:] = 0, 0
        return {"wide.lora_A.default.weight": low, "wide.lora_B.default.weight": high}

    rule, weights = FlexLoRARule(**options), [3.0, 1.0, 2.0]
    start, updates = make_update(0, 6), [make_update(1, 6), make_update(2, 2), make_update(3, 0)]
    dense, calls = np.linalg.svd, list[Any]()
    monkeypatch.setattr(
        np.linalg, "svd", lambda matrix, **options: calls.append(matrix.shape) or dense(matrix, **options)
    )
    found = combine(rule, start, updates, weights)
    monkeypatch.setattr(flexlora, "_LARGE", 10**6)
    wanted = combine(rule, start, updates, weights)
    rank = 24 if rule.step != 1 else 18
    assert calls == [shape if rule.momentum else (rank, rank), shape]
    for name, factor in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], factor, atol=1e-10)
    for chosen in (found, wanted):
        assert chosen.parameters["wide.lora_A.default.weight"].any(axis=1).all()
    still = combine(rule, make_update(0, 6), [make_update(1, 6, scale=0.0)] * 2)
    assert np.isfinite(still.parameters["wide.lora_B.default.weight"]).all()


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: f"{rule.name}")
def test_rows_that_no_client_has_can_still_be_learnt(rule: Any) -> None:
    """After a round of clients of rank 1 the product is theirs, and no row has two zero factors."""
    update = {
        name: np.where(np.arange(3)[:, None] < 1, value, 0.0) if "lora_A" in name else value * (np.arange(3) < 1)
        for name, value in draw(1).items()
    }
    after = combine(rule, draw(0), [update, update])
    assert all(value.any(axis=1).all() for name, value in after.parameters.items() if "lora_A" in name)
    if rule.name != "ram":
        for layer, product in products(update).items():
            np.testing.assert_allclose(whole(after)[layer], product, atol=1e-12)
            assert np.linalg.matrix_rank(products(after.parameters)[layer], tol=1e-9) <= 1


@pytest.mark.parametrize("rule", EVERY[:-1], ids=lambda rule: f"{rule.name}")
def test_one_client_or_equal_clients_give_that_client(rule: Any) -> None:
    start, update = draw(0, zero=True), draw(1)
    for count in (1, 3):
        after = combine(rule, start, [update] * count)
        for layer, product in products(update).items():
            np.testing.assert_allclose(whole(after)[layer], product, atol=1e-10)


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: f"{rule.name}")
def test_the_order_of_clients_does_not_count_and_a_weight_is_a_number_of_copies(rule: Any) -> None:
    start, updates = draw(0, zero=True), [draw(seed) for seed in range(1, 4)]
    one, other = combine(rule, start, updates), combine(rule, start, updates[::-1])
    for layer in SHAPES:
        np.testing.assert_allclose(whole(one)[layer], whole(other)[layer], atol=1e-12)
    if rule.uses_weights:
        heavy, often = combine(rule, start, updates[:2], [1, 3]), combine(rule, start, [updates[0], *[updates[1]] * 3])
        for layer in SHAPES:
            np.testing.assert_allclose(whole(heavy)[layer], whole(often)[layer], atol=1e-12)


def test_ram_keeps_what_one_changed_and_averages_what_several_did() -> None:
    changes = [np.array([[1.0, 0.0, 2.0, 0.0]]), np.array([[0.0, 3.0, 4.0, 0.0]])]
    assert RAMRule().combine(changes, [1, 1]).tolist() == [[1.0, 3.0, 3.0, 0.0]]
    assert RAMRule(strength=0.1).combine(changes, [1, 1]) == pytest.approx(np.array([[1.02, 3.06, 3.0, 0.0]]))
    assert not RAMRule().combine([0 * change for change in changes], [1, 1]).any()
    random = np.random.default_rng(0)
    dense = [random.normal(size=(4, 6)) for _ in range(3)]
    assert np.array_equal(RAMRule().combine(dense, [1] * 3), FLoRARule().combine(dense, [1.0] * 3)), "dense: the mean"
    cut = RAMRule(density=0.25).combine(dense, [1] * 3)
    kept = [np.where(np.abs(one) >= np.sort(np.abs(one), axis=None)[-6], one, 0.0) for one in dense]
    count = sum((one != 0).astype(int) for one in kept)
    np.testing.assert_allclose(cut, sum(kept) / np.maximum(count, 1), atol=1e-12)


def test_ram_of_whole_changes_is_the_mean_of_those_who_changed_something() -> None:
    first, second = (np.random.default_rng(seed).normal(size=(4, 5)) for seed in range(2))
    rule = RAMRule(density=1.0, threshold=0.0)
    found = rule.combine([first, second, np.zeros((4, 5))], [1.0] * 3)
    assert np.array_equal(found, (first + second) / 2), "a client without a change does not count"


@given(
    st.integers(0, 999), st.integers(1, 5), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([0.05, 0.2, 3.0]),
    st.sampled_from([0.1, 0.4, 1.0]),
)  # fmt: skip
def test_ram_is_a_loop_over_clients_and_coordinates(
    seed: int, clients: int, strength: float, most: float, density: float
) -> None:
    random = np.random.default_rng(seed)
    changes = [random.normal(size=(3, 7)) * (random.random((3, 7)) < 0.6) for _ in range(clients)]
    rule = RAMRule(strength=strength, most=most, density=density, threshold=0.2)
    found = rule.combine(changes, [1.0] * clients)
    active = []
    for change in changes:
        largest = sorted((abs(value) for value in change.ravel()), reverse=True)[: max(1, round(density * change.size))]
        active.append(
            {place for place in np.ndindex(3, 7) if abs(change[place]) > 0.2 and abs(change[place]) in largest}
        )
    wanted = np.zeros((3, 7))
    for place in np.ndindex(3, 7):
        who = [client for client in range(clients) if place in active[client]]
        if len(who) > 1:
            wanted[place] = sum(changes[client][place] for client in who) / len(who)
        elif who:
            others = set().union(*(active[client] for client in range(clients) if client != who[0]))
            shared, unique = len(active[who[0]] & others), len(active[who[0]] - others)
            wanted[place] = (1 + strength * min(shared / unique, most)) * changes[who[0]][place]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("rule", [FedExRule, FLoRARule, FlexLoRARule, RAMRule], ids=lambda rule: rule.__name__)
def test_the_server_s_step_is_taken_on_the_product(rule: Any) -> None:
    """Targets that stay: with momentum 1 the first move is 1, and the second that and what is left."""
    start, update = draw(0, rank=6), draw(1, rank=6)
    longer = combine(rule(step=2.0), start, [update])
    first = combine(rule(momentum=1.0), start, [update])
    returned = dict(first.parameters)
    for layer in SHAPES:
        move = products(update)[layer] - products(start)[layer]
        np.testing.assert_allclose(whole(longer)[layer], products(start)[layer] + 2 * move, atol=1e-9)
        np.testing.assert_allclose(whole(first)[layer], products(update)[layer], atol=1e-9)
    again = combine(rule(momentum=1.0), None, [returned], None, first)
    for layer in SHAPES:  # nobody moves, so the server goes its last move again
        move = products(update)[layer] - products(start)[layer]
        np.testing.assert_allclose(whole(again)[layer], products(update)[layer] + move, atol=1e-9)


@pytest.mark.parametrize("rule", [FedExRule, FLoRARule, FlexLoRARule, RAMRule], ids=lambda rule: rule.__name__)
def test_the_server_s_step_is_also_that_of_a_shared_value_head(rule: Any) -> None:
    head, random = "value_head.weight", np.random.default_rng(1)
    theta, *ends = random.normal(size=(5, 1, 4)).astype("float32")
    state, velocity = ServerState({**draw(0), head: theta}), np.zeros((1, 4))
    for number in (0, 2):
        updates = [{**draw(number + one), head: ends[number + one]} for one in range(2)]
        velocity = 0.5 * velocity + np.mean([update[head].astype(float) for update in updates], axis=0) - theta
        theta = (theta + 1.5 * velocity).astype("float32")
        state = combine(rule(step=1.5, momentum=0.5), None, updates, None, state)
        assert np.array_equal(state.parameters[head], theta)


# ---- the methods on a small model ---------------------------------------------------------------------------------------

FAST: dict[str, Any] = {"learning": {"learning_rate": 0.01}}
TEXT = torch.arange(1, 20)[None]
PRODUCTS = ["flexlora", "fedex-lora", "flora", "ram"]


def logits(algorithm: Any, commit: Commit) -> Any:
    policy = algorithm.runtime.load_weights(algorithm.policy_parameters(commit.state)).policy
    with torch.no_grad():
        return policy.model(TEXT).logits


ONCE = {
    "fedex-lora": {"name": "fedex-lora"},
    "flora": {"name": "flora"},
    "flora, first draw": {"name": "flora", "draw": "first"},
    "ram": {"name": "ram", "density": 1.0, "threshold": 0.0},
}


def test_after_one_round_from_zero_the_exact_methods_have_one_policy(tmp_path: Path) -> None:
    found = []
    for name, settings in ONCE.items():
        algorithm = make({"local_steps": 2, **settings}, FAST)
        found.append(logits(algorithm, go(tmp_path / name, algorithm, 1)))
        start = algorithm.runtime.load_weights(algorithm.runtime.initial_weights).policy.model(TEXT).logits
        assert not torch.allclose(start, found[-1], atol=1e-3)
        torch.testing.assert_close(found[-1], found[0], atol=1e-5, rtol=0)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_run_goes_on_after_a_break_and_takes_part_in_part(name: str, tmp_path: Path) -> None:
    whole_run = go(tmp_path / "whole", make({"name": name}, FAST), 4, asked=2)
    go(tmp_path / "cut", make({"name": name}, FAST), 2, asked=2)
    resumed = go(tmp_path / "cut", make({"name": name}, FAST), 4, asked=2)
    assert whole_run.state.digest == resumed.state.digest


@pytest.mark.parametrize("name", PRODUCTS)
def test_with_one_client_a_round_ends_with_its_policy(name: str, tmp_path: Path) -> None:
    more = {"density": 1.0, "threshold": 0} if name == "ram" else {}
    own = {"partition": {"clients": 1}, **FAST}
    algorithm, plain = make({"name": name, **more}, own), make({"name": "fedit"}, own)
    found, wanted = go(tmp_path / "found", algorithm, 1), go(tmp_path / "plain", plain, 1)
    torch.testing.assert_close(logits(algorithm, found), logits(plain, wanted), atol=1e-5, rtol=0)


def test_the_base_comes_back_when_other_weights_are_loaded(tmp_path: Path) -> None:
    algorithm = make({"name": "flora"}, FAST)
    policy = algorithm.runtime.agent.policy
    begun = {name: value.detach().clone() for name, value in policy.model.named_parameters()}
    commit = go(tmp_path, algorithm, 2)
    algorithm.runtime.load_weights(algorithm.policy_parameters(commit.state))
    changed = [name for name, value in policy.model.named_parameters() if not torch.equal(value, begun[name])]
    assert any("base_layer" in name for name in changed)
    algorithm.runtime.load_weights(algorithm.runtime.initial_weights)
    assert all(torch.equal(value, begun[name]) for name, value in policy.model.named_parameters())
    layer = next(iter(read_changes(commit.state.memory["base"])))
    for odd, told in (
        ({"nowhere": np.zeros((2, 2))}, "not a layer with an adapter"),
        ({layer: np.zeros((2, 2))}, "has shape"),
    ):
        with pytest.raises(DataError, match=told):
            policy.set_weights(
                {**algorithm.runtime.initial_weights, **{f"base/{name}": value for name, value in odd.items()}}
            )


@pytest.mark.parametrize("name", ["fedit", "fedex-lora", "flora", "ram"])
def test_no_small_change_of_the_base_is_lost(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that change the base keep it in float32 where others would store it in bfloat16, as on a GPU."""
    monkeypatch.setattr(loading, "check_bfloat16", lambda: Ability(True, "given by the test"))
    TorchPolicy(*make_tiny_model(["a few words"])).save(tmp_path / "model")
    model = {"name": "transformers", "model": str(tmp_path / "model"), "device": "cpu"}
    stored = {"agent": {**model, "adapter": {"rank": 3}}}
    asked = {"agent": {"dtype": "bfloat16"}}
    algorithm = make({"name": name}, stored)
    policy, start = algorithm.runtime.agent.policy, algorithm.runtime.initial_weights
    (layer, pair), *_ = read_pairs(start).items()
    weight = policy.model.get_submodule(layer).get_base_layer().weight
    before = weight.detach().double().numpy()
    change = {f"base/{layer}": 1e-5 * np.random.default_rng(0).normal(size=pair.product.shape).astype("float32")}
    if name == "fedit":
        assert weight.dtype == torch.bfloat16
        make({"name": name}, stored, asked)
        with pytest.raises(DataError, match="stored in bfloat16, which would lose small changes of it"):
            policy.set_weights({**start, **change})
        return
    policy.set_weights({**start, **change})
    np.testing.assert_allclose(weight.detach().double().numpy() - before, change[f"base/{layer}"], atol=1e-8)
    with pytest.raises(OptionError, match=r"set agent\.dtype=float32"):
        make({"name": name}, stored, asked)


def test_a_plan_stores_a_base_that_changes_in_float32() -> None:
    stored = ["agent.dtype=null", "agent.device=cuda", "agent.adapter={rank: 4}"]
    plans = [
        plan_run(load_config("small-skills", [*stored, f"algorithm={{name: {name}}}"])) for name in ("fedit", "flora")
    ]
    assert [plan.agent.width for plan in plans] == [2, 4]


@pytest.mark.parametrize(
    ("algorithm", "learning", "told"),
    [
        ({"name": "flexlora"}, {"keep_optimizer": True}, "leave out learning.keep_optimizer"),
        ({"name": "flora"}, {"kl": {"coefficient": 0.1, "reference": "base"}}, "set learning.kl.reference to round"),
        ({"name": "ram", "weights": "tasks"}, {}, "weighs all clients equally"),
        ({"name": "fedex-lora", "aggregation": "median"}, {}, "unknown key 'algorithm.aggregation'"),
        ({"name": "flexlora", "privacy": PRIVACY}, {}, "privacy is for the plain mean"),
    ],
)
def test_what_does_not_fit_is_one_sentence(algorithm: dict[str, Any], learning: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make(algorithm, {"learning": learning})


def test_learners_that_share_a_model_have_bases_of_their_own() -> None:
    algorithm = make({"name": "flora"}, FAST)
    runtime = algorithm.runtime
    site = algorithm.resources(0)
    (layer, pair), *_ = read_pairs(runtime.initial_weights).items()
    starts = []
    for number in range(2):
        change = np.random.default_rng(number).normal(size=pair.product.shape).astype("float32")
        starts.append(SiteState({**runtime.initial_weights, f"base/{layer}": change}))
    learners = [site.open_learner(start) for start in starts]
    found = [[learner.agent.policy.model(TEXT).logits.detach() for learner in learners] for _ in range(2)]
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert not torch.allclose(found[0][0], found[0][1], atol=1e-3)


def test_a_changed_base_plays_as_it_learns_and_is_exported_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = merge(SMALL_CONFIG, {"agent": {"name": "untrained-tiny", "adapter": {"rank": 2, "alpha": 4.0}}})
    plain = merge(plain, {"algorithm": {"name": "flora", "local_steps": 2}, "learning": {"learning_rate": 0.02}})
    plain = merge(plain, {"federation": {"rounds": 2}, "output": {"folder": str(tmp_path / "run")}})
    train(plain)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "adapter"), "--adapter"]) == 2
    assert "changed the base too" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    state = CommitStore(tmp_path / "run" / "rounds").read(2).state
    spec = load_config(plain).spec()
    algorithm = make_algorithm(spec, Runtime(spec))
    agent = algorithm.runtime.load_weights(algorithm.policy_parameters(state))
    exported = TorchPolicy.load(tmp_path / "model", device="cpu")
    text = torch.arange(1, 12)[None]
    with torch.no_grad():
        ours, theirs = agent.policy.model(text).logits, exported.model(text).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    changed = algorithm.runtime.get_site(0).open_learner(SiteState(algorithm.policy_parameters(state)))
    groups = changed.collect_groups(0)
    again = changed.recompute_logprobs(groups)
    for before, after in zip(groups, again, strict=True):
        for one, other in zip(before, after, strict=True):
            for played, scored in zip(one.segments, other.segments, strict=True):
                np.testing.assert_allclose(played.logprobs, scored.logprobs, atol=1e-4)


def test_a_plan_counts_what_is_sent() -> None:
    plans = {name: plan_run(load_config(f"tiny-skills:{name}")) for name in ("fedit", "flora", "ffa-lora")}
    down = {name: plan.count_bytes_down(plan.round) for name, plan in plans.items()}
    up = {name: plan.count_bytes_up(plan.round) for name, plan in plans.items()}
    layers = [(i, o) for _, i, o in plans["fedit"].agent.shape.iter_linear()] * plans["fedit"].agent.shape.layers
    clients = plans["fedit"].round.models_down
    assert up["fedit"] == down["fedit"] == up["flora"] == 4 * clients * sum(4 * (i + o) for i, o in layers)
    rounds = range(1, load_config("tiny-skills:flora").federation.rounds)
    sent = [min(before * clients * 4 * (i + o), i * o) for before in rounds for i, o in layers]
    assert down["flora"] == 4 * round(clients * sum(sent) / len(rounds))
    assert up["ffa-lora"] == down["ffa-lora"] == 4 * clients * sum(4 * o for _, o in layers)
    numbers = {
        ("fedsa-lora", "share=A"): sum(4 * i for i, _ in layers),
        ("fedsa-lora", "share=B"): sum(4 * o for _, o in layers),
        **{
            (name, "ranks=[1,2]"): sum(1.5 * (i + o) for i, o in layers)
            for name in ("fedit", "flexlora", "flora", "ram")
        },
    }
    for (name, option), wanted in numbers.items():
        plan = plan_run(load_config(f"tiny-skills:{name}", [f"algorithm.{option}"]))
        assert plan.count_bytes_up(plan.round) == 4 * plan.round.models_up * wanted, (name, option)


ALL_RANKS = ("algorithm.ranks=[1,4,2]", "federation.clients_per_round=null")
LAW = ("algorithm.ranks={law: zipf, high: 4}", "federation.clients_per_round=null")
PLANNED: list[tuple[str, ...]] = [
    *((name,) for name in ("fedit", "ffa-lora", "fedsa-lora", "flexlora", "fedex-lora", "flora", "ram")),
    ("flora", "algorithm.draw=first", "algorithm.server_momentum=0.5"),
    *((name, "learning.advantage=gae") for name in ("fedex-lora", "flora")),
    *((name, *ALL_RANKS) for name in ("fedit", "fedex-lora", "flora", "ram")),
    *((name, *LAW) for name in ("flexlora", "flora")),
]
SHORT = ("federation.rounds=3", "federation.clients_per_round=2", "algorithm.local_steps=1", "learning.tasks_per_step=1",
         "learning.group_size=2")  # fmt: skip


@pytest.mark.by_day(4)
@pytest.mark.parametrize("chosen", PLANNED, ids="-".join)
def test_a_run_sends_what_was_planned(chosen: tuple[str, ...], tmp_path: Path) -> None:
    config = load_config(f"tiny-skills:{chosen[0]}", [*SHORT, *chosen[1:]])
    spec, plan = config.spec(), plan_run(config)
    commit = go(tmp_path, make_algorithm(spec, Runtime(spec)), 3, config.federation.clients_per_round)
    sent, work = commit.record["bytes_total"], plan.count_until(3)
    assert sent["down"]["weights"] == plan.count_bytes_down(work)
    assert sent["up"]["weights"] == plan.count_bytes_up(work)
    if not work.bases_down:
        assert commit.record["bytes"]["down"]["weights"] == plan.count_bytes_down(plan.round)


@pytest.mark.parametrize(("name", "asked"), [("fedex-lora", 3), ("flora", 2), ("ram", 2), ("flora-momentum", 2)])
def test_a_change_of_the_base_is_sent_in_the_smaller_form(name: str, asked: int, tmp_path: Path) -> None:
    """As factors, whose rank grows by every client of a round, for FedEx-LoRA but one, until the matrix has fewer numbers."""
    settings = {"name": name.partition("-momentum")[0], **({"server_momentum": 0.5} if "momentum" in name else {})}
    algorithm = make(settings, FAST)
    ranks = {"fedex-lora": asked - 1, "flora": asked}
    read, found = algorithm.read_start, dict[int, dict[str, Any]]()

    def watch(state: Any, message: Any, client: Any) -> Any:
        found[client.round] = dict(message.sets.get("base", {}))
        return read(state, message, client)

    algorithm.read_start = watch
    go(tmp_path, algorithm, 6, asked)
    pairs = read_pairs(algorithm.runtime.initial_weights)
    for number, base in found.items():
        for layer, pair in pairs.items():
            outputs, inputs, rank = len(pair.high), pair.low.shape[1], len(pair.low) * ranks.get(name, 10**6)
            rank *= number - 1
            factors = {f"{layer}.lora_A.base": (rank, inputs), f"{layer}.lora_B.base": (outputs, rank)}
            whole = {layer: (outputs, inputs)}
            wanted = {} if number == 1 else factors if rank * (outputs + inputs) < outputs * inputs else whole
            assert {key: one.shape for key, one in base.items() if key.startswith(layer)} == wanted, (number, layer)
    assert len(found) == 6


@pytest.mark.parametrize("missing", ["lora_A", "lora_B"])
def test_factors_that_do_not_belong_together_are_refused(missing: str) -> None:
    base = {"up.lora_A.base": np.ones((2, 7)), "up.lora_B.base": np.ones((5, 2)), "down": np.ones((7, 4))}
    assert {layer: change.shape for layer, change in read_changes(base).items()} == {"up": (5, 7), "down": (7, 4)}
    with pytest.raises(DataError, match="a layer has one factor alone"):
        read_changes({name: array for name, array in base.items() if missing not in name})
    with pytest.raises(DataError, match="'up', A and B have different ranks"):
        read_changes({**base, "up.lora_B.base": np.ones((5, 3))})
    with pytest.raises(DataError, match="'up' is given twice"):
        read_changes({**base, "up": np.ones((5, 7))})


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    rounds=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=5),
    seed=st.integers(0, 99),
)
def test_a_sum_of_changes_is_the_same_in_every_form(shape: Any, rounds: Any, seed: int) -> None:
    random, base, total = np.random.default_rng(seed), {}, np.zeros(shape)
    was_whole = False
    for rank, known in rounds:
        pair = Pair(random.normal(size=(rank, shape[1])), random.normal(size=(shape[0], rank)))
        base = add_change(base, "layer", pair.product, pair if known else None, "float64")
        total += pair.product
        np.testing.assert_allclose(read_changes(base).get("layer", 0.0 * total), total, atol=1e-12)
        assert sum(array.size for array in base.values()) <= total.size
        assert not was_whole or "layer" in base
        was_whole = "layer" in base


@pytest.mark.by_day(3)
@pytest.mark.parametrize("settings", [{"name": "flora"}, {"name": "flora", "draw": "first"}, {"name": "ram"}])
def test_an_adapter_that_is_not_sent_is_the_server_s(settings: dict[str, Any], tmp_path: Path) -> None:
    """Also after a round that merged nothing and after a resume; a client that makes another one fails."""
    begun: dict[tuple[int, int], Any] = {}

    def build(*, skip: int) -> Any:
        algorithm = make({"ranks": [1, 3], **settings}, FAST)
        read, combine = algorithm.read_start, algorithm.combine

        def watch(state: Any, message: Any, client: Any) -> Any:
            assert not any(".lora_" in name for name in message.weights)
            start = read(state, message, client)
            begun[client.round, client.id] = start.weights
            return start

        def merge_or_not(state: Any, used: Any, updates: Any, this_round: Any) -> Any:
            return combine(state, [] if this_round.number == skip else used, updates, this_round)

        algorithm.read_start, algorithm.combine = watch, merge_or_not
        return algorithm

    for rounds in (2, 4):
        go(tmp_path, build(skip=2), rounds, asked=2)
    store, compared = CommitStore(tmp_path / "rounds"), 0
    for (number, client), weights in begun.items():
        if number - 1 in store.list_rounds():
            parameters = store.read(number - 1).state.parameters
            for name, whole_factor in parameters.items():
                filled = np.zeros_like(whole_factor)
                kept = np.s_[: (1, 3)[client % 2]]
                kept = kept if ".lora_A." in name else (slice(None), kept)
                filled[kept] = whole_factor[kept]
                assert np.array_equal(weights[name], filled), (number, client, name)
                compared += filled.any()
    assert len(begun) == 8 and compared
    other = build(skip=0)
    others = {name: array + 1 for name, array in other.runtime.initial_weights.items()}
    message = {"step": 0, "merged": 1, "factors": Message(weights=others).digest}
    client = ClientContext(1, 5, 1, 1, other.resources(1))
    with pytest.raises(DataError, match="makes another adapter than the server"):
        other.read_start(Message(), Message(control=message), client)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", ["fedit", *PRODUCTS])
def test_ranks_and_first_draws_of_clients_are_settings(name: str, tmp_path: Path) -> None:
    chosen = {"name": name, "ranks": [1, 3], "init": "each", "local_steps": 2}
    algorithm = make(chosen, FAST, {"learning": {"weight_decay": 0.1}})
    draws: dict[int, Any] = {}
    taught = algorithm.open_learner

    def watch(site: Any, start: SiteState, penalties: Any = ()) -> Any:
        draws[site.client] = start.weights
        return taught(site, start, penalties)

    algorithm.open_learner = watch
    told, filled = algorithm.make_reply, list[bool]()

    def look(client: Any, local: Any, after: SiteState, *rest: Any) -> Any:
        rank = 1 + 2 * (client.id % 2)
        parts = (
            value[rank:] if ".lora_A." in name else value[:, rank:]
            for name, value in after.weights.items()
            if ".lora_" in name
        )
        filled.append(any(part.any() for part in parts))
        return told(client, local, after, *rest)

    algorithm.make_reply = look
    commit = go(tmp_path / "one", algorithm, 1)
    assert filled == [False] * 3, "what an adapter is filled up with stays zero"
    plain = make({"name": name, "local_steps": 2}, FAST)
    sent = go(tmp_path / "plain", plain, 1).record["bytes"]
    ranks = {client: 1 + 2 * (client % 2) for client in draws}
    assert len(draws) == 3
    share = sum(ranks.values()) / (3 * 3)
    for way in ("up", "down"):
        assert commit.record["bytes"][way]["weights"] == pytest.approx(share * sent[way]["weights"]), "r_k, not r"
    lows = [low for low in algorithm.runtime.initial_weights if ".lora_A." in low]
    for client, weights in draws.items():
        for low in lows:
            assert weights[low][: ranks[client]].all() and not weights[low][ranks[client] :].any()
            assert not np.array_equal(weights[low], draws[(client + 1) % 3][low])
            assert not weights[low.replace("lora_A", "lora_B")].any()
    again, before = make(chosen, FAST, {"learning": {"weight_decay": 0.1}}), dict(draws)
    taught, again.open_learner = again.open_learner, watch
    assert same(go(tmp_path / "two", again, 1), commit)
    assert all(np.array_equal(before[client][low], draws[client][low]) for client in draws for low in lows)


@pytest.mark.parametrize(
    "server", [{"server_step": 1.5}, {"server_momentum": 0.5}, {"aggregation": {"name": "fedadam"}}], ids=str
)
def test_rows_that_no_client_of_a_round_holds_stay_with_their_moments(server: dict[str, Any], tmp_path: Path) -> None:
    """Rounds of two clients of ranks 3 and 1 are followed by one of rank 1 alone."""
    algorithm = make({"name": "fedit", "ranks": [3, 1], **server}, FAST)
    parameters = algorithm.runtime.initial_weights
    used = [SimpleNamespace(client=client, examples=1, update_norm=1.0) for client in (0, 1)]
    random, state = np.random.default_rng(2), ServerState(parameters)

    def draw(client: int) -> Any:
        drawn = {name: (value + random.normal(size=value.shape)).astype("f4") for name, value in parameters.items()}
        return fill_rank(cut_rank(drawn, 3 - 2 * client), parameters)

    for chosen in ([0, 1], [0, 1], [1]):
        before = state
        updates = iter([draw(client) for client in chosen])
        state = algorithm.combine(before, [used[client] for client in chosen], updates, None)
    moved = [*state.parameters.items(), *((name, moment) for name, moment in state.optimizer.items())]
    earlier = {**before.parameters, **before.optimizer}
    for name, after in moved:
        if ".lora_A." in name:
            assert np.array_equal(after[1:], earlier[name][1:]) and not np.array_equal(after[:1], earlier[name][:1])


def test_settings_of_ranks_that_do_not_fit_are_one_sentence() -> None:
    with pytest.raises(OptionError, match=r"at most agent\.adapter\.rank, 3, got 4"):
        make({"name": "flora", "ranks": [1, 4]})
    uneven: dict[str, Any] = {"pad": "holders", "ranks": [1, 3]}
    for wrong, told in (
        ({"ranks": [0]}, r"algorithm\.ranks"),
        ({"ranks": []}, r"algorithm\.ranks"),
        ({"ranks": "zipf"}, r"algorithm\.ranks: give a list of ranks, or a law such as \{law: uniform"),
        ({"ranks": {"law": "zipf"}}, r"the key 'algorithm\.ranks\.high' is missing"),
        ({"ranks": {"law": "normal", "high": 3}}, r"algorithm\.ranks\.law: it must be 'uniform' or 'zipf'"),
        ({"ranks": {"low": 3, "high": 2}}, r"algorithm\.ranks: low must be at most high, got 3 and 2"),
        ({"ranks": {"low": 0, "high": 2}}, r"algorithm\.ranks\.low"),
        ({"ranks": {"most": 2}}, r"unknown key 'algorithm\.ranks\.most'|'algorithm\.ranks\.high' is missing"),
        ({"ranks": {"high": 4}}, r"at most agent\.adapter\.rank, 3, got 4"),
        ({"ranks": {"high": True}}, r"algorithm\.ranks"),
        ({"ranks": {"high": 2}, "privacy": PRIVACY}, "leave out ranks and init"),
        ({"pad": "holders"}, "pad: holders needs unlike ranks"),
        ({**uneven, "aggregation": "median"}, "pad: holders needs the aggregation mean"),
        ({**uneven, "server_step": 2.0}, "pad: holders needs the aggregation mean"),
        *(
            (
                {"ranks": [1, 3], "aggregation": rule},
                f"with ranks, {rule} would take the rows that clients lack for zeros",
            )
            for rule in ("median", "trimmed_mean", "krum", "multi_krum", "qfedavg")
        ),
        ({**uneven, "privacy": PRIVACY}, "leave out ranks and init"),
        ({"ranks": [1, 3], "privacy": PRIVACY}, "leave out ranks and init"),
        ({"init": "each", "privacy": PRIVACY}, "leave out ranks and init"),
        ({"init": "each", "checks": {"clip_norm": 1.0}}, "leave out checks.max_norm and checks.clip_norm"),
        ({"init": "each", "checks": {"max_norm": 1.0}}, "leave out checks.max_norm and checks.clip_norm"),
    ):
        with pytest.raises(OptionError, match=told):
            make({"name": "fedit", **wrong})


@given(st.integers(0, 2**63), st.integers(1, 9), st.integers(0, 12), st.sampled_from(["uniform", "zipf"]))
def test_a_law_draws_ranks_between_its_bounds(seed: int, low: int, more: int, name: Any) -> None:
    law = RankLaw(law=name, low=low, high=low + more)
    drawn = [find_rank(law, seed, client) for client in range(20)]
    assert drawn == [law.draw(seed, client) for client in range(20)] and low <= min(drawn) <= max(drawn) <= low + more
    if more == 0:
        assert set(drawn) == {low}


@pytest.mark.parametrize("name", ["uniform", "zipf"])
def test_a_law_has_its_distribution_over_clients_and_over_seeds(name: Any) -> None:
    law, chances = RankLaw(law=name, low=2, high=5), np.ones(4) if name == "uniform" else 1 / np.arange(1, 5)
    expected = 3000 * chances / chances.sum()
    for drawn in ([law.draw(1, client) for client in range(3000)], [law.draw(seed, 7) for seed in range(3000)]):
        counts = np.bincount(drawn, minlength=6)[2:]
        assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-squared with 3 degrees of freedom, 0.1 %


def test_the_ranks_of_a_law_are_the_same_on_every_machine() -> None:
    drawn = {name: [RankLaw(law=name, high=8).draw(0, client) for client in range(12)] for name in ("uniform", "zipf")}
    assert drawn == {"uniform": [3, 6, 7, 4, 1, 3, 2, 8, 1, 4, 8, 4], "zipf": [1, 3, 3, 1, 1, 6, 2, 6, 1, 5, 1, 3]}


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", ["fedit", "fedex-lora", "flora"])
def test_a_law_is_the_list_of_the_ranks_that_it_draws(name: str, tmp_path: Path) -> None:
    """Bit for bit, in a run that is resumed; the record names the ranks."""
    law = {"law": "uniform", "low": 1, "high": 3}
    ranks = [find_rank(RankLaw.load(law), 0, client) for client in range(3)]
    assert len(set(ranks)) > 1
    listed = go(tmp_path / "list", make({"name": name, "ranks": ranks}, FAST), 3, asked=2)
    for rounds in (1, 3):
        found = go(tmp_path / "law", make({"name": name, "ranks": law}, FAST), rounds, asked=2)
    assert found.state.digest == listed.state.digest
    for commit in (listed, found):
        recorded = {int(client): numbers["rank"] for client, numbers in commit.record["clients"].items()}
        assert len(recorded) == 2 and all(rank == ranks[client] for client, rank in recorded.items())


def test_a_plan_names_the_ranks() -> None:
    config = load_config("tiny-skills:fedit", ["algorithm.ranks={law: zipf, low: 2, high: 4}", "seed=3"])
    plan = plan_run(config)
    wanted = [find_rank(RankLaw(law="zipf", low=2, high=4), 3, client) for client in range(plan.clients)]
    assert list(plan.ranks) == wanted == make_plain(plan)["ranks"]
    (line,) = [line for line in format_plan(plan) if line.startswith("ranks")]
    assert f"2 ({wanted.count(2)} client" in line
    for wrong in ("[1, 5]", "{high: 1000000000}"):
        with pytest.raises(OptionError, match=r"fedit: algorithm\.ranks must be at most agent\.adapter\.rank, 4, got"):
            plan_run(load_config("tiny-skills:fedit", [f"algorithm.ranks={wrong}"]))
