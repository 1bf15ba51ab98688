"""An agent of one's own has one method: it is evaluated, recorded, played again and ranked, and mistakes are one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedagentgym
from fedagentgym.agents import AGENTS, Agent, make_agent
from fedagentgym.base.errors import OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.testing import check_agent

GUESS = "fedagentgym/Guess-v0"
PLUGIN = """
import fedagentgym


class Listing(fedagentgym.Agent):
    parser = PARSER

    def __init__(self, first=0):
        self.first = first

    def reset(self):
        self.left = None

    def reply(self, observation, info):
        if self.left is None:
            self.left = list(info["admissible"] or ["look"])[self.first:] or ["look"]
        action = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return f"<action>{action}</action>" if self.parser else action


fedagentgym.register_agent("listing", Listing, replace=True)
"""


@pytest.fixture(autouse=True)
def registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AGENTS, "_entries", dict(AGENTS._entries))


class Remembering(Agent):
    """Its replies depend on everything that it saw and drew in its episode."""

    def __init__(self, shared: str = "x") -> None:
        self.shared = shared

    def reset(self) -> None:
        self.seen: list[str] = []

    def reply(self, observation: str, info: dict[str, Any]) -> str:
        self.seen.append(observation)
        return f"guess {(len(self.shared.join(self.seen)) + self.stream.integers(50)) % 100 + 1}"


def test_episodes_that_are_played_at_once_are_those_that_are_played_one_after_the_other() -> None:
    env = open_env(GUESS)
    played = [
        fedagentgym.collect(Remembering(), env, env.pool.ids[:8], group_size=2, parallel=parallel).trajectories
        for parallel in (16, 1, 3)
    ]
    replies = [[[turn.reply for turn in one.turns] for one in episodes] for episodes in played]
    assert replies[0] == replies[1] == replies[2] and len({str(one) for one in replies[0]}) == 16


def test_reset_comes_first_and_the_agent_itself_stays_as_it_was() -> None:
    agent = Remembering()
    fedagentgym.evaluate(agent, GUESS, tasks=4)
    assert vars(agent) == {"shared": "x"}
    check_agent(agent)


def test_info_is_what_gymnasium_gives_without_scores() -> None:
    told: list[dict[str, Any]] = []

    class Curious(Agent):
        def reply(self, observation: str, info: dict[str, Any]) -> str:
            told.append(info)
            return "guess 1" if info["turn"] else "nonsense"

    env = open_env(GUESS)
    fedagentgym.collect(Curious(), env, env.pool.ids[3:4])
    _, info = env.reset(seed=0, options={"task": env.pool.ids[3]})
    assert {**told[0], "messages": ...} == {
        **{key: value for key, value in info.items() if key not in ("score", "success", "rewards")},
        "messages": ...,
    }
    assert [one["turn"] for one in told] == list(range(len(told))) and not told[1]["valid"]
    roles = [message["role"] for message in told[1]["messages"]]
    assert roles == ["user", "assistant", "user"] and "nonsense" in told[1]["messages"][1]["content"]


def test_changes_of_info_change_nothing() -> None:
    class Rude(Agent):
        def reply(self, observation: str, info: dict[str, Any]) -> str:
            action = str(info["admissible"][info["turn"]])
            info["admissible"].clear()
            info["messages"][0]["content"] = ""
            info.clear()
            return action

    check_agent(Rude())


def test_the_name_is_that_of_the_class_or_of_the_registry() -> None:
    class Base(Agent):
        name = "of the base"

        def reply(self, observation: str, info: dict[str, Any]) -> str:
            return "guess 1"

    class Derived(Base):
        pass

    assert (Base().name, Derived().name) == ("of the base", "Derived")
    fedagentgym.register_agent("me/derived", Derived)
    assert make_agent("me/derived").name == "me/derived" and Derived().name == "Derived"
    fedagentgym.register_agent("made", lambda settings, *, env=None, seed=0: Derived())
    assert make_agent("made").name == "made"


@pytest.mark.parametrize(
    ("parser", "think", "reply", "action", "form"),
    [
        (None, False, "<action>guess 2</action>", "<action>guess 2</action>", True),
        ("strict", False, "<action> guess 2 </action>", "guess 2", True),
        ("strict", False, "well: <action>guess 2</action>", "guess 2", False),
        ("strict", True, "<action>guess 2</action>", "guess 2", False),
        ("strict", True, "<think>two</think><action>guess 2</action>", "guess 2", True),
        ("published", False, "So <action>Guess 2</action>", "guess 2", True),
    ],
)
def test_a_parser_extracts_the_action_as_it_does_for_language_models(
    parser: Any, think: bool, reply: str, action: str, form: bool
) -> None:
    said, asked = reply, list[str]()

    class Speaking(Agent):
        def __init__(self) -> None:
            self.parser, self.think = parser, think

        def reply(self, observation: str, info: dict[str, Any]) -> str:
            asked.append(info["messages"][0]["content"])
            return said

    env = open_env(GUESS)
    turn = fedagentgym.collect(Speaking(), env, env.pool.ids[:1]).trajectories[0].turns[0]
    assert (turn.reply, turn.acts, turn.format) == (reply, (action,), form) and ("<think>" in asked[0]) == think


def test_attributes_may_have_any_name(tmp_path: Path) -> None:
    """An agent that asks a server keeps what it likes: names that our own agents use mean nothing here."""

    class Client(Agent):
        def __init__(self) -> None:
            self.endpoint, self.usage, self.decoding = "http://x.test", {"tokens": 3}, {"temperature": 1}
            self.policy, self.template, self.settings = object(), "mine", None

        def reply(self, observation: str, info: dict[str, Any]) -> str:
            return "guess 5"

    (tmp_path / "client.py").write_text("")
    fedagentgym.register_agent("client", Client)
    assert (
        main(["-q", "eval", "--env", "Guess", "--agent", "client", "--tasks", "3", "--out", str(tmp_path / "e")]) == 0
    )


# ---- recorded and ranked ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["None", "'strict'"], ids=["reply", "parsed"])
def plugin(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.replace("PARSER", request.param) + f"# {tmp_path}\n")  # the same text is loaded once
    yield file


def test_an_evaluation_is_recorded_and_its_episodes_are_played_again(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["eval", "--env", "Guess", "--agent", "listing", "--agent-set", "options.first=2", "--plugin", str(plugin)]
    assert main([*line, "--tasks", "8", "--out", "played"]) == 0
    record = json.loads(Path("played/result.json").read_text())
    assert record["agent"]["settings"] == {"name": "listing", "options": {"first": 2}}
    assert json.loads(Path("played/evaluation/ranked.jsonl").read_text().splitlines()[0])["agent"] == "listing"
    del AGENTS._entries["listing"]
    assert main(["eval", "--check", "played"]) == 0
    lines = Path("played/evaluation/ranked.jsonl").read_text()
    Path("played/evaluation/ranked.jsonl").write_text(lines.replace("guess 3", "guess 4", 1))
    assert main(["eval", "--check", "played"]) == 2


def test_a_suite_is_played_packed_and_verified(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.leaderboard.samples import AGENTS_SUITE

    Path("suite.yaml").write_text(yaml.safe_dump(AGENTS_SUITE.model_dump(mode="json", exclude_unset=True)))
    with_plugin = ["--plugin", str(plugin)]
    assert main(["-q", "bench", "run", "suite.yaml", "--agent", "listing", *with_plugin, "--out", "runs"]) == 0
    assert main(["-q", "bench", "pack", f"runs/{AGENTS_SUITE.name}/listing", "--out", "results", *with_plugin]) == 0
    del AGENTS._entries["listing"]
    (archive,) = Path("results").rglob("listing.zip")
    capsys.readouterr()
    assert main(["bench", "verify", str(archive), "--suite", "suite.yaml"]) == 0
    assert "replayed" in capsys.readouterr().out
    assert main(["-q", "leaderboard", "build", "results", "--out", "page"]) == 0
    assert any("listing" in page.read_text() for page in Path("page").rglob("*.html"))


# ---- mistakes ---------------------------------------------------------------------------------------------------------


def make(reply: Callable[..., Any] | None = None, **members: Any) -> type[Agent]:
    """A class `Wrong` with these members."""
    return type("Wrong", (Agent,), {**members, **({} if reply is None else {"reply": reply})})


def says(value: Any) -> Callable[..., Any]:
    return lambda self, observation, info: value


def fails(*_: Any) -> Any:
    raise ValueError("two\nlines")


async def late(self: Any, observation: str, info: Any) -> str:
    return "guess 1"


class Underived:
    def reply(self, observation: str, info: Any) -> str:
        return "guess 1"


FINE = says("guess 1")
WRONG: Mapping[str, tuple[Any, str]] = {
    "None": (make(says(None)), "agent 'wrong': reply returned 'None', which is not a text"),
    "a number": (make(says(5)), "agent 'wrong': reply returned '5', which is not a text"),
    "bytes": (make(says(b"guess 1")), "which is not a text"),
    "a list": (make(says(["guess 1"])), "which is not a text"),
    "raises": (make(fails), "agent 'wrong': reply failed at turn 1 of guess/train/00000: ValueError: two lines"),
    "reset raises": (make(FINE, reset=fails), "agent 'wrong': reset failed at turn 1 of .*: ValueError: two lines"),
    "reset with an argument": (make(FINE, reset=lambda self, seed: None), "reset failed .*: TypeError: "),
    "no reply": (make(), r"agent Wrong has no method reply\(self, observation, info\)"),
    "other arguments": (make(lambda self, messages: "guess 1"), "reply failed at turn 1 .*: TypeError: "),
    "an unknown key": (make(lambda self, observation, info: info["score"]), "reply failed .*: KeyError: 'score'"),
    "no super": (make(lambda self, observation, info: self.memory), "reply failed .*AttributeError: .*memory"),
    "a parser": (make(FINE, parser="loose"), "agent Wrong: parser is 'strict', 'published' or None, got 'loose'"),
    "an argument": (make(FINE, __init__=lambda self, key: None), "agent 'wrong' cannot be made .*: TypeError: "),
    "init raises": (make(FINE, __init__=fails), "agent 'wrong' cannot be made with its options: ValueError: two lines"),
    "a fixed name": (make(FINE, name=property(lambda self: "mine")), "agent 'wrong' cannot be made .*name"),
    "not copied": (make(FINE, __copy__=fails), "agent 'wrong': reset failed .*: ValueError: two lines"),
    "not derived": (Underived, "agent 'wrong': derive Underived from fedagentgym.agents.Agent"),
    "an instance": (make(FINE)(), "is registered as .*: register a class derived from Agent, or a function"),
    "a function that makes none": (lambda settings, *, env=None, seed=0: None, "returned 'None', which is no agent"),
    "async": (make(late), "which is not a text"),
}


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("given", [says("guess 1"), Underived(), None, 5], ids=["a function", "an object", "None", "5"])
def test_what_is_no_agent_is_told_what_one_is(given: Any) -> None:
    said = "an agent is an instance of a class derived from fedagentgym.Agent, or the name or the settings of one, got "
    for use in (
        lambda: fedagentgym.evaluate(given, "Guess", tasks=1),
        lambda: fedagentgym.collect(given, "Guess", ["guess/train/00000"]),
        lambda: make_agent(given),
    ):
        with pytest.raises(OptionError, match=said):
            use()


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_agent_is_told_what_is_wrong(wrong: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target, told = WRONG[wrong]
    fedagentgym.register_agent("wrong", target)
    for call in (lambda: fedagentgym.evaluate("wrong", GUESS, tasks=2), lambda: make_agent("wrong", GUESS).play):
        try:
            call()
        except OptionError as error:
            assert "\n" not in str(error)
    with pytest.raises(OptionError, match=told):
        fedagentgym.evaluate("wrong", open_env(GUESS, split="train"), tasks=2)
    with pytest.raises(AssertionError, match=told):
        check_agent("wrong")
    line = ["-q", "eval", "--env", "Guess", "--agent", "wrong", "--tasks", "1", "--out", str(tmp_path / "out")]
    assert main(line) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", [None, "", 3])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    agent = make(FINE)()
    agent.name = name
    with pytest.raises(OptionError, match="agent Wrong: name must be a non-empty text"):
        fedagentgym.evaluate(agent, GUESS, tasks=1)
    with pytest.raises(AssertionError, match="Wrong has no name"):
        check_agent(agent)


def test_a_class_and_settings_that_it_does_not_take_are_refused() -> None:
    wrong = make(FINE)
    with pytest.raises(OptionError, match=r"an agent is an instance, not a class: give Wrong\(\)"):
        fedagentgym.evaluate(wrong, GUESS, tasks=1)  # type: ignore[arg-type]
    fedagentgym.register_agent("wrong", wrong)
    with pytest.raises(OptionError, match=r"agent 'wrong' takes options alone, got agent\.model"):
        make_agent({"name": "wrong", "model": "x"})
    with pytest.raises(AssertionError, match="settings are for an agent that is given by its name"):
        check_agent(wrong(), options={})


def test_memory_that_all_episodes_share_is_told() -> None:
    class Leaking(Agent):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def reply(self, observation: str, info: dict[str, Any]) -> str:
            self.seen.append(observation)
            return f"guess {len(self.seen) % 100}"

    with pytest.raises(AssertionError, match=r"Leaking makes other moves .*: set attributes .* in reset\(\)"):
        check_agent(Leaking())


def test_an_agent_with_another_name_than_the_registered_one_is_told() -> None:
    from fedagentgym.agents.players.human import HumanAgent

    fedagentgym.register_agent("mine", lambda settings, *, env=None, seed=0: HumanAgent(ask=lambda text: "guess 1"))
    with pytest.raises(AssertionError, match="mine calls itself human: results would name another agent"):
        check_agent("mine")
