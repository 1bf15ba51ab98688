"""The layout of replies: tags, tool calls, fenced programs, repetition."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.envs.verifiers.formats import (
    ANSWER,
    TOOL,
    ToolCall,
    code_format,
    extract_answer,
    format_rewards,
    last_answer,
    last_block,
    last_fenced_code,
    last_thought,
    list_blocks,
    repetition,
    tag_count,
    think_answer_format,
    tool_call,
)

GOOD = "<think> 1 + 1 = 2 </think> <answer> 2 </answer>"


@pytest.mark.parametrize(
    ("reply", "layout", "tags"),
    [
        (GOOD, 1.0, 1.0),
        (f"\n{GOOD}\n", 1.0, 1.0),
        ("<think>a\nb</think>\n<answer>\n2\n</answer>", 1.0, 1.0),
        (f"{GOOD} and more", 0.0, 1.0),
        (f"so {GOOD}", 0.0, 1.0),
        ("<answer>2</answer><think>a</think>", 0.0, 1.0),
        ("<think>a</think> stray <answer>2</answer>", 0.0, 1.0),
        (GOOD + GOOD, 0.0, 0.0),
        ("<think>a</think>2", 0.0, 0.5),
        ("<think>a<answer>2</answer>", 0.0, 0.75),
        ("<think>a<answer></think>2</answer>", 0.0, 1.0),
        ("2", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("<think>x</think> <tool> calc[2 + 3] </tool>", 1.0, 1.0),
        ("<think>x</think> <tool> calc[2] </tool> <answer>2</answer>", 0.0, 1.0),
        ("<think>x</think> <tool> calc[2] </tool> </answer>", 0.0, 1.0),
        ("<think>x</think> calc[2] </tool>", 0.0, 0.5),
        ("<think>x</think> <tool> calc[2]", 0.0, 0.75),
    ],
)
def test_layout_and_tags(reply: str, layout: float, tags: float) -> None:
    assert think_answer_format(reply) == layout
    assert tag_count(reply) == tags


def test_a_tool_is_called_in_tags_or_by_the_whole_reply_but_never_beside_an_answer() -> None:
    assert tool_call("<tool> search[New York] </tool>") == ToolCall("search", "New York")
    assert tool_call(" search[a[0]] ") == ToolCall("search", "a[0]")
    assert tool_call("<tool> search[x] </tool> <answer> y </answer>") is None
    assert tool_call("please search[x]") is None
    assert tool_call("<tool> search[x </tool>") is None


def test_the_last_fenced_python_block_counts() -> None:
    assert last_fenced_code("```python\na = 1\n```\nthen\n```\nb = 2\n```") == "b = 2"
    assert last_fenced_code("```python\na = 1\n```\n```json\n{}\n```") == "a = 1"
    assert last_fenced_code("```python\na = 1\n") is None
    assert code_format("<think>x</think><answer>```python\na = 1\n```</answer>") == 1.0
    assert code_format("<think>x</think><answer>a = 1</answer>") == 0.0
    assert code_format("<answer>```python\na = 1\n```</answer>") == 0.0


def test_a_fenced_block_may_be_a_single_line() -> None:
    assert last_fenced_code("```python def f(x): return x```") == "def f(x): return x"
    assert last_fenced_code("``` x = 1 ```") == "x = 1"
    assert last_fenced_code("```x=1``` or ```PY x=2```") == "x=2"
    assert last_fenced_code("```\n  x = 1  \n```") == "  x = 1"
    assert last_fenced_code("no code") is None
    assert code_format("<think>x</think><answer>``` Python3\na = 1\n```</answer>") == 1.0
    assert code_format("<think>x</think><answer>```\na = 1\n```</answer>") == 0.0
    assert code_format("<think>x</think><answer>```py</answer>") == 0.0


def test_only_the_start_of_a_very_long_reply_is_searched_for_repetition() -> None:
    assert repetition(" ".join(map(str, range(50_000))) + " go" * 50) == 0.0
    assert repetition("a A a a", size=2) == pytest.approx(1 / 3 - 1)
    assert repetition("a b c") == 0.0


def test_a_program_is_judged_only_where_one_is_asked_for() -> None:
    assert set(format_rewards(GOOD)) == {"format", "tags", "repetition"}
    assert format_rewards(GOOD, code=True) == {"format": 1.0, "tags": 1.0, "repetition": 0.0, "code_format": 0.0}


def test_repetition_falls_with_repeated_phrases() -> None:
    assert repetition("a b c d e") == 0.0
    assert repetition("a b") == 0.0
    assert -1.0 < repetition("go " * 50) < -0.9
    assert repetition("a b c d a b c e") == pytest.approx(5 / 6 - 1)


@given(st.text(alphabet="<>/thinkanswer `[]\n\x00\ud800", max_size=200))
def test_every_text_has_finite_components(reply: str) -> None:
    rewards = format_rewards(reply, code=True)
    assert set(rewards) == {"format", "tags", "repetition", "code_format"}
    assert all(-1.0 <= value <= 1.0 for value in rewards.values())


@pytest.mark.parametrize(
    "reply",
    [
        "<think>" * 50_000,
        "```" * 100_000,
        "```python" + " " * 200_000,
        "<tool>a[" + "]" * 200_000,
        " " * 300_000,
        "a[" * 100_000,
        "<answer>" * 100_000,
        "<answer></answer>" * 100_000,
        "</answer>" * 100_000,
        "```python\n" + "f:" * 100_000 + "\n```",
        "```python\n" + " \t" * 100_000 + "\n```",
    ],
    ids=[
        "tags",
        "fences",
        "blanks",
        "brackets",
        "nothing",
        "calls",
        "openings",
        "blocks",
        "closings",
        "colons",
        "tabs",
    ],
)
def test_long_replies_are_judged_in_linear_time(reply: str) -> None:
    started = time.process_time()
    format_rewards(reply, code=True)
    tool_call(reply)
    last_answer(reply)
    last_fenced_code(reply, ["f"])
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("", None),
        ("<answer>", None),
        ("</answer>", None),
        ("<answer> </answer>", ""),
        ("<answer>3</answer>", "3"),
        ("<answer>3</answer> <answer>4</answer>", "4"),
        ("<answer>3</answer> I put it in <answer></answer>.", "3"),
        ("<answer>3</answer><answer> </answer>\n<answer></answer>", "3"),
        ("<answer></answer><answer>3</answer>", "3"),
        ("</answer><answer></answer>", ""),
    ],
)
def test_the_last_answer_that_is_not_empty_counts(reply: str, answer: str | None) -> None:
    assert last_answer(reply) == answer == extract_answer(reply)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"\boxed{3} is in a \boxed{} as asked", "3"),
        (r"It goes in a \boxed{}: \boxed{3}", "3"),
        (r"\boxed{3}\boxed{ }\fbox{}", "3"),
        (r"\boxed{}", ""),
        (r"\boxed{3} \boxed{", None),
        (r"<answer>\boxed{3} in a \boxed{}</answer>", "3"),
        (r"<answer>3</answer> and no \boxed{}", "3"),
        (r"<answer>\boxed{}</answer>", r"\boxed{}"),
    ],
)
def test_the_last_box_that_is_not_empty_counts(reply: str, answer: str | None) -> None:
    assert extract_answer(reply) == answer


def test_boxes_are_found_in_linear_time() -> None:
    started = time.process_time()
    assert extract_answer(r"\boxed{3}" + r"\boxed{}" * 20_000) == "3"
    assert extract_answer(r"\boxed{" * 20_000) is None
    assert time.process_time() - started < 2.0


def find_blocks(text: str, opening: str, closing: str) -> list[str]:
    """All complete blocks, read from left to right: an opening tag begins anew, the next closing one ends the block."""
    blocks, begun, at = list[str](), None, 0
    while at < len(text):
        if text.startswith(opening, at):
            at += len(opening)
            begun = at
        elif text.startswith(closing, at):
            if begun is not None:
                blocks.append(text[begun:at].strip())
            at, begun = at + len(closing), None
        else:
            at += 1
    return blocks


PARTS = ["<answer>", "</answer>", "<tool>", "</tool>", "<Answer>", "</ANSWER>", "<", "3", " ", "x", "calc[2]"]


@given(st.lists(st.sampled_from(PARTS), max_size=14))
def test_blocks_are_those_of_a_plain_reader(parts: list[str]) -> None:
    reply = "".join(parts)
    for tags in (ANSWER, TOOL):
        blocks = find_blocks(reply, *tags)
        assert list_blocks(reply, tags) == blocks
        assert last_block(reply, tags) == (blocks[-1] if blocks else None)
    answers = find_blocks(reply, *ANSWER)
    assert last_answer(reply) == ([None, *answers[:1], *filter(None, answers)])[-1]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer> 12 </answer>\nThe reply ends with </answer>.", "12"),
        ("</answer> closes, <answer> opens: <answer> 12 </answer></answer>", "12"),
        ("<answer> 12 </answer> or 13 </answer>", "12"),
        ("<answer> 12 </answer> no, <answer> 13 </answer> </answer>", "13"),
        ("<answer> one <answer> 12 </answer> two </answer>", "12"),
        ("<answer> 12 </answer> <answer> 13", "12"),
        ("<answer> 12 </answer> <answer> 13 </Answer>", "12"),
        ("<Answer> 12 </Answer>", None),
        ("<think> <answer> 13 </answer> </think> <answer> 12 </answer> </think>", "12"),
        ("<answer> 12 </answer> in the tags <answer> </answer>, ends with </answer>", "12"),
        (r"<answer> \boxed{12} </answer> in a \boxed{} that ends with } and </answer>", "12"),
        (r"<answer> 12 </answer> </answer> \boxed{13}", "12"),
    ],
)
def test_a_block_ends_at_its_first_closing_tag(reply: str, answer: str | None) -> None:
    assert extract_answer(reply) == answer


def test_a_call_ends_at_its_first_closing_tag() -> None:
    assert tool_call("<tool> calc[12] </tool> calls end with </tool>") == ToolCall("calc", "12")
    assert tool_call("<tool> such as <tool> calc[12] </tool> </tool>") == ToolCall("calc", "12")
    assert tool_call("<tool> calc[12] </tool> </answer> <answer>") == ToolCall("calc", "12")
    assert tool_call("<tool> calc[12] </tool> <answer> </answer> </answer>") is None


def test_a_thought_that_closes_twice_is_read_to_its_end() -> None:
    assert last_thought("<think> a </think> b </think>") == "a </think> b"
    assert last_thought("a </think> b") is None


SOLUTION = "```python\ndef f(x):\n    return x + 1\n```"


@pytest.mark.parametrize(
    "behind",
    [
        "Example:\n```python\nprint(f(3))\n```",
        "Output:\n```\n4\n```",
        "Output:\n```text\n4\n```",
        "```python f(3) == 4``` and ```f(3)```",
        "```python\nassert f(3) == 4\nf2 = 3\ng(f=3)\n# def f(x)\n```",
        "```\nf(3) = 4\nf == 2\n```",
    ],
)
def test_an_example_or_an_output_does_not_replace_the_program(behind: str) -> None:
    assert last_fenced_code(f"{SOLUTION}\n{behind}", ["f"]) == "def f(x):\n    return x + 1"


@pytest.mark.parametrize(
    "later",
    [
        "def f(x):\n    return 0",
        "async def f(x): return 0",
        "f = lambda x: 0",
        "f: object = lambda x: 0",
        "class f: pass",
        "@cache\ndef  f (x) :\n    return (",
        "x = 1\n\tdef f(x) : return 0",
    ],
)
def test_the_last_definition_counts_even_if_it_is_wrong(later: str) -> None:
    assert last_fenced_code(f"{SOLUTION}\n```python\n{later}\n```\n```\nf(3)\n```", ["f"]) == later


def test_without_a_definition_the_last_block_counts() -> None:
    assert last_fenced_code("```\na = 1\n```\n```\nb = 2\n```", ["f"]) == "b = 2"
    assert last_fenced_code("```json\ndef f(x)\n```", ["f"]) is None
    assert last_fenced_code("```\ndef g(x): ...\n```\n```\nh()\n```", ["f", "g"]) == "def g(x): ..."
    assert last_fenced_code("```\ndef fxg(x): ...\n```\n```\nh()\n```", ["f.g"]) == "h()"
