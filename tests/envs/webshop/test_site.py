"""The site's pages and rules: every recorded step, and what must hold for any action."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.envs.make import open_env
from fedagentgym.envs.view import Episode
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.pages import Piece, build_done_page, list_clickables, render_rich_text, render_text
from fedagentgym.envs.webshop.reward import NounFunction
from fedagentgym.envs.webshop.site import is_expressible, parse_action

SEEN = {"text": "obs_text", "text_rich": "obs_text_rich", "url": "url"}


def start(env: WebShopEnv, goal_index: int) -> Episode:
    (episode,) = env.reset_many([env.pool.ids[goal_index]], [0])
    return episode


def step(env: WebShopEnv, episode: Episode, action: str) -> Episode:
    (episode,) = env.step_many([episode], [action])
    return episode


class Page(HTMLParser):
    """A page as the original's own reader sees it: visible texts, and things that can be clicked."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.buttons: list[str] = []
        self.links: list[str] = []
        self.radios: list[str] = []
        self.has_search_bar = False
        self._inside: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "input":
            self.has_search_bar |= found.get("id") == "search_input"
            if found.get("type") == "radio":
                self.radios.append(found["value"] or "")
            return
        kind = "button" if found.get("class") == "btn" else found.get("class") or ""
        self._inside.append(kind)

    def handle_endtag(self, tag: str) -> None:
        self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not data.strip(" \n\t\f\r"):
            if "\n" in data or not self._inside:
                return
            data = " "
        self.texts.append(data.strip())
        if self._inside and self._inside[-1] == "button":
            self.buttons.append(data.lower())
        elif self._inside and self._inside[-1] == "product-link":
            self.links.append(data.lower())


@pytest.mark.parametrize("kind", ["synthetic", "human"])
@pytest.mark.parametrize("mode", ["text", "text_rich", "url", "html"])
def test_every_recorded_step(
    kind: str, mode: str, webshop_data: Path, parity: Callable[[str], Any], recorded_nouns: NounFunction
) -> None:
    env = open_env(
        WebShopEnv,
        data=str(webshop_data),
        goals=kind,
        observation=mode,
        split="all",
        max_turns=100,
        nouns=recorded_nouns,
    )
    steps = 0
    for record in parity("transcripts")["transcripts"]:
        if record["goal_kind"] != kind:
            continue
        episode = start(env, record["goal_index"])
        for number, expected in enumerate(record["steps"]):
            if "raises" in expected:
                after = step(env, episode, expected["action"])
                assert (after.state, after.view.valid) == (episode.state, False)
                continue
            if number:
                episode = step(env, pickle.loads(pickle.dumps(episode)), expected["action"])
            check(episode, expected, mode)
            steps += 1
    assert steps == {"synthetic": 189, "human": 33}[kind]


def check(episode: Episode, expected: dict[str, Any], mode: str) -> None:
    view = episode.view
    if mode == "html":
        page = Page(view.observation)
        assert " [SEP] ".join(page.texts) == expected["obs_text"]
        assert list(dict.fromkeys([*page.buttons, *page.links, *page.radios])) == list(view.extra["clickables"])
        assert page.has_search_bar == view.extra["has_search_bar"]
    else:
        assert view.observation == expected[SEEN[mode]]
    offered = expected["available_actions"]
    assert list(view.extra["clickables"]) == offered["clickables"]
    assert view.extra["has_search_bar"] == offered["has_search_bar"]
    assert (view.reward, view.done) == (expected["reward"], expected["done"])
    assert view.score == (expected["reward"] if expected["done"] else 0.0)
    assert view.extra.get("details") == expected.get("verbose_reward")


def test_a_snapshot_at_every_step_goes_on_identically(real: WebShopEnv, parity: Callable[[str], Any]) -> None:
    record = next(r for r in parity("transcripts")["transcripts"] if r["note"].startswith("navigation"))
    actions = [entry["action"] for entry in record["steps"][1:]]
    real.reset(seed=0, options={"task": real.pool.ids[record["goal_index"]]})
    for place, action in enumerate(actions):
        frozen = pickle.dumps(real.snapshot())
        expected = [real.step(later) for later in actions[place : place + 3]]
        real.restore(pickle.loads(frozen))
        assert [real.step(later) for later in actions[place : place + 3]] == expected
        real.restore(pickle.loads(frozen))
        real.step(action)
    assert len(pickle.dumps(real.snapshot())) < 6000


HOSTILE = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="search[]click <>rcqa\n\x00\ud800½食★'\"\\", max_size=40),
    st.builds(
        lambda name, text: f"{name}[{text}]", st.sampled_from(["search", "click", "Search", ""]), st.text(max_size=40)
    ),
    st.characters().map(lambda sign: f"search[{sign}]"),
    st.characters(categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Co"]).map(lambda sign: f"click[{sign}buy now]"),
)
PLACES = (
    (),
    ("search[<c> fashion]",),
    ("search[color size]", "click[next >]"),
    ("search[<c> fashion]", "OPEN"),
    ("search[<c> fashion]", "OPEN", "click[features]"),
    ("search[<c> fashion]", "OPEN", "click[buy now]"),
)


