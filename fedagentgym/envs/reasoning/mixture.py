"""Several reply environments as one, so that clients of one federation can hold tasks of different kinds or data sets.

The pool of a mixture has its members' tasks one after the other, under ids and categories that name the member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.base.errors import (
    DataError,
    FedAgentGymError,
    OptionError,
    check_choice,
    join_names,
    show_value,
    unknown_name_error,
)
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import open_env, open_pool, read_options
from fedagentgym.envs.misconceptions import MisleadableEnv, Procedures
from fedagentgym.envs.options import EnvOptions, owner, play, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Expert, runs_programs
from fedagentgym.envs.reasoning.generators.problems import MathProblem, Program, Question
from fedagentgym.envs.reasoning.pools import Strip
from fedagentgym.envs.reasoning.replies import ReplyEnv, ReplyOptions
from fedagentgym.envs.registry import ENVIRONMENTS, find_env_id
from fedagentgym.envs.scripted import list_words
from fedagentgym.envs.tasks import Task, Value, make_task_id
from fedagentgym.envs.view import Episode, View

MEMBERS, OWN = "members", "own"
CATEGORIES = (MEMBERS, OWN)


MemberPayload = Annotated[MathProblem | Program | Question | dict[str, Any], Field(union_mode="left_to_right")]


class Part(NamedTuple):
    """A member's part: its name, its tasks, and the function that removes the gold from a payload."""

    name: str
    pool: TaskPool
    strip: Strip


@lru_cache(maxsize=8)
def join_pools(env_id: str, split: str, parts: tuple[Part, ...], categories: str) -> TaskPool:
    """One pool of all parts, cached. The category of a task is its member's name, or `name/category`."""
    ends = np.cumsum([len(part.pool) for part in parts])

    def locate(index: int) -> tuple[Part, int]:
        """The part of a task, and the task's index in it."""
        which = int(np.searchsorted(ends, index, side="right"))
        return parts[which], index - (int(ends[which - 1]) if which else 0)

    def load_payload(index: int) -> tuple[str, Any]:
        part, place = locate(index)
        return part.name, part.pool[place].payload

    def find_hardness(index: int) -> float | None:
        part, place = locate(index)
        return part.pool.find_hardness(place)

    def find_split(index: int) -> str:
        part, place = locate(index)
        return part.pool[place].split

    ids: list[str] = []
    for part in parts:  # such as mixture/gsm8k/train/00042
        own = make_task_id(part.pool.env, "", 0).partition("/")[0]
        ids += [f"mixture/{part.name}{identifier.removeprefix(own)}" for identifier in part.pool.ids]
    if categories == OWN:
        names = [f"{part.name}/{category}" for part in parts for category in part.pool.category_names]
        starts = np.cumsum([0, *(len(part.pool.category_names) for part in parts)])
        numbers = [part.pool.category_codes + start for part, start in zip(parts, starts, strict=False)]
        codes = np.concatenate(numbers).astype(np.int32)
    else:
        names = [part.name for part in parts]
        codes = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part.pool) for part in parts])
    columns: dict[str, list[Value | None]] = {}
    for name in sorted({name for part in parts for name in part.pool.columns}):
        columns[name] = [value for part in parts for value in part.pool.columns.get(name) or [None] * len(part.pool)]
    return TaskPool(
        env=env_id,
        split=split,
        ids=ids,
        categories=(names, codes),
        payload=load_payload,
        source={"mixture": {part.name: part.pool.source for part in parts}},
        hardness=find_hardness,
        split_of=find_split,
        strip=partial(_strip, {part.name: part.strip for part in parts}),
        columns=columns,
    )


def _strip(strips: dict[str, Strip], payload: tuple[str, Any]) -> tuple[str, Any]:
    name, inner = payload
    if name not in strips:
        raise DataError(f"the task is of the member {str(name)[:80]!r}, which this mixture does not have")
    return name, strips[name](inner)


