"""Prompts of programs in chat templates of six kinds: a conversation that goes on, tools and their results, and hostile texts.

The templates are written for this test, each in the manner of a family of models: what ends a turn, who trims what,
where tools and their results stand, what raises an error, and whose reasoning is left out of the history.
"""

# ruff: noqa: E501 - a line of a template is a line here

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fedagentgym.agents.gateway.render import MessageRenderer
from fedagentgym.agents.gateway.requests import ChatMessage, GatewayError, ToolCall
from fedagentgym.agents.text.tokens import HuggingFaceTokenizer

GENERATE = "{%- if add_generation_prompt %}"
TEMPLATES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # ChatML with tools listed in the system message, calls and results in tags
    "qwen2.5": (
        "<|im_end|>",
        "{%- if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
        "{%- for m in messages %}{%- if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
        "{%- else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
        "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}"
        "{%- endfor %}" + GENERATE + "<|im_start|>assistant\n{% endif %}",
        ("<|im_start|>", "<|endoftext|>"),
    ),
    # the same, and reasoning stands in the last reply alone
    "qwen3": (
        "<|im_end|>",
        "{%- for m in messages %}{%- set text = m.content or '' %}"
        "{%- if m.role == 'assistant' and not loop.last and '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}"
        "<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ text }}{% for c in m.tool_calls or [] %}<tool_call>"
        "{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{%- endfor %}" + GENERATE + "<|im_start|>assistant\n{% endif %}",
        ("<|im_start|>", "<think>", "</think>"),
    ),
    # headers around roles, trimmed contents, one call at a time
    "llama3": (
        "<|eot_id|>",
        "<|begin|>{%- for m in messages %}{%- if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
        "<|start_header|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header|>\n\n{{ (m.content or '') | trim }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|eot_id|>{%- endfor %}"
        + GENERATE + "<|start_header|>assistant<|end_header|>\n\n{% endif %}",
        ("<|begin|>", "<|start_header|>", "<|end_header|>"),
    ),
    # brackets without a line of its own for roles; calls need ids of nine characters, and roles alternate
    "mistral": (
        "</s>",
        "<s>{%- for m in messages %}{%- if m.role == 'user' or m.role == 'system' %}[INST] {{ m.content }}[/INST]"
        "{%- elif m.role == 'tool' %}{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}"
        "{{ raise_exception('ids have nine characters') }}{% endif %}[TOOL_RESULTS]{{ m.content | tojson }}[/TOOL_RESULTS]"
        "{%- elif m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}</s>"
        "{%- else %} {{ m.content }}</s>{% endif %}{%- endfor %}",
        ("<s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"),
    ),
    # ChatML with a system message of its own
    "smollm2": (
        "<|im_end|>",
        "{%- if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful<|im_end|>\n{% endif %}"
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
        + GENERATE + "<|im_start|>assistant\n{% endif %}",
        ("<|im_start|>",),
    ),
    # no line between roles, reasoning cut away, and begun in the prompt
    "deepseek-r1": (
        "<|end_of_sentence|>",
        "<|begin|>{%- for m in messages %}{%- if m.role == 'assistant' %}<|Assistant|>{{ (m.content or '').split('</think>')[-1] }}"
        "<|end_of_sentence|>{%- elif m.role == 'system' %}{{ m.content }}{%- else %}<|User|>{{ m.content }}{% endif %}{%- endfor %}"
        + GENERATE + "<|Assistant|><think>\n{% endif %}",
        ("<|begin|>", "<|User|>", "<|Assistant|>"),
    ),
}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {"name": "act", "description": "acts", "parameters": {"type": "object", "properties": {}}},
    }
]


def make_tokenizer(name: str) -> HuggingFaceTokenizer:
    """A tokenizer of bytes, so that every text has one encoding, with the special tokens of a template."""
    end, template, others = TEMPLATES[name]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in (end, *others)])
    hf = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=end, clean_up_tokenization_spaces=False)
    hf.chat_template = template
    return HuggingFaceTokenizer(hf)


def count_special(tokenizer: HuggingFaceTokenizer, ids: Any) -> int:
    return sum(token in tokenizer.hf.added_tokens_decoder for token in ids)


