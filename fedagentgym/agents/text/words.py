"""The tokenizer of tiny models: a word is one token everywhere, and nothing is unknown.

Small models learn to copy words from the observation into an action only if a word keeps its token. Byte-pair vocabularies
break that (``" red"`` and ``"red"`` differ), and splitting on white space loses the text. Here:

* a run of letters and digits is a *word*; the single space between two words is implied and costs nothing;
* punctuation and line ends carry the spaces beside them (``", "`` is one token, ``" + "`` another);
* a word that the vocabulary lacks, every number and every foreign sign is spelt: single digits, single characters, bytes.

So ``decode(encode(text)) == text`` for every text but those with the two private-use characters used as marks. It is an
ordinary `tokenizers` pipeline (byte-pair model without merges), so it saves and loads as any Hugging Face tokenizer. Ids depend
on the set of words only: fixed tokens first, then the words in sorted order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

START, SPACE = "\ue001", "\ue000"
PAD, END = "<|pad|>", "<|end|>"
_TAG_NAMES = ("think", "action", "answer", "search", "information", "code", "result", "tool", "tool_result", "box")
TAGS = tuple(tag for name in _TAG_NAMES for tag in (f"<{name}>", f"</{name}>"))
CLOSING_TAGS = ("</action>", "</answer>", "</search>", "</tool>")
"""Tags that end a reply: nothing sensible follows them before the next observation."""

_CHARACTERS = [*map(chr, range(33, 127)), "\n"]
_ALPHANUMERIC = [c for c in _CHARACTERS if c.isalnum()]
_PUNCTUATION = [c for c in _CHARACTERS if not c.isalnum()]
_WORD = re.compile(r"[^\W_]+")
_PIECE_ENDS = r"\]\n"
_PIECE = re.compile(rf"[^{_PIECE_ENDS}]*[{_PIECE_ENDS}][ {SPACE}]?|[^{_PIECE_ENDS}]+")


def extract_words(texts: Iterable[str]) -> list[str]:
    """Return the words of texts, sorted; numbers of two or more digits are left out, for they are spelt."""
    found = {word for text in texts for word in _WORD.findall(text)}
    return sorted(word for word in found if not (word.isdigit() or word.isdecimal()) and len(word) > 1)


def list_fixed_tokens() -> list[str]:
    tokens = [PAD, END, *TAGS, *(f"<0x{byte:02X}>" for byte in range(256)), START, SPACE, START + SPACE]
    for character in _ALPHANUMERIC:
        tokens += [START + character, character]
    for sign in _PUNCTUATION:
        tokens += [START + sign, sign, START + sign + SPACE, START + SPACE + sign, START + SPACE + sign + SPACE]
    return tokens


def count_tokens(texts: Iterable[str]) -> int:
    """The size of the vocabulary that `build_tokenizer` makes of these texts."""
    return len(list_fixed_tokens()) + len(extract_words(texts))


def build_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Make the tokenizer that has every word of the given texts (an environment's ``vocabulary()``) as one token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models

    tokens = list_fixed_tokens() + [START + word for word in extract_words(texts)]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[(START, character) for character in _ALPHANUMERIC],
        ignore_merges=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = _make_splitters()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(Regex(rf"(?<=[\p{{L}}\p{{N}}]){START}(?=[\p{{L}}\p{{N}}])"), " "),
            decoders.Replace(START, ""),
            decoders.Replace(SPACE, " "),
        ]
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (PAD, END)])
    return tokenizer


def _make_splitters() -> tuple[Normalizer, PreTokenizer]:
    """The normalizer, which marks spaces, and the pre-tokenizer, which cuts a text into words and signs."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    between_words = rf"(?<=[\p{{L}}\p{{N}}]){SPACE}(?=[\p{{L}}\p{{N}}])"
    units = rf"[\p{{L}}\p{{N}}]+|{SPACE}?[^\p{{L}}\p{{N}}{SPACE}]{SPACE}?|{SPACE}"
    parts = [
        pre_tokenizers.Split(Regex(between_words), "removed"),
        pre_tokenizers.Split(Regex(units), "isolated"),
        pre_tokenizers.Metaspace(START, "always", split=False),
    ]
    return normalizers.Replace(" ", SPACE), pre_tokenizers.Sequence(parts)


def cut_text(text: str) -> list[str]:
    """Cut a text after every closing bracket and line end, together with the space that goes with it.

    There a token of `build_tokenizer` ends whatever follows: the pieces, each encoded by itself, have the ids of the whole.

    >>> cut_text("search[red shoes] [SEP] Back to Search [SEP] $12")
    ['search[red shoes] ', '[SEP] ', 'Back to Search [SEP] ', '$12']
    """
    return _PIECE.findall(text)


def encodes_piecewise(tokenizer: Tokenizer) -> bool:
    """Return whether this is a tokenizer of `build_tokenizer`, and no token was added to it that `cut_text` could cut."""
    own = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    if any(
        part is None or part.__getstate__() != ours.__getstate__()
        for part, ours in zip(own, _make_splitters(), strict=True)
    ):
        return False
    return not any(
        re.search(f"[{_PIECE_ENDS}]", added.content) or added.lstrip or added.rstrip or added.single_word
        for added in tokenizer.get_added_tokens_decoder().values()
    )
