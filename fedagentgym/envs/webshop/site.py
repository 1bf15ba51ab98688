"""The shop as a state machine: which page follows which action. States are values; nothing here changes one.

The rules are the original's, found by running it, oddities included: `search` works on every page, `Next >` never ends,
an option cannot be taken back, and what `< Prev` does is decided by the kind of page that the address *spells*, so a query
that contains `search_results` misleads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from fedagentgym.envs.webshop import pages
from fedagentgym.envs.webshop.catalogue import CACHED_PRODUCTS
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.nouns import NounFunction
from fedagentgym.envs.webshop.pages import Piece
from fedagentgym.envs.webshop.reward import Worth, worth
from fedagentgym.envs.webshop.shop import RESULTS, Shop

BASE_URL = "http://127.0.0.1:3000"
PAGE_SIZE = 10
PAGE_KINDS = ("search_results", "item_page", "item_sub_page", "done")
_SUB_PAGES = {label.lower(): label for label in pages.SUB_PAGES}


class State(NamedTuple):
    """Where a shopper stands. `kind` is empty on the start page; `found` are the rows that the last search gave, None if they
    are too many to keep; `past` holds shown observations and played actions."""

    goal: Goal
    seed: int
    kind: str = ""
    query: str = ""
    found: tuple[int, ...] | None = ()
    number: int = 1
    row: int = -1
    label: str = ""
    options: tuple[tuple[str, str], ...] = ()
    visited: frozenset[str] = frozenset()
    reward: float = 0.0
    past: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class Move(NamedTuple):
    """What an action led to. `acted` is False where the site ignored it; `worth` belongs to a purchase."""

    state: State
    acted: bool
    done: bool = False
    worth: Worth | None = None


def parse(action: str) -> tuple[str, str | None]:
    """The name of an action and its argument in lower case: what the pattern `(.+)\\[(.+)\\]` finds at the start of the
    action, found without its quadratic time on hostile text.

    >>> parse("search[Red Shoes] and more"), parse("click")
    (('search', 'red shoes'), ('click', None))
    """
    line = action.partition("\n")[0]
    close = line.rfind("]")
    start = line.rfind("[", 1, max(close - 1, 0))
    return (line[:start], line[start + 1 : close].lower()) if start > 0 else (action, None)


def utterable(value: str) -> bool:
    """Whether an action can name this clickable at all: the grammar of actions has no way to quote brackets."""
    return parse(f"click[{value}]") == ("click", value)


class Offer(NamedTuple):
    """What a page lets one do: things to click in the original's order, actions that can be uttered, options by value."""

    clickables: tuple[str, ...]
    actions: tuple[str, ...]
    option_names: Mapping[str, str]


def _offer(pieces: list[Piece]) -> Offer:
    values = pages.clickables(pieces)
    names = {piece.text: piece.name for piece in pieces if piece.kind == "option"}
    return Offer(values, tuple(f"click[{value}]" for value in values if utterable(value)), names)


START_OFFER = _offer(pages.start_page(""))._replace(actions=("search[<query>]",))
DONE_OFFER = Offer((), (), {})


