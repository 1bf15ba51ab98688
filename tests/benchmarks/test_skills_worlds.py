"""The worlds of the suites in Skills: clients of the same kinds in every one."""

from __future__ import annotations

import pytest

from benchmarks.skills_worlds import make_world
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.experiment.config import load_config
from fedagentgym.leaderboard.suite import load_suite
from fedagentgym.learning.misconceptions import draw_misconceptions


def test_every_seed_has_a_world_in_which_clients_are_of_the_same_kinds() -> None:
    for variants, kinds in (
        ("", {("+", False), ("+", True), ("-", False), ("-", True)}),
        ("one-procedure,", {("+",), ("-",)}),
    ):
        source = f"tiny-skills:skills-32,{variants}fedavg-grpo"
        config = load_config(source, make_world(3, source))
        assert config.warm_start is not None and config.warm_start.misconceptions is not None
        split = Runtime(config.spec()).client_split
        shown = draw_misconceptions(split.client(0).open_env(), config.warm_start.misconceptions)
        for client in range(8):
            towns = split.client(client).open_env().pool.categories
            own, misled = [shown[town].own for town in towns], [shown[town].misled for town in towns]
            assert len(towns) == 4 and sum(misled) == 2
            assert set(zip(own, misled, strict=True)) == kinds or {(one,) for one in own} < kinds
    assert make_world(3, "tiny-skills:fedavg-grpo") == make_world(3, "tiny-skills:skills-32,iid,fedavg-grpo")


@pytest.mark.parametrize(("variants", "kinds"), [("iid,", (32, 2)), ("", (4, 2)), ("one-procedure,", (4, 1))])
def test_clients_of_three_kinds(variants: str, kinds: tuple[int, int]) -> None:
    """The number of their categories, and of these categories' procedures."""
    split = Runtime(load_config(f"tiny-skills:skills-32,{variants}fedavg-grpo").spec()).client_split
    for client in range(len(split)):
        env = split.client(client).open_env()
        own = env.list_procedures()
        assert (len(env.pool.categories), len({own[name].own for name in env.pool.categories})) == kinds


@pytest.mark.parametrize(("variant", "count"), [("procedures-2", 4), ("procedures-3", 8)])
def test_with_more_procedures_a_client_holds_four_of_them(variant: str, count: int) -> None:
    source = f"tiny-skills:skills-32,{variant}"
    for seed in (0, 7):
        config = load_config(source, make_world(seed, source))
        assert config.warm_start is not None and config.warm_start.misconceptions is not None
        split = Runtime(config.spec()).client_split
        shown = draw_misconceptions(split.client(0).open_env(), config.warm_start.misconceptions)
        assert len({about.own for about in shown.values()}) == count
        held = [split.client(client).open_env().pool.categories for client in range(8)]
        assert sorted(town for towns in held for town in towns) == sorted(shown)
        for towns in held:
            assert len({shown[town].own for town in towns}) == 4 and sum(shown[town].misled for town in towns) == 2


@pytest.mark.parametrize("name", ["fedagent", "fedgrpo", "fedmoa", "map", "methods", "more", "pubswap"])
@pytest.mark.parametrize("seed", [0, 9, 101])
def test_a_suites_worlds_are_drawn_likewise(name: str, seed: int) -> None:
    suite, variants = load_suite(f"skills-{name}-v1"), ("procedures-2", "procedures-3", "two-turns", "one-procedure")
    drawn = {scenario: own.worlds[seed] for scenario, own in suite.scenarios.items() if own.worlds}
    assert drawn
    for scenario, world in drawn.items():
        source = ",".join(["tiny-skills:skills-32", *(variant for variant in variants if variant == scenario)])
        assert world == make_world(seed, source)[-1:]
