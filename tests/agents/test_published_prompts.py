"""Prompts whose texts are taken from a module of string constants: what is read, how it is filled, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents import PublishedTemplate, make_agent, read_prompts
from fedagentgym.agents.text.prompts import Dialogue, PastTurn, Template
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import stream
from fedagentgym.cli.main import main
from fedagentgym.envs.make import open_env
from fedagentgym.testing import check_template
from tests.agents.worlds import ShopEnv

MODULE = '''"""Made up for the test, in the form of published code."""
from __future__ import annotations

raise SystemExit("a module that is read is not run")
HOUSE = """not a prompt"""
# ---- houses ----
ALFWORLD_TEMPLATE_NO_HIS = """
Look: {current_observation}
Choose: [{admissible_actions}].
"""
ALFWORLD_TEMPLATE: str = """
Do {task_description}
After {step_count}, the last {history_length}: {action_history}
At {current_step} you see {current_observation}
Choose: [{admissible_actions}].
"""
WEBSHOP_TEMPLATE_NO_HIS = "Buy {task_description}. " "Page {current_observation}. [\\n{available_actions}\\n] {{json}}"
WEBSHOP_TEMPLATE = GUESS_TEMPLATE = (
    "Buy {task_description}. {step_count}/{history_length}/{current_step} {action_history}"
    " | {current_observation} | {available_actions}"
)
GUESS_TEMPLATE_NO_HIS = "{current_observation}"


def build(text):
    WEBSHOP_TEMPLATE = "inside a function"
    return text
'''


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "prompts.py").write_text(MODULE)
    return read_prompts(tmp_path / "prompts.py")


class Filled(PublishedTemplate):
    """Its texts are set by each test."""


@pytest.fixture
def template(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Template:
    monkeypatch.setattr(Filled, "texts", texts)
    return Filled("filled")


def test_the_constants_of_a_module_are_read_and_nothing_runs(texts: dict[str, str]) -> None:
    names = ("ALFWORLD", "WEBSHOP", "GUESS")
    assert set(texts) == {f"{name}_TEMPLATE{end}" for name in names for end in ("", "_NO_HIS")}
    assert texts["WEBSHOP_TEMPLATE_NO_HIS"].startswith("Buy {task_description}. Page")


def test_a_house_is_shown_as_the_code_shows_it(template: Template) -> None:
    env = open_env("fedagentgym/ALFWorld-v0")
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    start, view = episode.view.observation, episode.view
    listed = "\n ".join(f"'{one}'" for one in view.admissible or () if one != "help")
    assert template.render_first(env, view) == f"\nLook: {start}\nChoose: [{listed}].\n"
    past = [PastTurn("o3", "a3"), PastTurn("o4", "a4")]
    text = template.render_window(env, start, past, 4, view, "goal")
    task = start.rpartition("Your task is to: ")[2]
    assert text.splitlines()[1:4] == [
        f"Do {task}",
        "After 4, the last 2: [Observation 3: 'o3', Action 3: 'a3']",
        "[Observation 4: 'o4', Action 4: 'a4']",
    ]
    assert f"At 5 you see {start}" in text and "'help'" not in text


def test_a_shop_is_shown_as_the_code_shows_it(template: Template) -> None:
    env = open_env("fedagentgym/WebShop-v0")
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    start, goal = episode.view.observation, env.goal(episode.task)
    first = template.render_first(env, episode.view)
    assert first == f"Buy {goal}. Page 'Search'. [\n'search[<your query>]',\n'click[search]',\n] {{json}}"
    (later,) = env.step_many([episode], [env.expert().act(episode)])
    text = template.render_window(env, start, [PastTurn(start, "search[a]")], 1, later.view, goal)
    said, shown, listed = text.split(" | ")
    assert said == f"Buy {goal}. 1/1/2 [Observation 1: ''Search'', Action 1: 'search[a]']"
    assert shown.startswith("'Back to Search' [SEP] 'Page 1") and goal not in shown
    assert listed == "\n".join(f"'{one}'," for one in later.view.admissible or ())


@given(observation=st.text(), action=st.text(), goal=st.text())
def test_what_is_seen_fills_no_place(observation: str, action: str, goal: str) -> None:
    """Braces and names of places in an observation are text."""

    class Own(PublishedTemplate):
        pass

    env = open_env(ShopEnv)
    name = env.id.rpartition("/")[2].partition("-v")[0].upper()
    Own.texts = {f"{name}_TEMPLATE": "<{action_history}>", f"{name}_TEMPLATE_NO_HIS": "{current_observation}"}
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    past = [PastTurn("{goal} {current_observation}" + observation.replace(" [SEP] ", ""), "{step_count}" + action)]
    text = Own("own").render_window(env, "start", past, 1, episode.view, goal)
    assert text == f"<[Observation 1: '{past[0].observation}', Action 1: '{past[0].action}']>"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("x = (", "is not a Python module"),
        ("x = '\0'", "is not a Python module"),
        ("WEBSHOP = 'text'", "no prompt"),
        ("A_TEMPLATE = 'x' + 'y'\nA_TEMPLATE_NO_HIS = f'{1}'", "no prompt"),
        ("A_TEMPLATE = 'x'", "A_TEMPLATE is there, and A_TEMPLATE_NO_HIS, which belongs to it, is not"),
        ("A_TEMPLATE_NO_HIS = 'x'", "A_TEMPLATE_NO_HIS is there, and A_TEMPLATE, which belongs to it, is not"),
        ("A_TEMPLATE = A_TEMPLATE_NO_HIS = '{what}'", "leaves open 'what'"),
        ("A_TEMPLATE = A_TEMPLATE_NO_HIS = '{}'", "leaves open ''"),
        ("A_TEMPLATE = A_TEMPLATE_NO_HIS = '{current_step.__class__}'", "leaves open"),
        ("A_TEMPLATE = A_TEMPLATE_NO_HIS = '{current_step!r}'", "leaves open"),
        ("A_TEMPLATE = A_TEMPLATE_NO_HIS = '{current_step:>9999999}'", "leaves open"),
        ("A_TEMPLATE = A_TEMPLATE_NO_HIS = '{current_step'", "cannot be filled"),
    ],
)
def test_what_cannot_be_filled_is_one_sentence(module: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.py").write_text(module)
    with pytest.raises(DataError, match=message):
        read_prompts(tmp_path / "prompts.py")
    with pytest.raises(DataError, match=r"absent\.py"):
        read_prompts(tmp_path / "absent.py")


def test_an_environment_without_texts_is_one_sentence(template: Template) -> None:
    env = open_env("fedagentgym/Math-v0")
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    with pytest.raises(OptionError, match="has no MATH_TEMPLATE_NO_HIS, only ALFWORLD_TEMPLATE_NO_HIS"):
        template.render_first(env, episode.view)


PLUGIN = """
from fedagentgym import register_template
from fedagentgym.agents import PublishedTemplate, make_agent, read_prompts


