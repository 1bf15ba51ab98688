"""A scripted player: reads the instruction, searches, compares a few products, chooses the wanted options, buys.

It sees what any player sees (the page, its address) and acts through the site's two actions. It decides from the
current page at every turn and remembers only which products it has looked at, so it can continue after other actions
than its own. It does not know the goal: products are rated by the words of the instruction.

A misled player obeys only a part of the instruction: the options that are usual in another category. A player that buys
fashion like groceries chooses flavour and size, and ignores the colour.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedagentgym.envs.misconceptions import Procedures
from fedagentgym.envs.scripted import slot_words
from fedagentgym.envs.view import Episode
from fedagentgym.envs.webshop import pages
from fedagentgym.envs.webshop.analysis import analyze_text
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.pages import Piece
from fedagentgym.envs.webshop.reward import MATCH_THRESHOLD, normalize_color, token_set_ratio
from fedagentgym.envs.webshop.site import Site, WebShopState, is_expressible

TURNS = 15
ASSUMED_OPTIONS = 2
RANK_PENALTY = 0.1
MAX_PRODUCTS_VIEWED = 6
GOOD_SCORE = 0.75
NEAR_MATCH_SCORE = 0.6
_CAP = re.compile(r",? and price lower than (\d+(?:\.\d+)?) dollars")
_NAMED = r"((?:(?! with |, and )[^:,])+): "
_FIRST_OPTION = re.compile(f" with {_NAMED}")
_OPTION = re.compile(f"(?: with |, and ){_NAMED}(.+?)(?=, and {_NAMED}|$)")
_PRICE = re.compile(r"\d+(?:\.\d+)?")
_STOP_TERMS = frozenset(analyze_text("find me i am looking for show want to buy need would like some please get my"))


class ParsedInstruction(NamedTuple):
    """A parsed instruction: price cap, named options, and the text and words of the rest."""

    cap: float
    options: tuple[tuple[str, str], ...]
    text: str
    words: frozenset[str]


class ProductAssessment(NamedTuple):
    """The known properties of a visited product."""

    merit: float
    offered: float
    words: frozenset[str]
    query: str


def read_instruction(instruction: str) -> ParsedInstruction:
    """Take an instruction apart.

    >>> wish = read_instruction("Find me soft towels with color: red, and size: big, and price lower than 20.00 dollars")
    >>> wish.cap, wish.options, wish.text
    (20.0, (('color', 'red'), ('size', 'big')), 'Find me soft towels')
    """
    cap = _CAP.search(instruction)
    rest = _CAP.sub("", instruction)
    begin = _FIRST_OPTION.search(rest)
    text, named = (rest[: begin.start()], rest[begin.start() :]) if begin else (rest, "")
    options = tuple((found[1], found[2]) for found in _OPTION.finditer(named))
    words = frozenset(analyze_text(text)) - _STOP_TERMS
    return ParsedInstruction(float(cap[1]) if cap else float("inf"), options, text, words)


class WebShopExpert:
    """The expert of one episode. With `obeyed` it chooses options of these kinds only and ignores the others."""

    def __init__(self, site: Site, turns: int = TURNS, obeyed: frozenset[str] | None = None) -> None:
        self._site, self._turns, self._obeyed = site, turns, obeyed
        self._wish: ParsedInstruction | None = None
        self._seen: dict[str, ProductAssessment] = {}
        self._searches = 0
        self._spelt: dict[str, str] = {}
        self._decided = ""

    def act(self, episode: Episode) -> str:
        state: WebShopState = episode.state
        if self._wish is None:
            self._wish = read_instruction(state.goal.instruction)
            if self._obeyed is not None:
                obeyed = tuple(option for option in self._wish.options if option[0] in self._obeyed)
                self._wish = self._wish._replace(options=obeyed)
        wish = self._wish
        page = self._site.build_page(state)
        if state.kind == "search_results":
            return self._act_on_results(state, page, wish, episode.turn)
        if state.kind == "item_page":
            return self._act_on_item(state, page, wish, episode.turn)
        if state.kind == "item_sub_page":
            self._assess_product(state, page, wish)
            return f"click[{pages.PREVIOUS.lower()}]"
        return self._search(wish)

    def _search(self, wish: ParsedInstruction) -> str:
        """Search for everything in the instruction; every second time, for the product and its properties without the options."""
        wanted = " ".join(value for _, value in wish.options) if self._searches % 2 == 0 else ""
        self._searches += 1
        query = " ".join(slot_words(f"{wish.text} {wanted}")) or "gift"
        self._spelt[query.lower()] = query
        return f"search[{query}]"

    def _act_on_results(self, state: WebShopState, page: list[Piece], wish: ParsedInstruction, turn: int) -> str:
        shown = [
            (piece.text, page[at + 1].text, page[at + 2].text) for at, piece in enumerate(page) if piece.kind == "link"
        ]
        best = max(self._seen, key=lambda asin: self._seen[asin].merit, default="")
        if not self._is_late(wish, turn) and len(self._seen) < MAX_PRODUCTS_VIEWED:
            merits: dict[str, float] = {}
            for place, (asin, title, tag) in enumerate(shown):
                price = _PRICE.search(tag)
                if asin not in self._seen and (float(price[0]) if price else 0.0) <= wish.cap:
                    named = len(wish.words & frozenset(analyze_text(title))) / (len(wish.words) or 1)
                    merits[asin] = named - RANK_PENALTY * place
            if merits:
                return f"click[{max(merits, key=merits.__getitem__).lower()}]"
        if best:
            self._decided = best
            if any(asin == best for asin, _, _ in shown):
                return f"click[{best.lower()}]"
            if self._seen[best].query != state.query:
                query = self._seen[best].query
                return f"search[{self._spelt.get(query, query)}]"
            return f"click[{pages.PREVIOUS.lower()}]" if state.number > 1 else f"click[{pages.NEXT.lower()}]"
        if self._searches < 2:
            return self._search(wish)
        return f"click[{shown[0][0].lower()}]" if shown else "search[gift]"

    def _act_on_item(self, state: WebShopState, page: list[Piece], wish: ParsedInstruction, turn: int) -> str:
        asin = self._site.shop.get_head(state.row).asin
        look = self._assess_product(state, page, wish)
        wanted = _choose_options(page, wish, state.goal.instruction)
        others = [seen.merit for other, seen in self._seen.items() if other != asin]
        good = look.merit >= GOOD_SCORE or (bool(wish.options) and look.offered == 1.0)
        best = self._is_late(wish, turn) and look.merit >= max(others, default=0.0)
        best = best or turn + len(wanted) + 3 > self._turns
        if asin != self._decided and not good and not best:
            return f"click[{pages.PREVIOUS.lower()}]"
        chosen = dict(state.options)
        for name, value in wanted.items():
            if chosen.get(name) != value:
                return f"click[{value}]"
        return f"click[{pages.BUY.lower()}]"

    def _is_late(self, wish: ParsedInstruction, turn: int) -> bool:
        """Return whether there is no time left to look at one more product and still buy with all options chosen."""
        return turn + 4 + (len(wish.options) or ASSUMED_OPTIONS) > self._turns

    def _assess_product(self, state: WebShopState, page: list[Piece], wish: ParsedInstruction) -> ProductAssessment:
        """Remember the words on a product's pages and rate it by all of them so far."""
        asin = self._site.shop.get_head(state.row).asin
        before = self._seen[asin].words if asin in self._seen else frozenset()
        visible = " ".join(piece.text for piece in page[2:] if piece.kind == "text")
        words = before | frozenset(analyze_text(visible))
        offered = self._seen[asin].offered if asin in self._seen else 0.0
        if state.kind == "item_page":
            found = _choose_options(page, wish, state.goal.instruction)
            exact = sum(value == found.get(name) for name, value in wish.options)
            nearly = min(len(found), len(wish.options)) - exact
            offered = (
                (exact + NEAR_MATCH_SCORE * nearly) / len(wish.options) if wish.options else 0.8 + 0.2 * len(found)
            )
        covered = len(wish.words & words) / len(wish.words) if wish.words else 1.0
        merit = covered * (0.3 + 0.7 * offered)
        self._seen[asin] = ProductAssessment(merit, offered, words, state.query)
        return self._seen[asin]