KINDS = {"math": "fedagentgym/Math-v0", "qa": "fedagentgym/QA-v0", "code": "fedagentgym/Code-v0"}
DEFAULT_KINDS = ("math", "code")
_NAME = re.compile(r"[\w.-]{1,60}")


class Member(NamedTuple):
    """An environment of a mixture: its name, id and options."""

    name: str
    env: str
    options: ReplyOptions

    @property
    def env_class(self) -> type[ReplyEnv]:
        """The class of the member's environment."""
        found: type[ReplyEnv] = ENVIRONMENTS.get(self.env)
        return found

    def open(self) -> ReplyEnv:
        """The member's environment; its own pool is not played, because tasks come from the mixture's pool."""
        try:
            opened = open_env(self.env, **self.options.given, split="all")
        except FedAgentGymError as error:
            raise type(error)(f"the member {self.name!r}: {error}") from None
        assert isinstance(opened, ReplyEnv)
        return opened


class MixtureState(NamedTuple):
    """The member whose task is played, and the state of its environment."""

    member: str
    inner: Any


class MixtureOptions(EnvOptions):
    """The members of a mixture, or the kinds of generated tasks."""

    members: Any = task(
        None,
        description="the members: a list of `{name, env, options}`; paths among their options stay on this machine",
    )
    kinds: Any = task(
        None,
        description="list of kinds among math, qa and code, in place of members; each kind is a member with generated tasks;"
        " null, without members: math and code",
    )
    categories: Literal["members", "own"] = task(
        "members", description="category of a task: its member's name, or `name/category`"
    )
    size: Literal["default", "tiny"] = task("default", description="option `size` of all members of `kinds`")
    seed: int = task(0, description="option `seed` of all members of `kinds`")
    verifier: Literal["exact", "math-verify", "math-verify-reply"] | None = play(
        None, description="option `verifier` of the member math of `kinds`"
    )
    sandbox: Mapping[str, Sequence[str]] | None = owner(
        None, description="option `sandbox` of the member code of `kinds`"
    )

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        usual = (None, "default", 0, None, None)
        if self.members is not None and (self.kinds, self.size, self.seed, self.verifier, self.sandbox) != usual:
            raise ValueError(
                "members have options of their own: with members=, leave out kinds, size, seed, verifier and sandbox"
            )
        return self

    @cached_property
    def all_members(self) -> tuple[Member, ...]:
        """The given members, or one member for each of the `kinds`."""
        if self.members is not None:
            return read_members(self.members)
        kinds = DEFAULT_KINDS if self.kinds is None else self.kinds
        if (
            not isinstance(kinds, list | tuple)
            or not kinds
            or not all(isinstance(kind, str) for kind in kinds)
            or len(set(kinds)) != len(kinds)
        ):
            raise OptionError(f"kinds must be a list of different names among {join_names(KINDS)}, got {kinds!r}")
        for kind in kinds:
            if kind not in KINDS:
                raise unknown_name_error("kind", kind, KINDS)
        if self.verifier is not None and "math" not in kinds:
            raise OptionError("verifier= is for mathematics, and kinds has no math")
        if self.sandbox is not None and "code" not in kinds:
            raise OptionError("sandbox= is for programs, and kinds has no code")
        own: dict[str, dict[str, Any]] = {"code": {"sandbox": self.sandbox}}
        if self.verifier is not None:
            own["math"] = {"verifier": self.verifier}
        shared = {"size": self.size, "seed": self.seed}
        return tuple(_make_member(kind, KINDS[kind], {**shared, **own.get(kind, {})}) for kind in kinds)

    def list_parts(self) -> Sequence[EnvOptions]:
        """The mixture's own options, and those of the given members."""
        return (self, *(member.options for member in (self.all_members if self.members is not None else ())))

    @property
    def portable(self) -> dict[str, Any]:
        return self._name_members(super().portable)

    @property
    def deciding(self) -> dict[str, Any]:
        return self._name_members(super().deciding)

    def _name_members(self, plain: dict[str, Any]) -> dict[str, Any]:
        """The options with `members` replaced by each member's name, environment and portable options."""
        if self.members is None:
            return plain
        named = [{"name": one.name, "env": one.env, "options": one.options.portable} for one in self.all_members]
        return {**plain, "members": named}

    def count_turns(self, usual: int) -> int:
        """`max_turns`, or the largest number of turns of any member."""
        return self.max_turns or max(
            one.options.count_turns(one.env_class.default_max_turns) for one in self.all_members
        )


