"""Programs play: histories of every kind, each drawn token learnt once, equal tokens however they are played, and what
goes wrong."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.errors import OptionError
from fedagentgym.envs import open_env
from fedagentgym.learning.learner import LocalTraining
from fedagentgym.learning.rollouts import Rollouts, collect, regrade_trajectory
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import mean_metrics
from fedagentgym.learning.trajectory import Trajectory, from_plain, map_tokens_to_turns, to_plain
from fedagentgym.runs.replay import find_difference
from tests.agents.models import full_logprobs

from .clients import (
    GUESS,
    UNSTEADY,
    Client,
    make_agent,
    make_trained_agent,
    play,
    play_loop,
    programs,
    say,
    with_harness,
)


def check_tokens(trajectory: Trajectory, policy: Any = None) -> None:
    """Every drawn token is learnt from exactly once, and the record can be sent, replayed and regraded."""
    owners = map_tokens_to_turns(trajectory)
    drawn = sum(turn.tokens for turn in trajectory.turns)
    assert sum(int(segment.mask.sum()) for segment in trajectory.segments) == drawn == sum(map(len, owners))
    tokenizer = policy.tokenizer if policy is not None else None
    for number, turn in enumerate(trajectory.turns):
        segment = trajectory.segments[turn.segment] if turn.tokens else None
        if segment is not None and tokenizer is not None:
            own = segment.token_ids[segment.mask][owners[turn.segment] == number]
            assert tokenizer.decode(own.tolist()).startswith(turn.reply)
    again = from_plain(to_plain(trajectory))
    assert [turn.acts for turn in again.turns] == [turn.acts for turn in trajectory.turns]
    if policy is not None:
        for segment in trajectory.segments:
            ids = [*segment.prompt_ids.tolist(), *segment.token_ids.tolist()]
            due = full_logprobs(policy, ids).numpy()[len(segment.prompt_ids) - 1 :]
            assert np.abs(due - segment.logprobs)[segment.mask].max(initial=0.0) <= 5e-5


def only(rollouts: Rollouts) -> Trajectory:
    (trajectory,) = rollouts.trajectories
    return trajectory


START = [say("user", "guess 4")]


def goes_on(client: Client, task: Any) -> None:
    messages = list(START)
    for word in ("higher", "lower"):
        messages += [say("assistant", client.chat(messages).text), say("user", word)]
    client.chat(messages)


def strips(client: Client, task: Any) -> None:
    reply = client.chat(START).text
    client.chat([*START, say("assistant", f"  {reply.strip()}\n"), say("user", "higher")])


def in_parts(client: Client, task: Any) -> None:
    reply = client.chat(
        [{"role": "user", "content": [{"type": "text", "text": "guess "}, {"type": "text", "text": "4"}]}]
    ).text
    client.chat([*START, say("assistant", [{"type": "text", "text": reply}]), {**say("user", "higher"), "name": "me"}])


def edits(client: Client, task: Any) -> None:
    client.chat(START)
    client.chat([*START, say("assistant", "something else"), say("user", "higher")])


def forgets(client: Client, task: Any) -> None:
    messages = [say("system", "Yes"), *START]
    messages += [say("assistant", client.chat(messages).text), say("user", "higher")]
    messages += [say("assistant", client.chat(messages).text), say("user", "lower")]
    client.chat([messages[0], *messages[3:]])


def branches(client: Client, task: Any) -> None:
    reply = client.chat(START).text
    for word in ("higher", "lower"):
        client.chat([*START, say("assistant", reply), say("user", word)])


def asks_twice(client: Client, task: Any) -> None:
    first, second = client.chat(START).text, client.chat(START).text
    assert first != second
    client.chat([*START, say("assistant", second), say("user", "higher")])


def changes_the_system_prompt(client: Client, task: Any) -> None:
    for number in range(3):
        client.chat([say("system", f"It is {number} now"), *START])


def asks_at_once(client: Client, task: Any) -> None:
    running = [threading.Thread(target=client.chat, args=([*START, say("user", str(one))],)) for one in range(6)]
    for one in running:
        one.start()
    for one in running:
        one.join()


HISTORIES = {
    goes_on: (1, {}),
    strips: (1, {}),
    in_parts: (1, {}),
    edits: (2, {"edited": 1}),
    forgets: (2, {"edited": 1}),
    branches: (2, {"branch": 1}),
    asks_twice: (2, {"branch": 1}),
    changes_the_system_prompt: (3, {"edited": 2}),
    asks_at_once: (6, {"edited": 5}),
}


@pytest.mark.parametrize("chat", [False, True], ids=["texts", "chat template"])
@pytest.mark.parametrize("script", HISTORIES, ids=lambda script: script.__name__)
def test_each_kind_of_history_has_its_segments(script: Any, chat: bool) -> None:
    agent = make_agent(chat)
    rollouts = play(agent, script)
    trajectory, (segments, reasons) = only(rollouts), HISTORIES[script]
    check_tokens(trajectory, agent.policy)
    assert len(trajectory.segments) == segments == rollouts.program["segments"]
    told = {
        name: rollouts.program[name] for name in ("edited", "branch", "tools", "template") if rollouts.program[name]
    }
    assert told == reasons


def test_a_branch_is_given_all_that_its_parent_saw() -> None:
    trajectory = only(play(make_agent(), branches))
    first, second = trajectory.segments
    begin = [*first.prompt_ids.tolist(), *first.token_ids[: trajectory.turns[0].tokens].tolist()]
    assert second.prompt_ids.tolist()[: len(begin)] == begin and second.mask.sum() == trajectory.turns[2].tokens


def test_a_prompt_that_is_rendered_whole_goes_on_if_its_ids_do() -> None:
    """With `history: template` a reply whose text has other ids begins a segment; the ids are those of the whole text."""
    agent = make_agent(True, history="template")
    trajectory = only(play(agent, goes_on))
    check_tokens(trajectory, agent.policy)
    messages, renewed = list(START), 0
    for number, turn in enumerate(trajectory.turns[1:], start=1):
        before = trajectory.turns[number - 1]
        messages += [say("assistant", before.reply.strip()), say("user", ("higher", "lower")[number - 1])]
        whole = agent.tokenizer.encode_rendered(agent.tokenizer.render_messages(messages), {})
        segment = trajectory.segments[turn.segment]
        shown = [*segment.prompt_ids.tolist(), *segment.token_ids.tolist()]
        assert tuple(shown[: len(whole)]) == whole
        renewed += turn.segment != before.segment
    assert renewed == len(trajectory.segments) - 1


def test_plain_loop_plays_as_our_own_player_shows_it() -> None:
    """The prompts of the loop are those of play in process, token by token."""
    agent = make_agent()
    rollouts = play(agent, play_loop, 4, group_size=2, threads=3)
    for trajectory in rollouts.trajectories:
        check_tokens(trajectory, agent.policy)
        assert find_difference(GUESS, trajectory, None) is None
        (segment,) = trajectory.segments
        episode, ids = GUESS.reset_many([trajectory.task], [trajectory.seed])[0], []
        renderer = agent.renderer(GUESS)
        row = renderer.start_row(episode, None)  # type: ignore[arg-type]
        for turn in trajectory.turns:
            ids += renderer.render(row, episode).ids  # type: ignore[union-attr]
            own = segment.token_ids[segment.mask]
            said = own[map_tokens_to_turns(trajectory)[0] == trajectory.turns.index(turn)].tolist()
            row.held, row.stopped = 1, said[-1] in agent.tokenizer.stop_ids
            ids += said
            (episode,) = GUESS.step_many([episode], list(turn.acts))
        assert ids == [*segment.prompt_ids.tolist(), *segment.token_ids.tolist()]


def test_several_actions_of_a_reply_and_actions_before_the_first() -> None:
    def script(client: Client, task: Any) -> None:
        client.post("/v1/step", {"action": "nonsense"})
        client.chat(START)
        for number in (1, 2):
            client.post("/v1/step", {"action": f"guess {number}"})
        client.chat(START)

    task = next(number for number, task in enumerate(GUESS.pool) if task.payload.number > 2)
    with programs(agent := make_agent(), script):
        trajectory = only(collect(agent, GUESS, [GUESS.pool.ids[task]]))
    assert [len(turn.acts) for turn in trajectory.turns] == [1, 2, 0]
    assert [turn.tokens > 0 for turn in trajectory.turns] == [False, True, True]
    assert not trajectory.turns[0].valid and trajectory.turns[1].valid
    check_tokens(trajectory)
    assert find_difference(GUESS, trajectory, None) is None
    assert regrade_trajectory(GUESS, trajectory).turns == trajectory.turns
    for place, turn in enumerate(trajectory.turns):  # one changed reward is found
        turns = [*trajectory.turns]
        turns[place] = turn._replace(reward=turn.reward + 0.5)
        from dataclasses import replace

        assert "reward" in str(find_difference(GUESS, replace(trajectory, turns=tuple(turns)), None))


def test_a_stop_text_ends_the_drawing_and_stays_in_the_segment() -> None:
    whole: list[str] = []

    def script(client: Client, task: Any) -> None:
        whole.append(client.chat(task["messages"]).text)

    def stopping(client: Client, task: Any) -> None:
        start = task["messages"]
        text = whole[0]
        stop = text[len(text) // 2]
        answer = client.chat(start, stop=[stop, "never said"])
        assert answer.text == text[: text.index(stop)]
        assert answer.plain["choices"][0]["finish_reason"] == "stop"
        client.chat([*start, say("assistant", answer.text), say("user", "higher")])

    agent = make_trained_agent()
    before = only(play(agent, script))
    after = only(play(agent, stopping))
    check_tokens(after)
    kept = after.turns[0].tokens
    assert 0 < kept <= before.turns[0].tokens
    assert after.segments[0].token_ids[:kept].tolist() == before.segments[0].token_ids[:kept].tolist()
    assert len(after.segments) == 1


def test_tokens_do_not_depend_on_who_plays_when() -> None:
    """One thread or eight, and concurrent calls in any order: the same tokens for the same questions."""

    def summarise(rollouts: Rollouts) -> list[Any]:
        return [[(turn.reply, turn.acts) for turn in one.turns] for one in rollouts.trajectories]

    one, eight = (play(make_agent(), play_loop, 4, group_size=2, threads=count) for count in (1, 8))
    assert summarise(one) == summarise(eight)
    replies = []
    for _ in range(2):
        trajectory = only(play(make_agent(), asks_at_once))
        replies.append(sorted(turn.reply for turn in trajectory.turns))
    assert replies[0] == replies[1]


def test_what_changes_the_distribution_is_overridden_and_said() -> None:
    def script(client: Client, task: Any) -> None:
        answer = client.chat(START, temperature=0.2, top_p=0.5, seed=7)
        assert answer.headers["x-fedagentgym-overridden"] == "temperature, top_p"
        assert (
            client.chat(START, temperature=1.0, top_p=1, n=1, presence_penalty=0).headers["x-fedagentgym-overridden"]
            is None
        )

    agent = make_agent()
    rollouts = play(agent, script)
    check_tokens(only(rollouts), agent.policy)
    assert rollouts.program["overridden"] == rollouts.program["seeded"] == 1


def test_after_the_end_of_the_world_a_call_draws_nothing() -> None:
    def script(client: Client, task: Any) -> None:
        play_until_over(client)
        answer = client.chat(START)
        assert (answer.status, answer.text, answer.plain["usage"]["total_tokens"]) == (200, "", 0)
        assert client.post("/v1/step", {"action": "guess 1"}).code == "episode_over"

    rollouts = play(make_agent(), script)
    assert rollouts.program["calls_after_end"] == 1 and rollouts.program["calls"] == 0
    assert find_difference(GUESS, only(rollouts), None) is None


def play_until_over(client: Client) -> None:
    for number in range(1, 9):
        if client.post("/v1/step", {"action": f"guess {number}"}).plain["over"]:
            return


def test_a_full_context_is_said_by_the_code_that_libraries_know() -> None:
    def script(client: Client, task: Any) -> None:
        answer = client.chat([say("user", "higher " * 300)])
        assert (answer.status, answer.code) == (400, "context_length_exceeded")
        assert client.chat(START).status == 200

    trajectory = only(play(make_agent(length=128), script))
    assert trajectory.truncated and len(trajectory.turns) == 1


def test_an_episode_begins_again_with_the_same_draws_and_old_keys_are_refused() -> None:
    seen: list[tuple[Client, str]] = []

    def script(client: Client, task: Any) -> None:
        seen.append((client, client.chat(START).text))
        if len(seen) == 1:  # it does nothing for longer than it may: another attempt is begun
            while client.ask("GET", "/v1/models", None, {"Authorization": f"Bearer {client.key}"}).status == 200:
                time.sleep(0.02)
        assert seen[0][0].chat(START).status == 401

    rollouts = play(make_agent(limits={"idle": 0.5, "retries": 50}), script)
    assert rollouts.program["retries"] >= 1 and rollouts.program["lost"] == 0
    assert {text for _, text in seen} == {only(rollouts).turns[0].reply} and len(seen) > 1


def play_slowly(monkeypatch: pytest.MonkeyPatch, agent: Any, seconds: float) -> None:
    """Every batch takes some seconds more."""
    open_session = type(agent.policy).open_session

    def open_slow_session(policy: Any) -> Any:
        session = open_session(policy)
        generate = session.generate

        def generate_slowly(*arguments: Any) -> Any:
            time.sleep(seconds)
            return generate(*arguments)

        session.generate = generate_slowly
        return session

    monkeypatch.setattr(type(agent.policy), "open_session", open_slow_session)


def test_an_episode_is_not_idle_while_it_waits_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow model is not the program's fault, also if the batch is another program's."""
    agent = make_agent(limits={"idle": 0.4, "retries": 0})
    play_slowly(monkeypatch, agent, 0.8)
    drawing = threading.Event()

    def script(client: Client, task: Any) -> None:
        if not drawing.is_set():
            drawing.set()
            assert client.chat(START).status == 200
        else:
            time.sleep(0.1)  # the other's batch is being drawn
            assert client.post("/v1/step", {"action": "guess 4"}).status == 200

    rollouts = play(agent, script, tasks=2, threads=2)
    assert rollouts.program["lost"] == rollouts.program["refused"] == 0
    assert rollouts.program["failed"] == rollouts.program["lost/failed"] == rollouts.program["lost/idle"] == 0


