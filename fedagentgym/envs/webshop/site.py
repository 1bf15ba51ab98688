"""The shop as a state machine: which page follows which action. States are values and never changed.

The rules are the original's, found by running it, oddities included. `search` works on every page, `Next >` never ends, and
an option cannot be taken back. The effect of `< Prev` depends on which kind of page the address *names*, so a query that
contains `search_results` misleads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from fedagentgym.envs.webshop import pages
from fedagentgym.envs.webshop.catalogue import CACHED_PRODUCTS
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.pages import Piece
from fedagentgym.envs.webshop.reward import NounFunction, PurchaseReward, compute_purchase_reward
from fedagentgym.envs.webshop.search import RESULTS, Shop

BASE_URL = "http://127.0.0.1:3000"
PAGE_SIZE = 10
PAGE_KINDS = ("search_results", "item_page", "item_sub_page", "done")
_SUB_PAGES = {label.lower(): label for label in pages.SUB_PAGES}


class WebShopState(NamedTuple):
    """The player's page. `kind` is empty on the start page; `found` are the rows of the last search, None if they
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


class Transition(NamedTuple):
    """The result of an action. `acted` is False if the site ignored it; `purchase` has the reward of a purchase."""

    state: WebShopState
    acted: bool
    done: bool = False
    purchase: PurchaseReward | None = None


def parse_action(action: str) -> tuple[str, str | None]:
    """The name of an action and its argument in lower case, as the pattern `(.+)\\[(.+)\\]` matches them at the start of
    the action, but without its quadratic time on hostile text.

    >>> parse_action("search[Red Shoes] and more"), parse_action("click")
    (('search', 'red shoes'), ('click', None))
    """
    line = action.partition("\n")[0]
    close = line.rfind("]")
    start = line.rfind("[", 1, max(close - 1, 0))
    return (line[:start], line[start + 1 : close].lower()) if start > 0 else (action, None)


def is_expressible(value: str) -> bool:
    """Return whether an action can name this clickable at all: the grammar of actions has no way to quote brackets."""
    return parse_action(f"click[{value}]") == ("click", value)


class PageActions(NamedTuple):
    """The possible actions of a page: things to click in the original's order, actions as text, options by value."""

    clickables: tuple[str, ...]
    actions: tuple[str, ...]
    option_names: Mapping[str, str]


def _make_page_actions(pieces: list[Piece]) -> PageActions:
    values = pages.list_clickables(pieces)
    names = {piece.text: piece.name for piece in pieces if piece.kind == "option"}
    return PageActions(values, tuple(f"click[{value}]" for value in values if is_expressible(value)), names)


START_ACTIONS = _make_page_actions(pages.build_start_page(""))._replace(actions=("search[<query>]",))
DONE_ACTIONS = PageActions((), (), {})


