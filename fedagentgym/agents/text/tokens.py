"""Tokenizers: text to ids and back. No special tokens are added, and decoded text is not cleaned up.

`TextTokenizer` needs only the library `tokenizers`; `HuggingFaceTokenizer` wraps any tokenizer of `transformers`.

`build_tokenizer` makes the tokenizer of tiny models, in which a word is the same single token everywhere and every text can be
encoded. Small models learn to copy words from the observation into an action only if a word keeps its token. Byte-pair
vocabularies break that (`" red"` and `"red"` differ), and splitting on white space loses the text. Here:

* a run of letters and digits is a *word*; the single space between two words is implied and costs no token;
* punctuation and line ends include the spaces beside them (`", "` is one token, `" + "` another);
* words that are not in the vocabulary, numbers and foreign characters are spelt in single digits, single characters or bytes.

So `decode(encode(text)) == text` for every text without the two private-use characters that serve as marks. The tokenizer is an
ordinary `tokenizers` pipeline (a byte-pair model that never merges words), so it is saved and loaded like any Hugging Face
tokenizer. Ids depend only on the set of words: fixed tokens come first, then the words in sorted order.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedagentgym.agents.text import trial
from fedagentgym.base.encoding import digest, file_digest
from fedagentgym.base.errors import DataError, OptionError, describe_error, show_invisible_characters
from fedagentgym.base.files import cache_folder, read_json, write_atomic
from fedagentgym.base.imports import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer


_CACHE_SIZE = 20_000
_CONTENT_MARK, _REPLY_MARK = "(the content)", "(the reply)"
_FIRST_FRAME = [{"role": "user", "content": _CONTENT_MARK}]
_NEXT_FRAME = [{"role": "user", "content": "."}, {"role": "assistant", "content": _REPLY_MARK}, *_FIRST_FRAME]
_GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_GENERIC_MODULE = """\
from transformers import PreTrainedTokenizerFast


class GenericTokenizer(PreTrainedTokenizerFast):
    \"\"\"All of it is in tokenizer.json.\"\"\"