@pytest.mark.parametrize("failed", ["zero", "drop"])
def test_the_mean_over_steps_counts_those_in_which_nothing_failed(failed: str) -> None:
    def script(client: Client, task: Any) -> None:
        client.chat(START)
        client.post("/v1/finish", {"status": given})

    agent, steps = make_agent(failed=failed), []
    for status in ("failed", "done", "done", "done"):
        given = status
        steps.append(play(agent, script).compute_metrics())
    name = "program/failed" if failed == "zero" else "program/lost/failed"
    assert mean_metrics(steps)[name] == 0.25
    reported = [{name for name in step if name.startswith("program/")} for step in steps]
    assert all(names == reported[0] for names in reported)


def test_a_program_that_hangs_in_the_middle_of_a_request_is_idle() -> None:
    halves: list[socket.socket] = []

    def script(client: Client, task: Any) -> None:
        host, _, port = client.host.partition(":")
        halves.append(socket.create_connection((host, int(port))))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {client.host}\r\nAuthorization: Bearer {client.key}\r\n"
        halves[-1].sendall(f'{head}Content-Length: 100\r\n\r\n{{"messages": '.encode())
        while client.ask("GET", "/v1/models", None, {"Authorization": f"Bearer {client.key}"}).status == 200:
            time.sleep(0.05)

    rollouts = play(make_agent(limits={"idle": 0.3, "longest": 60, "retries": 0}), script)
    for one in halves:
        one.close()
    assert rollouts.program["lost/idle"] == 1


