"""The environment `fedagentgym/WebShop-v0`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedagentgym.base.errors import DataError, check_choice
from fedagentgym.envs.misconceptions import MisleadableEnv, Procedures
from fedagentgym.envs.options import INSTALLED, EnvOptions, local, play, task
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.protocols import Expert, Handicap
from fedagentgym.envs.tasks import Task, TaskIds
from fedagentgym.envs.view import View
from fedagentgym.envs.webshop import generate, pages
from fedagentgym.envs.webshop.expert import (
    TURNS,
    Kinds,
    WebShopExpert,
    collect_kinds,
    list_chosen,
    list_shop_procedures,
)
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.pages import present_page
from fedagentgym.envs.webshop.reward import NounFunction, get_noun_function
from fedagentgym.envs.webshop.site import Site, Transition, WebShopState
from fedagentgym.envs.webshop.stock import (
    LOADED_SPLITS,
    PUBLISHED_GOALS,
    ShopChoice,
    ShopData,
    compute_split_ranges,
    open_shop_data,
)
from fedagentgym.envs.webshop.variants import WEBSHOP_VARIANTS, ShopVariant, make_unchanged_shop

READ_PRODUCTS = 2000
_PAGE_WORDS = (
    "search click SEP WebShop Instruction Page Total results Price Rating N.A. and price lower than dollars with You have "
    "clicked button Thank you for shopping with us! Your code: None Paste it in your MTurk interface. Purchased asin options "
    "attrs category query product Target upper instuction text Goal Reward score min max Details"
)


def iter_vocabulary(stock: ShopData) -> Iterator[str]:
    """Page labels, and the texts of products: of all products in a small shop, of the first two thousand in a large one. The
    product numbers of a large shop are left out, since they can be spelt."""
    yield _PAGE_WORDS
    for label in (pages.BACK, pages.PREVIOUS, pages.NEXT, pages.BUY, *pages.SUB_PAGES):
        yield label
        yield label.lower()
    catalogue = stock.catalogue
    for row in range(min(len(catalogue), READ_PRODUCTS)):
        product = catalogue.read_product(row)
        if len(catalogue) <= READ_PRODUCTS:
            yield product.asin
            yield product.asin.lower()
        for text in (product.title, product.description, *product.bullets, product.query, *product.attributes):
            yield text
            yield text.lower()
        for name, values in product.options.items():
            yield name
            yield from values
        instructions = catalogue.read_instructions(row)
        yield instructions.text or ""
        yield from (entry["instruction"] for entry in instructions.human)
    if len(catalogue) > READ_PRODUCTS and stock.folder is not None and "generator" in stock.source:
        for department in generate.DEPARTMENTS:
            yield from (*department.attributes, *department.looks, *department.materials, *department.uses)


ACCURACY = "accuracy/webshop"


class WebShopOptions(EnvOptions):
    """The shop, its goals, and how pages are shown."""

    data: str | Path | None = local(
        None,
        description="folder with the original's files, or with their import by `data add`; `installed`: the imported data;"
        " null: a generated shop",
    )
    size: Literal["default", "tiny", "small"] = task(
        "default",
        description="size of a generated shop: default, 1,000 products; tiny, 60; small, 60 with more goals for the warm start",
    )
    products: int | None = task(
        None,
        description="number of products of a generated shop, or of records that are read from a folder, from the first on;"
        " null: as `size` says, or all",
    )
    goals: Literal["synthetic", "human"] = task(
        "synthetic",
        description="goals: synthetic, put together from attributes and options; human, written by people, which needs data",
    )
    goal_order: Literal["webshop", "fedagent"] = task(
        "webshop", description="order of the goals, which decides the splits: the original's, or FedAgent's"
    )
    seed: int = task(42, description="seed of the generated shop, of prices and of price caps")
    observation: Literal["text", "text_rich", "html", "url"] = play(
        "text", description="how a page is shown: as segments, as lines with marked buttons, as HTML, or as its address"
    )
    nouns: str | Callable[..., Any] = play(
        "rule",
        description="how the nouns of titles, which distinguish kinds of product, are found: rule, spacy, or a function",
    )
    num_prev_obs: int = play(0, ge=0, description="earlier observations that an observation repeats, oldest first")
    num_prev_actions: int = play(0, ge=0, description="earlier actions that an observation repeats, oldest first")


class WebShopEnv(MisleadableEnv[WebShopOptions]):
    """Buy what an instruction asks for: search, look at products, choose options, buy.

    **Actions** `search[words]` and `click[what is on the page]`. Other actions have no effect.

    **Observations** `observation="text"` (segments joined by ` [SEP] `), `"text_rich"` (lines with button marks), `"html"`
    or `"url"`.

    **Reward** at the purchase, in 0..1: the share of wanted attributes, options and price cap that the purchase meets,
    times a factor for how well its kind is the wanted one. `info["success"]` means a reward of 1.0. `reward="success10"` pays 10
    for success and otherwise 0.
    """

    id = "fedagentgym/WebShop-v0"
    payload_type = Goal
    takes = "command"
    role = "You are a shopper on an online store. Find and buy the product that the instruction describes."
    action_help = (
        "search[words] looks for products and works best with the kind of product and a few wanted properties; "
        "click[...] presses what the page shows: a product number, an option value, 'next >', '< prev', 'back to search', "
        "'description', 'features', 'reviews', 'buy now'. Choose every wanted option before you buy; buying ends the task."
    )
    split_aliases: ClassVar[Mapping[str, str]] = {"eval": "val"}
    default_max_turns = TURNS
    shares_pools = True
    reward_names = (ACCURACY,)
    variants = WEBSHOP_VARIANTS
    handicap = Handicap(error=0.3, turns=10)
    published_action_tail = 20

    def set_up(self) -> None:
        chosen = self.options
        self._tagger = get_noun_function(chosen.nouns)
        place = None if chosen.data is None else str(chosen.data)
        self.stock = open_shop_data(
            ShopChoice(place, chosen.size, chosen.products, chosen.goals, chosen.goal_order, chosen.seed)
        )
        self._history = (chosen.num_prev_obs, chosen.num_prev_actions)

    @cached_property
    def site(self) -> Site:
        """The site of the shop; a variant's shop is built for the goals of this client."""
        if isinstance(self.variant, ShopVariant):
            shop = self.variant.build_shop(self.stock, map(self._get_goal, self.pool), self._tagger)
            return Site(shop, self._tagger)
        return _open_unchanged_site(self.stock, self._tagger)

    @staticmethod
    def count_published(options: WebShopOptions) -> tuple[Mapping[str, int], ...]:
        """Return the splits of the 6,910 synthetic goals of the 1,000 products; other goals and products are not counted."""
        if options.data != INSTALLED or options.goals != "synthetic" or options.products is not None:
            return ()
        ranges = compute_split_ranges(PUBLISHED_GOALS, options.goal_order, LOADED_SPLITS)
        return ({split: len(goals) for split, goals in ranges.items()},)

    def load_pool(self, split: str) -> TaskPool:
        goals, splits = self.stock.goals, self.stock.splits
        names = self.stock.catalogue.category_names
        if split == "all":
            ids: TaskIds = AllIds(self.id, splits)
            places = range(len(goals))
        else:
            places = splits[split]
            ids = TaskIds(self.id, split, len(places))
        codes = goals.category_codes[places.start : places.stop]
        return TaskPool(
            env=self.id,
            split=split,
            ids=ids,
            categories=(names, codes),
            payload=lambda index: goals[places[index]],
            source=self.stock.source,
            strip=lambda goal: goal.without_answer(),
            split_of=lambda index: next(name for name, part in splits.items() if places[index] in part),
        )

    def begin(self, task: Task, seed: int) -> tuple[WebShopState, View]:
        return self._make_view(Transition(WebShopState(self._get_goal(task), seed), acted=True), None)

    def _get_goal(self, task: Task) -> Goal:
        """The goal of a task, which may come from a pool that was made for another shop."""
        goal, catalogue = task.payload, self.stock.catalogue
        if not isinstance(goal, Goal):
            raise DataError(f"task {task.id} carries no shopping goal: its payload is {type(goal).__name__}")
        if goal.known and (goal.row >= len(catalogue) or catalogue.head(goal.row).asin != goal.asin):
            raise DataError(f"task {task.id} was made for another shop: its target {goal.asin} is not in this one")
        return goal

    def advance(self, state: WebShopState, action: str) -> tuple[WebShopState, View]:
        return self._make_view(self.site.play(state, action), action)

    def vocabulary(self) -> Iterable[str]:
        return iter_vocabulary(self.stock)

    def goal(self, task: Task) -> str:
        return self._get_goal(task).instruction

    def present(self, view: View) -> tuple[str, tuple[str, ...]]:
        if self.options.observation != "text":
            return view.observation, view.admissible or ()
        return present_page(view.observation, view.admissible or ())

    def expert(self) -> Expert:
        return WebShopExpert(self.site, min(self.max_turns, TURNS))

    def list_procedures(self) -> Mapping[str, Procedures]:
        """Each category, with the categories whose procedure would leave out an option that is usual in it."""
        return list_shop_procedures(_collect_kinds(self.stock))

    def misled_expert(self, procedure: str) -> Expert:
        kinds = _collect_kinds(self.stock)
        obeyed = kinds[check_choice("procedure", procedure, tuple(kinds))]
        return WebShopExpert(self.site, min(self.max_turns, TURNS), obeyed)

    def follows(self, task: Task, actions: Sequence[str], procedure: str) -> bool:
        """Return whether exactly the wanted options that are usual in the category `procedure` were chosen. For the goal's own
        category, these are all wanted options."""
        goal = self._get_goal(task)
        chosen = list_chosen(goal, actions)
        obeyed = frozenset(goal.options) if procedure == goal.category else _collect_kinds(self.stock)[procedure]
        return chosen is not None and chosen == frozenset(goal.options) & obeyed

    def _make_view(self, move: Transition, action: str | None) -> tuple[WebShopState, View]:
        state = move.state
        pieces = self.site.build_page(state)
        if self.options.observation == "text":
            shown = pages.render_text(pieces)
        elif self.options.observation == "html":
            shown = pages.render_html(pieces, dict(state.options))
        else:
            shown = self.site.make_url(state)
            if self.options.observation == "text_rich":
                shown = pages.render_rich_text(pieces, shown, state.visited)
        if any(self._history):
            state, shown = self._add_history(state, shown, action)
        offer = self.site.get_page_actions(state)
        extra: dict[str, Any] = {
            "instruction": state.goal.instruction,
            "has_search_bar": not state.kind,
            "clickables": offer.clickables,
            "options": dict(state.options),
        }
        score = 0.0
        if move.done:
            score = float(state.reward)
            if move.purchase is not None:
                extra["details"] = move.purchase.details()
        rewards = {ACCURACY: score}
        view = View(shown, offer.actions, score, score, score == 1.0, move.done, move.acted, rewards, extra)
        return state, view

    def _add_history(self, state: WebShopState, shown: str, action: str | None) -> tuple[WebShopState, str]:
        """The observation after the earlier ones, oldest first, joined as in the original."""
        many_seen, many_done = self._history
        seen, done = state.past
        if action is not None:
            done = (*done, action)[-many_done:] if many_done else ()
        segments = [shown]
        if action is not None:
            for back in range(1, max(many_seen, many_done) + 1):
                segments += done[-back : len(done) - back + 1] if back <= len(done) else ()
                segments += seen[-back : len(seen) - back + 1] if back <= len(seen) else ()
        kept = (*seen, shown)[-many_seen:] if many_seen else ()
        return state._replace(past=(kept, done)), pages.SEPARATOR.join(reversed(segments))


@lru_cache(maxsize=8)
def _collect_kinds(stock: ShopData) -> Kinds:
    return collect_kinds(stock.goals)


@lru_cache(maxsize=8)
def _open_unchanged_site(stock: ShopData, nouns: NounFunction) -> Site:
    """The site over an unchanged shop, which environments share; it holds only tables and a cache of results."""
    return Site(make_unchanged_shop(stock), nouns)


class AllIds(TaskIds):
    """The ids of every goal in the order of the goal list: test, val, train, warmup, each under its split's name."""

    def __init__(self, env: str, splits: Mapping[str, range]) -> None:
        self._parts = [TaskIds(env, split, len(places)) for split, places in splits.items()]
        self._ends = np.cumsum([len(part) for part in self._parts]).tolist()
        super().__init__(env, "all", self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, place, side="right"))
        return self._parts[number][place - self._ends[number]]

    def __iter__(self) -> Any:
        return (identifier for part in self._parts for identifier in part)

    def find_position(self, identifier: str) -> int | None:
        start = 0
        for part in self._parts:
            found = part.find_position(identifier)
            if found is not None:
                return start + found
            start += len(part)
        return None
