"""Replies that were cut off, left out of the loss: the tokens that TRL leaves out, and advantages as with them."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.protocols import Decoding
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.passes import token_weights
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Row, Segment, Trajectory, Turn, build_rows, leave_out_cut_replies

from .test_local import SMALL, SMALL_TASKS, make_agent, same

STOP, PAD = 1, 0
Replies = list[list[int]]


def play(*texts: Replies) -> Trajectory:
    """An episode; every text is a prompt with the replies of its turns, between which a token is given."""
    turns, segments = [], []
    for number, replies in enumerate(texts):
        ids, mask = [], []
        for place, reply in enumerate(replies):
            given = [9] if place else []
            ids += given + reply
            mask += [False] * len(given) + [True] * len(reply)
            turns.append(Turn("", "", (), 0.0, True, True, tokens=len(reply), segment=number))
        arrays = [np.array([5, 6], dtype=np.int32), np.array(ids, dtype=np.int32), np.array(mask, dtype=np.bool_)]
        segments.append(Segment(*arrays, np.linspace(-1, 0, len(ids)).astype(np.float32)))
    return Trajectory("task", 0, tuple(turns), tuple(segments))


def make_rows(*episodes: Trajectory) -> tuple[list[Row], list[Row], int]:
    """The rows with all replies, and those without replies that were cut off."""
    group = tuple(episodes)
    rows = build_rows([group], [tuple(np.arange(1.0, 1 + len(one.turns)) for one in group)])
    kept, cut = leave_out_cut_replies(rows, [group], frozenset({STOP}))
    return rows, kept, cut


def mask_as_trl(replies: Replies) -> torch.Tensor:
    """The mask of the loss by the lines of TRL's trainer."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("trl is not installed")
    text = (Path(found.origin).parent / "trainer" / "grpo_trainer.py").read_text("utf-8")
    block = re.search(r"\n( +if self\.mask_truncated_completions:\n.*?loss_mask = [^\n]*\n)", text, flags=re.DOTALL)
    assert block is not None
    longest = max(map(len, replies))
    mask = torch.tensor([[1] * len(reply) + [0] * (longest - len(reply)) for reply in replies])
    names: dict[str, Any] = {
        "torch": torch,
        "device": "cpu",
        "completion_ids_list": replies,
        "completion_mask": mask,
        "tool_mask": None,
        "self": SimpleNamespace(
            mask_truncated_completions=True, eos_token_ids=[STOP], _tokenizer=SimpleNamespace(pad_token_id=PAD)
        ),
    }
    exec(textwrap.dedent(block[1]), names)
    return names["loss_mask"]


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=6))
def test_the_tokens_that_are_left_out_are_those_of_trl(replies: Replies) -> None:
    _, kept, cut = make_rows(*(play([reply]) for reply in replies))
    theirs = mask_as_trl(replies).sum(1).tolist()
    assert [len(row.own) for row in kept] == theirs
    assert cut == theirs.count(0)


@pytest.mark.parametrize("loss", ["token", "sequence", {"name": "constant", "length": 7}])
def test_the_averages_are_those_of_trl(loss: Any) -> None:
    """`bnpo` over the tokens that are left, `grpo` over all rows, `dr_grpo` over all rows and a length."""
    replies = [[2, 3, STOP], [2, 3], [4, STOP], [2, 2, 2, 2]]
    _, kept, _ = make_rows(*(play([reply]) for reply in replies))
    mask, chosen = mask_as_trl(replies), LearningSettings.load({"loss": loss}).loss
    each = {
        "token": mask / mask.sum().clamp(min=1.0),
        "sequence": mask / mask.sum(-1, keepdim=True).clamp(min=1.0) / len(replies),
        "constant": mask / (len(replies) * 7),
    }[chosen.name]
    lengths = np.array([len(row.own) for row in kept])
    np.testing.assert_allclose(token_weights(lengths, chosen) * lengths, each.sum(1).numpy(), rtol=1e-6)


def test_a_cut_reply_among_others_is_left_out_alone() -> None:
    rows, kept, cut = make_rows(play([[2, STOP], [3, 4], [STOP]], [[2, 2]], [[STOP]]))
    assert cut == 2
    assert [row.ids[row.own].tolist() for row in kept] == [[2, STOP, STOP], [], [STOP]]
    assert [row.advantages.tolist() for row in kept] == [[1, 1, 3], [], [5]]
    for row, part in zip(rows, kept, strict=True):
        places = np.isin(row.own, part.own)
        assert np.array_equal(row.behaviour[places], part.behaviour) and np.array_equal(row.ids, part.ids)