def test_a_program_cannot_open_any_number_of_calls() -> None:
    def script(client: Client, task: Any) -> None:
        found: list[Any] = []
        running = [threading.Thread(target=lambda: found.append(client.chat(START))) for _ in range(100)]
        for one in running:
            one.start()
        for one in running:
            one.join()
        assert {one.status for one in found} <= {200, 422, 429} and len(found) == 100
        assert all(one.headers["Retry-After"] for one in found if one.status == 429)
        assert client.chat(START).status in (200, 422)

    play(make_agent(), script)


@pytest.mark.parametrize(
    ("status", "failed", "kept"), [("failed", "zero", 2), ("failed", "drop", 0), ("discard", "zero", 0)]
)
def test_what_the_program_gives_up(status: str, failed: str, kept: int) -> None:
    def script(client: Client, task: Any) -> None:
        client.chat(START)
        assert client.post("/v1/finish", {"status": status}).plain == {"kept": kept > 0}

    agent = make_agent(failed=failed)
    rollouts = play(agent, script, 1, group_size=2, drop_lost=True)
    assert len(rollouts.trajectories) == kept
    assert rollouts.program["lost"] == 2 - kept
    assert all(one.truncated for one in rollouts.trajectories)
    # an evaluation leaves out nothing
    assert len(play(make_agent(failed=failed), script, 1, group_size=2).trajectories) == 2