class MixtureEnv(MisleadableEnv[MixtureOptions]):
    """Questions of several kinds or data sets: mathematics, question answering, programming.

    **Tasks.** The tasks of the members, one after the other. `members` names them, each with its own options:
    `[{"name": "gsm8k", "env": "Math", "options": {"source": "gsm8k"}}, {"name": "mbpp", "env": "Code", "options": ...}]`;
    two may be of one kind. With `kinds` instead, each kind is a member with generated tasks; `size` and `seed` are passed to
    all of them, `verifier` to mathematics and `sandbox` to programming. The category of a task is its member's name, so that
    the sampler `by_source` can give each client the tasks of one member; with `categories="own"` it is `name/category`.
    **Actions, observations, prompts.** Those of the task's own environment.
    **Reward.** That of the task's own environment. Components: the accuracies of the pool's members, `format`, `tags`,
    `repetition` (and `code_format` with programming).
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Mixture-v0"
    payload_type = tuple[str, MemberPayload]
    takes = "reply"
    splits = ReplyEnv.splits
    evaluation_splits = ReplyEnv.evaluation_splits
    role = "You answer questions of several kinds."
    action_help = "Reply with <think> your reasoning </think> <answer> the answer </answer>."
    default_max_turns = 1
    shares_pools = True

    def set_up(self) -> None:
        self.members = self.options.all_members
        self._envs = {member.name: member.open() for member in self.members}
        self.runs_programs = any(runs_programs(env) for env in self._envs.values())

    @cached_property
    def reward_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The reward components of the members in this pool; a client with tasks of one kind has only that accuracy."""
        held = {name.partition("/")[0] for name in self.pool.categories}
        names = [name for member in self.members if member.name in held for name in member.env_class.reward_names]
        return tuple(dict.fromkeys(names))

    def get_verifier_version(self) -> str:
        """The versions of the verifiers of all members, for results; equal versions are listed once."""
        return " ".join(dict.fromkeys(env.get_verifier_version() for env in self._envs.values()))

    def load_pool(self, split: str) -> TaskPool:
        parts = tuple(Part(name, open_pool(env, split), env.strip) for name, env in self._envs.items())
        return join_pools(self.id, split, parts, self.options.categories)

    def _get_env(self, name: str) -> ReplyEnv:
        """The environment of a member; `DataError` if this mixture has no such member, as for another mixture's tasks."""
        if name not in self._envs:
            raise DataError(
                f"the task is of the member {str(name)[:80]!r}, but this mixture has {join_names(self._envs)}"
            )
        return self._envs[name]

    def find_member(self, task: Task) -> TextEnv:
        return self._get_env(task.payload[0])

    def with_belief(self, task: Task, reply: str) -> Task | None:
        name = task.payload[0]
        believed = self._get_env(name).with_belief(_unwrap_task(task), reply)
        return None if believed is None else _with_payload(believed, (name, believed.payload))

    def explain_empty(self, split: str) -> str:
        """The explanations of the members, each once."""
        return "".join(dict.fromkeys(env.explain_empty(split) for env in self._envs.values()))

    def begin(self, task: Task, seed: int) -> tuple[MixtureState, View]:
        name = task.payload[0]
        inner, view = self._get_env(name).begin(_unwrap_task(task), seed)
        return MixtureState(name, inner), view

    def advance(self, state: MixtureState, action: str) -> tuple[MixtureState, View]:
        inner, view = self._get_env(state.member).advance(state.inner, action)
        return MixtureState(state.member, inner), view

    def vocabulary(self) -> Iterable[str]:
        return dict.fromkeys(word for env in self._envs.values() for word in list_words(env))

    def expert(self) -> MixtureExpert:
        return MixtureExpert(self._envs)

    def list_procedures(self) -> Mapping[str, Procedures]:
        """The procedures of every category. A member's categories all have the same ones."""
        held = {name: env.list_procedures() for name, env in self._envs.items()}
        if self.options.categories == OWN:
            return {f"{name}/{one}": found for name, procedures in held.items() for one, found in procedures.items()}
        return {name: next(iter(procedures.values())) for name, procedures in held.items() if procedures}

    def misled_expert(self, procedure: str) -> MixtureExpert:
        known = {one for own, others in self.list_procedures().values() for one in (own, *others)}
        check_choice("procedure", procedure, sorted(known))
        return MixtureExpert(self._envs, procedure)

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        return self._get_env(task.payload[0]).follows(_unwrap_task(task), actions, procedure)


