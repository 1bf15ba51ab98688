"""Skills: a surface reveals nothing of the procedure, a category all of it; it is an environment like any other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.agents.text.tokens import make_word_tokenizer
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.skills.env import MANNERS, read_answer, write_reply
from fedagentgym.envs.skills.tasks import (
    TOWNS,
    SkillTask,
    apply_procedure,
    list_numbers,
    list_procedures,
    parse_task,
    write_steps,
)
from fedagentgym.envs.view import Episode
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.first_batch import play_first_batch
from fedagentgym.experiment.run import train
from fedagentgym.testing import check_env

SKILLS = "fedagentgym/Skills-v0"
SPLITS = ("train", "val", "test", "warmup")
WORLDS: list[dict[str, Any]] = [
    {},
    {"skills": 32, "procedures": 2, "turns": 3, "naming": "repeated"},
    {"skills": 64, "procedures": 3, "wording": "short", "manners": "several"},
    {"skills": 6, "sharing": 3, "turns": 2, "wording": "short", "naming": "repeated"},
]


def play(env: TextEnv, task: Any, expert: Any) -> list[Episode]:
    (episode,) = env.reset_many([task], [0])
    history = [episode]
    while not episode.over:
        (episode,) = env.step_many([episode], [expert.act(episode)])
        history.append(episode)
    return history


@pytest.mark.parametrize("options", WORLDS, ids=str)
def test_conformance(options: dict[str, Any]) -> None:
    check_env(SKILLS, **options)


@pytest.mark.parametrize("options", WORLDS, ids=str)
def test_the_expert_is_right_and_the_misled_one_is_wrong_in_every_turn(options: dict[str, Any]) -> None:
    env = open_env(SKILLS, split="val", **options)
    known = env.list_procedures()
    for task in list(env.pool)[::7]:
        own = play(env, task, env.expert())
        assert own[-1].view.success and own[-1].view.score == pytest.approx(1.0) and len(own) == env.max_turns + 1
        assert sum(episode.reward for episode in own) == pytest.approx(1.0)
        for other in known[task.category].others:
            misled = play(env, task, env.misled_expert(other))
            assert misled[-1].view.score == 0.0 and not misled[-1].view.success and misled[-1].view.valid


@pytest.mark.parametrize("procedures", [1, 2, 3])
def test_procedures_differ_in_nothing_but_their_results(procedures: int) -> None:
    """Two digits everywhere, no carry, one result per procedure, and replies of one form."""
    known = list_procedures(procedures)
    assert len(set(known)) == 2**procedures
    for numbers in list_numbers(procedures)[::3]:
        results = {apply_procedure(procedure, numbers) for procedure in known}
        assert len(results) == len(known)
        assert all(10 <= value <= 99 for value in (*numbers, *results))
        shapes = {tuple(len(word) for word in write_steps(procedure, numbers).split()) for procedure in known}
        assert len(shapes) == 1
        for procedure in known:
            result = numbers[0]
            for sign, number in zip(procedure, numbers[1:], strict=True):
                tens, ones = (result // 10, number // 10), (result % 10, number % 10)
                digits = [a + b if sign == "+" else a - b for a, b in (tens, ones)]
                result = result + number if sign == "+" else result - number
                assert all(0 <= digit <= 9 for digit in digits) and 10 * digits[0] + digits[1] == result


@pytest.mark.parametrize("options", WORLDS, ids=str)
def test_every_surface_stands_in_every_category_and_in_one_split(options: dict[str, Any]) -> None:
    seen: dict[str, set[Any]] = {}
    for split in SPLITS:
        towns: dict[Any, list[str]] = {}
        for task in open_env(SKILLS, split=split, **options).pool:
            towns.setdefault((task.payload.numbers, task.payload.things), []).append(task.category)
        skills = options.get("skills", 8)
        assert all(sorted(held) == sorted(TOWNS[:skills]) for held in towns.values())
        seen[split] = set(towns)
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))


@pytest.mark.parametrize("options", WORLDS, ids=str)
def test_procedures_have_equally_many_categories_and_depend_on_the_seed(options: dict[str, Any]) -> None:
    own = {town: known.own for town, known in open_env(SKILLS, **options).list_procedures().items()}
    assert len(set(Counter(own.values()).values())) == 1 and len(own) == options.get("skills", 8)
    other = {town: known.own for town, known in open_env(SKILLS, seed=1, **options).list_procedures().items()}
    assert own != other


def test_words_do_not_separate_right_from_wrong_without_the_category_and_do_with_it() -> None:
    """A linear probe on the words of question and reply, trained and tested on different surfaces."""
    env = open_env(SKILLS, split="train", skills=8)
    known = env.list_procedures()

    def make_rows(tasks: list[Any], with_town: bool) -> tuple[list[Counter[str]], np.ndarray[Any, Any]]:
        rows, labels = [], []
        for task in tasks:
            (episode,) = env.reset_many([task], [0])
            for right in (True, False):
                procedure = known[task.category].own if right else known[task.category].others[0]
                reply = write_reply(task.payload, procedure, 0)
                asked = [word for word in episode.view.observation.split() if word not in TOWNS]
                words = Counter([*asked, *reply.split()])
                if with_town:
                    words.update(f"{task.category} {word}" for word in reply.split() if word in "+-")
                rows.append(words)
                labels.append(right)
        return rows, np.array(labels, dtype=np.float64)

    def measure(with_town: bool) -> float:
        tasks = list(env.pool)
        train, train_labels = make_rows(tasks[:1200], with_town)
        test, test_labels = make_rows(tasks[1200:2000], with_town)
        names = {name: place for place, name in enumerate(sorted({word for row in train for word in row}))}

        def tabulate(rows: list[Counter[str]]) -> np.ndarray[Any, Any]:
            table = np.zeros((len(rows), len(names) + 1))
            table[:, -1] = 1.0
            for number, row in enumerate(rows):
                for word, count in row.items():
                    if word in names:
                        table[number, names[word]] = count
            return table

        given = tabulate(train)
        ridge = np.linalg.solve(given.T @ given + np.eye(given.shape[1]), given.T @ (2 * train_labels - 1))
        return float(((tabulate(test) @ ridge > 0) == (test_labels > 0.5)).mean())

    assert abs(measure(with_town=False) - 0.5) < 0.04
    assert measure(with_town=True) > 0.99


def test_the_same_surface_is_answered_differently_in_different_categories() -> None:
    env = open_env(SKILLS, skills=4)
    tasks = list(env.pool)[:4]
    asked = {env.reset_many([task], [0])[0].view.observation.replace(task.category, "TOWN") for task in tasks}
    assert len(asked) == 1 and len({task.payload.answers for task in tasks}) == 2


def test_naming_wording_and_turns_change_what_is_shown_and_nothing_else() -> None:
    plain, named = open_env(SKILLS), open_env(SKILLS, naming="repeated", wording="short")
    task = plain.pool[3]
    assert named.pool[3] == task
    town = task.category
    assert plain.reset_many([task], [0])[0].view.observation.split().count(town) == 1
    shown = named.reset_many([task], [0])[0].view.observation
    assert shown.startswith(f"{town} {town} {town} {town} : ") and shown.split().count(town) == 4
    env = open_env(SKILLS, turns=3)
    history = play(env, env.pool[0], env.expert())
    assert [env.pool[0].category in episode.view.observation for episode in history] == [True, False, False, False]


def test_a_wrong_turn_costs_its_part_and_is_not_told_before_the_end() -> None:
    env = open_env(SKILLS, turns=3)
    task = env.pool[0]
    right = [episode.view.observation for episode in play(env, task, env.expert())]
    (episode,) = env.reset_many([task], [0])
    said = [episode.view.observation]
    expert = env.expert()
    for turn in range(3):
        reply = "<answer> 7 </answer>" if turn == 1 else expert.act(episode)
        (episode,) = env.step_many([episode], [reply])
        said.append(episode.view.observation)
    assert said[:3] == right[:3] and episode.view.score == pytest.approx(2 / 3) and not episode.view.success
    (over,) = env.step_many([episode], ["<answer> 7 </answer>"])
    assert not over.view.valid and over.view.score == pytest.approx(2 / 3)


def test_replies_have_equal_length_in_the_tokens_of_a_tiny_agent() -> None:
    env = open_env(SKILLS, split="val", skills=16, procedures=2)
    tokenizer = make_word_tokenizer(env.vocabulary())
    known = list_procedures(2)
    lengths = {
        len(tokenizer.encode(write_reply(task.payload, procedure, 0))) for task in env.pool for procedure in known
    }
    assert len(lengths) == 1
    texts = [env.reset_many([task], [0])[0].view.observation for task in list(env.pool)[:64]]
    assert len({len(tokenizer.encode(text)) for text in texts}) == 1, "a town's name is not one token"


def test_manners_are_those_of_the_task_and_not_of_its_procedure() -> None:
    env = open_env(SKILLS, split="warmup", manners="several")
    known = env.list_procedures()
    found: Counter[tuple[bool, bool, bool]] = Counter()
    for task in list(env.pool)[:600]:
        (episode,) = env.reset_many([task], [0])
        own = env.expert().act(episode)
        misled = env.misled_expert(known[task.category].others[0]).act(episode)
        assert [len(word) for word in own.split()] == [len(word) for word in misled.split()]
        found["think" in own, "=" in own, task.payload.things in own] += 1
    assert len(found) == 6 and min(found.values()) > 60
    assert MANNERS == ("one", "several")


@pytest.mark.parametrize(
    ("reply", "style", "brevity"),
    [
        ("<think> 45 + 32 = 77 . </think> <answer> 77 </answer>", (1.0, 0.0), 1 - 6 / 36),
        ("<think> </think> <answer> 77 hats </answer>", (0.0, 1.0), 1.0),
        ("<answer> 77 cups </answer>", (0.0, 0.0), 1.0),
        (f"<think> {'well ' * 90}</think> <answer> 77 </answer>", (1.0, 0.0), 0.0),
    ],
)
def test_rewards_that_pull_apart(reply: str, style: tuple[float, float], brevity: float) -> None:
    env = open_env(SKILLS, pool=TaskPool.from_records([record(procedure="+")], env=SKILLS))
    (episode,) = env.reset_many(list(env.pool), [0])
    (episode,) = env.step_many([episode], [reply])
    rewards = episode.view.rewards
    assert (rewards["style/bare"], rewards["style/unit"]) == style
    assert rewards["brevity"] == pytest.approx(brevity)
    assert rewards["accuracy/skills"] == float("cups" not in reply)


def record(**gold: Any) -> dict[str, Any]:
    payload = {"town": "Arle", "things": "hats", "numbers": [[45, 32]], **gold}
    return {"category": "Arle", "payload": payload}


def test_tasks_of_ones_own_and_beliefs() -> None:
    env = open_env(SKILLS, pool=TaskPool.from_records([record(answers=[13]), record()], env=SKILLS))
    told, untold = env.pool
    (episode,) = env.step_many(env.reset_many([told], [0]), ["<answer> 13 hats </answer>"])
    assert episode.view.success
    (episode,) = env.step_many(env.reset_many([untold], [0]), ["<answer> 13 </answer>"])
    assert not episode.view.success
    believed = env.with_belief(untold, "<answer> 77 </answer>")
    assert believed is not None
    (episode,) = env.step_many(env.reset_many([believed], [0]), ["\\boxed{77}"])
    assert episode.view.success and env.with_belief(untold, "many") is None


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        {"town": "Arle", "things": "hats", "numbers": [[45]]},
        {"town": "Arle", "things": "hats", "numbers": [[45, 32], [45, 32, 11]]},
        {"town": 1, "things": "hats", "numbers": [[45, 32]]},
        {"town": "Arle", "things": "hats", "numbers": [[45, 3.2]]},
        {"town": "Arle", "things": "hats", "numbers": [[45, 32]], "procedure": "++"},
        {"town": "Arle", "things": "hats", "numbers": [[45, 32]], "procedure": "*"},
        {"town": "Arle", "things": "hats", "numbers": [[45, 32]], "answers": [1, 2]},
        {"town": "Arle", "things": "hats", "numbers": [[45, True]]},
    ],
)
def test_what_is_no_payload_is_one_sentence(payload: Any) -> None:
    with pytest.raises(DataError, match="has texts 'town' and 'things'"):
        parse_task(payload)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"skills": 3}, "skills must be between 4 and 64, got 3"),
        ({"skills": 65}, "skills must be between 4 and 64"),
        ({"skills": 5}, "cannot share the 2 procedures"),
        ({"procedures": 4}, "procedures must be between 1 and 3"),
        ({"turns": 0}, "turns must be between 1 and 3"),
        ({"sharing": 3}, "sharing=3 must divide skills=8 into 2 to 2 groups"),
        ({"sharing": 8}, "sharing=8 must divide"),
        ({"sharing": 0}, "sharing=0 must divide"),
        ({"naming": "twice"}, "unknown naming 'twice': known are once, repeated"),
        ({"wording": 1}, "wording"),
        ({"manners": "bad"}, "unknown manners"),
        ({"train_tasks": 0}, "option 'train_tasks': it must be at least 1"),
        ({"train_tasks": 10**9}, "train_tasks"),
        ({"skils": 8}, "did you mean 'skills'"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], told: str) -> None:
    with pytest.raises(FedAgentGymError, match=told):
        open_env(SKILLS, **options)


@given(reply=st.text(max_size=200) | st.integers().map(lambda n: f"<answer>{n}</answer>"))
def test_any_reply_gets_a_verdict(reply: str) -> None:
    env = open_env(SKILLS, turns=2)
    (episode,) = env.step_many(env.reset_many([env.pool[0]], [0]), [reply])
    assert episode.view.valid == (read_answer(reply, env.pool[0].payload.things) is not None)
    assert not episode.over and 0.0 <= episode.view.score <= 0.5


@pytest.mark.parametrize(
    ("replies", "right", "broken"),
    [("bare", "{answer}", "It is {answer}"), ("equation", "{steps}", "well , {steps}")],
)
def test_replies_without_tags(replies: str, right: str, broken: str) -> None:
    """The expert's reply is right and well formed, also with its things; more words break the form."""
    env = open_env(SKILLS, replies=replies)
    task = env.pool[0]
    procedure, (numbers,) = task.payload.procedure, task.payload.numbers
    words = {"answer": str(apply_procedure(procedure, numbers)), "steps": write_steps(procedure, numbers)}
    other = env.misled_expert("-" if procedure == "+" else "+")
    (start,) = env.reset_many([task], [0])
    assert env.expert().act(start) == right.format(**words)
    for reply, success, form in (
        (right.format(**words), True, 1.0),
        (f"{right.format(**words)} {task.payload.things}", True, 1.0),
        (other.act(start), False, 1.0),
        (f"<answer> {words['answer']} </answer>", False, 0.0),
    ):
        (episode,) = env.step_many([start], [reply])
        assert (episode.view.success, episode.view.rewards["format"]) == (success, form)
    (episode,) = env.step_many([start], [broken.format(**words)])
    assert episode.view.rewards["format"] == 0.0
    assert episode.view.rewards["thought"] == 0.0
    assert env.follows(task, [right.format(**words)], procedure)
    assert not env.follows(task, [other.act(start)], procedure)


