"""Constrained generation of admissible actions: a trie over the token ids of all well-formed replies.

An action with a slot, such as `search[<query>]`, is its prefix, then one to `MAX_SLOT_WORDS` free words, then its suffix. The
free words are those of the episode's instruction (see `envs.scripted`), so that a small model can copy them. A reply or a word is
only begun if it can be completed within the reply's limit of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedagentgym.agents.text.tokens import TextTokenizer
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.scripted import slot_words
from fedagentgym.envs.view import SLOT

MAX_SLOT_WORDS = 24
_UNREACHABLE = 1 << 30
_CACHE_SIZE = 4096


@dataclass(slots=True, eq=False)
class _Node:
    """A node of a trie. With `ends`, a word may end here; `need` is the number of tokens to the nearest end of a word."""

    following: dict[int, _Node] = field(default_factory=dict)
    ends: bool = False
    need: int = _UNREACHABLE
    allowed: tuple[int, ...] = ()
    slot_closing: int = 0

    def add(self, ids: Sequence[int]) -> _Node:
        node = self
        for token in ids:
            below = node.following.get(token)
            if below is None:
                below = node.following[token] = _Node()
            node = below
        return node

    def finalize(self) -> None:
        for below in self.following.values():
            below.finalize()
        self.allowed = tuple(sorted(self.following))
        self.need = 0 if self.ends else 1 + min((below.need for below in self.following.values()), default=_UNREACHABLE)


class FreeWords:
    """The words that may fill a slot, as token ids, which differ for the `first` word of a slot and for `later` words."""

    def __init__(self, first: Iterable[Sequence[int]], later: Iterable[Sequence[int]]) -> None:
        self.first, self.later = _Node(), _Node()
        for root, words in ((self.first, first), (self.later, later)):
            for word in words:
                root.add(word).ends = True
            root.finalize()


class TrieState(NamedTuple):
    """The state of a reply: the node in the trie, the node in a free word, the words begun in the slot, the tokens so far."""

    node: _Node
    word: _Node | None
    words: int
    said: int


class ActionTrie:
    """`Constraint` over the admissible actions of one turn."""

    def __init__(self, replies: Iterable[Sequence[tuple[int, ...]]], free: FreeWords | None, max_tokens: int) -> None:
        """`replies` are the ids of each reply, in two pieces if a slot is between them; `max_tokens` limits their length."""
        self._root = _Node()
        self._most, self._free = max_tokens, free
        shortest = free.first.need if free is not None else _UNREACHABLE
        for pieces in replies:
            length = sum(map(len, pieces))
            if len(pieces) == 1 and length <= max_tokens:
                self._root.add(pieces[0])
            elif len(pieces) == 2 and length + shortest <= max_tokens:
                before, after = pieces
                slot = self._root.add(before)
                slot.slot_closing = len(after)
                slot.add(after)
        if not self._root.following:
            raise OptionError(
                f"no admissible action fits into max_new_tokens {max_tokens}: raise it, or set agent.decoding.constrained=false"
            )
        self._root.finalize()

    def start(self) -> TrieState:
        return TrieState(self._root, None, 0, 0)

    def get_allowed_tokens(self, state: TrieState) -> tuple[int, ...]:
        node, word = state.node, state.word
        if not node.slot_closing:
            return node.allowed
        assert self._free is not None
        room = self._most - state.said - 1 - node.slot_closing
        ids: set[int] = set()
        if word is None:
            ids.update(_find_completable(self._free.first, room))
        else:
            ids.update(_find_completable(word, room))
            if word.ends:
                ids.update(node.allowed)
                if state.words < MAX_SLOT_WORDS:
                    ids.update(_find_completable(self._free.later, room))
        return tuple(sorted(ids))

    def advance(self, state: TrieState, token: int) -> TrieState:
        node, word, words, said = state
        if not node.slot_closing:
            return TrieState(node.following[token], None, 0, said + 1)
        assert self._free is not None
        if word is None:
            return TrieState(node, self._free.first.following[token], 1, said + 1)
        if token in word.following:
            return TrieState(node, word.following[token], words, said + 1)
        if token in node.following:
            return TrieState(node.following[token], None, 0, said + 1)
        return TrieState(node, self._free.later.following[token], words + 1, said + 1)


def _find_completable(node: _Node, room: int) -> list[int]:
    """Return the next tokens after which a word can be completed within `room` further tokens."""
    return [token for token, below in node.following.items() if below.need <= room]


class TrieCache:
    """Makes and caches the tries of a rollout, which copies of a task and repeated pages share."""

    def __init__(self, tokenizer: TextTokenizer, max_tokens: int) -> None:
        self.tokenizer, self.most = tokenizer, max_tokens
        self._tries: dict[tuple[tuple[str, ...], tuple[str, ...]], ActionTrie] = {}
        self._slots: dict[tuple[str, ...], list[str]] = {}
        self._words: dict[tuple[str, ...], FreeWords] = {}

    def get_trie(self, replies: tuple[str, ...], start: str) -> ActionTrie:
        """Return the trie of well-formed replies, whose slots take words of the text `start`."""
        if replies not in self._slots:
            # action tags are removed, since they look like slots
            actions = [reply.removeprefix("<action>").removesuffix("</action>") for reply in replies]
            self._slots[replies] = [found.group() if (found := SLOT.search(action)) else "" for action in actions]
        slots, encode = self._slots[replies], self.tokenizer.encode
        words = (tuple(sorted(set(slot_words(start)))) or ("a",)) if any(slots) else ()
        key = (replies, words)
        if key not in self._tries:
            if len(self._tries) >= _CACHE_SIZE:
                self._tries.clear()
                self._slots.clear()
                self._words.clear()
            if words and words not in self._words:
                alone = len(encode("a"))
                later = [encode(f"a {word}")[alone:] for word in words]
                self._words[words] = FreeWords([encode(word) for word in words], [ids for ids in later if ids])
            encoded = []
            for reply, slot in zip(replies, slots, strict=True):
                pieces = [encode(part) for part in (reply.split(slot, 1) if slot else [reply])]
                pieces[-1] = self.tokenizer.end_reply(pieces[-1])
                encoded.append(pieces)
            self._tries[key] = ActionTrie(encoded, self._words.get(words), self.most)
        return self._tries[key]
