"""Secret twins: promised by a digest, played by who holds the secret, checked when it is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.cli.main import main
from fedagentgym.leaderboard.entries import make_agent_entry
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.suite import (
    Secret,
    Suite,
    Twin,
    draw_secret,
    list_suites,
    load_suite,
    make_twin,
    open_scenario,
    read_secret,
    to_yaml,
)
from tests.leaderboard.conftest import play_and_pack
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
    promised = secret.digest
    assert Secret(AGENTS_SUITE.name, secret.salt, secret.seed).digest == promised
    others = (secret._replace(seed=secret.seed ^ 1), secret._replace(salt="0"), secret._replace(suite="smoke"))
    assert promised not in [other.digest for other in others]


@pytest.mark.parametrize("name", list_suites())
def test_what_is_published_of_a_suite_holds_no_seed(name: str) -> None:
    twin = load_suite(name).secret
    if twin is not None and twin.disclosed_seed is not None:
        assert Secret(name, str(twin.disclosed_salt), twin.disclosed_seed).digest == twin.digest


def test_what_maintainers_found_on_a_twin_is_kept(
    honest_agent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both scores stand beside the result, from then on; another person's run is refused."""
    result, definition = honest_agent, tmp_path / "suite.yaml"
    definition.write_text(to_yaml(AGENTS_SUITE))
    secret = draw_secret(AGENTS_SUITE)
    twin = make_twin(AGENTS_SUITE.model_copy(update={"secret": Twin(digest=secret.digest)}), secret)
    for agent in ("expert", "random"):
        play_and_pack(twin, make_agent_entry({"name": agent}), tmp_path / "runs", tmp_path / f"{agent}.zip")
    line = ["bench", "verify", str(result), "--suite", str(definition)]
    verified = tmp_path / "verified"
    write = [*line, "--out", str(verified)]
    assert main([*write, "--rerun", str(tmp_path / "expert.zip"), "--rerun", str(honest_agent)]) == 0
    assert main(write) == 0
    found = Result(result, [verified])
    text = found.list_findings()[0].read_text()
    assert found.verification is not None and (rerun := found.verification.rerun) is not None
    assert rerun.secret == Result(tmp_path / "expert.zip").numbers.overall and rerun.secret_suite == twin.digest
    assert rerun.public == found.numbers.overall
    assert str(secret.seed) not in text and secret.salt not in text
    assert main([*line, "--rerun", str(tmp_path / "expert.zip")]) == 2
    assert main([*write, "--rerun", str(tmp_path / "random.zip")]) == 2
    assert "was not played by the entry 'expert'" in capsys.readouterr().err
    assert found.list_findings()[0].read_text() == text
