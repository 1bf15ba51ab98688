"""Generation that can only say admissible actions: a trie over the token ids of all well-formed replies.

An entry with a slot, ``search[<query>]``, becomes its prefix, then one to ``SLOT_WORDS`` free words, then its suffix. Free are
the words that the episode began with (the instruction, see `envs.slots`), so that a small model can copy what it is looking
for. Nothing is begun that cannot be ended within the reply's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedagentgym.agents.protocols import Tokenizer
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.slots import SLOT, slot_words

SLOT_WORDS = 24
_NEVER = 1 << 30
_REMEMBERED = 4096


class _Node:
    """A place in a trie. ``ends``: a word may end here; ``need``: tokens from here to the nearest end of a word."""

    __slots__ = ("allowed", "ends", "following", "need", "slot_closing")

    def __init__(self) -> None:
        self.following: dict[int, _Node] = {}
        self.ends = False
        self.need = _NEVER
        self.allowed: tuple[int, ...] = ()
        self.slot_closing = 0

    def add(self, ids: Sequence[int]) -> _Node:
        node = self
        for token in ids:
            node = node.following.setdefault(token, _Node())
        return node

    def settle(self) -> None:
        for below in self.following.values():
            below.settle()
        self.allowed = tuple(sorted(self.following))
        self.need = 0 if self.ends else 1 + min((below.need for below in self.following.values()), default=_NEVER)


class FreeWords:
    """What a slot may be filled with: words as token ids, as the first of a slot and as a later one."""

    def __init__(self, first: Iterable[Sequence[int]], later: Iterable[Sequence[int]]) -> None:
        self.first, self.later = _Node(), _Node()
        for root, words in ((self.first, first), (self.later, later)):
            for word in words:
                root.add(word).ends = True
            root.settle()


class Place(NamedTuple):
    """A state: where in the trie, where in a free word, how many of these were begun, and how many tokens were said."""

    node: _Node
    word: _Node | None
    words: int
    said: int


class ActionTrie:
    """``policy.Constraint`` over the admissible actions of one turn."""

    def __init__(self, replies: Iterable[Sequence[tuple[int, ...]]], free: FreeWords | None, most: int) -> None:
        """``replies``: the id pieces of each reply, with the slot between pieces; ``most`` tokens may be said in all."""
        self._root = _Node()
        self._most, self._free = most, free
        for pieces in replies:
            self._add(pieces)
        if not self._root.following:
            raise OptionError(
                f"no admissible action fits into max_new_tokens {most}: raise it, or turn constrained generation off"
            )
        self._root.settle()

    def _add(self, pieces: Sequence[tuple[int, ...]]) -> None:
        length = sum(map(len, pieces))
        if len(pieces) == 1:
            if length <= self._most:
                self._root.add(pieces[0])
            return
        shortest = self._free.first.need if self._free is not None else _NEVER
        if length + shortest <= self._most:
            before, after = pieces
            slot = self._root.add(before)
            slot.slot_closing = len(after)
            slot.add(after)

    def start(self) -> Place:
        return Place(self._root, None, 0, 0)

    def allowed(self, state: Place) -> tuple[int, ...]:
        node, word = state.node, state.word
        if not node.slot_closing:
            return node.allowed
        assert self._free is not None
        room = self._most - state.said - 1 - node.slot_closing
        ids: set[int] = set()
        if word is None:
            ids.update(_fitting(self._free.first, room))
        else:
            ids.update(_fitting(word, room))
            if word.ends:
                ids.update(node.allowed)
                if state.words < SLOT_WORDS:
                    ids.update(_fitting(self._free.later, room))
        return tuple(sorted(ids))

    def advance(self, state: Place, token: int) -> Place:
        node, word, words, said = state
        if not node.slot_closing:
            return Place(node.following[token], None, 0, said + 1)
        assert self._free is not None
        if word is None:
            return Place(node, self._free.first.following[token], 1, said + 1)
        if token in word.following:
            return Place(node, word.following[token], words, said + 1)
        if token in node.following:
            return Place(node.following[token], None, 0, said + 1)
        return Place(node, self._free.later.following[token], words + 1, said + 1)


def _fitting(node: _Node, room: int) -> list[int]:
    """Return the tokens after which a word can still be ended within ``room`` further tokens."""
    return [token for token, below in node.following.items() if below.need <= room]


class TrieMaker:
    """Makes and remembers the tries of a rollout; siblings and repeated pages share them."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self.tokenizer, self.most = tokenizer, most
        self._end = min(tokenizer.stop_ids)
        self._tries: dict[tuple[tuple[str, ...], tuple[str, ...]], ActionTrie] = {}
        self._words: dict[tuple[str, ...], FreeWords] = {}

    def trie(self, replies: tuple[str, ...], start: str) -> ActionTrie:
        """Return the trie of well-formed replies, free slots filled with words of ``start``."""
        words: tuple[str, ...] = ()
        if any(SLOT.search(_inner(reply)) for reply in replies):
            words = tuple(sorted(set(slot_words(start)))) or ("a",)
        key = (replies, words)
        if key not in self._tries:
            if len(self._tries) >= _REMEMBERED:
                self._tries.clear()
                self._words.clear()
            self._tries[key] = ActionTrie(map(self._pieces, replies), self._free(words) if words else None, self.most)
        return self._tries[key]

    def _free(self, words: tuple[str, ...]) -> FreeWords:
        if words not in self._words:
            encode = self.tokenizer.encode
            alone = len(encode("a"))
            later = [encode(f"a {word}")[alone:] for word in words]
            self._words[words] = FreeWords([encode(word) for word in words], [ids for ids in later if ids])
        return self._words[words]

    def _pieces(self, reply: str) -> list[tuple[int, ...]]:
        slot = SLOT.search(_inner(reply))
        if slot is None:
            pieces = [self.tokenizer.encode(reply)]
        else:
            start = reply.index(slot.group())
            pieces = [self.tokenizer.encode(part) for part in (reply[:start], reply[start + len(slot.group()) :])]
        if pieces[-1][-1] not in self.tokenizer.stop_ids:
            pieces[-1] = (*pieces[-1], self._end)
        return pieces


def _inner(reply: str) -> str:
    """Return the action inside its tags, which look like slots themselves."""
    return reply.removeprefix("<action>").removesuffix("</action>")
