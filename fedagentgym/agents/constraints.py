"""Generation that can only say admissible actions: a trie over the token ids of all well-formed replies.

An entry with a slot, ``search[<query>]``, becomes its prefix, then one to ``SLOT_WORDS`` free tokens, then its suffix. Free are
the tokens of the words that the episode began with (the instruction), so that a small model can copy what it is looking for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedagentgym.agents.policy import Tokenizer
from fedagentgym.base.errors import OptionError

SLOT = re.compile(r"<[a-z_]+>")
SLOT_WORDS = 8
_WORD = re.compile(r"[^\W_]+")


class _Node:
    """``following`` in the trie; ``closing`` is the suffix's first node where free tokens may come too."""

    __slots__ = ("allowed", "following", "free")

    def __init__(self) -> None:
        self.following: dict[int, _Node] = {}
        self.free = False
        self.allowed: tuple[int, ...] = ()


class Place(NamedTuple):
    """A state: a node, how many free tokens were said in it, and how many tokens in all."""

    node: _Node
    free: int
    said: int


class ActionTrie:
    """``policy.Constraint`` over the admissible actions of one turn."""

    def __init__(self, replies: Iterable[Sequence[tuple[int, ...]]], free_ids: Iterable[int], most: int) -> None:
        """``replies``: the id pieces of each reply, with the slot between pieces; ``most`` tokens may be said in all."""
        self._root = _Node()
        self._most = most
        self._free_ids = frozenset(free_ids)
        self._to_close: dict[_Node, int] = {}
        for pieces in replies:
            self._add(pieces)
        if not self._root.following:
            raise OptionError(
                f"no admissible action fits into max_new_tokens {most}: raise it, or turn constrained generation off"
            )
        self._settle(self._root)

    def _add(self, pieces: Sequence[tuple[int, ...]]) -> None:
        slots = len(pieces) - 1
        if sum(map(len, pieces)) + slots > self._most or (slots and not self._free_ids):
            return
        node = self._root
        for index, piece in enumerate(pieces):
            if index:
                node.free = True
                self._to_close[node] = sum(map(len, pieces[index:]))
            for token in piece:
                node = node.following.setdefault(token, _Node())

    def _settle(self, node: _Node) -> None:
        node.allowed = tuple(sorted(node.following))
        for below in node.following.values():
            self._settle(below)

    def start(self) -> Place:
        return Place(self._root, 0, 0)

    def allowed(self, state: Place) -> tuple[int, ...]:
        node = state.node
        if not node.free:
            return node.allowed
        if state.free == 0:
            return tuple(sorted(self._free_ids))
        if state.free >= SLOT_WORDS or state.said + 1 + self._to_close[node] > self._most:
            return node.allowed
        return tuple(sorted(self._free_ids.union(node.allowed)))

    def advance(self, state: Place, token: int) -> Place:
        node = state.node
        if node.free and (state.free == 0 or token not in node.following):
            return Place(node, state.free + 1, state.said + 1)
        return Place(node.following[token], 0, state.said + 1)


class TrieMaker:
    """Makes and remembers the tries of a rollout; siblings and repeated pages share them."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self.tokenizer, self.most = tokenizer, most
        self._end = min(tokenizer.stop_ids)
        self._tries: dict[tuple[tuple[str, ...], frozenset[int]], ActionTrie] = {}

    def trie(self, replies: tuple[str, ...], start: str) -> ActionTrie:
        """Return the trie of well-formed replies, free slots filled with words of ``start``."""
        free = self.free_ids(start) if any(SLOT.search(_inner(reply)) for reply in replies) else frozenset()
        key = (replies, free)
        if key not in self._tries:
            if len(self._tries) > 4096:
                self._tries.clear()
            self._tries[key] = ActionTrie(map(self._pieces, replies), free, self.most)
        return self._tries[key]

    def free_ids(self, text: str) -> frozenset[int]:
        """Return the tokens of a text's words, none of which could close a slot."""
        words = " ".join(_WORD.findall(text))
        return frozenset(self.tokenizer.encode(words)) - self.tokenizer.stop_ids

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
