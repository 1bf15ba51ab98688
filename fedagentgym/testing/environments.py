"""Checks of environments, of variants of environments, and of task samplers, for those of this package and for your own."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np

from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, describe_error, show_value
from fedagentgym.base.imports import is_env_id
from fedagentgym.base.streams import stream
from fedagentgym.envs import ENVIRONMENTS
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.envs.pool import TaskPool, represent
from fedagentgym.envs.protocols import Expert
from fedagentgym.envs.registry import find_env_id
from fedagentgym.envs.scripted import random_action
from fedagentgym.envs.tasks import Task, from_plain_payload, to_plain_payload
from fedagentgym.envs.variants import assign_variants, complete_request, variants_of
from fedagentgym.envs.view import SLOT, Episode
from fedagentgym.partitions import split_files
from fedagentgym.partitions.client_split import federate
from fedagentgym.partitions.division import dump_parameters, make_sampler, sample_clients
from fedagentgym.partitions.samplers import SAMPLERS
from fedagentgym.partitions.table import TaskTable, encode_values
from fedagentgym.partitions.verification import COMPARED_TASKS, find_same_tasks, has_own_tasks
from fedagentgym.testing.conditions import call_hook, errors_as_failures, global_generators_untouched

GOLDEN_STEPS = 20
PLAYED = 6
"""Number of episodes that a check plays to their end."""
MAX_COMPARED = 2000
"""The most tasks of a split that are compared with those of another split."""
HINTS = {
    "load_pool": "it returns the tasks of a split, TaskPool.from_records(tasks, env=self.id, split=split)",
    "begin": 'it returns `return state, View(observation="...")`',
    "advance": "any text is an action, and one that is not understood gives View(..., valid=False)",
    "act": "it is called as act(episode) at every turn, looks at the episode, and copes with any action before",
    "expert": "it is called as expert() and returns an object with act(episode)",
    "vocabulary": "it is called as vocabulary() and returns a list of texts",
    "goal": "it is called as goal(task) and returns a text",
    "find_member": "it is called as find_member(task) and returns an environment",
    "set_up": "it is called as set_up() when the environment is made, and makes what is needed before tasks are loaded",
    "change_view": "it is called as change_view(view) and returns a View",
    "change_action": "it is called as change_action(action) and returns a text",
    "close": "it is called as close() when the environment is no longer needed, even twice",
}
"""The duty of each method, which is the last part of a message about an error in the method."""
CALLERS = {
    "TextEnv.reset_many": "begin",
    "TextEnv.step_many": "advance",
    "TextEnv.__init__": "set_up",
    "_load_pool": "load_pool",
}
"""Function that calls a method -> the method. Names the method that failed if it was defined under another name."""
INFO_TYPES: dict[str, type | tuple[type, ...]] = {
    "task": str,
    "category": str,
    "turn": int,
    "prompt": str,
    "admissible": (list, type(None)),
    "valid": bool,
    "score": float,
    "success": bool,
    "rewards": dict,
}
HOSTILE_ACTIONS = (
    "",
    " ",
    "\x00",
    "\n\r\t\x1b[2J",
    "\ud800",
    "click[" * 200,
    "[[[]]]" * 50,
    "a" * 100_000,
    "search[\u202e\u0660½①❶⁵]",
    "<action></action>" * 20,
    "'; DROP TABLE tasks; --",
    "%s %d {0} {}",
    "9" * 5_000,
)


def check_env(env: EnvLike, **options: Any) -> None:
    """Check an environment.

    The check covers its description and tasks, the results of `begin` and `advance`, determinism, states that are never changed
    in place, snapshots, hostile actions, its expert, and tasks without answers. An environment without an expert is played at
    random, with a warning about what was not checked.

    Args:
        env: The environment: its id, its class, or an instance.
        **options: Options of the environment, if an id or a class is given.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_env
        >>> check_env("fedagentgym/Guess-v0")
    """
    from gymnasium.utils.env_checker import check_env as gymnasium_check

    with errors_as_failures(find=partial(_find_class, env), hints=HINTS, callers=CALLERS):
        checked = open_env(env, **options)
        _check_description(checked)
        _check_pools(checked)
        _check_views(checked)
        if checked.has_expert:
            _check_expert(checked)
        with global_generators_untouched(checked.id):
            checked.reset(seed=123)
            checked.step("anything")
            play_steps(checked, 5)
        _check_determinism(checked)
        _check_purity(checked)
        _check_snapshots(checked)
        _check_hostile_actions(checked)
        _check_lockstep(checked)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gymnasium_check(checked, skip_render_check=True)
        messages = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
        assert not messages, f"gymnasium's check_env warns: {messages[0]}"
        if checked.has_expert:
            _check_ungraded(checked)
        else:
            warnings.warn(
                f"{checked.id} has no expert(): it was played at random, and it was not checked that a task without its answer "
                "gives no reward",
                stacklevel=3,
            )
        call_hook(checked, "close")


def _find_class(env: EnvLike) -> object:
    """Return the class of the environment, whose definition an error message may name."""
    if isinstance(env, str):
        return ENVIRONMENTS.get(find_env_id(env))
    return env if isinstance(env, type) else type(getattr(env, "unwrapped", env))


def digest_episode(env: EnvLike) -> str:
    """Return a digest of twenty steps, for a test of your environment. It changes whenever the observations of an agent change.

    Args:
        env: The environment.

    Returns:
        The digest of the steps, which start at the first task with seed 0.
    """
    return digest([(action, *_extract_observed(episode)) for action, episode in play_steps(env, GOLDEN_STEPS)])


def play_steps(env: EnvLike, steps: int, *, seed: int = 0, first: int = 0) -> list[tuple[str, Episode]]:
    """Play steps for a test: most by the expert (if there is one), some at random, some with a nonsensical action.

    When an episode is over, the next task begins.

    Args:
        env: The environment.
        steps: Number of steps.
        seed: Seed of the episodes and of the choices.
        first: Number of the first task.

    Returns:
        Pairs of an action and the episode after it. The action is empty at the start of an episode.
    """
    env = open_env(env)
    draw = stream(seed, "conformance", env.id)
    number, expert = first, _open_player(env)
    (episode,) = env.reset_many([env.pool[number % len(env.pool)].id], [seed])
    history: list[tuple[str, Episode]] = [("", episode)]
    for _ in range(steps):
        if episode.over:
            number, expert = number + 1, _open_player(env)
            (episode,) = env.reset_many([env.pool[number % len(env.pool)].id], [seed])
            history.append(("", episode))
        action = expert.act(episode)
        dice = draw.integers(10)
        if dice == 0:
            action = "no such action"
        elif dice < 4 and episode.view.admissible:
            action = draw.pick(episode.view.admissible).replace("<query>", "red small")
        (episode,) = env.step_many([episode], [action])
        history.append((action, episode))
    return history


class _RandomPlayer:
    """Plays at random, in place of a missing expert and where any action will do."""

    def __init__(self, env: TextEnv) -> None:
        self._draws = stream(0, "random player", env.id)

    def act(self, episode: Episode) -> str:
        return random_action(episode, episode.view.observation, self._draws)


def _open_player(env: TextEnv) -> Expert:
    return env.expert() if env.has_expert else _RandomPlayer(env)


def _extract_observed(episode: Episode) -> list[Any]:
    view = episode.view
    admissible = None if view.admissible is None else list(view.admissible)
    rewards = {name: repr(float(value)) for name, value in view.rewards.items()}
    fixed = [episode.task.id, episode.task.category, episode.turn, episode.terminated, episode.truncated]
    return [
        *fixed,
        view.observation,
        admissible,
        repr(float(episode.reward)),
        repr(float(view.score)),
        view.valid,
        rewards,
    ]


def _check_description(env: TextEnv) -> None:
    assert env.takes in ("command", "reply"), f"takes is 'command' or 'reply', got {env.takes!r}"
    for name in ("id", "role", "action_help"):
        text = getattr(env, name)
        assert text.strip(), f"the class attribute {name} is empty: {name} = 'a text for agents and people'"
    assert is_env_id(env.id), f"the class attribute id has the form 'namespace/Name-v0', got {env.id!r}"
    assert (type(env).__doc__ or "").strip(), (
        f'{type(env).__name__} has no docstring: it is the environment\'s page, """Find a hidden number by asking."""'
    )
    names = env.reward_names
    assert isinstance(names, tuple) and all(isinstance(name, str) for name in names), (
        f'reward_names must be a tuple of names, ("accuracy/maze",), got {names!r}'
    )
    words = call_hook(env, "vocabulary")
    assert (
        isinstance(words, Iterable) and not isinstance(words, str) and all(isinstance(word, str) for word in words)
    ), "vocabulary() gives something other than words: return a list of texts"
    for split in env.evaluation_splits:
        assert split in env.splits, f"the evaluation split {split!r} is not among {env.splits}"
    for option, field in type(env.options).model_fields.items():
        assert field.description, f"the option {option!r} has no description: {option} = task(default, description=...)"
    task = env.pool[0]
    found, member = call_hook(env, "goal", task), call_hook(env, "find_member", task)
    _check_payload(env, task)
    assert isinstance(found, str), f"goal(task) returns a text, got {show_value(found)}"
    assert isinstance(member, TextEnv), f"find_member(task) returns an environment, got {show_value(member)}"


def _check_payload(env: TextEnv, task: Task) -> None:
    """Check that a payload can be read back from a file by its declared type."""
    if env.payload_type is Any:
        return
    try:
        plain = json.loads(json.dumps(to_plain_payload(task.payload)))
        same = from_plain_payload(plain, env.payload_type) == task.payload
    except Exception:  # pydantic cannot read the type, or JSON cannot hold the payload
        same = False
    assert same, (
        f"payload_type is the type of the payloads, by which they are read from files: {show_value(env.payload_type)} cannot"
        f" restore {show_value(task.payload)}"
    )


def _check_pools(env: TextEnv) -> None:
    """Check that a split has the same tasks whenever it is loaded, and that splits share no tasks."""
    pools: dict[str, TaskPool] = {}
    known: dict[str, str] = {}
    for split in env.splits:
        pool, again = env.load_pool(split), env.load_pool(split)
        example = "TaskPool.from_records(tasks, env=self.id, split=split)"
        assert isinstance(pool, TaskPool), f"load_pool({split!r}) returned {show_value(pool)}: it returns {example}"
        assert pool.env == env.id, f"load_pool({split!r}) gives tasks of {pool.env}, not of {env.id}: {example}"
        assert len(set(pool.ids)) == len(pool.ids), f"load_pool({split!r}) gives two tasks with the same id"
        shared = next((one for one in pool.ids if one in known), None)
        assert shared is None, (
            f"the splits {known.get(str(shared))!r} and {split!r} both have the task {shared!r}: each has tasks of its own,"
            f" {example}"
        )
        assert pool.split == split, f"load_pool({split!r}) gives a pool of the split {pool.split!r}: {example}"
        known |= dict.fromkeys(pool.ids, split)
        assert pool.digest == again.digest and list(pool.ids) == list(again.ids), (
            f"load_pool({split!r}) gives other tasks each time: draw from fedagentgym.stream(seed, split, number)"
        )
        for one, other in islice(zip(pool, again, strict=True), COMPARED_TASKS):
            assert _represent(one.payload) == _represent(other.payload), (
                f"load_pool({split!r}) gives the task {one.id} another payload each time: draw from fedagentgym.stream"
            )
        pools[split] = pool
    for first, second in combinations([split for split, pool in pools.items() if len(pool)], 2):
        left, right = (pools[split].ids[:MAX_COMPARED] for split in (first, second))
        same = find_same_tasks(pools[first], left, pools[second], right) if has_own_tasks(env) else []
        assert not same, (
            f"load_pool gives the same tasks for {first!r} and {second!r} ({len(same):,}, such as {same[0]}), so held-out tasks"
            " would be training tasks: draw each split from its own stream(seed, split, number)"
        )


def _represent(payload: Any) -> str | None:
    """Return a text that differs for different payloads; None if the payload has no such text."""
    try:
        return represent(payload)
    except DataError:
        return None


def _check_views(env: TextEnv) -> None:
    """Check that all values of views have the right types and ranges, and that solved episodes end."""
    early, ended = 0, 0  # episodes that were solved before their end, and those that the environment ended
    for number in range(PLAYED):
        task = env.pool[number % len(env.pool)]
        before = _represent(task.payload)
        (episode,) = env.reset_many([task], [number])
        assert _represent(task.payload) == before, "begin changed the payload of its task: copy it first"
        player, paid = _RandomPlayer(env), 0.0
        lists = episode.view.admissible is not None
        _check_view(env, "begin", episode, lists)
        while not episode.over:
            early += episode.view.success
            (episode,) = env.step_many([episode], [player.act(episode)])
            _check_view(env, "advance", episode, lists)
            paid += episode.view.reward
        ended += episode.terminated
        assert not episode.view.success or paid > 0 or episode.view.score > 0, (
            "an episode was solved and paid nothing: View(..., reward=1.0, score=1.0, success=True, done=True)"
        )
    assert ended or not early, (
        f"an episode that is solved goes on: none of {PLAYED} ended before its {env.max_turns} turns: advance returns"
        " View(success=True, done=True)"
    )


def _check_view(env: TextEnv, method: str, episode: Episode, lists: bool) -> None:
    view = episode.view
    assert isinstance(view.observation, str), (
        f"{method}: View.observation must be a text, got {show_value(view.observation)}"
    )
    for name in ("reward", "score"):
        value = getattr(view, name)
        assert isinstance(value, float), (
            f"{method}: View.{name} must be a float, got {show_value(value)}: {name}=float(...)"
        )
        assert math.isfinite(value), f"{method}: View.{name} is {value}: a number that is finite"
    assert 0.0 <= view.score <= 1.0, f"{method}: View.score must be between 0 and 1, got {view.score}"
    for name in ("success", "done", "valid"):
        value = getattr(view, name)
        assert isinstance(value, bool), (
            f"{method}: View.{name} is True or False, got {show_value(value)}: {name}=bool(...)"
        )
    assert isinstance(view.rewards, Mapping), (
        f"{method}: View.rewards must be a mapping, got {show_value(view.rewards)}"
    )
    for name, value in view.rewards.items():
        assert name in env.reward_names, (
            f"{method}: View.rewards has {name!r}, which reward_names does not list: reward_names = ({name!r},)"
        )
        assert isinstance(value, float) and math.isfinite(value), (
            f"{method}: View.rewards[{name!r}] must be a finite float, got {show_value(value)}"
        )
    actions = view.admissible
    if view.done and actions is None:
        return
    assert (actions is not None) == lists, (
        f"{method}: View.admissible {'is missing' if lists else 'is there'}, which {'was' if lists else 'was not'} at the"
        " beginning: list the possible actions in every view, or in none"
    )
    assert actions is None or isinstance(actions, tuple), (
        f'{method}: View.admissible must be a tuple of texts, ("left", "right"), got {show_value(actions)}'
    )
    assert actions is None or all(isinstance(one, str) for one in actions), (
        f"{method}: View.admissible holds something that is not a text"
    )
    assert actions != () or view.done, (
        f"{method}: View.admissible is empty, so that nothing can be done: None lists nothing"
    )


def _check_expert(env: TextEnv) -> None:
    """Check that the expert's actions are admissible and that its episodes end."""
    solved, ended = 0, 0
    for number in range(PLAYED):
        expert = call_hook(env, "expert")
        assert callable(getattr(expert, "act", None)), (
            f"expert() returns an object with act(episode), got {show_value(expert)}"
        )
        (episode,) = env.reset_many([env.pool[number % len(env.pool)]], [number])
        while not episode.over:
            action = call_hook(expert, "act", episode)
            assert isinstance(action, str), f"expert().act(episode) returns an action, a text, got {show_value(action)}"
            allowed = episode.view.admissible
            fits = allowed is None or action in allowed
            for pattern in filter(SLOT.search, allowed or ()):  # any text may fill a slot
                before, after = SLOT.split(pattern, maxsplit=1)
                filled = len(action) > len(before) + len(after)
                fits |= filled and action.startswith(before) and action.endswith(after)
            assert allowed is None or fits, (
                f"expert().act(episode) returned {action[:60]!r}, which is not admissible: {', '.join(allowed[:5])}"
            )
            (episode,) = env.step_many([episode], [action])
            assert episode.view.valid, f"the expert's action {action[:60]!r} was not understood: View(valid=False)"
        solved, ended = solved + episode.view.success, ended + episode.terminated
    assert ended, (
        f"no episode ends in {PLAYED} plays of the expert, each of {env.max_turns} turns: advance returns View(done=True)"
        " when the task is solved"
    )
    assert solved, f"the expert solved none of {PLAYED} tasks: View(success=True) when the task is solved"