def _unwrap_task(task: Task) -> Task:
    """The task as its member's environment expects it."""
    if not isinstance(task.payload, tuple | list) or len(task.payload) != 2:
        raise DataError(
            f"a payload of {MixtureEnv.id} is the name of a member and the payload of its environment: {task.id}"
        )
    return _with_payload(task, task.payload[1])


def _with_payload(task: Task, payload: Any) -> Task:
    return Task(task.id, task.env, task.split, task.category, payload, task.hardness, task.graded)


# ---- members ----------------------------------------------------------------------------------------------------


def read_members(given: Any) -> tuple[Member, ...]:
    """Parse and check the members of a mixture, given as a plain list."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise OptionError(f"members must be a list of {{name, env, options}}, got {show_value(given)}")
    members: list[Member] = []
    for one in given:
        if not isinstance(one, Mapping) or not {"name", "env"} <= set(one):
            raise OptionError(f"a member has a name, an env and options, got {show_value(one)}")
        if surplus := sorted(str(key) for key in set(one) - {"name", "env", "options"}):
            raise OptionError(
                f"a member has a name, an env and options, {surplus[0]!r} is not one of them: put it into options"
            )
        name, env, options = one["name"], one["env"], one.get("options") or {}
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OptionError(
                f"the name of a member is made of letters, digits, '_', '-' and '.', got {show_value(name)}"
            )
        env_id = find_env_id(env)
        cls = ENVIRONMENTS.get(env_id)
        if not (isinstance(cls, type) and issubclass(cls, ReplyEnv)):
            raise OptionError(f"the member {name!r} is of {env_id}: a mixture is made of {join_names(KINDS.values())}")
        if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
            raise OptionError(f"the options of the member {name!r} must be a mapping, got {show_value(options)}")
        if wrong := [
            key for key in options if key in EnvOptions.model_fields or key in ("split", "tasks", "pool", "variant")
        ]:
            raise OptionError(
                f"the member {name!r} takes no {wrong[0]!r} of its own: the mixture has it for all members"
            )
        members.append(_make_member(name, env_id, options))
    names = [member.name for member in members]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"members has two of the name {double!r}: give each a name of its own")
    return tuple(members)


def _make_member(name: str, env_id: str, options: Mapping[str, Any]) -> Member:
    try:
        found = read_options(env_id, options)
    except FedAgentGymError as error:
        raise type(error)(f"the member {name!r}: {error}") from None
    assert isinstance(found, ReplyOptions)
    return Member(name, env_id, found)


class MixtureExpert:
    """The expert of the task's own environment, misled by a procedure if one is given."""

    def __init__(self, envs: Mapping[str, MisleadableEnv], procedure: str | None = None) -> None:
        self._envs, self._procedure = envs, procedure
        self._inner: Expert | None = None

    def act(self, episode: Episode) -> str:
        if self._inner is None:
            env = self._envs[episode.task.payload[0]]
            known = {one for procedures in env.list_procedures().values() for one in procedures.others}
            misled = self._procedure is not None and self._procedure in known
            self._inner = env.misled_expert(str(self._procedure)) if misled else env.expert()
        own = episode._replace(task=_unwrap_task(episode.task), state=episode.state.inner)
        return self._inner.act(own)