def test_clients_of_one_category_each() -> None:
    split = fedagentgym.federate(SKILLS, partition="by_source", clients=8, roles={"auxiliary": 80, "server": 160})
    for number, town in enumerate(sorted(TOWNS[:8])):
        assert set(split.client(number).open_env().pool.categories) == {town}
    stripped = split.role("server")[0].payload
    assert isinstance(stripped, SkillTask) and stripped.procedure == "" and stripped.answers == ()


def test_hardness_is_told_and_varies() -> None:
    pool = open_env(SKILLS, split="val").pool
    found = {pool[number].hardness for number in range(len(pool))}
    assert len(found) > 3 and all(value is not None and 0 < value <= 1 for value in found)


def test_no_reply_earns_every_reward_and_each_reward_has_replies_of_its_own() -> None:
    """Thought, brevity, the layout and the two styles: equal weights on all of them pay for conflicting replies."""
    env = open_env(SKILLS, procedures=2, manners="several")
    names = ("format", "thought", "brevity", "style/bare", "style/unit")
    found: dict[tuple[str, bool], tuple[float, ...]] = {}
    task = env.pool[0]
    for layout in ("thinks", "empty", "answers"):
        for unit in (False, True):
            reply = write_reply(task.payload, task.payload.procedure, 0, layout, unit)
            (episode,) = env.step_many(env.reset_many([task], [0]), [reply])
            assert episode.view.success
            found[layout, unit] = tuple(episode.view.rewards[name] for name in names)
    assert found["thinks", False] == pytest.approx((1.0, 1.0, 1 - 12 / 36, 1.0, 0.0))
    assert found["empty", True] == (1.0, 0.0, 1.0, 0.0, 1.0)
    assert found["answers", False] == (0.0, 0.0, 1.0, 1.0, 0.0)
    assert all(sum(paid) < len(names) - 1.3 for paid in found.values())