def _check_info(info: dict[str, Any], env: TextEnv) -> None:
    for key, kind in INFO_TYPES.items():
        assert key in info, f"info lacks the key {key!r}"
        assert isinstance(info[key], kind), f"info[{key!r}] is a {type(info[key]).__name__}"
    assert 0.0 <= info["score"] <= 1.0, f"the score {info['score']} is outside 0..1"
    assert tuple(info["rewards"]) == env.reward_names, "info['rewards'] has other keys than reward_names"
    assert all(isinstance(value, float) for value in info["rewards"].values()), "a reward component is not a float"
    assert all(isinstance(entry, str) for entry in info["admissible"] or []), "an admissible entry is not a string"


def _step_to_the_end(env: TextEnv, actions: Sequence[str]) -> Iterator[tuple[str, float, bool, bool, dict[str, Any]]]:
    """Play these actions while the episode is not over."""
    for action in actions:
        if env.episode.over:
            return
        yield env.step(action)


def _check_determinism(env: TextEnv) -> None:
    actions = [action for action, episode in play_steps(env, 12) if episode.turn]
    texts = []
    for _ in range(2):
        observation, info = env.reset(seed=5, options={"task": env.pool[0].id})
        _check_info(info, env)
        steps: list[Any] = [(observation, repr(info))]
        for observation, reward, terminated, truncated, info in _step_to_the_end(env, actions):
            _check_info(info, env)
            assert isinstance(reward, float), f"a reward must be a float, got {type(reward).__name__}"
            steps.append((observation, reward, terminated, truncated, repr(info)))
        texts.append(repr(steps))
    assert texts[0] == texts[1], "the same task, seed and actions gave two different episodes"
    first, second = env.reset(seed=9), env.reset(seed=9)
    assert repr(first) == repr(second), "reset(seed=9) twice gave two different episodes"