class Site:
    """The rules of movement over one shop."""

    def __init__(self, shop: Shop, nouns: NounFunction) -> None:
        self.shop, self._nouns = shop, nouns
        self._item_offer = lru_cache(maxsize=CACHED_PRODUCTS)(
            lambda row: _offer(pages.item_page("", shop.product(row)))
        )

    def pieces(self, state: State) -> list[Piece]:
        """The page that a state shows."""
        instruction = state.goal.instruction
        if not state.kind:
            return pages.start_page(instruction)
        if state.kind == "search_results":
            total, shown = self._shown(state)
            return pages.results_page(instruction, [self.shop.head(row) for row in shown], state.number, total)
        if state.kind == "done":
            return pages.done_page(self.shop.head(state.row).asin, dict(state.options), state.reward)
        product = self.shop.product(state.row)
        if state.kind == "item_page":
            return pages.item_page(instruction, product)
        return pages.sub_page(instruction, product, state.label)

    def _shown(self, state: State) -> tuple[int, Sequence[int]]:
        """How many products the last search found, and the rows on this page of them."""
        found = state.found if state.found is not None else self.shop.find(state.query, state.seed) or ()
        return len(found), found[(state.number - 1) * PAGE_SIZE : state.number * PAGE_SIZE]

    def offer(self, state: State) -> Offer:
        """What the page of a state lets one do."""
        if not state.kind:
            return START_OFFER
        if state.kind == "item_page":
            return self._item_offer(state.row)
        return DONE_OFFER if state.kind == "done" else _offer(self.pieces(state))

    def url(self, state: State) -> str:
        """The address of a state's page; some rules and marks look into it."""
        session = state.goal.number
        if not state.kind:
            return f"{BASE_URL}/{session}"
        keywords = state.query.replace(" ", "+")
        if state.kind == "search_results":
            return f"{BASE_URL}/search_results/{session}/{keywords}/{state.number}"
        options = dict(state.options)
        asin = self.shop.head(state.row).asin
        if state.kind == "done":
            return f"{BASE_URL}/done/{session}/{asin}/{options}"
        place = f"{BASE_URL}/{state.kind}/{session}/{asin}/{keywords}/{state.number}"
        return f"{place}/{json.dumps(options)}" if state.kind == "item_page" else f"{place}/{state.label}/{options}"

    def play(self, state: State, action: str) -> Move:
        """The move that an action makes; an action that names nothing on the page changes nothing."""
        name, argument = parse(action)
        if name == "search" and argument is not None:
            return self._search(state, argument, 1)
        if name == "click" and argument is not None and argument != "search":
            offer = self.offer(state)
            if argument in offer.clickables:
                return self._click(state, argument, offer)
        return Move(state, acted=False)

    def _search(self, state: State, query: str, number: int) -> Move:
        """The results of a query; those of the query at hand are kept, so that turning a page does not search again."""
        if state.kind and query == state.query and state.found:
            rows: Sequence[int] | None = state.found
        else:
            rows = self.shop.find(query, state.seed)
        if rows is None:
            return Move(state, acted=False)
        kept = tuple(rows) if len(rows) <= RESULTS else None
        there = state._replace(
            kind="search_results", query=query, found=kept, number=number, row=-1, label="", options=()
        )
        return Move(there, acted=True)

    def _click(self, state: State, value: str, offer: Offer) -> Move:
        if value == pages.BUY.lower():
            return self._buy(state)
        if value == pages.BACK.lower():
            return Move(State(state.goal, state.seed, past=state.past), acted=True)
        if value == pages.NEXT.lower() and state.kind == "search_results":
            return self._search(state, state.query, state.number + 1)
        if value == pages.PREVIOUS.lower():
            return self._previous(state)
        if value in _SUB_PAGES and state.kind == "item_page":
            return Move(state._replace(kind="item_sub_page", label=_SUB_PAGES[value]), acted=True)
        name = offer.option_names.get(value)
        if name is not None:
            return Move(state._replace(options=_with(state.options, name, value)), acted=True)
        return self._open(state, value)

    def _previous(self, state: State) -> Move:
        address = self.url(state)
        spelled = next((kind for kind in PAGE_KINDS if kind in address), "")
        if spelled == "search_results":
            return self._search(state, state.query, state.number - 1)
        if spelled == "item_page":
            return self._search(state, state.query, state.number)
        return Move(state._replace(kind="item_page", label=""), acted=True)

    def _open(self, state: State, value: str) -> Move:
        row = next(row for row in self._shown(state)[1] if self.shop.head(row).asin.lower() == value)
        visited = state.visited | {self.shop.head(row).asin}
        return Move(state._replace(kind="item_page", row=row, visited=visited), acted=True)

    def _buy(self, state: State) -> Move:
        bought: Worth | None = None
        if state.goal.known:
            product, price = self.shop.product(state.row), self.shop.price(state.row)
            bought = worth(product, price, dict(state.options), state.goal, self._nouns)
        reward = bought.total if bought else 0.0
        return Move(state._replace(kind="done", label="", reward=reward), acted=True, done=True, worth=bought)


def _with(options: tuple[tuple[str, str], ...], name: str, value: str) -> tuple[tuple[str, str], ...]:
    chosen: Mapping[str, str] = {**dict(options), name: value}
    return tuple(chosen.items())