"""
_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_SMALL = 1 << 22
_TRIAL_SECONDS, _TRIAL_MEMORY, _TRIAL_WAIT = 20, 4 << 30, 300.0
"""Limits for the trial of a tokenizer: processor time, memory, and elapsed time."""


class TextTokenizer:
    """A tokenizer of the library `tokenizers`. It adds no special tokens by itself.

    Encodings are cached, since copies of a task see the same texts.

    Args:
        fast: The tokenizer of the library.
        end: The token that ends a text.
        pad: The padding token.
        context_length: The length of the longest text, which is saved for other libraries.
        stop_ids: Further ids that end a reply.
    """

    has_chat_template = False

    def __init__(self, fast: Any, *, end: str, pad: str, context_length: int, stop_ids: Iterable[int] = ()) -> None:
        end_id, pad_id = fast.token_to_id(end), fast.token_to_id(pad)
        self._special = {"eos_token": end, "pad_token": pad, "model_max_length": context_length}
        self._prepare(fast, fast.get_vocab_size(), frozenset((*stop_ids, end_id)), end_id, pad_id)

    def _prepare(self, fast: Any, size: int, stop_ids: frozenset[int], end_id: int, pad_id: int) -> None:
        self._fast, self.size, self.pad_id = fast, size, pad_id
        self.stop_ids, self.end_id = stop_ids, end_id
        self._piecewise = fast is not None and encodes_piecewise(fast)
        self._known: dict[str, tuple[int, ...]] = {}
        self._frames: dict[tuple[int, str | None], tuple[str, str]] = {}
        self._chat_options: dict[str, Any] = {}

    @classmethod
    def read(cls, folder: Path, stop_ids: Iterable[int] = ()) -> TextTokenizer | None:
        """Read the tokenizer of a folder; None if tokenizer.json does not define it completely, or it has a chat template."""
        from tokenizers import Tokenizer

        declared = read_generic_config(folder)
        if declared is None or declared.get("chat_template") or any(folder.glob("chat_template*")):
            return None
        end, pad = declared.get("eos_token"), declared.get("pad_token")
        if not isinstance(end, str) or not isinstance(pad, str) or not (folder / _FILE).is_file():
            return None
        try_tokenizer(folder)
        try:
            fast = Tokenizer.from_file(str(folder / _FILE))
        except Exception as error:
            raise DataError(f"cannot load the tokenizer of {folder}: {describe_error(error, named=False)}") from error
        if fast.token_to_id(end) is None or fast.token_to_id(pad) is None:
            return None
        length = declared.get("model_max_length", 1 << 30)
        return cls(fast, end=end, pad=pad, context_length=length, stop_ids=stop_ids)

    @cached_property
    def hf(self) -> Any:
        """The same tokenizer as a tokenizer of `transformers`."""
        transformers = require("transformers", "train")
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=self._fast, clean_up_tokenization_spaces=False, **self._special
        )

    def end_reply(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a whole reply: the tokenizer's own end token follows them unless they end a reply already."""
        return tuple(ids) if ids and ids[-1] in self.stop_ids else (*ids, self.end_id)

    def set_chat_options(self, options: Mapping[str, Any]) -> None:
        """Pass these arguments to the chat template from now on. A name that does not occur in the template is refused."""
        known = str(getattr(self.hf, "chat_template", None))
        if stranger := next((name for name in options if name not in known), None):
            raise OptionError(f"agent.chat_options: the chat template of this tokenizer has no {stranger!r}")
        self._chat_options = dict(options)
        self._frames.clear()

    def encode(self, text: str) -> tuple[int, ...]:
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= _CACHE_SIZE:
                self._known.clear()
            # pieces may be cached, from the same page in another window or from equal lines of other pages
            pieces = cut_text(text) if self._piecewise else []
            known = self._encode(text) if len(pieces) < 2 else tuple(chain.from_iterable(map(self.encode, pieces)))
            self._known[text] = known
        return known

    def _encode(self, text: str, markers: bool = False) -> tuple[int, ...]:
        """Encode a text. Without `markers`, a special token's name is encoded as text, so an observation cannot end a turn."""
        self._fast.encode_special_tokens = not markers
        try:
            return tuple(self._fast.encode(make_encodable(text), add_special_tokens=False).ids)
        finally:
            self._fast.encode_special_tokens = False

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._fast.decode(list(ids), skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        """Write the files from which `AutoTokenizer` makes the same tokenizer."""
        self._fast.save(str(folder / _FILE))
        declared = {"clean_up_tokenization_spaces": False, "backend": "tokenizers", **self._special}
        _write_generic_config(folder, {**declared, "tokenizer_class": _GENERIC_CLASSES[0]})

    def encode_chat(self, content: str, system: str | None = None) -> tuple[int, ...]:
        """Return the ids of a dialogue's first prompt, up to the start of the reply.

        The prompt has the `system` message, or else the chat template's own, and the user's `content`."""
        before, after = self._render_frame(_FIRST_FRAME, system)
        return self._encode_framed(before, content, after)

    def encode_next(self, content: str, *, stopped: bool) -> tuple[int, ...]:
        """Return the ids between two replies: the rest of the turn after the first reply, and the user's message.

        The rest of the turn begins with a stop token unless the reply has `stopped`, which means that it ends with one."""
        before, after = self._render_frame(_NEXT_FRAME, None)
        before = before.rpartition(_REPLY_MARK)[2]
        return self._encode_framed(self.strip_stop(before) if stopped else before, content, after)

    def strip_stop(self, text: str) -> str:
        """Remove the stop token from the rendered text after a reply, since the reply has already drawn it."""
        stops = self.hf.convert_ids_to_tokens(sorted(self.stop_ids))
        return text.removeprefix(next(filter(text.startswith, stops), ""))

    @cached_property
    def special_names(self) -> tuple[str, ...]:
        """The names of special tokens. A chat template writes them as tokens; inside a message they are plain text."""
        added = self.hf.added_tokens_decoder.values()
        return tuple(dict.fromkeys([*self.hf.all_special_tokens, *(one.content for one in added if one.special)]))

    def render_messages(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render a conversation with the chat template, up to the start of the next reply."""
        given = {"tools": list(tools)} if tools else {}
        try:
            render = self.hf.apply_chat_template
            return str(
                render(list(messages), tokenize=False, add_generation_prompt=True, **given, **self._chat_options)
            )
        except Exception as error:  # a template is a program, which may raise anything
            cause = describe_error(error, named=False)
            raise DataError(f"the chat template of this tokenizer cannot be used: {cause}") from error

    def encode_rendered(self, text: str, quoted: Mapping[str, str]) -> tuple[int, ...]:
        """Encode a rendered conversation. Each word of `quoted` is replaced by a special token's name, encoded as text."""
        if not quoted:
            return self._encode(text, True)
        word, name = next(iter(quoted.items()))
        others = {key: value for key, value in quoted.items() if key != word}
        parts = [self.encode_rendered(part, others) if part else () for part in text.split(word)]
        return tuple(
            chain.from_iterable((*(self._encode(name) if place else ()), *part) for place, part in enumerate(parts))
        )

    def _render_frame(self, messages: list[dict[str, str]], system: str | None) -> tuple[str, str]:
        """Render messages with the chat template, and return the text before and after the content mark."""
        known = self._frames.get((len(messages), system))
        if known is not None:
            return known
        whole = messages if system is None else [{"role": "system", "content": system}, *messages]
        try:
            text = self.render_messages(whole)
        except DataError as error:
            if system is None:
                raise
            raise DataError(str(error).replace("cannot be used", "takes no system message", 1)) from error
        if system is not None and system.strip() not in text:
            raise DataError("the chat template of this tokenizer drops the system message: leave out agent.system")
        before, mark, after = text.rpartition(_CONTENT_MARK)
        if not mark:
            raise DataError("the chat template of this tokenizer drops the user's message: set chat: false")
        self._frames[len(messages), system] = (before, after)
        return before, after

    def _encode_framed(self, before: str, content: str, after: str) -> tuple[int, ...]:
        content = content.strip()
        if any(token in content for token in self.special_names):
            return self._encode(before, True) + self._encode(content) + self._encode(after, True)
        return self._encode(before + content + after, True)


def make_word_tokenizer(vocabulary: Iterable[str], context_length: int = 4096) -> TextTokenizer:
    """Make the tokenizer of a tiny model. Every word of these texts is one token, and `CLOSING_TAGS` end a reply."""
    fast = build_tokenizer(vocabulary)
    known = fast.get_vocab()
    stops = [known[tag] for tag in CLOSING_TAGS]
    return TextTokenizer(fast, end=END, pad=PAD, context_length=context_length, stop_ids=stops)


class HuggingFaceTokenizer(TextTokenizer):
    """Any tokenizer of `transformers`.

    Args:
        tokenizer: The tokenizer.
        stop_ids: Further ids that end a reply, beside its own end token.
    """

    def __init__(self, tokenizer: Any, stop_ids: Iterable[int] = ()) -> None:
        self.hf, self.has_chat_template = tokenizer, bool(getattr(tokenizer, "chat_template", None))
        own = tokenizer.eos_token_id
        stops = frozenset(stop_ids) | (frozenset() if own is None else {own})
        end_id = min(stops, default=0) if own is None else own
        pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(stops, default=0)
        self._prepare(getattr(tokenizer, "backend_tokenizer", None), len(tokenizer), stops, end_id, pad_id)

    def _encode(self, text: str, markers: bool = False) -> tuple[int, ...]:
        if self._fast is not None:
            return super()._encode(text, markers)
        whole = make_encodable(text)
        return tuple(self.hf.encode(whole, add_special_tokens=False, split_special_tokens=not markers))

    def decode(self, ids: Sequence[int]) -> str:
        if self._fast is not None:
            return super().decode(ids)
        return str(self.hf.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def save(self, folder: Path) -> None:
        """Write the files from which `AutoTokenizer` makes the same tokenizer."""
        self.hf.save_pretrained(folder)
        declared = read_json(folder / _CONFIG)
        if declared.get("tokenizer_class") in _GENERIC_CLASSES:
            _write_generic_config(folder, declared)


def try_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer that takes too much time or memory.

    A tokenizer is tried once for each content of its files, in a separate process. A small tokenizer without a normalizer and
    without a chat template is not tried."""
    parts = [folder / _FILE, folder / _CONFIG, *sorted(folder.rglob("chat_template*"))]
    parts = [part for part in parts if part.is_file()]
    with contextlib.suppress(DataError):  # unreadable files are reported when they are loaded
        small = all(part.stat().st_size < _SMALL for part in parts)
        whole, declared = (read_json(folder / name) if small else None for name in (_FILE, _CONFIG))
        templated = len(parts) > 2 or not isinstance(declared, dict) or declared.get("chat_template")
        if isinstance(whole, dict) and whole.get("normalizer") is None and not templated:
            return
    passed = cache_folder("tokenizers", digest([[part.name, file_digest(part)] for part in parts]).partition(":")[2])
    if passed.is_file():
        return
    limits = [str(_TRIAL_SECONDS), str(_TRIAL_MEMORY)]
    command = [sys.executable, "-I", str(Path(trial.__file__)), str(folder), *limits]
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, env={**os.environ, **quiet}, timeout=_TRIAL_WAIT, check=False
        )
        fault = _explain_trial(done.returncode, done.stderr.decode("utf-8", "replace"))
    except subprocess.TimeoutExpired:
        fault = f"takes more than {_TRIAL_WAIT:g} s for a few lines of text"
    if fault:
        raise DataError(f"the tokenizer or chat template of {folder} {fault}: it is not used")
    write_atomic(passed, "")


def _explain_trial(status: int, said: str) -> str:
    """Return the fault that a trial found, as the end of an error message; empty if the tokenizer passed."""
    if status == 0:
        return ""
    if status == -signal.SIGXCPU:
        return f"takes more than {_TRIAL_SECONDS} s for a few lines of text"
    if status == trial.NO_MEMORY or "memory allocation of" in said:  # printed when a Rust library runs out of memory
        return f"takes more than {_TRIAL_MEMORY >> 30} GiB for a few lines of text"
    if status == trial.TOO_LONG:
        return f"makes more than {trial.MAX_RENDERED_LENGTH:,} characters of a few lines of text"
    last = next((line.strip() for line in reversed(said.split("\n")) if line.strip()), f"exit status {status}")
    return f"could not be tried ({show_invisible_characters(last)[:300]})"


def read_generic_config(folder: Path) -> dict[str, Any] | None:
    """Return a folder's tokenizer_config.json if tokenizer.json defines the tokenizer completely; None otherwise.

    For a tiny model's folder `AutoTokenizer` would go by the architecture, and silently use Qwen's own pre-tokenizer.
    """
    if not (folder / _CONFIG).is_file():
        return None
    declared = read_json(folder / _CONFIG)
    if not isinstance(declared, dict):
        raise DataError(f"{folder / _CONFIG} does not hold a JSON object")
    return declared if declared.get("tokenizer_class") in _GENERIC_CLASSES else None


def _write_generic_config(folder: Path, declared: dict[str, Any]) -> None:
    """Write the settings of a generic tokenizer so that `AutoTokenizer` does not replace its pre-tokenizer.

    `AutoTokenizer` respects a folder that names its own class. It still loads the library's generic class, and reads the folder's
    module only with `trust_remote_code`.
    """
    whole = {**declared, "auto_map": {"AutoTokenizer": [None, "generic_tokenizer.GenericTokenizer"]}}
    (folder / _CONFIG).write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n", "utf-8")
    (folder / "generic_tokenizer.py").write_text(_GENERIC_MODULE, "utf-8")


def make_encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


# ---- words as tokens -----------------------------------------------------------------------------------------------------

START, SPACE = "\ue001", "\ue000"
PAD, END = "<|pad|>", "<|end|>"
_TAG_NAMES = ("think", "action", "answer", "search", "information", "code", "result", "tool", "tool_result", "box")
TAGS = tuple(tag for name in _TAG_NAMES for tag in (f"<{name}>", f"</{name}>"))
CLOSING_TAGS = ("</action>", "</answer>", "</search>", "</tool>")
"""Tags that end a reply, since nothing useful follows them before the next observation."""

_CHARACTERS = [*map(chr, range(33, 127)), "\n"]
_ALPHANUMERIC = [c for c in _CHARACTERS if c.isalnum()]
_PUNCTUATION = [c for c in _CHARACTERS if not c.isalnum()]
_WORD = re.compile(r"[^\W_]+")
_PIECE_ENDS = r"\]\n"
_PIECE = re.compile(rf"[^{_PIECE_ENDS}]*[{_PIECE_ENDS}][ {SPACE}]?|[^{_PIECE_ENDS}]+")


def extract_words(texts: Iterable[str]) -> list[str]:
    """Return the words of texts, sorted, without numbers and single characters, which are spelt with fixed tokens."""
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
    """Return the size of the vocabulary that `build_tokenizer` makes from these texts."""
    return len(list_fixed_tokens()) + len(extract_words(texts))


def build_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Make the tokenizer in which every word of the given texts (an environment's `vocabulary()`) is one token."""
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
    """Return the normalizer, which marks spaces, and the pre-tokenizer, which cuts a text into words and punctuation."""
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
    """Cut a text after every closing bracket and line end, including a space that follows.

    A token of `build_tokenizer` always ends there, so the pieces, encoded one by one, have the ids of the whole text.

    >>> cut_text("search[red shoes] [SEP] Back to Search [SEP] $12")
    ['search[red shoes] ', '[SEP] ', 'Back to Search [SEP] ', '$12']
    """
    return _PIECE.findall(text)


def encodes_piecewise(tokenizer: Tokenizer) -> bool:
    """Return whether `build_tokenizer` made this tokenizer, and it has no added token that `cut_text` could cut."""
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
