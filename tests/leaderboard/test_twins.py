"""Secret twins: promised by a digest, played by who holds the secret, checked when it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.leaderboard.scenarios import open_scenario
from fedagentgym.leaderboard.suite import Suite, Twin, list_suites, load_suite
from fedagentgym.leaderboard.twins import check_disclosure, draw_secret, make_twin, read_secret
from tests.leaderboard.samples import AGENTS_SUITE


@pytest.mark.parametrize("suite", [AGENTS_SUITE, load_suite("smoke")], ids=lambda suite: suite.track)
def test_a_twin_has_other_tasks(suite: Suite) -> None:
    secret = draw_secret(suite)
    promised = suite.model_copy(update={"secret": Twin(digest=secret.digest)})
    assert promised.digest == suite.digest
    twin = make_twin(promised, secret)
    name = next(iter(suite.scenarios))
    here, there = open_scenario(promised, name), open_scenario(twin, name)
    assert here.env.pool.digest != there.env.pool.digest and len(here.ids) == len(there.ids)
    assert [task.payload for task in here.env.pool] != [task.payload for task in there.env.pool]


def test_only_the_promised_secret_is_taken(tmp_path: Path) -> None:
    secret = draw_secret(AGENTS_SUITE)
    promised = AGENTS_SUITE.model_copy(update={"secret": Twin(digest=secret.digest)})
    with pytest.raises(DataError, match="not the secret"):
        make_twin(promised, secret._replace(seed=secret.seed ^ 1))
    with pytest.raises(OptionError, match="no secret twin"):
        make_twin(AGENTS_SUITE, secret)
    path = tmp_path / "secret.json"
    path.write_text(json.dumps(secret._asdict()))
    assert read_secret(path) == secret
    path.write_text(json.dumps({**secret._asdict(), "seed": "5"}))
    with pytest.raises(DataError, match="no secret"):
        read_secret(path)


def test_what_is_told_must_be_what_was_promised() -> None:
    secret = draw_secret(AGENTS_SUITE)
    twin = Twin(digest=secret.digest, disclosed_salt=secret.salt, disclosed_seed=secret.seed)
    assert check_disclosure(AGENTS_SUITE, twin) == secret
    with pytest.raises(DataError, match="not what was promised"):
        check_disclosure(AGENTS_SUITE, twin.model_copy(update={"disclosed_seed": secret.seed ^ 1}))
    with pytest.raises(OptionError, match="not been disclosed"):
        check_disclosure(AGENTS_SUITE, Twin(digest=secret.digest))


@pytest.mark.parametrize("name", list_suites())
def test_what_is_published_of_a_suite_holds_no_seed(name: str) -> None:
    secret = load_suite(name).secret
    assert secret is None or secret.disclosed_seed is None or check_disclosure(load_suite(name), secret)