def _check_snapshots(env: TextEnv) -> None:
    history = play_steps(env, 12)
    actions = [action for action, episode in history if episode.turn]
    env.reset(seed=0, options={"task": env.pool[0].id})
    for position, action in enumerate(actions):
        if env.episode.over:
            return
        frozen = pickle.dumps(env.snapshot())
        expected = list(_step_to_the_end(env, actions[position : position + 3]))
        env.restore(pickle.loads(frozen))
        again = list(_step_to_the_end(env, actions[position : position + 3]))
        assert repr(expected) == repr(again), (
            f"after a restored snapshot the episode went another way (step {position})"
        )
        env.restore(pickle.loads(frozen))
        env.step(action)


def _check_purity(env: TextEnv) -> None:
    for _, episode in play_steps(env, 12):
        try:
            before = pickle.dumps(episode.state)
        except Exception as error:
            raise AssertionError(
                f"a state cannot be pickled ({describe_error(error)}): states are plain values, such as named tuples"
            ) from None
        env.advance(episode.state, _RandomPlayer(env).act(episode))
        assert pickle.dumps(episode.state) == before, (
            "advance changed the state that it was given: return a new one, state._replace(...) or a copy"
        )


def _check_hostile_actions(env: TextEnv) -> None:
    for action in HOSTILE_ACTIONS:
        env.reset(seed=0, options={"task": env.pool[0].id})
        observation, *_, info = env.step(action)
        assert isinstance(observation, str), f"the observation after {action[:20]!r} is not a string"
        _check_info(info, env)
    if env.episode.view.admissible is not None:
        env.reset(seed=0, options={"task": env.pool[0].id})
        *_, info = env.step("no such action")
        assert not info["valid"], "an action that is not admissible was understood: View(..., valid=False)"