USER, NEXT = ChatMessage("user", "What now?"), ChatMessage("user", "And then?")
CALL = ChatMessage("assistant", "", (ToolCall("act", '{"action": "look"}'),))
RESULT = ChatMessage("tool", "a door")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_goes_on_with_what_the_template_puts_between(name: str) -> None:
    """Prompt, drawn reply and what follows are the template's text of the whole, where it shows replies as they are."""
    tokenizer = make_tokenizer(name)
    renderer = MessageRenderer(tokenizer, chat=True, tools="hermes")
    first = renderer.render_whole([USER], ())
    (end,) = tokenizer.stop_ids
    for stopped in (True, False):
        drawn = (*tokenizer.encode("a reply"), *([end] if stopped else []))
        given = renderer.render_next([USER], [NEXT], (), stopped=stopped)
        assert given is not None
        whole = renderer.render_whole([USER, ChatMessage("assistant", "a reply"), NEXT], ())
        shown = tokenizer.hf.decode([*first, *drawn, *given])
        if name == "deepseek-r1":  # the prompt begins a thought, of which nothing is left later
            shown = shown.replace("<think>\n", "", 1)
        if name == "mistral":  # a reply begins with a space in the history alone
            shown = shown.replace("[/INST]a", "[/INST] a", 1)
        assert shown == tokenizer.hf.decode(whole)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("smollm2", "deepseek-r1")])
def test_tools_and_their_results_stand_in_the_prompt(name: str) -> None:
    tokenizer = make_tokenizer(name)
    renderer = MessageRenderer(tokenizer, chat=True, tools="hermes")
    text = tokenizer.hf.decode(renderer.render_whole([USER, CALL, RESULT], TOOLS))
    assert "look" in text and "a door" in text
    given = renderer.render_next([USER], [RESULT], TOOLS, stopped=True)
    if given is None:  # then the whole is rendered, which is a segment of its own
        assert name == "mistral"
    else:
        assert "a door" in tokenizer.hf.decode(given) and "look" not in tokenizer.hf.decode(given)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_special_token_in_anybodys_text_is_text(name: str) -> None:
    """Marks of the conversation come from the template alone: in a tool's output, an argument, a name of a key, a description."""
    tokenizer = make_tokenizer(name)
    renderer = MessageRenderer(tokenizer, chat=True, tools="hermes")
    for special in tokenizer.special_names:
        hostile = f"a{special}{special[:-1]} b{special[:2]}{special}"
        quoted = json.dumps({"action": hostile, special: 1})
        pairs = [
            ([ChatMessage("user", hostile)], [ChatMessage("user", "a b")]),
            ([ChatMessage("system", hostile), USER], [ChatMessage("system", "a b"), USER]),
            (
                [USER, CALL._replace(calls=(ToolCall("act", quoted),)), RESULT._replace(text=hostile)],
                [USER, CALL, RESULT],
            ),
        ]
        for bad, plain in pairs:
            ids = renderer.render_whole(bad, ())
            assert count_special(tokenizer, ids) == count_special(tokenizer, renderer.render_whole(plain, ()))
            if special not in ("</think>",):  # of which this template cuts
                assert hostile in tokenizer.hf.decode(ids) or name == "mistral"
        bad_next = renderer.render_next(
            [ChatMessage("user", hostile)], [ChatMessage("user", hostile)], (), stopped=True
        )
        good_next = renderer.render_next([USER], [NEXT], (), stopped=True)
        assert bad_next is not None and good_next is not None
        assert count_special(tokenizer, bad_next) == count_special(tokenizer, good_next)
        tool = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "description": hostile}}]
        assert count_special(tokenizer, renderer.render_whole([USER], tool)) == count_special(
            tokenizer, renderer.render_whole([USER], TOOLS)
        )


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from(sorted(TEMPLATES)), st.data())
def test_any_texts_keep_the_marks(text: str, name: str, data: st.DataObject) -> None:
    tokenizer = make_tokenizer(name)
    renderer = MessageRenderer(tokenizer, chat=True, tools="hermes")
    pieces = data.draw(
        st.lists(st.sampled_from([*tokenizer.special_names, text, "replyxmark", "quoted0xmark", "<"]), max_size=6)
    )
    ids = renderer.render_whole([ChatMessage("user", "".join(pieces)), ChatMessage("assistant", text), NEXT], ())
    assert count_special(tokenizer, ids) == count_special(
        tokenizer, renderer.render_whole([USER, ChatMessage("assistant", "b"), NEXT], ())
    )


def test_a_template_that_raises_is_an_error_of_the_request() -> None:
    renderer = MessageRenderer(make_tokenizer("llama3"), chat=True, tools="hermes")
    with pytest.raises(GatewayError, match="one call"):
        renderer.render_whole([USER, CALL._replace(calls=CALL.calls * 2), RESULT], TOOLS)


def test_a_mark_that_is_not_found_renders_the_whole() -> None:
    """A template that shows no former replies leaves no place after one."""
    tokenizer = make_tokenizer("smollm2")
    tokenizer.hf.chat_template = "{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}"
    renderer = MessageRenderer(tokenizer, chat=True, tools="hermes")
    assert renderer.render_next([USER], [NEXT], (), stopped=True) is None
    tokenizer.hf.chat_template = "{% for m in messages %}{{ m.content }}{{ m.content }}<|im_end|>{% endfor %}"
    assert renderer.render_next([USER], [NEXT], (), stopped=True) is None
