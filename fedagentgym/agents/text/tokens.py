"""The interface to Hugging Face tokenizers: text to ids and back, nothing added, nothing cleaned up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedagentgym.agents.text.words import cut_text, encodes_piecewise
from fedagentgym.base.errors import DataError, describe_error

_CACHE_SIZE = 20_000
_CONTENT_MARK, _REPLY_MARK = "(the content)", "(the reply)"
_GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
_GENERIC_MODULE = """\
from transformers import PreTrainedTokenizerFast


class GenericTokenizer(PreTrainedTokenizerFast):
    \"\"\"All of it is in tokenizer.json.\"\"\"
"""


class HuggingFaceTokenizer:
    """``policy.Tokenizer`` on a Hugging Face tokenizer. Encodings are remembered: siblings see the same observations."""

    def __init__(self, tokenizer: Any, stop_ids: Iterable[int] = ()) -> None:
        self.hf = tokenizer
        self.size = len(tokenizer)
        own_stop = tokenizer.eos_token_id
        self.stop_ids = frozenset(stop_ids) | (frozenset() if own_stop is None else {own_stop})
        self.pad_id: int = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.stop_ids, default=0)
        )
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        self._piecewise = encodes_piecewise(tokenizer)
        self._known: dict[str, tuple[int, ...]] = {}
        self._frames: dict[tuple[int, str | None], tuple[str, str]] = {}

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.hf, "chat_template", None))

    def encode(self, text: str) -> tuple[int, ...]:
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= _CACHE_SIZE:
                self._known.clear()
            known = self._known[text] = self._encode_pieces(text) if self._piecewise else self._encode(text)
        return known

    def _encode_pieces(self, text: str) -> tuple[int, ...]:
        """Encode a text whose pieces may be known: pages that are shown again in another window, lines of other pages."""
        pieces = cut_text(text)
        if len(pieces) < 2:
            return self._encode(text)
        return tuple(chain.from_iterable(map(self.encode, pieces)))

    def _encode(self, text: str, markers: bool = False) -> tuple[int, ...]:
        """Encode; unless ``markers``, a special token's name inside the text is text (an observation cannot end a turn)."""
        whole = text.encode("utf-8", "replace").decode("utf-8")
        if self._fast is None:
            return tuple(self.hf.encode(whole, add_special_tokens=False, split_special_tokens=not markers))
        self._fast.encode_special_tokens = not markers
        try:
            return tuple(self._fast.encode(whole, add_special_tokens=False).ids)
        finally:
            self._fast.encode_special_tokens = False

    def decode(self, ids: Sequence[int]) -> str:
        if self._fast is not None:
            return str(self._fast.decode(list(ids), skip_special_tokens=True))
        return str(self.hf.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def save(self, folder: Path) -> None:
        """Write the files of which `AutoTokenizer` makes the same tokenizer.

        Left alone it would go by the model's architecture, and put Qwen's own pre-tokenizer into a Qwen2 model's folder. It
        does not where the folder names a class of its own; what it then loads is still the library's generic class, and the
        module is read only with `trust_remote_code`.
        """
        self.hf.save_pretrained(folder)
        config = folder / "tokenizer_config.json"
        declared = json.loads(config.read_text("utf-8"))
        if declared.get("tokenizer_class") not in _GENERIC_CLASSES:
            return
        declared["auto_map"] = {"AutoTokenizer": [None, "generic_tokenizer.GenericTokenizer"]}
        config.write_text(json.dumps(declared, indent=2, sort_keys=True) + "\n", "utf-8")
        (folder / "generic_tokenizer.py").write_text(_GENERIC_MODULE, "utf-8")

    def encode_chat(self, content: str, system: str | None = None) -> tuple[int, ...]:
        """Return the ids of a dialogue that opens with the user's ``content``, up to where the reply begins; before it stands
        the ``system`` message, or the chat template's own."""
        before, after = self._render_frame([_make_user_message(_CONTENT_MARK)], system)
        return self._encode_framed(before, content, after)

    def encode_next(self, content: str, *, stopped: bool) -> tuple[int, ...]:
        """Return the ids between one reply and the next: the end of the turn (if the reply lacks it) and the user's answer."""
        before, after = self._render_frame(
            [_make_user_message("."), {"role": "assistant", "content": _REPLY_MARK}, _make_user_message(_CONTENT_MARK)]
        )
        before = before.rpartition(_REPLY_MARK)[2]
        if stopped:
            before = self._strip_stop_token(before)
        return self._encode_framed(before, content, after)

    def _render_frame(self, messages: list[dict[str, str]], system: str | None = None) -> tuple[str, str]:
        """Render messages in the chat template and return what stands before and after the mark."""
        known = self._frames.get((len(messages), system))
        if known is None:
            text = self._apply_chat_template(messages, system)
            before, mark, after = text.rpartition(_CONTENT_MARK)
            if not mark:
                raise DataError("the chat template of this tokenizer drops the user's message: set chat: false")
            known = self._frames[len(messages), system] = (before, after)
        return known

    def _apply_chat_template(self, messages: list[dict[str, str]], system: str | None) -> str:
        if system is None:
            return str(self.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        whole = [{"role": "system", "content": system}, *messages]
        try:
            text = str(self.hf.apply_chat_template(whole, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program: what it raises is its author's choice
            reason = describe_error(error, named=False)
            raise DataError(f"the chat template of this tokenizer takes no system message: {reason}") from error
        if system.strip() not in text:
            raise DataError("the chat template of this tokenizer drops the system message: leave out agent.system")
        return text

    def _strip_stop_token(self, text: str) -> str:
        for token in self.hf.convert_ids_to_tokens(sorted(self.stop_ids)):
            if text.startswith(token):
                return text[len(token) :]
        return text

    def _encode_framed(self, before: str, content: str, after: str) -> tuple[int, ...]:
        content = content.strip()
        if any(token in content for token in self.hf.all_special_tokens):
            return self._encode(before, True) + self._encode(content) + self._encode(after, True)
        return self._encode(before + content + after, True)


def _make_user_message(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
