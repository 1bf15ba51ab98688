"""The site's pages as lists of visible pieces, and the four ways to show them.

Every observation mode and the list of clickable things derive from one description of a page, so they cannot disagree.
For a person a page is made from the text observation and the admissible actions alone: one line per statement, and the
possible clicks in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Literal, NamedTuple

from fedagentgym.envs.webshop.catalogue import Head, Product

BACK, PREVIOUS, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
SEPARATOR = " [SEP] "
MODES = ("text", "text_rich", "html", "url")
_SPACE = " \n\t\f\r"

PieceKind = Literal["text", "button", "link", "option"]


class Piece(NamedTuple):
    """A visible part of a page. `name` is set only for option values: the option's name, such as `size`."""

    kind: PieceKind
    text: str
    name: str = ""


def build_start_page(instruction: str) -> list[Piece]:
    texts = (Piece("text", "WebShop"), Piece("text", "Instruction: "), Piece("text", instruction))
    return [*texts, Piece("button", "Search")]


def _build_header(instruction: str) -> list[Piece]:
    return [Piece("text", "Instruction:"), Piece("text", instruction), Piece("button", BACK)]


def build_results_page(instruction: str, heads: Sequence[Head], number: int, total: int) -> list[Piece]:
    pieces = _build_header(instruction)
    pieces.append(Piece("text", f"Page {number} (Total results: {total})"))
    if number > 1:
        pieces.append(Piece("button", PREVIOUS))
    pieces.append(Piece("button", NEXT))
    for asin, title, price_tag in heads:
        pieces += (Piece("link", asin), Piece("text", title), Piece("text", price_tag))
    return pieces


def build_item_page(instruction: str, product: Product) -> list[Piece]:
    pieces = _build_header(instruction)
    pieces.append(Piece("button", PREVIOUS))
    for name, values in product.options.items():
        pieces.append(Piece("text", name))
        pieces += [Piece("option", value, name) for value in values]
    pieces += (
        Piece("text", product.title),
        Piece("text", f"Price: {product.price_tag}"),
        Piece("text", "Rating: N.A."),
    )
    pieces += [Piece("button", label) for label in (*SUB_PAGES, BUY)]
    return pieces


def build_sub_page(instruction: str, product: Product, label: str) -> list[Piece]:
    pieces = _build_header(instruction)
    pieces.append(Piece("button", PREVIOUS))
    if label == "Description":
        pieces.append(Piece("text", product.description))
    elif label == "Features":
        pieces += [Piece("text", f" {bullet}") for bullet in product.bullets]
    return pieces


def build_done_page(asin: str, options: Mapping[str, str], reward: float) -> list[Piece]:
    bought = json.dumps(options, sort_keys=True)
    for sign in "<>&'":
        bought = bought.replace(sign, f"\\u{ord(sign):04x}")
    texts = [
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
        "Purchased",
    ]
    texts += ["asin", asin, "options", bought, "attrs", "None", "category", "None", "query", "None"]
    texts += ["product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"]
    texts += ["category", "product category", "query", "Goal ", "None", "Reward"]
    texts += ["Your score (min 0.0, max 1.0)", str(reward), "Reward Details ", "None"]
    return [Piece("text", text) for text in texts]


def list_clickables(pieces: Iterable[Piece]) -> tuple[str, ...]:
    """Return what can be clicked, in the original's order: buttons, product links, option values; each once."""
    kinds: dict[str, list[str]] = {"button": [], "link": [], "option": []}
    for kind, text, _ in pieces:
        if kind == "option":
            kinds[kind].append(text)
        elif kind != "text":
            kinds[kind].append(text.lower())
    return tuple(dict.fromkeys([*kinds["button"], *kinds["link"], *kinds["option"]]))


def render_text(pieces: Iterable[Piece]) -> str:
    """Visible text, one segment per piece."""
    return SEPARATOR.join([shown.strip() for _, text, _ in pieces if (shown := _normalize_text(text)) is not None])


