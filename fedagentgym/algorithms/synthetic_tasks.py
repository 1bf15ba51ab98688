"""Sources of DPSDA-FL's candidates: the environment's generator, or the language model.

    GeneratedTasks   draws new tasks from the environment's public generator; a variation is a new task of the same category
    WrittenTasks     asks the language model for a task of one of the environment's categories; a variation is a similar task

A written task includes its answer. It is accepted if it has the requested form, if the environment can grade its answer, and if
it is neither a duplicate nor part of an evaluation. Prompts show a few tasks that are not private: those of the role `public`, or
else of the environment's split `warmup`, which is generated even if the other tasks are loaded. Category names are assumed to be
public too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedagentgym.base.devices import here
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.streams import Stream, stream
from fedagentgym.envs import open_env
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import shorten_env_id
from fedagentgym.envs.verifiers.formats import last_thought

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.agents.protocols import Completion
    from fedagentgym.algorithms.runtime import Runtime
    from fedagentgym.envs.core import TextEnv

TEXT_BYTES = 4096
"""Maximum size of the text of one candidate in a message."""
ATTEMPTS = 16
"""Maximum number of replies per requested task."""
SHOWN, MAX_SHOWN, MAX_SHOWN_LENGTH = 3, 100, 800
"""Number of example tasks in a prompt, the number they are drawn from, and their maximum length in characters."""
_BEGIN = "<problem>"
_TASK = re.compile(r"<problem>(.*?)</problem>(.*?)<answer>(.*?)</answer>", re.DOTALL)
_FORM = (
    "Reply in exactly this form:\n<problem> the task </problem>\n<think> a worked solution </think>\n"
    "<answer> the answer alone </answer>"
)


class Candidate(NamedTuple):
    """A synthetic task: its first observation, its category, and the id or record by which it is kept."""

    text: str
    category: str
    kept: Any


class CandidateSource(Protocol):
    """The source from which the server draws candidates."""

    def draw(self, count: int) -> list[Candidate]:
        """Draw `count` candidates: fewer if the model writes fewer, a `DataError` if a generator has fewer."""

    def vary(self, parents: Sequence[Candidate]) -> list[Candidate]:
        """Draw a similar candidate for each of `parents`, in any order; if there are fewer, the rules of `draw` apply."""


def is_generated(source: Mapping[str, Any]) -> bool:
    """Return whether a pool was made by a generator (all members of a mixture) rather than loaded."""
    members = source.get("mixture")
    if isinstance(members, Mapping):
        return all(is_generated(member) for member in members.values())
    return "generator" in source


class GeneratedTasks:
    """New tasks of an environment's generator, each at most once."""

    def __init__(self, env: TextEnv, held_out: frozenset[str], draw: Stream, lacking: str) -> None:
        self._env, self._lacking = env, lacking
        self._drawn = self._iter_tasks(held_out, draw)

    def _iter_tasks(self, held_out: frozenset[str], draw: Stream) -> Iterator[Candidate]:
        pool = self._env.pool
        for index in draw.permutation(len(pool)).tolist():
            (episode,) = self._env.reset_many([pool[index]], [0])
            if (text := episode.view.observation) not in held_out:
                yield Candidate(text, episode.task.category, pool.ids[index])
        raise DataError(self._lacking)

    def draw(self, count: int) -> list[Candidate]:
        return [next(self._drawn) for _ in range(count)]

    def vary(self, parents: Sequence[Candidate]) -> list[Candidate]:
        wanted: dict[str, int] = {}
        for parent in parents:
            wanted[parent.category] = wanted.get(parent.category, 0) + 1
        fresh: list[Candidate] = []
        while any(wanted.values()):
            candidate = next(self._drawn)
            if wanted.get(candidate.category):
                wanted[candidate.category] -= 1
                fresh.append(candidate)
        return fresh