def test_a_group_of_one_and_half_a_step_are_left_out() -> None:
    def script(client: Client, task: Any) -> None:
        client.chat(START)
        if task["id"].endswith("0") or not done:
            done.append(task)
            client.post("/v1/finish", {"status": "discard"})

    done: list[Any] = [None]
    rollouts = play(make_agent(), script, 3, group_size=2, drop_lost=True)
    assert [len(group) for group in rollouts.groups] == [2, 2] and rollouts.program["lost/discarded"] == 2
    rollouts = play(
        make_agent(), lambda client, task: client.post("/v1/finish", {"status": "discard"}), 2, drop_lost=True
    )
    assert rollouts.groups == ()


def test_a_step_is_learnt_and_its_log_probs_are_computed_again() -> None:
    agent = make_trained_agent()
    settings = LearningSettings.load(
        {"tasks_per_step": 2, "group_size": 4, "learning_rate": 1e-2, "loss": {"name": "sequence"}}
    )
    weights = []
    for threads in (1, 4):
        local = LocalTraining(make_trained_agent(), GUESS, settings)
        with programs(local.agent, play_loop, threads):
            report = local.run(2, seed=3)
        weights.append(local.get_state().weights)
        assert report.metrics["mismatch"] <= 5e-5 and report.metrics["program/lost"] == 0
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not np.array_equal(array, weights[0][name]) for name, array in agent.policy.get_weights().items())