def render_rich_text(pieces: Iterable[Piece], url: str, visited: frozenset[str]) -> str:
    """One line per piece, with marks around what can be clicked and what was clicked before."""
    lines: list[str] = []
    clicked: list[str] = []
    for kind, raw, _ in pieces:
        text = _normalize_text(raw)
        if text is None:
            continue
        if kind == "text":
            lines.append(text)
        elif kind == "button":
            lines.append(f"[button] {text} [button_]")
        else:
            lead = "\n" if kind == "link" else "  "
            was_clicked = text in visited if kind == "link" else f'"{text}"' in url
            if was_clicked and kind == "option":
                clicked.insert(0, f"You have clicked {text}.")
            mark = "clicked button" if was_clicked else "button"
            lines.append(f"{lead}[{mark}] {text} [{mark}_]")
    return "".join(f"{line}\n" for line in [*clicked, *lines])


def _normalize_text(text: str) -> str | None:
    """A text node as a browser's parser keeps it: None if empty, or blank with a line break; other blank text is one blank."""
    if text.strip(_SPACE):
        return text
    return None if not text or "\n" in text else " "


def render_html(pieces: Iterable[Piece], chosen: Mapping[str, str]) -> str:
    """A plain page with the same elements and texts as the original's: `btn`, `product-link` and radio inputs."""
    rows: list[str] = []
    for kind, raw, name in pieces:
        text = escape(raw)
        if kind == "button":
            if raw == "Search":
                rows.append('<input id="search_input" type="text" name="search_query">')
            rows.append(f'<button type="submit" class="btn">{text}</button>')
        elif kind == "link":
            rows.append(f'<a class="product-link">{text}</a>')
        elif kind == "option":
            checked = " checked" if chosen.get(name) == raw else ""
            rows.append(f'<input type="radio" name="{escape(name)}" value="{text}"{checked}><label>{text}</label>')
        else:
            rows.append(f"<p>{text}</p>")
    return "<!DOCTYPE html>\n<html>\n<head>\n</head>\n<body>\n" + "\n".join(rows) + "\n</body>\n</html>"


_BUTTONS = (BACK, PREVIOUS, NEXT, BUY, *SUB_PAGES, "Search")
_CLICK = re.compile(r"click\[(.*)\]", re.DOTALL)
_PRODUCT = re.compile(r"[a-z0-9]{10}")
_THANKS = "Thank you for shopping with us!"


def present_page(observation: str, actions: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The page's text, and a label for each action.

    >>> page = "Instruction: [SEP] a red hat [SEP] Back to Search [SEP] B000000001 [SEP] Hat [SEP] $3.0"
    >>> present_page(page, ["click[back to search]", "click[b000000001]"])
    ('Instruction: a red hat', ('back to search', 'B000000001  $3.0  Hat'))
    """
    segments = observation.split(SEPARATOR)
    if segments[0] == _THANKS:
        # The page after a purchase is shown without its codes for MTurk.
        score = next((after for text, after in pairwise(segments) if text.startswith("Your score")), "")
        return f"{_THANKS}\nYour score: {score}" if score else _THANKS, tuple(actions)
    clicks = {match[1]: action for action in actions if (match := _CLICK.fullmatch(action)) is not None}
    labels = {action: name for name, action in clicks.items()}
    lines: list[str] = []
    option, place = "", 0
    while place < len(segments):
        text, following = segments[place], segments[place + 1 : place + 3]
        place += 1
        name = text if text in clicks else text.lower()
        if text in _BUTTONS or text == "WebShop":
            continue
        if name in clicks and _PRODUCT.fullmatch(name) and len(following) == 2:
            labels[clicks[name]] = f"{text}  {following[1]}  {following[0]}"
            place += 2
        elif text in clicks:
            if not option and lines:
                option = lines.pop()
            labels[clicks[text]] = f"{option}: {text}" if option else text
            continue
        else:
            lines.append(text)
        option = ""
    shown = "\n".join(lines).replace("Instruction:\n", "Instruction: ", 1)
    return shown, tuple(labels.get(action, action) for action in actions)
