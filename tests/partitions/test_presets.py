"""The papers' settings: all there, all feasible on the pools they are made for."""

from __future__ import annotations

import pytest

from fedagentgym.base.errors import UnknownNameError
from fedagentgym.partitions.division import make_sampler, sample_clients
from fedagentgym.partitions.presets import FIGURE_PRESETS, PRESETS, get_preset
from tests.partitions.conftest import WEBSHOP, make_table

POOLS = {
    "fedagentgym/WebShop-v0": 6334,
    "fedagentgym/ALFWorld-v0": 3553,
    "fedagentgym/Math-v0": 10_000,
    "fedagentgym/Mixture-v0": 20_000,
}
OTHER_KEYS = ("env_id", "env", "clients", "seed", "partition", "roles")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_sampled(name: str) -> None:
    keywords = get_preset(name)
    parameters = {key: value for key, value in keywords.items() if key not in OTHER_KEYS}
    reserved = sum(size for role, size in keywords.get("roles", {}).items() if role != "server")
    kinds = keywords["env"].get("kinds")
    shares = dict.fromkeys(kinds, 1 / len(kinds)) if kinds else WEBSHOP
    table = make_table(POOLS[keywords["env_id"]] - reserved, shares)
    drawn = sample_clients(make_sampler(keywords["partition"], parameters), table, keywords["clients"], 0)
    if name.startswith("fedagent-") and "coverage" not in name:
        assert set(drawn.sizes.tolist()) == {100} and len(drawn) == 100
    if "coverage" in name:
        assert drawn.sizes.mean() == (500 if "published" in name else 100)


def test_figures_are_the_twelve_of_the_paper() -> None:
    assert sorted(FIGURE_PRESETS) == list(range(5, 17)) and len(set(FIGURE_PRESETS.values())) == 12
    assert set(FIGURE_PRESETS.values()) <= set(PRESETS)
    assert FIGURE_PRESETS[9] == "fedagent-webshop-coverage-1" and FIGURE_PRESETS[16] == "fedagent-alfworld-hardness-256"


def test_unknown_preset() -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        get_preset("fedagent-webshop-preference-0.8")