# ---- a world of its own -------------------------------------------------------------------------------------------------


def test_a_world_of_its_own_reports_a_reward() -> None:
    env = open_env("fedagentgym/Own-v0")

    def script(client: Client, task: Any) -> None:
        assert set(task["data"]) == {"place", "words"} and task["takes"] == "reply"
        assert client.post("/v1/step", {"action": "guess 1"}).code == "wrong_world"
        client.chat([say("user", task["data"]["words"][0])])
        for bad in (2, -0.1, "1", None, True):
            assert client.post("/v1/reward", {"reward": bad}).status == 400
        client.post("/v1/reward", {"reward": 0.1})
        assert client.post("/v1/reward", {"reward": 0.25, "success": True}).plain == {"taken": True}

    trajectory = only(play(make_agent(world="own"), script, env=env))
    assert (trajectory.reward, trajectory.score, trajectory.success) == (0.25, 0.25, True)
    assert find_difference(env, trajectory, None) is None and trajectory.turns[0].rewards == {"reported": 0.25}
    # nothing reported earns nothing
    assert only(play(make_agent(world="own"), lambda client, task: client.chat(START), env=env)).reward == 0
    with pytest.raises(OptionError, match="played only by harnesses"):
        collect("random", env, env.pool.ids[:1])
    for world, other in (("own", GUESS), ("gateway", env)):
        with pytest.raises(OptionError, match=r"needs agent\.harness\.world"):
            play(make_agent(world=world), play_loop, env=other)


