"""Every sampler: sizes exact, nothing twice, nothing that is not there, and errors that carry the numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError, OptionError, UnknownNameError
from fedagentgym.base.files import parse_yaml
from fedagentgym.partitions import SAMPLERS
from fedagentgym.partitions.assignment import Assignment, redistribute_overflow
from fedagentgym.partitions.client_split import federate
from fedagentgym.partitions.division import TAKEN, Sampler, dump_parameters, make_sampler, sample_clients
from fedagentgym.partitions.statistics import count_labels
from fedagentgym.partitions.table import TaskTable
from fedagentgym.registration import register_sampler
from tests.partitions.conftest import make_table

SPECS: dict[str, dict[str, Any]] = {
    "uniform": {"tasks_per_client": 20},
    "preference": {"omega": 0.9, "tasks_per_client": 20},
    "preference_dirichlet": {"omega": 0.5, "tasks_per_client": 20},
    "coverage": {"xi": 1.0, "mean_tasks": 20},
    "preference_coverage": {"omega": 0.9, "xi": 1.0, "mean_tasks": 20},
    "hardness": {"xi": 1.0, "tasks_per_client": 20},
    "dirichlet": {"beta": 0.3},
    "by_source": {"tasks_per_client": 1},
    "pathological": {"categories_per_client": 2},
    "shards": {"shards_per_client": 2},
    "natural": {"by": "user"},
}


def draw(name: str, table: TaskTable, clients: int = 10, seed: int = 0, **parameters: Any) -> Assignment:
    return sample_clients(make_sampler(name, parameters or SPECS[name]), table, clients, seed)


def test_every_sampler_is_tried_here() -> None:
    ours = {name for name in SAMPLERS.names() if isinstance(SAMPLERS.get_target(name), str)}
    assert {*SPECS, "held"} == ours, "pages and other tests add samplers of their own, as objects"


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=15)
@given(items=st.integers(160, 400), clients=st.sampled_from([1, 5, 10, 15]), seed=st.integers(0, 99))
def test_sizes_and_distinctness(name: str, items: int, clients: int, seed: int) -> None:
    if name == "pathological":
        items *= 2  # the rarest category has a task for each client
    table = make_table(items, {"a": 0.3, "b": 0.25, "c": 0.25, "d": 0.1, "e": 0.1}, seed=seed)
    parameters = dict(SPECS[name])
    if name == "by_source":
        parameters["sources"] = {table.names[0]: clients}
    drawn = draw(name, table, clients, seed, **parameters)
    assert len(drawn) == clients and not drawn.has_repeats()
    assert drawn.items.min() >= 0 and drawn.items.max() < items
    for client in drawn:
        assert np.all(np.diff(client) > 0)
    if "tasks_per_client" in parameters:
        assert set(drawn.sizes.tolist()) == {parameters["tasks_per_client"]}
    if name in ("coverage", "preference_coverage"):
        assert int(drawn.sizes.sum()) == 20 * clients
        assert drawn.sizes.min() >= 4 and drawn.sizes.max() <= 60
    if name == "dirichlet":
        assert np.array_equal(np.sort(drawn.items), np.arange(items)) and drawn.sizes.min() >= 1


@pytest.mark.parametrize("name", SPECS)
def test_a_client_does_not_depend_on_how_many_there_are_where_streams_are_per_client(name: str) -> None:
    """Uniform and preference draw per client alone; the others place tasks for all clients together."""
    table = make_table(1000)
    if name in ("uniform", "preference", "preference_dirichlet"):
        few, many = draw(name, table, 5), draw(name, table, 50)
        assert all(np.array_equal(few[client], many[client]) for client in range(5))
    else:
        assert draw(name, table, 10).same_as(draw(name, table, 10))


@pytest.mark.parametrize("name", SPECS)
def test_seeds_matter(name: str) -> None:
    table = make_table(600)
    assert not draw(name, table, 10, seed=1).same_as(draw(name, table, 10, seed=2))


# ---- uniform ----------------------------------------------------------------------------------------------------


def test_uniform_can_take_everything() -> None:
    assert draw("uniform", make_table(50), 3, tasks_per_client=50).items.tolist() == list(range(50)) * 3


def test_uniform_covers_tasks_equally() -> None:
    copies = draw("uniform", make_table(40), 4000, tasks_per_client=30).count_copies(40)
    expected, error = 3000, 4.5 * np.sqrt(4000 * 0.75 * 0.25)
    assert np.all(np.abs(copies - expected) < error)


def test_disjoint_shares() -> None:
    drawn = draw("uniform", make_table(103), 10, disjoint=True)
    assert set(drawn.sizes.tolist()) == {10} and drawn.count_copies(103).max() == 1


@given(overlap=st.floats(1, 10), clients=st.integers(1, 20), tasks=st.integers(1, 30))
def test_overlap_is_kept(overlap: float, clients: int, tasks: int) -> None:
    overlap = min(overlap, float(clients))
    drawn = draw("uniform", make_table(600), clients, tasks_per_client=tasks, overlap=overlap)
    copies = drawn.count_copies(600)
    used = copies[copies > 0]
    assert used.max() - used.min() <= 1 and used.mean() <= overlap + 1e-9 + clients * tasks / used.size / 1e6


def test_infeasible_overlap_names_its_numbers() -> None:
    message = "100 clients x 100 tasks at overlap 1 need 10,000 tasks, the pool has 6,410: raise overlap to 1.57"
    with pytest.raises(OptionError, match=message) as caught:
        draw("uniform", make_table(6410), 100, tasks_per_client=100, overlap=1.0)
    assert "lower tasks per client to 64" in str(caught.value)
    draw("uniform", make_table(6410), 100, tasks_per_client=100, overlap=1.57)
    draw("uniform", make_table(6410), 100, tasks_per_client=64, overlap=1.0)


# ---- preference -------------------------------------------------------------------------------------------------


def test_preference_without_noise_keeps_the_global_mixture() -> None:
    table = make_table(5000)
    drawn = draw("preference", table, 2000, omega=0.0, tasks_per_client=50)
    share = count_labels(drawn, table.codes, 5).sum(axis=0) / 100_000
    pool = table.counts / 5000
    assert np.all(np.abs(share - pool) < 4.5 * np.sqrt(pool * (1 - pool) / 100_000))


def test_logit_anchor_favours_the_large_category_already_without_noise() -> None:
    table = make_table(5000)
    drawn = draw("preference", table, 500, omega=0.0, tasks_per_client=50, anchor="logit")
    share = count_labels(drawn, table.codes, 5).sum(axis=0) / 25_000
    assert share[table.names.index("fashion")] == pytest.approx(0.937, abs=0.01)


def test_one_category_has_no_logit() -> None:
    table = make_table(50, {"only": 1.0})
    assert draw("preference", table, 3, omega=0.5, tasks_per_client=10).sizes.tolist() == [10, 10, 10]
    with pytest.raises(OptionError, match="at least two categories, the pool has one"):
        draw("preference", table, 3, omega=0.5, tasks_per_client=10, anchor="logit")


@given(
    capacity=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    weights=st.lists(st.integers(0, 2**40), min_size=6, max_size=6),
    share=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_capacity_fix_never_loses_a_task(capacity: list[int], weights: list[int], share: float, seed: int) -> None:
    from fedagentgym.base.streams import StreamBatch

    room = np.array(capacity)
    total = round(share * int(room.sum()))
    weight = np.array([weights[: len(capacity)]] * 3)
    first = np.zeros_like(weight)
    first[:, int(np.argmax(weight[0]))] = total
    fixed = redistribute_overflow(StreamBatch(seed, "fix", count=3), first, weight, room)
    assert np.all(fixed.sum(axis=1) == total) and np.all(fixed <= room) and np.all(fixed >= 0)


def test_a_preference_for_a_small_category_spills_over() -> None:
    table = make_table(300, {"big": 0.97, "small": 0.03})
    drawn = draw("preference", table, 200, omega=6.0, tasks_per_client=100)
    counts = count_labels(drawn, table.codes, 2)
    assert np.all(counts.sum(axis=1) == 100) and counts[:, 1].max() == table.counts[1]


# ---- coverage ---------------------------------------------------------------------------------------------------


@given(
    items=st.integers(1, 60),
    clients=st.integers(1, 30),
    overlap=st.floats(0.05, 30),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    xi=st.sampled_from([0.1, 1.0, 256.0]),
)
def test_coverage_in_every_corner(
    items: int, clients: int, overlap: float, bounds: tuple[float, float], xi: float
) -> None:
    total = int(min(overlap, clients) * items)
    low, high = sorted(round(bound * items) for bound in bounds)
    low, high = min(low, total // clients), max(high, -(-total // clients))
    if not total:
        return
    drawn = draw(
        "coverage", make_table(items), clients, xi=xi, mean_tasks=total / clients, min_tasks=low, max_tasks=high
    )
    copies = drawn.count_copies(items)
    places = int(drawn.sizes.sum())
    assert places in (total, total - 1) and drawn.sizes.min() >= low and drawn.sizes.max() <= high
    assert copies.max() - copies.min() <= 1 and copies.min() == places // items


def test_coverage_with_an_overlap_reports_the_mean_it_gives(caplog: pytest.LogCaptureFixture) -> None:
    drawn = draw("coverage", make_table(100), 10, xi=1.0, overlap=2.5)
    assert int(drawn.sizes.sum()) == 250 and set(drawn.count_copies(100).tolist()) == {2, 3}
    both = draw("coverage", make_table(100), 10, xi=1.0, overlap=2.5, mean_tasks=20, min_tasks=5, max_tasks=60)
    assert both.sizes.mean() == 25
    assert "gives clients a mean of 25 tasks, not the mean_tasks 20 asked for" in caplog.text


def test_equal_bounds_give_equal_sizes() -> None:
    drawn = draw("coverage", make_table(50), 5, xi=1.0, mean_tasks=10, min_tasks=10, max_tasks=10)
    assert set(drawn.sizes.tolist()) == {10} and set(drawn.count_copies(50).tolist()) == {1}


def test_everybody_can_hold_everything() -> None:
    drawn = draw("coverage", make_table(20), 4, xi=1.0, mean_tasks=20, min_tasks=20, max_tasks=20)
    assert set(drawn.count_copies(20).tolist()) == {4}


@pytest.mark.parametrize(
    ("parameters", "numbers"),
    [
        ({"overlap": 9.0, "mean_tasks": 20, "min_tasks": 10, "max_tasks": 30}, ["900", "100", "300"]),
        ({"mean_tasks": 20, "min_tasks": 30, "max_tasks": 40}, ["20", "30", "40"]),
        ({"mean_tasks": 20, "min_tasks": 10, "max_tasks": 400}, ["400", "100"]),
        ({}, ["mean_tasks"]),
    ],
)
def test_impossible_coverage_names_the_numbers(parameters: dict[str, Any], numbers: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        draw("coverage", make_table(100), 10, xi=1.0, **parameters)
    assert all(number in str(caught.value) for number in numbers)


# ---- hardness ---------------------------------------------------------------------------------------------------


def test_hardness_places_solved_tasks_like_coverage_and_fills_with_unsolved() -> None:
    table = make_table(3000)
    assert table.solved is not None
    drawn = draw("hardness", table, 100, xi=1.0, tasks_per_client=50)
    counts = count_labels(drawn, table.solved.astype(np.int64), 2)
    assert np.all(counts.sum(axis=1) == 50) and int(counts[:, 1].sum()) == 2500
    copies = drawn.count_copies(3000)[table.solved]
    assert copies.max() - copies.min() <= 1


def test_clients_with_the_same_quota_hold_different_tasks() -> None:
    table = make_table(3000)
    assert table.solved is not None
    drawn = draw("hardness", table, 100, xi=256.0, tasks_per_client=50)
    quotas = count_labels(drawn, table.solved.astype(np.int64), 2)[:, 1]
    assert len(set(quotas.tolist())) < 40
    assert len({tuple(client.tolist()) for client in drawn}) == 100


def test_hardness_errors() -> None:
    table = make_table(200, solved=0.5)
    with pytest.raises(DataError, match="labels"):
        draw("hardness", table.with_solved(None), 5, xi=1.0, tasks_per_client=10)
    few = np.zeros(200, dtype=bool)
    few[:8] = True
    with pytest.raises(OptionError, match="up to 10 solved tasks, but the labels count 8"):
        draw("hardness", table.with_solved(few), 5, xi=1.0, tasks_per_client=10)
    with pytest.raises(OptionError, match=r"client \d+ needs \d+ unsolved tasks to reach 10, but only 3 are unsolved"):
        many = np.ones(200, dtype=bool)
        many[:3] = False
        draw("hardness", table.with_solved(many), 5, xi=1.0, tasks_per_client=10)
    with pytest.raises(OptionError, match="max_solved is 11"):
        draw("hardness", table, 5, xi=1.0, tasks_per_client=10, max_solved=11)


# ---- dirichlet, by_source, functions ----------------------------------------------------------------------------


def test_equal_sized_dirichlet_is_disjoint_and_full() -> None:
    table = make_table(1000)
    drawn = draw("dirichlet", table, 4, beta=0.1, equal_size=True)
    assert drawn.sizes.tolist() == [250] * 4 and drawn.count_copies(1000).max() == 1


def test_dirichlet_by_hardness() -> None:
    table = make_table(1000)
    drawn = draw("dirichlet", table, 10, beta=0.05, label="hardness")
    assert table.solved is not None
    solved = count_labels(drawn, table.solved.astype(np.int64), 2)
    assert (solved.max(axis=1) / solved.sum(axis=1)).mean() > 0.85


def test_dirichlet_errors() -> None:
    with pytest.raises(OptionError, match=r"5 clients x 30 tasks .* need 150 tasks, the pool has 100"):
        draw("dirichlet", make_table(100), 5, beta=0.1, equal_size=True, tasks_per_client=30)
    with pytest.raises(OptionError, match="200 clients x 1 tasks"):
        draw("dirichlet", make_table(100), 200, beta=0.1)
    with pytest.raises(OptionError, match="equal_size"):
        draw("dirichlet", make_table(100), 2, beta=0.1, tasks_per_client=3)


def test_by_source_keeps_sources_apart() -> None:
    table = make_table(400, {"x": 0.5, "y": 0.5})
    drawn = draw("by_source", table, 5, sources={"x": 2, "y": 3})
    counts = count_labels(drawn, table.codes, 2)
    assert np.all((counts > 0).sum(axis=1) == 1) and drawn.count_copies(400).max() == 1
    assert (counts[:, 0] > 0).tolist() == [True, True, False, False, False]
    with pytest.raises(UnknownNameError, match="category 'z'"):
        draw("by_source", table, 1, sources={"z": 1})
    with pytest.raises(OptionError, match="names 2 clients, 3 are asked for"):
        draw("by_source", table, 3, sources={"x": 2})
    with pytest.raises(OptionError, match="cannot be divided equally among 2 categories"):
        draw("by_source", table, 3, sources=None)


def test_by_source_gives_a_client_several_categories() -> None:
    table = make_table(600, {"w": 0.25, "x": 0.25, "y": 0.25, "z": 0.25})
    drawn = draw("by_source", table, 3, sources={"w+ z": 2, "x": 1}, tasks_per_client=40)
    counts = count_labels(drawn, table.codes, 4)
    assert counts.sum(axis=1).tolist() == [40, 40, 40] and drawn.count_copies(600).max() == 1
    assert np.all(counts[:2, [0, 3]] > 5) and not counts[:2, [1, 2]].any() and counts[2].tolist() == [0, 40, 0, 0]
    named = make_table(100, {"a+b": 0.5, "c": 0.5})
    alone = count_labels(draw("by_source", named, 1, sources={"a+b": 1}), named.codes, 2)
    assert alone.tolist() == [[int((named.codes == 0).sum()), 0]]
    with pytest.raises(UnknownNameError, match="category 'v'"):
        draw("by_source", table, 1, sources={"x+v": 1})
    with pytest.raises(OptionError, match="names the category 'x' twice"):
        draw("by_source", table, 2, sources={"x": 1, "y+x": 1})


def test_own_function_as_sampler() -> None:
    def odd_and_even(table: TaskTable, clients: int, seed: int, first: int = 0) -> list[list[str]]:
        return [list(table.ids[first + client :: clients]) for client in range(clients)]

    register_sampler("test-odd", odd_and_even, replace=True)
    drawn = draw("test-odd", make_table(20), 2, first=0)
    assert drawn[0].tolist() == list(range(0, 20, 2))
    with pytest.raises(OptionError, match="no parameter 'frist': did you mean 'first'"):
        make_sampler("test-odd", {"frist": 1})
    SAMPLERS._entries.pop("test-odd")


@pytest.fixture
def own() -> Iterator[Callable[[Any], str]]:
    def register(target: Any) -> str:
        register_sampler("test-own", target, replace=True)
        return "test-own"

    yield register
    SAMPLERS._entries.pop("test-own", None)


def test_the_defaults_of_a_function_are_stored(own: Callable[[Any], str]) -> None:
    def win(table: TaskTable, clients: int, seed: int, width: int = 10, *, steps: Any = (1, 2), **more: Any) -> Any:
        assert isinstance(steps, list)
        return [table.ids[client : client + width] for client in range(clients)]

    name = own(win)
    made = federate("Guess", partition=name, clients=2)
    assert made.record.parameters == {"width": 10, "steps": [1, 2]}
    for same in ({"width": 10}, {"width": np.int64(10), "steps": [1, 2]}, {"width": None}):
        assert federate("Guess", partition=name, clients=2, **same).digest == made.digest
    assert dump_parameters(make_sampler(name, {"far": 2.5})) == {"width": 10, "steps": [1, 2], "far": 2.5}
    assert all(check.ok for check in made.verify() if check.name == "re-sampling")


def test_parameters_with_the_name_of_an_argument_of_federate_are_refused(own: Callable[[Any], str]) -> None:
    arguments = inspect.signature(federate).parameters.values()
    assert tuple(one.name for one in arguments if one.kind is not one.VAR_KEYWORD) == TAKEN

    def shuffles(table: TaskTable, clients: int, draw: int, seed: int = 3) -> Any:
        return []

    class Owned(Sampler):
        pool: int = 3

        def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
            return Assignment.from_lists([])

    for target, taken in ((shuffles, "seed"), (Owned, "pool")):
        with pytest.raises(OptionError, match=f"has a parameter '{taken}', which is an argument of federate: choose"):
            own(target)
        assert "test-own" not in SAMPLERS
        SAMPLERS.register("test-own", target)  # as a name that is imported later
        with pytest.raises(OptionError, match=f"has a parameter '{taken}'"):
            federate("Guess", partition="test-own", clients=2)
        SAMPLERS._entries.pop("test-own")


def test_parameters_that_a_function_cannot_take(own: Callable[[Any], str]) -> None:
    def needs(table: TaskTable, clients: int, seed: int, width: int, rule: Any = len) -> Any:
        return []

    with pytest.raises(OptionError, match="the sampler 'test-own' needs width, which has no default"):
        make_sampler(own(needs), {})
    with pytest.raises(OptionError, match=r"its parameter rule must be a plain value .*, got '<built-in"):
        make_sampler("test-own", {"width": 3})
    for wrong in (object(), float("nan"), {1, 2}):
        with pytest.raises(OptionError, match="its parameter width must be a plain value"):
            make_sampler("test-own", {"width": wrong, "rule": "len"})


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("uniform", {"tasks_per_client": "20"}, "tasks_per_client must be a number, not the text '20'"),
        ("uniform", {"disjoint": "yes"}, "disjoint must be True or False, not 'yes'"),
        ("uniform", {"disjoint": 1}, "disjoint must be True or False, not '1'"),
        ("dirichlet", {"beta": "0.3"}, "beta must be a number, not the text '0.3'"),
        ("coverage", {"xi": 1, "tasks_per_client": "5"}, "mean_tasks must be a number, not the text '5'"),
        ("by_source", {"sources": {"a": "1"}}, "sources.a: it must be a whole number"),
    ],
)
def test_texts_of_numbers_and_flags_are_refused(name: str, parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make_sampler(name, parameters)
    assert dump_parameters(make_sampler("dirichlet", parse_yaml("{beta: 1e-3}", "here")))["beta"] == 0.001


def test_parameters_are_checked() -> None:
    with pytest.raises(OptionError, match="did you mean 'omega'"):
        make_sampler("preference", {"omga": 1.0, "omega": 1.0, "tasks_per_client": 3})
    with pytest.raises(OptionError, match="the sampler 'dirichlet' has no parameter 'alfa': did you mean 'alpha'"):
        make_sampler("dirichlet", {"alfa": 1.0})
    with pytest.raises(OptionError, match="needs omega"):
        make_sampler("preference", {"tasks_per_client": 3})
    with pytest.raises(OptionError, match="omega"):
        make_sampler("preference", {"tasks_per_client": 3, "omega": -0.1})
    with pytest.raises(OptionError, match="omega"):
        make_sampler("preference", {"tasks_per_client": 3, "omega": float("nan")})
    assert dump_parameters(make_sampler("coverage", {"xi": 1, "tasks_per_client": 5})) == {
        "xi": 1.0,
        "mean_tasks": 5.0,
    }
    for clients in (0, -1, True, 2.0):
        with pytest.raises(OptionError, match="clients"):
            sample_clients(make_sampler("uniform", {"tasks_per_client": 1}), make_table(10), clients, 0)  # type: ignore[arg-type]