def _choose_options(page: list[Piece], wish: ParsedInstruction, instruction: str) -> dict[str, str]:
    """The value to choose for each option that the page offers and the instruction asks for."""
    offered: dict[str, list[str]] = {}
    for piece in page:
        if piece.kind == "option" and is_expressible(piece.text):
            offered.setdefault(piece.name, []).append(piece.text)
    chosen: dict[str, str] = {}
    if not wish.options:
        # Of each option, the longest value whose words are all in the instruction; otherwise one whose colour is in it.
        said = frozenset(analyze_text(instruction))
        for name, values in offered.items():
            fitting = [value for value in values if (words := frozenset(analyze_text(value))) and words <= said]
            tinted = [value for value in values if (color := normalize_color(value)) != value and color in said]
            if fitting or tinted:
                chosen[name] = max(fitting, key=len) if fitting else tinted[0]
        return chosen
    for name, value in wish.options:
        for group in [name] if name in offered else [group for group in offered if group not in chosen]:
            best = max(offered[group], key=lambda text: (text == value, token_set_ratio(text, value)))
            if best == value or token_set_ratio(normalize_color(best), normalize_color(value)) > MATCH_THRESHOLD:
                chosen[group] = best
                break
    return chosen


MAX_GOALS_READ = 5_000
USUAL = 0.5
Kinds = Mapping[str, frozenset[str]]


def collect_kinds(goals: Sequence[Goal]) -> Kinds:
    """Category -> the kinds of options that at least half of its goals name; large shops are sampled evenly."""
    every = max(1, -(-len(goals) // MAX_GOALS_READ))
    counts: dict[str, Counter[str]] = {}
    totals: Counter[str] = Counter()
    for place in range(0, len(goals), every):
        goal = goals[place]
        if isinstance(goal.options, Mapping):
            counts.setdefault(goal.category, Counter()).update(goal.options.keys())
            totals[goal.category] += 1
    usual = {
        category: frozenset(kind for kind, count in asked.items() if count >= USUAL * totals[category])
        for category, asked in counts.items()
    }
    return {category: kinds for category, kinds in sorted(usual.items()) if kinds}


def list_shop_procedures(kinds: Kinds) -> dict[str, Procedures]:
    """Each category, with the categories whose procedure would leave out an option that is usual in it."""
    found = {
        category: tuple(other for other, theirs in kinds.items() if own - theirs) for category, own in kinds.items()
    }
    return {category: Procedures(category, others) for category, others in found.items() if others}


def list_chosen(goal: Goal, actions: Sequence[str]) -> frozenset[str] | None:
    """The kinds of wanted options that these actions chose correctly; None if nothing was bought."""
    clicks = {action.strip().lower() for action in actions}
    if "click[buy now]" not in clicks or not isinstance(goal.options, Mapping):
        return None
    return frozenset(kind for kind, value in goal.options.items() if f"click[{value.strip().lower()}]" in clicks)