class Texts(PublishedTemplate):
    texts = read_prompts({path!r})


register_template("texts", Texts, replace=True)
"""


def test_a_run_takes_them_by_a_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.py").write_text(MODULE)
    plugin = tmp_path / "made_up_texts.py"
    plugin.write_text(PLUGIN.format(path=str(tmp_path / "prompts.py")))
    changes = ["--set", "agent={name: untrained-tiny, template: texts, context: window}", "--tasks", "2"]
    main(["first-batch", "tiny-alfworld", "--plugin", str(plugin), "--set", "warm_start=null", *changes])
    assert "Look: -= Welcome" in " ".join(capsys.readouterr().out.split())
    check_template("texts")


@pytest.mark.parametrize("name", ["standard", "compact", "filled"])
def test_a_prompt_that_is_too_long_is_shown_without_its_past(name: str, template: Template) -> None:
    env = open_env("fedagentgym/Guess-v0")
    style = template if name == "filled" else Template(name)
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    dialogue = Dialogue(env, style, "window", 2, episode.view.observation)
    for turn in range(2):
        dialogue.record_turn(episode, [], "", f"guess {turn}")
        (episode,) = env.step_many([episode], [f"guess {turn}"])
    whole = dialogue.build_messages(episode)[-1]["content"]
    bare = style.render_window(env, dialogue.start, (), episode.turn, episode.view, env.goal(episode.task))
    assert bare != whole
    for longest, expected in ((len(whole), whole), (len(whole) - 1, bare), (1, bare), (None, whole)):
        dialogue.longest = longest
        assert dialogue.build_messages(episode)[-1]["content"] == expected


@pytest.mark.parametrize(("longest", "shows"), [(None, True), (100_000, True), (1, False)])
def test_a_model_reads_no_past_in_a_prompt_that_is_too_long(longest: int | None, shows: bool) -> None:
    env = open_env("fedagentgym/Guess-v0")
    settings = {"name": "untrained-tiny", "context": "window", "template": "compact", "longest_prompt": longest}
    renderer = make_agent(settings, env=env).renderer(env)
    (episode,) = env.reset_many([env.pool.ids[0]], [0])
    row = renderer.start_row(episode, stream(0))
    row.past.append(PastTurn(episode.view.observation, "guess 1"))
    (episode,) = env.step_many([episode], ["guess 1"])
    asked = renderer.render(row, episode)
    assert asked is not None
    assert ("guess 1" in renderer.agent.tokenizer.decode(asked.ids)) == shows
