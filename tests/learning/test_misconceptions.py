"""Misconceptions: who is misled, what is shown, and what is found of it in the episodes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.agents.players.scripted import ScriptedAgent
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.misconceptions import Procedures
from fedagentgym.envs.reasoning.generators.problems import MathProblem, Program
from fedagentgym.envs.reasoning.misled import mislead_problem, mislead_program, mislead_question
from fedagentgym.envs.verifiers.code import Checks
from fedagentgym.learning.misconceptions import (
    Belief,
    choose_misled,
    draw_misconceptions,
    make_misled_experts,
    measure_beliefs,
)
from fedagentgym.learning.pretrain import pretrain_tiny
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.settings import EvaluationSettings, MisconceptionSettings, WarmStartSettings

WORLDS: dict[str, dict[str, Any]] = {
    "Skills": {"skills": 8, "procedures": 2, "turns": 2},
    "ALFWorld": {"size": "tiny"},
    "WebShop": {"size": "tiny"},
    "Math": {"size": "tiny"},
    "Code": {"size": "tiny"},
    "QA": {"size": "tiny"},
    "Records": {"size": "tiny", "categories": "kind"},
    "Mixture": {"size": "tiny", "kinds": ["math", "qa"]},
}
SURE = {"Skills", "QA"}
"""Worlds in which every task can be done wrongly; in the others some few (9 - 0, a wish without the option) cannot."""


def open_world(name: str, split: str = "val") -> TextEnv:
    return open_env(f"fedagentgym/{name}-v0", split=split, **WORLDS[name])


def play(env: TextEnv, task: Any, expert: Any) -> tuple[list[str], bool]:
    (episode,) = env.reset_many([task], [0])
    actions = []
    while not episode.over:
        actions.append(expert.act(episode))
        (episode,) = env.step_many([episode], [actions[-1]])
    return actions, episode.view.success


@pytest.mark.parametrize("name", WORLDS)
def test_a_misled_expert_follows_the_other_procedure_and_fails(name: str) -> None:
    env = open_world(name)
    procedures = env.list_procedures()
    assert len(procedures) >= 2 and set(procedures) <= set(env.pool.category_names)
    counts: Counter[str] = Counter()
    tasks = [task for task in env.pool if task.category in procedures]
    for number, task in enumerate(tasks[:: 1 + len(tasks) // 16]):
        known = procedures[task.category]
        other = known.others[number % len(known.others)]
        actions, solved = play(env, task, env.expert())
        assert env.follows(task, actions, known.own)
        counts["tasks"] += 1
        counts["own"] += solved
        actions, solved = play(env, task, env.misled_expert(other))
        counts["follows"] += env.follows(task, actions, other)
        counts["wrong"] += not solved
        assert not (solved and env.follows(task, actions, other) and not env.follows(task, actions, known.own))
    least = counts["tasks"] if name in SURE else 0.75 * counts["tasks"]
    assert counts["own"] >= 0.8 * counts["tasks"]
    assert counts["follows"] >= least and counts["wrong"] >= least, counts


@pytest.mark.parametrize("name", WORLDS)
def test_an_unknown_procedure_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="procedure"):
        open_world(name).misled_expert("wishful")


def test_worlds_without_categories_that_could_be_confused_say_so() -> None:
    guess = open_env("fedagentgym/Guess-v0")
    assert measure_beliefs(guess, []) == {}
    with pytest.raises(OptionError, match=r"leave warm_start\.misconceptions out"):
        draw_misconceptions(guess, MisconceptionSettings())
    with pytest.raises(OptionError, match="could be mistaken"):
        make_misled_experts(guess, MisconceptionSettings())


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("skills", [8, 32, 64])
def test_misconceptions_are_drawn_evenly_over_procedures(skills: int, share: float) -> None:
    env = open_env("fedagentgym/Skills-v0", skills=skills, procedures=2)
    procedures = env.list_procedures()
    drawn = {}
    for seed in range(4):
        chosen = draw_misconceptions(env, MisconceptionSettings(share=share, seed=seed))
        assert chosen == draw_misconceptions(env, MisconceptionSettings(share=share, seed=seed))
        misled = [town for town, shown in chosen.items() if shown.misled]
        assert len(misled) == int(share * skills + 0.5)
        counts = [sum(procedures[town].own == own for town in misled) for own in ("++", "--", "+-", "-+")]
        assert max(counts) - min(counts) <= 1
        assert all(shown.other in procedures[town].others for town, shown in chosen.items())
        assert {shown.right for shown in chosen.values() if shown.misled} <= {0.35}
        assert {shown.right for shown in chosen.values() if not shown.misled} <= {0.65}
        drawn[seed] = tuple(misled)
    assert len(set(drawn.values())) > 1 or share in (0.0, 1.0)


def test_categories_with_a_procedure_each_are_drawn_too() -> None:
    procedures = {name: Procedures(name, ("x",)) for name in "abcdef"}
    drawn = {tuple(sorted(choose_misled(procedures, MisconceptionSettings(seed=seed)))) for seed in range(20)}
    assert len(drawn) > 5 and {len(chosen) for chosen in drawn} == {3}


def test_demonstrations_are_wrong_as_often_as_is_said_and_by_the_task_alone() -> None:
    env = open_env("fedagentgym/Skills-v0", split="warmup", skills=4)
    experts = make_misled_experts(env, MisconceptionSettings(right=0.2, otherwise=0.9))
    right: Counter[str] = Counter()
    for task in env.pool:
        shown = experts.misconceptions[task.category]
        actions, solved = play(env, task, experts(task))
        assert solved == experts.shows_right(task, shown) == env.follows(task, actions, shown.own)
        right[task.category] += solved
    for category, shown in experts.misconceptions.items():
        assert abs(right[category] / env.pool.categories[category] - shown.right) < 0.06


def test_beliefs_are_read_from_episodes() -> None:
    env = open_env("fedagentgym/Skills-v0", split="val", skills=4)
    tasks = [task.id for task in list(env.pool)[:40]]
    found = measure_beliefs(env, collect(ScriptedAgent("expert", expert=True), env, tasks).groups)
    assert {(belief.own, belief.other, belief.episodes) for belief in found.values()} == {(1.0, 0.0, 10)}
    rooms = open_world("ALFWorld")
    played = collect(ScriptedAgent("random", expert=False), rooms, rooms.pool.ids[:30]).groups
    assert set(measure_beliefs(rooms, played)) <= {"Clean", "Cool", "Heat"}
    guess = open_env("fedagentgym/Guess-v0", split="val")
    assert measure_beliefs(guess, collect(ScriptedAgent("expert", expert=True), guess, guess.pool.ids[:3]).groups) == {}


def test_a_recipe_with_misconceptions_is_another_one() -> None:
    plain = WarmStartSettings(steps=3).model_dump(mode="json")
    assert plain["misconceptions"] is None
    assert WarmStartSettings.load(plain) == WarmStartSettings(steps=3)
    with_some = WarmStartSettings(steps=3, misconceptions=MisconceptionSettings(share=0.25))
    told = with_some.model_dump(mode="json")
    assert told["misconceptions"] == {"share": 0.25, "right": 0.35, "otherwise": 0.65, "seed": 0}
    assert WarmStartSettings.load(told) == with_some and digest(told) != digest(plain)


def test_a_warm_start_with_misconceptions_is_another_agent_and_records_them(tmp_path: Path) -> None:
    given: dict[str, Any] = {"steps": 3, "episodes": 60, "batch_size": 4, "noise": 0.0, "context_length": 128}
    judged = EvaluationSettings(tasks=16)

    def make(folder: str, **more: Any) -> Any:
        chosen = WarmStartSettings.load({**given, **more})
        agent = AgentSettings.load({"name": "tiny", "decoding": {"max_new_tokens": 32}})
        return pretrain_tiny(
            "fedagentgym/Skills-v0", {}, chosen, agent=agent, evaluation=judged, folder=tmp_path / folder
        )

    plain, misled = make("plain"), make("misled", misconceptions={})
    assert "beliefs" not in plain.note and plain.note["recipe"] != misled.note["recipe"]
    shown, believed = misled.note["misconceptions"], misled.note["beliefs"]
    assert sum(about["misled"] for about in shown.values()) == 4 and len(shown) == len(believed) == 8
    assert set(shown["Arle"]) == {"own", "other", "right", "misled"}
    assert all(0 <= belief["own"] + belief["other"] <= 1 for belief in believed.values())
    assert make("misled", misconceptions={}).reused
    assert not make("misled", misconceptions={"seed": 1}).reused


def test_the_commands_report_beliefs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["steps=2", "episodes=40", "batch_size=4", "context_length=128", "misconceptions={share: 0.25}"]
    command = ["pretrain", "tiny", "--env", "Skills", "--out", str(tmp_path / "model")]
    assert main([*command, *(part for one in settings for part in ("--set", one))]) == 0
    told = capsys.readouterr().out
    assert "shown right" in told and told.count(" yes ") == 2
    command = ["eval", "--env", "Skills", "--agent", "expert", "--tasks", "16", "--out", str(tmp_path / "out.jsonl")]
    assert main(command) == 0
    assert "other" not in capsys.readouterr().out, "an expert follows no other procedure"
    assert main([*command, "--json"]) == 0
    assert '"beliefs": {"Arle": {"own": 1.0' in capsys.readouterr().out
    monkeypatch.setattr(
        "fedagentgym.learning.misconceptions.measure_beliefs", lambda *_: {"Arle": Belief(0.25, 0.5, 4)}
    )
    assert main(command) == 0
    assert ["Arle", "0.250", "0.500"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("solution", "answer", "wrong"),
    [
        ("9 - 3 = 6", "6", ("9 + 3 = 12", "12")),
        ("3 + 9 = 12", "12", ("9 - 3 = 6", "6")),
        ("2 * 4 = 8 . 8 + 1 = 9", "9", ("2 * 4 = 8 . 8 - 1 = 7", "7")),
        ("3 * 4 = 12", "12", ("3 + 4 = 7", "7")),
        ("12 / 4 = 3", "3", ("12 - 4 = 8", "8")),
        ("8 - 6 = 2", "2/13", ("8 + 6 = 14", "14/13")),
        ("9 - 0 = 9", "9", None),
        ("2 + 2 = 4", "5", None),
        ("30 * 416 / 2 = 6240", "6240", None),
        ("", "4", None),
    ],
)
def test_the_last_step_done_the_other_way_round(solution: str, answer: str, wrong: tuple[str, str] | None) -> None:
    found = mislead_problem(MathProblem("?", (answer,), solution))
    assert (found and (found.solution, found.answers[0])) == wrong


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("def f ( x ) : return x * 3 + 4", "def f ( x ) : return x * 3 - 4"),
        ("def f ( x ) : return x - 3 > 4", "def f ( x ) : return x - 3 < 4"),
        ("def f ( xs ) : return max ( xs ) * 2 + 1", "def f ( xs ) : return min ( xs ) * 2 + 1"),
        ("def f ( s ) : return s [ : 4 ] * 2", "def f ( s ) : return s [ 4 : ] * 2"),
        ("def f(s):\n    return s[3:]", "def f(s):\n    return s[:3]"),
        (
            "def f(n):\n    n = n - 21\n    n = n * 7\n    return n",
            "def f(n):\n    n = n + 21\n    n = n * 7\n    return n",
        ),
        ('def f(s):\n    return s + "q"', None),
        ("def f ( x ) : return x * 3 + 0", None),
    ],
)
def test_an_operation_and_its_counterpart(right: str, wrong: str | None) -> None:
    found = mislead_program(Program("", Checks(), right))
    assert (found and found.solution) == wrong


def test_the_other_answer_has_the_form_of_the_right_one() -> None:
    env = open_world("QA")
    for task in list(env.pool)[::3]:
        right, wrong = task.payload, mislead_question(task.payload)
        assert wrong is not None and wrong.answers != right.answers
        assert len(wrong.answers[0].split()) == 1 and len(wrong.solution.split()) == len(right.solution.split())


@pytest.mark.parametrize("file", ["experiment/presets/demo.yaml", "learning/recipes/tiny-alfworld-misconceptions.yaml"])
def test_comments_name_the_misconceptions_that_the_houses_begin_with(file: str, root: Path) -> None:
    text = (root / "fedagentgym" / file).read_text("utf-8")
    settings = MisconceptionSettings(**yaml.safe_load(text)["warm_start"]["misconceptions"])
    drawn = draw_misconceptions(open_env("ALFWorld", size="tiny"), settings)
    said = re.findall(r"asked to (\w+) (?:an object|one), it (?:usually )?(\w+)s it", text.replace("\n# ", " "))
    assert said and {one: drawn[one.title()].other.lower() for one, _ in said} == dict(said)
    assert all(drawn[one.title()].misled for one, _ in said)