def _check_lockstep(env: TextEnv) -> None:
    ids = [env.pool[number % len(env.pool)].id for number in range(4)]
    together = env.reset_many(ids, [0, 1, 2, 3])
    alone = [env.reset_many([identifier], [seed])[0] for seed, identifier in enumerate(ids)]
    # all fields are listed, since the repr of an episode is shortened
    assert [repr((*one, *one.view)) for one in together] == [repr((*one, *one.view)) for one in alone], (
        "an episode of reset_many depends on the other episodes"
    )
    actions = [_open_player(env).act(episode) for episode in together]
    stepped = env.step_many(together, actions)
    single = [env.step_many([episode], [action])[0] for episode, action in zip(alone, actions, strict=True)]
    assert [_extract_observed(episode) for episode in stepped] == [_extract_observed(episode) for episode in single], (
        "an episode of step_many depends on the other episodes"
    )


def _check_ungraded(env: TextEnv) -> None:
    hidden = env.pool.without_answers([env.pool[0].id])
    (episode,) = env.reset_many([hidden[0]], [0])
    expert = env.expert()
    (graded,) = env.reset_many([env.pool[0]], [0])
    while not graded.over:
        action = expert.act(graded)
        (graded,) = env.step_many([graded], [action])
        (episode,) = env.step_many([episode], [action])
        assert episode.view.score == 0.0 and not episode.view.success, "a task without its answer was graded"
        paid = [name for name, value in episode.view.rewards.items() if name.startswith("accuracy") and value]
        assert not paid, f"a task without its answer gave the reward {paid[0]}"