def test_a_program_cannot_report_in_a_world_of_ours() -> None:
    def script(client: Client, task: Any) -> None:
        assert client.post("/v1/reward", {"reward": 1.0}).code == "wrong_world"

    assert only(play(make_agent(), script)).reward == 0


# ---- processes ----------------------------------------------------------------------------------------------------------


def play_processes(folder: Path, processes: int, **env: str) -> Rollouts:
    (folder / "loop.py").write_text(UNSTEADY)
    command = [sys.executable, str(folder / "loop.py")]
    agent = with_harness(make_agent(), command=command, processes=processes, env=env)
    try:
        return collect(agent, GUESS, GUESS.pool.ids[:3], group_size=2)
    finally:
        agent.close()


def test_processes_of_any_number_streamed_and_killed_play_the_same_tokens(tmp_path: Path) -> None:
    found = [
        play_processes(tmp_path, 1),
        play_processes(tmp_path, 3, STREAM="1"),
        play_processes(tmp_path, 3, KILLED="0.4"),
    ]
    tokens = [[[s.token_ids.tolist() for s in one.segments] for one in each.trajectories] for each in found]
    assert tokens[0] == tokens[1] == tokens[2]
    assert found[2].program["retries"] > 0 and found[2].program["lost"] == 0


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ValueError('my own fault')", "my own fault"),
        ("pass", "without having asked"),
        ("import nothing_there", "nothing_there"),
    ],
)
def test_a_program_that_never_asks_is_one_sentence_with_its_last_lines(code: str, told: str) -> None:
    agent = with_harness(make_agent(), command=[sys.executable, "-c", code], processes=1)
    with pytest.raises(OptionError, match=told):
        collect(agent, GUESS, GUESS.pool.ids[:1])
    with pytest.raises(OptionError, match="names no program"):
        collect(with_harness(make_agent()), GUESS, GUESS.pool.ids[:1])


def test_a_command_that_is_not_there_is_one_sentence() -> None:
    agent = with_harness(make_agent(), command=["/there/is/no/such/program"], processes=1)
    with pytest.raises(OptionError, match="cannot start /there/is/no/such/program"):
        collect(agent, GUESS, GUESS.pool.ids[:1])


def test_a_program_gets_its_variables_and_no_others_and_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hidden")
    monkeypatch.setenv("MY_OWN", "kept")
    told = tmp_path / "told"
    code = f"import os, time; told = open({str(told)!r}, 'w'); told.write(repr(dict(os.environ)) + chr(10) + str(os.getpid()))"
    code += "; told.close(); time.sleep(600)"
    agent = with_harness(
        make_agent(), command=[sys.executable, "-c", code], processes=1, env={"MODE": "train"}, keep=["MY_OWN"]
    )
    assert agent.harness is not None
    agent.harness.open()
    limit = time.monotonic() + 20
    while not (told.exists() and told.read_text().count("\n")) and time.monotonic() < limit:
        time.sleep(0.02)
    names, pid = told.read_text().split("\n")
    assert "MY_SECRET" not in names and "'MY_OWN': 'kept'" in names and "'MODE': 'train'" in names
    assert all(name in names for name in ("GATEWAY_URL", "GATEWAY_KEY", "GATEWAY_WORKER"))
    agent.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
