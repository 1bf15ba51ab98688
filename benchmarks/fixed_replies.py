"""The best fixed reply: the most that a player earns who gives the same reply whatever it observes.

    python -m benchmarks fixed-replies

A fixed reply is a text, or in longer episodes a sequence of texts, that is the same in every task. The best one is chosen with
knowledge of the answers, on the tasks that it then plays. So no agent that ignores its observations earns more by such a reply:

* questions: each of the most frequent right answers;
* programs: the solution of each task, and the constants that tests expect;
* Guess: the most frequent numbers, one after the other;
* everything else: the actions of the expert in each of the tasks, played in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, get_args

from benchmarks import ROOT
from benchmarks.findings import Findings, write_place
from benchmarks.mutants import load_function, passes
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import env_class, open_env
from fedagentgym.envs.protocols import runs_programs
from fedagentgym.envs.reasoning.code import CodeEnv
from fedagentgym.envs.reasoning.generators.problems import Program
from fedagentgym.envs.registry import ENVIRONMENTS
from fedagentgym.envs.verifiers.formats import extract_answer
from fedagentgym.envs.view import Episode

Script = tuple[str, ...]
PAGES = ROOT / "docs" / "reference" / "environments"
PLACE = "fixed-replies"
OWN_PAGES = {
    "WebShop": "webshop.md",
    "ALFWorld": "alfworld.md",
    "Math": "reasoning.md",
    "QA": "reasoning.md",
    "Code": "reasoning.md",
    "Mixture": "reasoning.md",
    "Records": "records.md",
    "Skills": "skills.md",
}
"""The page of each environment that has one; the other environments are on the overview."""
TEST, TRAIN = "test", "train"
ANSWERS, PROGRAMS = 20, 1
"""The number of most frequent answers that are played, and the number of programs of each kind where replies are run."""
MAX_TASKS, MAX_GAMES = 1_000, 200
"""The most tasks of a split that are played. `MAX_GAMES` holds in longer episodes, where every task's script plays every task."""
MAX_SHOWN_LENGTH = 40


class Earned(NamedTuple):
    """The result of a script in a number of tasks: how many it solves, and its mean score."""

    solved: int
    score: float
    tasks: int
    script: Script


def find_all(quick: bool = False) -> Findings:
    """The best fixed reply of every environment, size and split; the quick form plays fewer tasks."""
    rows: dict[str, tuple[float | str, ...]] = {}
    for env_id in list_audited():
        for size in list_sizes(env_id):
            earned = {split: find_best(env_id, size, split, 10 if quick else MAX_TASKS) for split in (TEST, TRAIN)}
            test, train = earned[TEST], earned[TRAIN]
            rows[f"{name_env(env_id)}{f', {size}' if size else ''}"] = (
                100 * test.solved / test.tasks,
                test.score,
                test.tasks,
                100 * train.solved / train.tasks,
                train.score,
                train.tasks,
                f"`{shorten_script(test.script)}`",
            )
    columns = {
        "test: success, %": ".1f",
        "test: mean score": ".3f",
        "test: tasks": ",d",
        "train: success, %": ".1f",
        "train: mean score": ".3f",
        "train: tasks": ",d",
        "best in test": "",
    }
    return Findings("environment", columns, rows)


def list_audited() -> list[str]:
    """The package's environments, except `Own-v0`, whose tasks and rewards are the user's."""
    return [
        env_id for env_id in ENVIRONMENTS.names() if not ENVIRONMENTS.is_added(env_id) and name_env(env_id) != "Own"
    ]


def name_env(env_id: str) -> str:
    """An environment's name on pages.

    >>> name_env("fedagentgym/QA-v0")
    'QA'
    """
    return env_id.rpartition("/")[2].rpartition("-")[0]


def list_sizes(env_id: str) -> tuple[str, ...]:
    """The sizes of an environment's tasks; one empty name if it has no option `size`."""
    field = env_class(env_id).Options.model_fields.get("size")
    return get_args(field.annotation) if field is not None else ("",)