class WrittenTasks:
    """Tasks that the language model writes, with its initial parameters."""

    def __init__(self, runtime: Runtime, held_out: frozenset[str], seed: int) -> None:
        self._runtime, self._env, self._agent, self._seed = runtime, runtime.env, runtime.agent, seed
        self._known = set(held_out)
        self._categories = [str(name) for name in runtime.client_split.pool.category_names]
        try:
            public = runtime.open_role_env("public")
        except OptionError:
            public = open_env(self._env.id, split="warmup")
        ids = list(public.pool.ids[:MAX_SHOWN])
        episodes, expert = public.reset_many(ids, [0] * len(ids)), public.expert()
        solved = [f"<problem> {each.view.observation} </problem>\n{expert.act(each)}" for each in episodes]
        self.examples = [
            text for text in solved if len(text) <= MAX_SHOWN_LENGTH
        ]  # public tasks in the form that is asked for
        self._written: list[str] = []
        self._calls = 0
        self.replies = 0
        if not takes_written_tasks(self._env):
            raise OptionError(
                f"a language model cannot write tasks of {self._env.id}: dpsda-fl needs the environment's generator there"
            )

    def draw(self, count: int) -> list[Candidate]:
        chosen = [self._categories[number % len(self._categories)] for number in range(count)]
        ask = "Write one new task of this kind on the topic: {}. It must be complete in itself."
        return self._write([(name, ask.format(name)) for name in chosen])

    def vary(self, parents: Sequence[Candidate]) -> list[Candidate]:
        ask = "This is a task:\n\n{}\n\nWrite another one on the same topic, as hard, that asks for something else."
        return self._write([(each.category, ask.format(each.text)) for each in parents])

    def _write(self, wanted: Sequence[tuple[str, str]]) -> list[Candidate]:
        """A candidate for each (category, request), except where no attempt of the model gives a usable one."""
        found: dict[int, Candidate] = {}
        self._calls += 1
        self._runtime.resident.load(self._runtime.initial_weights)
        for attempt in range(ATTEMPTS):
            missing = [number for number in range(len(wanted)) if number not in found]
            if not missing:
                break
            prompts = [self._make_prompt(wanted[number][1], attempt, number) for number in missing]
            streams = [stream(self._seed, "write", self._calls, attempt, number) for number in missing]
            replies = write_replies(self._agent, prompts, _BEGIN, streams, self._runtime.learning.parallel_episodes)
            self.replies += len(replies)
            for number, reply in zip(missing, replies, strict=True):
                candidate = self._read(reply, wanted[number][0])
                if candidate is not None and candidate.text not in self._known:
                    self._known.add(candidate.text)
                    self._written.append(candidate.text)
                    found[number] = candidate
        return [candidate for _, candidate in sorted(found.items())]

    def _make_prompt(self, request: str, attempt: int, number: int) -> str:
        """A request with its context. Identical prompts would often give the same task."""
        draw = stream(self._seed, "prompt", self._calls, attempt, number)
        places = draw.choice(len(self.examples), min(SHOWN, len(self.examples)))
        shown = [self.examples[int(place)] for place in places]
        parts = [f"{self._env.role} {request}"]
        if attempt and self._written:
            parts.append(f"It must not be this one:\n\n{self._written[int(draw.integers(len(self._written)))]}")
        for count in range(len(shown), 0, -1):
            prompt = "\n\n".join([*parts, _FORM, "This is how other tasks look:", *shown[:count], ""])
            if len(encode_prompt(self._agent, prompt, _BEGIN)) <= get_room(self._agent):
                return prompt
        return "\n\n".join([*parts, _FORM, ""])

    def _read(self, reply: str, category: str) -> Candidate | None:
        """The task in a reply; None if there is none, or if its own solution does not solve it."""
        parts = _TASK.search(reply)  # the first: a model may continue and write more
        if parts is None:
            return None
        question, between, answer = (part.strip() for part in parts.groups())
        if not question or not answer or _BEGIN in question + between:
            return None
        solution = last_thought(between) or ""
        name = f"{shorten_env_id(self._env.id)}/synthetic/{len(self._known):05d}"
        record = {"id": name, "category": category, "payload": make_payload(question, answer, solution)}
        (task,) = TaskPool.from_records([record], env=self._env.id)
        try:
            (episode,) = self._env.reset_many([task], [0])
            (after,) = self._env.step_many([episode], [self._env.expert().act(episode)])
        except FedAgentGymError:
            return None
        text = episode.view.observation
        fits = len(text.encode("utf-8", "replace")) <= TEXT_BYTES // 2
        return Candidate(text, category, record) if after.view.success and fits else None


def make_payload(question: str, answer: str, solution: str) -> dict[str, Any]:
    """A task in text form, with the field names that question environments use."""
    return {"problem": question, "question": question, "answers": [answer], "solution": solution}


def takes_written_tasks(env: TextEnv) -> bool:
    """Return whether a question with its answer is a task of this environment."""
    parse = getattr(env, "parse_payload", None)
    if env.takes != "reply" or parse is None:
        return False
    try:
        parse(make_payload("1 + 1", "2", ""))
    except DataError:
        return False
    return True


def write_replies(
    agent: TokenAgent, prompts: Sequence[str], begin: str, streams: Sequence[Stream], parallel: int
) -> list[str]:
    """The model's reply to each prompt, as a continuation of `begin`: small models and models without instruction tuning then
    follow the form of the examples."""
    replies = here().share(lambda: _generate(agent, prompts, begin, streams, parallel), agent.policy)
    texts = [agent.tokenizer.decode(reply.token_ids) for reply in replies]
    return [text if text.lstrip().startswith(begin) else begin + text for text in texts]


def _generate(
    agent: TokenAgent, prompts: Sequence[str], begin: str, streams: Sequence[Stream], parallel: int
) -> list[Completion]:
    room, replies = get_room(agent), []
    with agent.policy.open_session() as session:
        for start in range(0, len(prompts), parallel):
            batch = [encode_prompt(agent, prompt, begin) for prompt in prompts[start : start + parallel]]
            if (longest := max(map(len, batch))) > room:
                raise DataError(
                    f"a prompt of {longest} tokens leaves no room for a reply of {agent.decoding.max_new_tokens} in a context of"
                    f" {agent.policy.context_length}: lower agent.decoding.max_new_tokens"
                )
            rows = session.open(batch)
            replies += session.generate(rows, streams[start : start + parallel], agent.decoding)
            session.drop(rows)
    return replies


def encode_prompt(agent: TokenAgent, prompt: str, begin: str) -> tuple[int, ...]:
    """A prompt and the beginning of its reply in the agent's tokens."""
    tokenizer = agent.tokenizer
    return (*(tokenizer.encode_chat(prompt) if agent.chat else tokenizer.encode(prompt)), *tokenizer.encode(begin))


def get_room(agent: TokenAgent) -> int:
    """The tokens available for a prompt."""
    return agent.policy.context_length - agent.decoding.max_new_tokens