class Site:
    """The rules of movement over one shop."""

    def __init__(self, shop: Shop, nouns: NounFunction) -> None:
        self.shop, self._nouns = shop, nouns
        self._item_offer = lru_cache(maxsize=CACHED_PRODUCTS)(
            lambda row: _make_page_actions(pages.build_item_page("", shop.get_product(row)))
        )

    def build_page(self, state: WebShopState) -> list[Piece]:
        """The page that a state shows."""
        instruction = state.goal.instruction
        if not state.kind:
            return pages.build_start_page(instruction)
        if state.kind == "search_results":
            total, shown = self._get_page_rows(state)
            return pages.build_results_page(
                instruction, [self.shop.get_head(row) for row in shown], state.number, total
            )
        if state.kind == "done":
            return pages.build_done_page(self.shop.get_head(state.row).asin, dict(state.options), state.reward)
        product = self.shop.get_product(state.row)
        if state.kind == "item_page":
            return pages.build_item_page(instruction, product)
        return pages.build_sub_page(instruction, product, state.label)

    def _get_page_rows(self, state: WebShopState) -> tuple[int, Sequence[int]]:
        """Return how many products the last search found, and the rows on this page of the results."""
        found = state.found if state.found is not None else self.shop.find(state.query, state.seed) or ()
        return len(found), found[(state.number - 1) * PAGE_SIZE : state.number * PAGE_SIZE]

    def get_page_actions(self, state: WebShopState) -> PageActions:
        """The possible actions on the page of a state."""
        if not state.kind:
            return START_ACTIONS
        if state.kind == "item_page":
            return self._item_offer(state.row)
        return DONE_ACTIONS if state.kind == "done" else _make_page_actions(self.build_page(state))

    def make_url(self, state: WebShopState) -> str:
        """The address of a state's page, on which some rules and marks depend."""
        session = state.goal.number
        if not state.kind:
            return f"{BASE_URL}/{session}"
        keywords = state.query.replace(" ", "+")
        if state.kind == "search_results":
            return f"{BASE_URL}/search_results/{session}/{keywords}/{state.number}"
        options = dict(state.options)
        asin = self.shop.get_head(state.row).asin
        if state.kind == "done":
            return f"{BASE_URL}/done/{session}/{asin}/{options}"
        place = f"{BASE_URL}/{state.kind}/{session}/{asin}/{keywords}/{state.number}"
        return f"{place}/{json.dumps(options)}" if state.kind == "item_page" else f"{place}/{state.label}/{options}"

    def play(self, state: WebShopState, action: str) -> Transition:
        """The move of an action; an action that names nothing on the page has no effect."""
        name, argument = parse_action(action)
        if name == "search" and argument is not None:
            return self._search(state, argument, 1)
        if name != "click" or argument is None or argument == "search":
            return Transition(state, acted=False)
        offer = self.get_page_actions(state)
        if argument not in offer.clickables:
            return Transition(state, acted=False)
        return self._click(state, argument, offer.option_names.get(argument))

    def _search(self, state: WebShopState, query: str, number: int) -> Transition:
        """The results of a query; those of the current query are kept, so that turning a page does not search again."""
        if state.kind and query == state.query and state.found:
            rows: Sequence[int] | None = state.found
        else:
            rows = self.shop.find(query, state.seed)
        if rows is None:
            return Transition(state, acted=False)
        kept = tuple(rows) if len(rows) <= RESULTS else None
        there = state._replace(
            kind="search_results", query=query, found=kept, number=number, row=-1, label="", options=()
        )
        return Transition(there, acted=True)

    def _click(self, state: WebShopState, value: str, option: str | None) -> Transition:
        """The move of a click on something that the page offers; `option` names the option if one of its values is clicked."""
        if value == pages.BUY.lower():
            bought: PurchaseReward | None = None
            if state.goal.known:
                product, price = self.shop.get_product(state.row), self.shop.get_price(state.row)
                bought = compute_purchase_reward(product, price, dict(state.options), state.goal, self._nouns)
            there = state._replace(kind="done", label="", reward=bought.total if bought else 0.0)
            return Transition(there, acted=True, done=True, purchase=bought)
        if value == pages.BACK.lower():
            return Transition(WebShopState(state.goal, state.seed, past=state.past), acted=True)
        if value == pages.NEXT.lower() and state.kind == "search_results":
            return self._search(state, state.query, state.number + 1)
        if value == pages.PREVIOUS.lower():
            address = self.make_url(state)
            spelled = next((kind for kind in PAGE_KINDS if kind in address), "")
            if spelled in ("search_results", "item_page"):
                return self._search(state, state.query, state.number - (spelled == "search_results"))
            return Transition(state._replace(kind="item_page", label=""), acted=True)
        if value in _SUB_PAGES and state.kind == "item_page":
            return Transition(state._replace(kind="item_sub_page", label=_SUB_PAGES[value]), acted=True)
        if option is not None:
            chosen = {**dict(state.options), option: value}
            return Transition(state._replace(options=tuple(chosen.items())), acted=True)
        rows = self._get_page_rows(state)[1]
        row, asin = next((row, asin) for row in rows if (asin := self.shop.get_head(row).asin).lower() == value)
        return Transition(state._replace(kind="item_page", row=row, visited=state.visited | {asin}), acted=True)