def test_what_was_allowed_and_what_values_said_stays_with_its_token() -> None:
    (row,), _, _ = make_rows(play([[2, 3], [4, STOP]]))
    row = replace(
        row,
        allowed_counts=np.array([1, 2, 1, 3], dtype=np.int32),
        allowed_ids=np.array([2, 3, 7, 4, 1, 8, 9], dtype=np.int32),
        played=row.behaviour - 1,
        values=np.arange(4.0),
        returns=np.arange(4.0) + 10,
    )
    (left,), cut = leave_out_cut_replies([row], [(play([[2, 3], [4, STOP]]),)], frozenset({STOP}))
    assert cut == 1 and left.allowed_counts.tolist() == [1, 3] and left.allowed_ids.tolist() == [4, 1, 8, 9]
    assert left.values.tolist() == [2, 3] and left.returns.tolist() == [12, 13]
    assert np.array_equal(left.played, row.played[2:])


# ---- a whole step -----------------------------------------------------------------------------------------------------


def open_local(**learning: Any) -> LocalTraining:
    agent = make_agent(decoding=Decoding(max_new_tokens=learning.pop("max_new_tokens", 12)))
    settings = LearningSettings.load({**SMALL, "minibatches": 1, **learning})
    return LocalTraining(agent, open_env(GuessEnv, tasks=SMALL_TASKS), settings)


def end_some(local: LocalTraining, seed: int = 0) -> Any:
    """Episodes of which every second one ends every reply with an end token, whatever was drawn there, and the others none."""
    stop = min(local.agent.tokenizer.stop_ids)

    def end(one: Trajectory, ended: bool) -> Trajectory:
        segments = []
        for number, segment in enumerate(one.segments):
            ids, own = segment.token_ids.copy(), np.flatnonzero(segment.mask)
            last = own[np.cumsum([turn.tokens for turn in one.turns if turn.segment == number]) - 1]
            ids[last] = stop if ended else stop + 1
            segments.append(segment._replace(token_ids=ids))
        return replace(one, segments=tuple(segments))

    return [tuple(end(one, place % 2 == 0) for place, one in enumerate(group)) for group in local.collect_groups(seed)]


GIVEN = [[1.0, -1.0, 0.5, -0.5]] * 2


def step(groups: Any, advantages: Any = GIVEN, **learning: Any) -> tuple[dict[str, Any], dict[str, float]]:
    local = open_local(**learning)
    report = local.update(groups, advantages=advantages)
    return local.get_state().weights, report.metrics


@pytest.mark.parametrize("loss", ["token", "sequence"])
def test_a_step_learns_from_the_replies_that_ended(loss: str) -> None:
    groups = end_some(open_local())
    whole, plain = step(groups, loss=loss)
    masked, metrics = step(groups, loss=loss, mask_truncated=True)
    assert "replies/cut" not in plain and metrics["replies/cut"] == pytest.approx(
        sum(len(one.turns) for group in groups for one in group[1::2])
        / sum(len(one.turns) for group in groups for one in group)
    )
    assert not same(whole, masked)
    if loss == "token":  # only the others count in the mean over tokens; their advantages are as before
        rest = [group[::2] for group in groups]
        alone, _ = step(rest, [[1.0, 0.5]] * 2, loss=loss)
        assert max(float(np.abs(alone[name] - masked[name]).max()) for name in alone) < 1e-6


def test_a_step_in_which_every_reply_was_cut_off_changes_nothing() -> None:
    local = open_local(mask_truncated=True)
    before, groups = local.get_state().weights, end_some(local)
    report = local.update([group[1::2] for group in groups], advantages=[[1.0, -1.0]] * 2)
    assert report.metrics["replies/cut"] == 1 and report.metrics["update/empty"] == 1
    assert same(before, local.get_state().weights)


def test_replies_that_all_ended_give_the_same_bits() -> None:
    groups = [group[::2] for group in end_some(open_local())]
    given = [[1.0, -1.0]] * 2
    assert same(step(groups, given)[0], step(groups, given, mask_truncated=True)[0])


def test_what_counts_as_cut_is_what_the_engine_called_so(finishes: list[str]) -> None:
    report = open_local(mask_truncated=True, max_new_tokens=20, group_size=8).run(1, seed=0)
    assert 0 < finishes.count("length") < len(finishes)
    assert report.metrics["replies/cut"] == pytest.approx(finishes.count("length") / len(finishes))


def test_values_are_learned_without_them_too() -> None:
    local = open_local(mask_truncated=True, advantage="gae", tasks_per_step=4, group_size=2, max_new_tokens=20)
    report = local.run(1, seed=0)
    assert 0 < report.metrics["replies/cut"] < 1 and np.isfinite(report.metrics["value/loss"])


def test_programs_end_replies_by_texts_of_their_own() -> None:
    agent = make_agent()
    agent = replace(agent, harness=object())
    with pytest.raises(OptionError, match=r"leave it out with agent\.harness"):
        LocalTraining(agent, open_env(GuessEnv), LearningSettings(mask_truncated=True))


def test_a_run_of_a_program_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["learning.mask_truncated=true", "learning.advantage=grpo", "agent.decoding.constrained=false"]
    changes += ["agent.harness={command: [python, play.py]}", f"output.folder={tmp_path / 'run'}"]
    assert main(["train", "demo", *(part for change in changes for part in ("--set", change))]) == 2
    assert "leave it out with agent.harness" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
