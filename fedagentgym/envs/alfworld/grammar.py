"""The domain and grammar texts that every game file carries: which wording they are, and where new files take them from.

The real engine speaks with the grammar inside each game file. Two grammars are known, today's (`move`) and that of
earlier releases (`put`); both are recognised by the digest of their white-space-normalised text, the task sentence taken
out, and no other text is played: an engine that guesses at unknown rules would answer wrongly without notice.
When a game file is written, both texts come from the installed package; the earlier pair is today's with the few
differences undone.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from functools import lru_cache
from pathlib import Path

from fedagentgym.base.errors import DataError, MissingExtraError

GRAMMARS = {
    "fb5689bd52947327eaab1e91f14a70591a4acc2b493ef298135fdc77f2474020": "move",
    "87107d26b4b5a9724f5c5e9e732e218661047e37d50d8400dfb00d3c2101a468": "put",
}
DOMAINS = {
    "68c0c8ed4392a559a1ad2c107dc77efc940461cfb6153136190f81d312aaebe9": "move",
    "c398bac7936b4387f52da0ff9ba6919b28acde22edfb26db4fe5d249aa1cd927": "put",
}
_TASK = re.compile(r'(Your task is to: )(.*?)(\."\s*\})', re.DOTALL)
_FORBIDDEN_CHARACTERS = frozenset(';|"<>[]#{}\t\n\\')
PLACEHOLDER = "UNKNOWN GOAL"


def recognise(domain: str, grammar: str, where: str) -> tuple[str, str]:
    """The wording of a game file's texts, and its task sentence."""
    wording = GRAMMARS.get(grammar_digest(grammar))
    if wording is None:
        raise DataError(
            f"{where}: unknown grammar; the games of ALFWorld 0.4 ('move') and of earlier releases ('put') can be played"
        )
    if DOMAINS.get(domain_digest(domain)) != wording:
        raise DataError(f"{where}: the PDDL domain is not the one that belongs to the grammar's wording, {wording!r}")
    return wording, extract_task_sentence(grammar, where)


def grammar_digest(grammar: str) -> str:
    return _normal_digest(_TASK.sub(r"\1\3", grammar, count=1))


def domain_digest(domain: str) -> str:
    return _normal_digest(re.sub(r";[^\n]*", "", domain))


def _normal_digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()


def extract_task_sentence(grammar: str, where: str) -> str:
    """The sentence of the task, without its full stop."""
    found = _TASK.search(grammar)
    try:
        sentence = json.loads(f'"{found[2]}"') if found else ""
    except json.JSONDecodeError:
        sentence = ""
    if not sentence or _FORBIDDEN_CHARACTERS & set(sentence):
        raise DataError(f"{where}: the grammar holds no task sentence that the engine could say")
    return str(sentence)


def make_domain_and_grammar(wording: str, task: str) -> tuple[str, str]:
    """The two texts for a new game file, taken from the installed alfworld package."""
    if not task.strip() or _FORBIDDEN_CHARACTERS & set(task):
        raise DataError(
            f"the task sentence {task[:80]!r} is empty or holds a sign that the real engine's grammar cannot say"
        )
    domain, grammar = _make_put_texts() if wording == "put" else _load_installed_texts()
    return domain, grammar.replace(PLACEHOLDER, json.dumps(task)[1:-1])


@lru_cache(maxsize=1)
def _load_installed_texts() -> tuple[str, str]:
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            "writing and playing real ALFWorld game files needs alfworld: pip install 'fedagentgym[alfworld]'"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    try:
        domain, grammar = ((folder / name).read_text("utf-8") for name in ("alfred.pddl", "alfred.twl2"))
    except OSError as error:
        raise DataError(f"{folder}: the installed alfworld lacks its domain or grammar ({error.strerror})") from None
    recognise(domain, grammar, f"the installed alfworld ({folder})")
    return domain, grammar


@lru_cache(maxsize=1)
def _make_put_texts() -> tuple[str, str]:
    """The texts of earlier releases, made from the installed ones; their digests prove that nothing else differs."""
    domain, grammar = _load_installed_texts()
    domain = domain[: domain.index("(:action help")] + ")\n"
    grammar = grammar[: grammar.index("action help {")]
    for today, earlier in (
        ("You arrive at {r.name}.", "You arrive at {lend.name}."),
        ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
        ('"move {o} to {r}"', '"put {o} in/on {r}"'),
    ):
        grammar = grammar.replace(today, earlier)
    recognise(domain, grammar, "the earlier ALFWorld texts")
    return domain, grammar