CLIENTS = 24
OPENED = 3
VARIANT_DUTY = "a variant has draw(seed, client), which returns an instance of its client_variant"
SAMPLER_DUTY = (
    "a sampler is called as (table, clients, seed) and returns an Assignment, or a list of task ids for each client"
)


def check_variant(env_id: str, kind: str, *, env: Mapping[str, Any] | None = None, **parameters: Any) -> None:
    """Check a variant that an environment declares, or that was registered for it.

    The variant of a client must depend only on (seed, client), survive a split file, not change the tasks, and give an
    environment that passes `check_env`. At least two clients must get different variants.

    Args:
        env_id: Id of the environment.
        kind: Name of the variant.
        env: Options of the environment, such as a small size.
        **parameters: Parameters of the variant.

    Raises:
        AssertionError: If the check fails; the message is one sentence.
    """
    with errors_as_failures(VARIANT_DUTY, partial(_find_variant, env_id, kind), who=f"the variant {kind!r}"):
        options = dict(env or {})
        cls = ENVIRONMENTS.get(env_id)
        request = complete_request(cls.id, cls.variants, {"kind": kind, **parameters})
        drawn = assign_variants(cls.id, cls.variants, request, 0, CLIENTS)
        assert drawn == assign_variants(cls.id, cls.variants, request, 0, CLIENTS), (
            f"{kind} draws another variant each time"
        )
        few = assign_variants(cls.id, cls.variants, request, 0, 2)
        assert drawn[:2] == few, f"{kind} draws another variant for a client if there are more clients"
        different = list({json.dumps(one, sort_keys=True): one for one in drawn}.values())
        assert len(different) > 1, f"{kind} gives the same variant to every client"
        made = federate(env_id, clients=CLIENTS, tasks_per_client=1, variant=request, env=options)
        stored = split_files.from_json(json.loads(split_files.to_json(made.record)), "the split of the check")
        assert list(stored.variants) == list(drawn), f"{kind} is different after a split file is written and read"
        plain = open_env(env_id, **options)
        for one in different[:OPENED]:
            changed = open_env(env_id, **options, variant=one)
            assert changed.pool.digest == plain.pool.digest, f"{kind} changes the tasks"
            check_env(changed)


