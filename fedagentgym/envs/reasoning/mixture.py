"""Several reply worlds as one, so that clients of one federation can hold tasks of different kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedagentgym.base.errors import OptionError, join_names, unknown_name_error
from fedagentgym.base.registry import resolve
from fedagentgym.envs.core import Episode, Expert, TextEnv, check_choice
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.procedures import Procedures
from fedagentgym.envs.task import Task
from fedagentgym.envs.view import View

MEMBERS = {
    "math": "fedagentgym.envs.reasoning.math:MathEnv",
    "qa": "fedagentgym.envs.reasoning.qa:QAEnv",
    "code": "fedagentgym.envs.reasoning.code:CodeEnv",
}

DEFAULT_KINDS = ("math", "code")


class State(NamedTuple):
    """Which world the episode is played in, and its state there."""

    member: str
    inner: Any


class MixtureEnv(TextEnv):
    """Questions of several kinds: mathematics, question answering, programming.

    **Tasks.** The tasks of the worlds named in `kinds`, one after the other; the kind is the category, so that
    `by_source` gives whole kinds to whole clients. `size` and `seed` are handed on, `verifier` to mathematics and `sandbox` to
    programming.
    **Actions, observations.** Those of the task's own world.
    **Reward.** That of the task's own world. Components: the accuracies of the kinds that the pool holds, `format`, `tags`,
    `repetition` (and `code_format` with programming).
    **Versions.** v0: first one.
    """

    id = "fedagentgym/Mixture-v0"
    takes = "reply"
    role = "You answer questions of several kinds."
    action_help = "Reply with <think> your reasoning </think> <answer> the answer </answer>."
    default_max_turns = 1
    shares_pools = True
    reward_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        kinds: Sequence[str] = DEFAULT_KINDS,
        size: str = "default",
        seed: int = 0,
        verifier: str | None = None,
        sandbox: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ):
        if isinstance(kinds, str) or not kinds or len(set(kinds)) != len(kinds):
            raise OptionError(f"kinds is a list of different names among {join_names(MEMBERS)}, got {kinds!r}")
        for kind in kinds:
            if kind not in MEMBERS:
                raise unknown_name_error("kind", kind, MEMBERS)
        split = options.get("split", "train")
        self.kinds, self.size, self.seed = tuple(kinds), size, seed
        made = {"size": size, "seed": seed, "split": "train" if split == "all" else split}
        if verifier is not None and "math" not in kinds:
            raise OptionError("verifier= is for mathematics, and kinds has no math")
        own: dict[str, dict[str, Any]] = {"code": {"sandbox": sandbox}}
        if verifier is not None:
            own["math"] = {"verifier": verifier}
        self._members: dict[str, TextEnv] = {
            kind: resolve(MEMBERS[kind])(**made, **own.get(kind, {})) for kind in self.kinds
        }
        super().__init__(**options)
        self.reward_names = self._collect_reward_names()  # type: ignore[misc]

    def _collect_reward_names(self) -> tuple[str, ...]:
        """The components of the kinds that this pool holds: a client of one kind knows only its own accuracy."""
        held = [kind for kind in self.kinds if kind in self.pool.categories]
        names = [name for kind in held for name in self._members[kind].reward_names]
        return tuple(dict.fromkeys(names))

    def get_verifier_version(self) -> str:
        """The versions of the verifiers of all kinds, for results."""
        members: list[Any] = list(self._members.values())
        return " ".join(member.get_verifier_version() for member in members)

    def load_pool(self, split: str) -> TaskPool:
        pools = {kind: member.load_pool(split) for kind, member in self._members.items()}
        sizes = [len(pool) for pool in pools.values()]
        ends = np.cumsum(sizes)
        members = list(pools.values())

        def load_payload(index: int) -> tuple[str, Any]:
            which = int(np.searchsorted(ends, index, side="right"))
            start = int(ends[which - 1]) if which else 0
            return self.kinds[which], members[which][index - start].payload

        return TaskPool(
            env=self.id,
            split=split,
            ids=[f"mixture/{identifier}" for pool in members for identifier in pool.ids],
            categories=(self.kinds, np.repeat(np.arange(len(self.kinds), dtype=np.int32), sizes)),
            payload=load_payload,
            source={"mixture": {kind: pool.source for kind, pool in pools.items()}},
            strip=self._strip,
        )

    def _strip(self, payload: tuple[str, Any]) -> tuple[str, Any]:
        kind, inner = payload
        member: Any = self._members[kind]
        return kind, member.strip(inner)

    def begin(self, task: Task, seed: int) -> tuple[State, View]:
        kind = task.payload[0]
        inner, view = self._members[kind].begin(self._unwrap_task(task), seed)
        return State(kind, inner), view

    def advance(self, state: State, action: str) -> tuple[State, View]:
        inner, view = self._members[state.member].advance(state.inner, action)
        return State(state.member, inner), view

    def vocabulary(self) -> Iterable[str]:
        return [word for member in self._members.values() for word in member.vocabulary()]

    def expert(self) -> MixtureExpert:
        return MixtureExpert(self._members)

    def list_procedures(self) -> Mapping[str, Procedures]:
        """Of each kind the procedures of its own world, which are the same in all of that world's categories."""
        held = {kind: member.list_procedures() for kind, member in self._members.items()}
        return {kind: next(iter(procedures.values())) for kind, procedures in held.items() if procedures}

    def misled_expert(self, procedure: str) -> MixtureExpert:
        known = {one for own, others in self.list_procedures().values() for one in (own, *others)}
        check_choice("procedure", procedure, sorted(known))
        return MixtureExpert(self._members, procedure)

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        return self._members[task.payload[0]].follows(self._unwrap_task(task), actions, procedure)

    @staticmethod
    def _unwrap_task(task: Task) -> Task:
        """The task as its own world knows it."""
        return Task(task.id, task.env, task.split, task.category, task.payload[1], task.hardness, task.graded)


def runs_programs(env_id: str, options: Mapping[str, Any]) -> bool:
    """Does this environment run programs that nobody trusts? Records then tell how they were confined."""
    kinds = options.get("kinds", DEFAULT_KINDS) if env_id == MixtureEnv.id else ()
    return env_id == "fedagentgym/Code-v0" or "code" in kinds


class MixtureExpert:
    """The expert of the task's own world, or the one of that world that a procedure misleads."""

    def __init__(self, members: Mapping[str, TextEnv], procedure: str | None = None) -> None:
        self._members, self._procedure = members, procedure
        self._inner: Expert | None = None

    def act(self, episode: Episode) -> str:
        kind = episode.task.payload[0]
        if self._inner is None:
            member = self._members[kind]
            known = {one for procedures in member.list_procedures().values() for one in procedures.others}
            misled = self._procedure is not None and self._procedure in known
            self._inner = member.misled_expert(str(self._procedure)) if misled else member.expert()
        own = episode._replace(task=MixtureEnv._unwrap_task(episode.task), state=episode.state.inner)
        return self._inner.act(own)
