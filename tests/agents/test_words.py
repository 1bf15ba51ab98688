"""The tiny tokenizer: nothing is lost, nothing is unknown, a word is one token wherever it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from fedagentgym.agents.text.tokens import (
    END,
    PAD,
    SPACE,
    START,
    TAGS,
    HuggingFaceTokenizer,
    TextTokenizer,
    build_tokenizer,
    cut_text,
    encodes_piecewise,
    extract_words,
    list_fixed_tokens,
    make_word_tokenizer,
)

VOCABULARY = ["go to fridge 12", "search[red shoes]", "click[b078wsnd96]"]
SEAM = TextTokenizer(build_tokenizer(VOCABULARY), end=END, pad=PAD, context_length=4096)
TEXTS = st.text(alphabet=st.one_of(st.sampled_from("go red 12 .[]\n<>/éa漢"), st.characters(exclude_categories=["Cs"])))


@given(TEXTS)
def test_every_text_comes_back(text: str) -> None:
    if START in text or SPACE in text:
        return
    assert SEAM.decode(SEAM.encode(text)) == text


@pytest.mark.parametrize(
    "text", [f"a{END}b", "<|pad|>", "<action>go</action>", "", " ", "\n\n", "\x00", "don't  stop "]
)
def test_unusual_texts_come_back(text: str) -> None:
    ids = SEAM.encode(text)
    assert SEAM.decode(ids) == text
    assert not SEAM.stop_ids & set(ids), "an observation cannot end a reply"


def test_a_lone_surrogate_is_replaced_not_an_error() -> None:
    assert SEAM.decode(SEAM.encode("a\ud800b")) == "a?b"


def test_words_keep_their_token() -> None:
    red = SEAM.encode("red")
    assert len(red) == 1
    for text in ("search[red shoes]", "a red one", "red.", "<action>red", "\nred\n", " red"):
        assert red[0] in SEAM.encode(text)


def test_numbers_are_spelt_and_spaces_between_words_cost_nothing() -> None:
    assert len(SEAM.encode("go to fridge")) == 3
    assert len(SEAM.encode("<action>go to fridge 1</action>")) == 6
    assert len(SEAM.encode("12")) == 2
    assert len(SEAM.encode("click[b078wsnd96]")) == 4
    assert len(SEAM.encode("12, 7")) == 4


def test_ids_depend_on_the_set_of_words_alone() -> None:
    again = make_word_tokenizer([*reversed(VOCABULARY), *VOCABULARY])
    assert SEAM.hf.get_vocab() == again.hf.get_vocab()
    fixed = list_fixed_tokens()
    assert len(set(fixed)) == len(fixed)
    assert SEAM.hf.convert_ids_to_tokens(list(range(len(fixed)))) == fixed
    assert extract_words(["b a b42 42 x", "apple apple"]) == ["apple", "b42"]


def test_tags_are_one_token_each() -> None:
    for tag in TAGS:
        assert len(SEAM.encode(tag)) == 1


def test_it_saves_and_loads_as_an_ordinary_tokenizer(tmp_path: Path) -> None:
    """By itself, from its own files and from those of `transformers`, and in `transformers`."""
    (tmp_path / "hf").mkdir()
    SEAM.save(tmp_path)
    HuggingFaceTokenizer(SEAM.hf).save(tmp_path / "hf")
    assert {file.name for file in tmp_path.iterdir()} == {"hf", *(file.name for file in (tmp_path / "hf").iterdir())}
    other = HuggingFaceTokenizer(AutoTokenizer.from_pretrained(tmp_path), SEAM.stop_ids)
    for loaded in (other, *(TextTokenizer.read(folder, SEAM.stop_ids) for folder in (tmp_path, tmp_path / "hf"))):
        assert loaded is not None
        assert (loaded.size, loaded.stop_ids, loaded.pad_id) == (SEAM.size, SEAM.stop_ids, SEAM.pad_id)
        for text in ("go to fridge 12", "a  b ☃", "<action>go</action>\n", f"a{END}b"):
            assert loaded.encode(text) == SEAM.encode(text)
            assert loaded.decode(SEAM.encode(text)) == text


PIECES = st.lists(
    st.sampled_from(
        [*"go1. []\n<>/éa漢", "SEP", SPACE, START, END, "<action>", "</action>", "\ud800", "  ", " [SEP] ", "12"]
    ),
    max_size=12,
).map("".join)


@given(PIECES)
def test_a_text_in_pieces_has_the_ids_of_the_whole(text: str) -> None:
    assert "".join(cut_text(text)) == text
    assert SEAM.encode(text) == SEAM._encode(text)


@pytest.mark.parametrize("token", ["a]", "\n\n"])
def test_a_tokenizer_with_a_token_that_could_be_cut_encodes_whole_texts(token: str) -> None:
    tokenizer = build_tokenizer(VOCABULARY)
    assert encodes_piecewise(tokenizer)
    tokenizer.add_tokens([token])
    assert not encodes_piecewise(tokenizer)
    assert len(TextTokenizer(tokenizer, end=END, pad=PAD, context_length=9).encode(token)) == 1


def test_a_tokenizer_of_other_rules_encodes_whole_texts() -> None:
    tokenizer = build_tokenizer(VOCABULARY)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not encodes_piecewise(tokenizer)