def _find_variant(env_id: str, kind: str) -> object:
    cls = ENVIRONMENTS.get(env_id)
    return variants_of(cls.id, cls.variants)[kind]


def check_sampler(name: str, *, clients: int = 10, tasks: int = 600, categories: int = 5, **parameters: Any) -> None:
    """Check a registered sampler on a made-up pool. The field `user` of its tasks has about 15 tasks for each value.

    A client must not get a task twice. The split must be the same for the same seed and differ between seeds. The sampler must
    not use the global random generators, and its parameters must survive a split file.

    Args:
        name: The name under which it is registered.
        clients: Number of clients.
        tasks: Number of tasks of the pool.
        categories: Number of categories of the tasks.
        **parameters: Parameters of the sampler.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_sampler
        >>> check_sampler("uniform", tasks_per_client=20)
    """
    with errors_as_failures(SAMPLER_DUTY, partial(SAMPLERS.get, name), who=f"the sampler {name!r}"):
        draws = stream(0, "check sampler")
        weights = [1.0 / (1 + code) for code in range(categories)]
        codes = np.concatenate([np.arange(categories), draws.weighted(weights, size=tasks - categories)])
        names = tuple(f"category {code:02d}" for code in range(categories))
        ids = [f"check/train/{number:05d}" for number in range(tasks)]
        solved = draws.uniform(tasks) < 0.5
        users = encode_values((draws.permutation(tasks) % max(tasks // 15, 1)).tolist())
        table = TaskTable(ids, names, codes, np.arange(tasks), solved, {"user": users}.__getitem__)
        sampler = make_sampler(name, parameters)
        with global_generators_untouched(name):
            first = sample_clients(sampler, table, clients, 0)
        assert first.items.size, f"{name} gives no task to any client"
        assert first.same_as(sample_clients(sampler, table, clients, 0)), (
            f"{name} gives another split for the same seed"
        )
        others = [sample_clients(sampler, table, clients, seed) for seed in (1, 2, 3)]
        assert any(not first.same_as(other) for other in others), f"{name} does not depend on the seed"
        stored = json.loads(json.dumps(dump_parameters(sampler)))
        again = sample_clients(make_sampler(name, stored), table, clients, 0)
        assert first.same_as(again), (
            f"{name} gives another split after its parameters are written to a split file and read"
        )
