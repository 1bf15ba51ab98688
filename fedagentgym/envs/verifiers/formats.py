"""The form of a reply: the layout of its tags, its fenced code, its repetitions. Pure text, linear time.

The layout is `<think> reasoning </think> <answer> answer </answer>`. A turn that calls a tool instead of answering has
`<tool> name[argument] </tool>` in place of the answer; the same rules apply to it, with the tool tag as the answer tag.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

from fedagentgym.base.errors import require_type

THINK = ("<think>", "</think>")
ANSWER = ("<answer>", "</answer>")
TOOL = ("<tool>", "</tool>")
TAGS = (*THINK, *ANSWER, *TOOL)
_MAX_JUDGED_LENGTH = 200_000
_TOOL_CALL = re.compile(r"\A([a-z_]{1,20})\[(.*)\]", re.DOTALL)
_FENCE = "```"
PYTHON = ("python", "py", "python3")
_DEFINITION = r"^[ \t]*+(?:(?:async[ \t]++)?(?:def|class)[ \t]++(?:{0})\b|(?:{0})[ \t]*+(?::[^=\n]*+)?=(?!=))"
_BOX = re.compile(r"\\(?:boxed|framebox|fbox)\s*+\{")
MAX_BOX_LENGTH = 4_000


class ToolCall(NamedTuple):
    """`search[first dog]` is the tool `search` with the argument `first dog`."""

    name: str
    argument: str


def list_blocks(reply: str, tags: tuple[str, str]) -> list[str]:
    """The texts of all complete blocks of a tag, in order. A block has no further opening or closing tag of this kind inside.

    >>> list_blocks("<answer> I write <answer>1</answer> so: </answer> <answer>2</answer>", ANSWER)
    ['1', '2']
    """
    require_type("a reply is a text", reply, str)
    opening, closing = tags
    found = re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", reply)
    return [
        reply[one.end() : after.start()].strip()
        for one, after in itertools.pairwise(found)
        if one[0] == opening and after[0] == closing
    ]


def last_block(reply: str, tags: tuple[str, str]) -> str | None:
    """The text of the last complete block of a tag.

    >>> last_block("<answer>1</answer> no: <answer>2</answer>", ANSWER)
    '2'
    """
    blocks = list_blocks(reply, tags)
    return blocks[-1] if blocks else None


def last_thought(reply: str) -> str | None:
    """The text from the last opening think tag up to the last closing one; closing tags between them are part of the thought.

    >>> last_thought("<think> 1 + 1 </think> = 2 </think> <answer> 2 </answer>")
    '1 + 1 </think> = 2'
    """
    require_type("a reply is a text", reply, str)
    opening, closing = THINK
    end = reply.rfind(closing)
    start = reply.rfind(opening, 0, end) if end >= 0 else -1
    return reply[start + len(opening) : end].strip() if start >= 0 else None


def last_answer(reply: str) -> str | None:
    """The last answer block that is not empty, since a reply may name the tags without answering. If all are empty, an empty
    text; None if there is no block.

    >>> last_answer("<answer>7</answer> is in the tags <answer></answer>; they end with </answer>.")
    '7'
    """
    blocks = list_blocks(reply, ANSWER)
    return next(filter(None, reversed(blocks)), "") if blocks else None


def extract_answer(reply: str) -> str | None:
    """The last box of the last answer block that is not empty, or that block if it has no box; without a block, the last box.

    >>> extract_answer("so \\\\boxed{3} or rather \\\\boxed{4}")
    '4'
    >>> extract_answer("<think> 3 ? </think> <answer> 18 eggs </answer>")
    '18 eggs'
    """
    block = last_answer(reply)
    if block is None:
        return last_box(reply)
    boxed = last_box(block)
    return boxed or block


def last_box(text: str) -> str | None:
    r"""The content of the last box that is not empty, with balanced braces; empty if all boxes are. None without a box, or if
    that box is not complete.

    >>> last_box(r"\boxed{7} is in a \boxed{}."), last_box(r"\boxed{7} or \boxed{8")
    ('7', None)
    """
    found = None
    for box in reversed(list(_BOX.finditer(text))):
        if (found := _read_box(text, box.end())) != "":
            break
    return found


def _read_box(text: str, start: int) -> str | None:
    """The text up to the brace that closes a box; None if no brace within `MAX_BOX_LENGTH` characters closes it."""
    depth = 1
    for position in range(start, min(len(text), start + MAX_BOX_LENGTH)):
        character = text[position]
        if character in "{}" and text[position - 1] != "\\":
            depth += 1 if character == "{" else -1
            if not depth:
                return text[start:position].strip()
    return None


def tool_call(reply: str) -> ToolCall | None:
    """The tool that a reply calls, in tool tags or as the whole reply; None if there is an answer anywhere in the reply.

    >>> tool_call("<think> 2 steps </think> <tool> calc[3 * (4 + 5)] </tool>")
    ToolCall(name='calc', argument='3 * (4 + 5)')
    """
    if last_block(reply, ANSWER) is not None:
        return None
    block = last_block(reply, TOOL)
    matched = _TOOL_CALL.fullmatch((reply if block is None else block).strip())
    return ToolCall(matched[1], matched[2].strip()) if matched else None


def _last_tag(reply: str) -> tuple[str, str]:
    return TOOL if TOOL[0] in reply and ANSWER[0] not in reply else ANSWER


def think_answer_format(reply: str) -> float:
    """1 if the reply is one think block and then one answer (or tool) block, with each tag once and nothing around them, else 0.

    >>> think_answer_format("<think> 1 + 1 = 2 </think> <answer> 2 </answer>")
    1.0
    """
    last = _last_tag(reply)
    counts = {tag: reply.count(tag) for tag in TAGS}
    if any(counts[tag] != (1 if tag in (*THINK, *last) else 0) for tag in TAGS):
        return 0.0
    text = reply.strip()
    after_think, answer_opens = text.find(THINK[1]) + len(THINK[1]), text.find(last[0])
    ordered = text.startswith(THINK[0]) and text.endswith(last[1]) and after_think <= answer_opens
    return 1.0 if ordered and not text[after_think:answer_opens].strip() else 0.0


def tag_count(reply: str) -> float:
    """A quarter for each of the four tags that occurs exactly once."""
    return 0.25 * sum(reply.count(tag) == 1 for tag in (*THINK, *_last_tag(reply)))


def last_fenced_code(text: str, names: Iterable[str] = ()) -> str | None:
    """The program in the last fenced block that is marked as Python or not marked at all; a block may be a single line.

    With names, it is the last such block that defines one of them, if any: an example of its use or its output may follow it.

    >>> last_fenced_code("```python def f(x): return x + 1``` and so ```python print(f(1))```")
    'print(f(1))'
    >>> last_fenced_code("```python def f(x): return x + 1``` and so ```python print(f(1))```", ["f"])
    'def f(x): return x + 1'
    """
    programs = [program for block in text.split(_FENCE)[1:-1:2] if (program := _read_block(block)) is not None]
    wanted = "|".join(map(re.escape, names))
    defines = re.compile(_DEFINITION.format(wanted), re.MULTILINE)
    defining = (program for program in reversed(programs) if wanted and defines.search(program))
    return next(defining, programs[-1] if programs else None)


def _read_block(block: str) -> str | None:
    """The program of a fenced block; None if its first line names another language."""
    language, newline, program = block.partition("\n")
    if not newline:
        language, _, program = block.strip().partition(" ")
        return program if language.lower() in PYTHON else block.strip()
    return program.rstrip() if language.strip().lower() in ("", *PYTHON) else None


def code_format(reply: str) -> float:
    """1 if the layout is right and the answer (or tool) block holds a fenced Python block, else 0."""
    block = last_block(reply, _last_tag(reply))
    fenced = (
        block is not None and f"{_FENCE}py" in block.lower().replace(" ", "") and last_fenced_code(block) is not None
    )
    return think_answer_format(reply) if fenced else 0.0


def repetition(reply: str, size: int = 3) -> float:
    """0 if no phrase of `size` words occurs twice, down to nearly -1 if all phrases are the same.

    >>> repetition("one two three four"), repetition("no no no no no")
    (0.0, -0.6666666666666667)
    """
    words = reply[:_MAX_JUDGED_LENGTH].lower().split()
    phrases = list(zip(*(words[start:] for start in range(size)), strict=False))
    return len(set(phrases)) / len(phrases) - 1.0 if phrases else 0.0


def format_rewards(reply: str, code: bool = False) -> dict[str, float]:
    """The reward components that need no gold, under their names in the environments."""
    rewards = {"format": think_answer_format(reply), "tags": tag_count(reply), "repetition": repetition(reply)}
    if code:
        rewards["code_format"] = code_format(reply)
    return rewards