def at(env: WebShopEnv, place: tuple[str, ...]) -> Episode:
    episode = start(env, 0)
    for action in place:
        link = next((v for v in episode.view.extra["clickables"] if re.fullmatch("b0[0-9a-z]{8}", v)), "")
        episode = step(env, episode, action.replace("OPEN", f"click[{link}]"))
    return episode


@pytest.fixture(scope="session")
def places(tiny: WebShopEnv) -> list[Episode]:
    return [at(tiny, place) for place in PLACES]


@given(st.integers(0, len(PLACES) - 1), HOSTILE)
def test_hostile_actions_never_raise_and_change_nothing_unless_the_rules_say_so(
    tiny: WebShopEnv, places: list[Episode], place: int, action: str
) -> None:
    before = places[place]
    frozen = pickle.dumps(before)
    after = step(tiny, before, action)
    assert pickle.dumps(before) == frozen
    pattern = re.match(r"(.+)\[(.+)\]", action)
    name, argument = (pattern[1], pattern[2].lower()) if pattern else (action, None)
    acted = argument is not None and (
        (name == "search" and not argument.startswith("<a>") and argument != "<c>" and not argument.startswith("<a> "))
        or (name == "click" and argument in before.view.extra["clickables"] and argument != "search")
    )
    if not acted:
        assert (after.state, after.view.valid) == (before.state, False)
        assert after.view.observation == before.view.observation
        assert (after.view.reward, after.view.done) == (0.0, False)
    else:
        assert after.view.valid


@given(st.text(alphabet="ab[]\n sc", max_size=16))
def test_actions_are_read_as_the_originals_pattern_reads_them(action: str) -> None:
    found = re.match(r"(.+)\[(.+)\]", action)
    assert parse_action(action) == ((found[1], found[2].lower()) if found else (action, None))


@pytest.mark.parametrize(
    "action", ["[" * 100_000, "click[" * 20_000, "]" * 50_000 + "[" * 50_000, "search[" + "a " * 50_000 + "]"]
)
def test_a_hundred_kilobytes_are_read_at_once(tiny: WebShopEnv, action: str) -> None:
    assert isinstance(step(tiny, start(tiny, 0), action).view.observation, str)


def test_values_that_no_action_can_name_are_not_offered() -> None:
    assert [is_expressible(value) for value in ("xl", "a]b", "a[b", "", "a\nb")] == [True, True, False, False, False]


def test_special_searches(tiny: WebShopEnv) -> None:
    episode = start(tiny, 0)
    fashion = step(tiny, episode, "search[<c> fashion]")
    assert "Total results: 16" in fashion.view.observation
    query = episode.task.payload.query
    found = step(tiny, episode, f"search[<q> {query}]")
    shop = tiny.site.shop
    assert all(shop.get_product(row).query == query for row in shop.find(found.state.query, 0) or ())
    random_page = step(tiny, episode, "search[<r>]")
    again = step(tiny, random_page, "click[next >]")
    back = step(tiny, again, "click[< prev]")
    assert back.view.observation == random_page.view.observation
    assert "Total results: 50" in back.view.observation
    for action in ("search[<a> red]", "search[<c>]"):
        assert not step(tiny, episode, action).view.valid


def test_a_query_that_spells_a_page_misleads_the_way_back(tiny: WebShopEnv) -> None:
    episode = step(tiny, start(tiny, 0), "search[search_results color]")
    link = next(v for v in episode.view.extra["clickables"] if v.startswith("b0"))
    item = step(tiny, episode, f"click[{link}]")
    astray = step(tiny, item, "click[< prev]")
    assert "Page 0 (Total results: " in astray.view.observation
    assert not any(value.startswith("b0") for value in astray.view.extra["clickables"])
    assert step(tiny, astray, "click[next >]").view.observation == episode.view.observation


def test_buying_ends_the_task_but_not_the_site(tiny: WebShopEnv) -> None:
    bought = at(tiny, PLACES[5])
    assert bought.terminated and bought.view.extra["clickables"] == () and bought.view.admissible == ()
    after = step(tiny, bought, "click[back to search]")
    assert not after.view.valid and not after.view.done
    assert step(tiny, bought, "search[color size]").view.valid


def test_white_space_is_kept_as_a_browsers_parser_keeps_it() -> None:
    pieces = [Piece("text", text) for text in ("", " \n ", "  ", " a ", "\xa0")]
    assert render_text(pieces) == " [SEP] a [SEP] "
    assert render_rich_text(pieces, "", frozenset()) == " \n a \n\xa0\n"


def test_option_labels_shadow_and_repeat_as_in_the_original() -> None:
    pieces = [
        Piece("button", "Buy Now"),
        Piece("option", "buy now", "a"),
        Piece("option", "xl", "b"),
        Piece("option", "xl", "c"),
    ]
    assert list_clickables(pieces) == ("buy now", "xl")
    rich = render_rich_text(pieces, 'x/{"b": "xl"}', frozenset())
    assert rich.startswith("You have clicked xl.\nYou have clicked xl.\n[button] Buy Now [button_]\n")


def test_options_on_the_receipt_are_escaped() -> None:
    shown = render_text(build_done_page("B0", {"size": "<5 & 'x'", "a": "é"}, 0.5))
    assert r'options [SEP] {"a": "\u00e9", "size": "\u003c5 \u0026 \u0027x\u0027"} [SEP] attrs' in shown
    assert shown.endswith("[SEP] 0.5 [SEP] Reward Details [SEP] None")