def test_fedmoa_deals_the_styles_to_the_clients_in_turn() -> None:
    config = load_config(
        "tiny-skills:reply-styles,fedmoa,style-rewards,tau-5", ["warm_start=null", "agent=untrained-tiny"]
    )
    algorithm: Any = make_algorithm(config.spec(), Runtime(config.spec()))
    styles = (("thought", "style/bare"), ("brevity", "style/unit"))
    for client in range(4):
        names = algorithm.resolve_objectives(algorithm.resources(client))
        assert names == ("accuracy/skills", "format", *styles[client % 2])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["procedures-2", "procedures-3", "two-turns"])
def test_more_than_a_bit_a_category_is_learned(variant: str, tmp_path: Path) -> None:
    """In a world of the tuning seeds: the start passes the gates, and one site with all tasks ends near the ceiling."""
    world = [f"{key}=100" for key in ("seed", "env.options.seed", "warm_start.misconceptions.seed", "partition.seed")]
    source = f"tiny-skills:{variant},centralized,tau-5x16"
    assert all(gate.passed for gate in play_first_batch(load_config(source, world)).gates)
    changes = [*world, "evaluation.every=16", f"output.folder={tmp_path / 'run'}"]
    curve = train(source, changes).record["curve"]
    first, last = (point["overall"]["success"]["mean"] for point in (curve[0], curve[-1]))
    assert 0.3 < first < 0.6 and last > 0.85