def find_best(env_id: str, size: str, split: str, most: int) -> Earned:
    """The fixed reply that solves the most tasks of a split; among equals, the one with the highest score. From a larger split
    `most` tasks are drawn."""
    env = open_env(env_id, split=split, **({"size": size} if size else {}))
    if env.takes != "reply":
        most = min(most, MAX_GAMES)
    tasks = stream(0, PLACE, env_id, size, split).shuffled(list(env.pool.ids))[:most]
    starts = env.reset_many(tasks, [0] * len(tasks))
    played = [play(env, starts, script) for script in list_scripts(env, starts)]
    return max(played, key=lambda one: (one.solved, one.score))


def play(env: TextEnv, starts: Sequence[Episode], script: Script) -> Earned:
    """Play a script in every task, until it or the episode ends."""
    episodes = list(starts)
    for action in script:
        running = [place for place, episode in enumerate(episodes) if not episode.over]
        after = env.step_many([episodes[place] for place in running], [action] * len(running))
        for place, episode in zip(running, after, strict=True):
            episodes[place] = episode
    solved = sum(bool(episode.view.success) for episode in episodes)
    return Earned(solved, sum(episode.view.score for episode in episodes) / len(episodes), len(episodes), script)


def shorten_script(script: Script) -> str:
    """A script as one short line for a cell of a table."""
    text = " ; ".join(script).replace("\n", " ").replace("|", "/").replace("`", "'")
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[: MAX_SHOWN_LENGTH - 3].rstrip()}..."


# ---- the scripts of an environment ------------------------------------------------------------------------------------


def list_scripts(env: TextEnv, starts: Sequence[Episode]) -> list[Script]:
    """The fixed replies that are tried in an environment, without duplicates."""
    if isinstance(env, GuessEnv):
        numbers = Counter(start.task.payload.number for start in starts)
        return [tuple(f"guess {number}" for number, _ in numbers.most_common(env.max_turns))]
    if isinstance(env, CodeEnv):
        return [(f"<answer>\n```python\n{program}\n```\n</answer>",) for program in find_programs(starts)]
    if env.takes == "reply":
        answers = Counter(extract_answer(env.expert().act(start)) for start in starts)
        most = 2 * PROGRAMS if runs_programs(env) else ANSWERS
        return [(f"<answer> {answer} </answer>",) for answer, _ in answers.most_common(most)]
    return list(dict.fromkeys(play_expert(env, start) for start in starts))


def play_expert(env: TextEnv, episode: Episode) -> Script:
    """The actions of the expert in a task."""
    expert, actions = env.expert(), []
    while not episode.over:
        actions.append(expert.act(episode))
        (episode,) = env.step_many([episode], actions[-1:])
    return tuple(actions)


def find_programs(starts: Sequence[Episode]) -> list[str]:
    """The constant and the solution that pass the most tasks. Solutions are our own, so they are run in this process."""
    tasks: list[Program] = [start.task.payload for start in starts]
    values = dict.fromkeys(repr(call.expected) for task in tasks for call in task.tests.calls)
    constants = Counter({f"def f(x): return {value}": 0 for value in values})
    for task in tasks:
        expected = {repr(call.expected) for call in task.tests.calls}
        if len(expected) == 1:
            constants[f"def f(x): return {expected.pop()}"] += 1
    solutions: Counter[str] = Counter()
    for task in tasks:
        function = load_function(task.solution)
        solutions[task.solution] = sum(passes(function, other) for other in tasks)
    return [program for found in (constants, solutions) for program, _ in found.most_common(PROGRAMS)]


# ---- pages ------------------------------------------------------------------------------------------------------------


def write_pages(found: Findings) -> None:
    """Write the table of the overview, and one line on each of the other pages."""
    write_place(PAGES / "index.md", PLACE, found.to_markdown())
    for page in dict.fromkeys(OWN_PAGES.values()):
        write_place(PAGES / page, PLACE, describe_page(found, page))


def describe_page(found: Findings, page: str) -> str:
    """The line of a page: the success of the best fixed reply in the test split of each of its environments."""
    parts = [
        f"{name} {cells[0]:.1f} %"
        for name, cells in found.rows.items()
        if OWN_PAGES.get(name.partition(",")[0]) == page
    ]
    return (
        f"**The best fixed reply** solves this share of the test tasks: {'; '.join(parts)} ([what this means]"
        "(index.md#the-best-fixed-reply))."
    )
