"""The texts that the tool `search` covers: a task's own facts, or a library that all tasks share.

A library is the whole generated knowledge base, all paragraphs of a data set, or a folder of text files. In a library, a
title finds its pages; any other query finds the pages that match it best by BM25, as in WebShop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_path, read_text, stamp_file
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.options import EnvOptions
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.reasoning.generators.knowledge import COUNTS, KnowledgeBase, get_knowledge_base
from fedagentgym.envs.reasoning.generators.problems import Fact
from fedagentgym.envs.variants import ClientVariant, Variant
from fedagentgym.envs.verifiers.qa import normalise
from fedagentgym.envs.webshop.index import build_text_index
from fedagentgym.envs.webshop.search import Searcher, Segment

MAX_RESULTS = 3
MAX_ASKED = 200
NOTHING = "Nothing found ."
SUFFIXES = (".txt", ".md")
MAX_PAGE_LENGTH, MAX_PAGES = 1_500, 500_000
_BETWEEN_PARAGRAPHS = re.compile(r"\n[^\S\n]*\n")


class OwnLibrary(ClientVariant):
    """The part of the pages that a client's library has."""

    share: float = Field(ge=0, le=1)
    by: Literal["topic", "random"]
    client: int = Field(ge=0, strict=True)
    seed: int = Field(default=0, ge=0, strict=True)

    def has_page(self, title: str, topic: str) -> bool:
        """True if the library has a page. Pages of one topic (or of one title) are kept or left out together."""
        drawn = stream(self.seed, "library", self.client, self.by, topic if self.by == "topic" else normalise(title))
        return drawn.uniform() < self.share


class CorpusSplit(Variant):
    """Each client's library has a part of the pages, and its searches find only these."""

    kind = "corpus_split"
    client_variant = OwnLibrary

    share: float = Field(
        default=0.7, ge=0, le=1, description="share of the topics, or of the pages, that a library has"
    )
    by: Literal["topic", "random"] = Field(
        default="topic",
        description="topic: whole topics are missing (the topic of a generated page is its country); random: single pages",
    )

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        if "search" not in getattr(options, "tools", ()):
            raise OptionError(f"the variant {self.kind} changes the pages that search finds: add tools=['search']")

    def draw(self, seed: int, client: int) -> OwnLibrary:
        return OwnLibrary(share=self.share, by=self.by, client=client, seed=derive(seed, "world", self.kind))


Topics = Callable[[Fact], str]


def search(facts: Sequence[Fact], query: str) -> str:
    """The texts of the facts whose title is the query, or else of up to three whose titles share most words with it."""
    wanted = normalise(query[:MAX_ASKED])
    about = [fact.text for fact in facts if normalise(fact.title) == wanted]
    if not about and wanted:
        asked = set(wanted.split())
        overlap = [(len(asked & set(normalise(fact.title).split())), -number) for number, fact in enumerate(facts)]
        best = sorted((pair for pair in overlap if pair[0]), reverse=True)[:MAX_RESULTS]
        about = [facts[-number].text for _, number in best]
    return " ".join(about) if about else NOTHING


class Library:
    """Pages that all tasks share."""

    def __init__(self, pages: Sequence[Fact], topics: Topics) -> None:
        self.pages, self._topics = pages, topics
        self._places: dict[str, list[int]] = {}
        for place, page in enumerate(pages):
            self._places.setdefault(normalise(page.title), []).append(place)

    @cached_property
    def _index(self) -> Segment:
        texts = (f"{page.title} {page.text}".lower() for page in self.pages)
        return Segment(build_text_index(texts, np.arange(len(self.pages), dtype=np.int32)))

    def choose(self, part: OwnLibrary | None) -> Shelf:
        """The pages that a client has, drawn as `part` says; None stands for all pages."""
        if part is None:
            return Shelf(self, None)
        known: dict[str, bool] = {}
        held = []
        for page in self.pages:
            topic = self._topics(page)
            key = topic if part.by == "topic" else page.title
            if key not in known:
                known[key] = part.has_page(page.title, topic)
            held.append(known[key])
        return Shelf(self, np.array(held, dtype=bool))

    def find_titled(self, wanted: str) -> Sequence[int]:
        return self._places.get(wanted, ())

    def make_searcher(self, held: NDArray[np.bool_] | None) -> Searcher:
        return Searcher([self._index._replace(allowed=held)])


class Shelf:
    """The pages of a library that a client has."""

    def __init__(self, library: Library, held: NDArray[np.bool_] | None) -> None:
        self._library, self._held = library, held
        self.search = lru_cache(maxsize=4096)(self._search)

    @cached_property
    def _searcher(self) -> Searcher:
        return self._library.make_searcher(self._held)

    def _search(self, query: str) -> str:
        """The texts of at most three pages: those whose title is the query, or else those that match it best."""
        wanted, pages, held = normalise(query[:MAX_ASKED]), self._library.pages, self._held
        places = [place for place in self._library.find_titled(wanted) if held is None or held[place]][:MAX_RESULTS]
        if not places and wanted:
            places = self._searcher.search(query[:MAX_ASKED], MAX_RESULTS)
        return " ".join(pages[place].text for place in places) or NOTHING


# ---- the libraries ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def open_generated(seed: int) -> Library:
    """The pages of the generated knowledge base: people, works, cities and firms."""
    base = get_knowledge_base(seed)
    kinds = [kind for kind in COUNTS if kind != "country"]
    pages, countries = [], {}
    for kind in kinds:
        for one in range(COUNTS[kind]):
            page = base.write_page(kind, one)
            pages.append(page)
            countries[page.title] = base.get_name("country", base.get_country(_find_city(base, kind, one)))
    return Library(pages, lambda page: countries.get(page.title, page.title))


def _find_city(base: KnowledgeBase, kind: str, one: int) -> int:
    """The city of a page: the city that it is about, a firm's seat, or the birthplace of the person or of the work's author."""
    if kind == "firm":
        return base.get_seat(one)
    if kind == "city":
        return one
    return base.get_birthplace(base.get_author(one) if kind == "work" else one)


def collect_pages(facts: Iterable[Fact]) -> Library:
    """The library of a data set's paragraphs, each once; every title is a topic of its own."""
    return Library(tuple(dict.fromkeys(facts)), lambda page: normalise(page.title))


def open_folder(folder: Path) -> Library:
    """The paragraphs of the text files in a folder and its sub-folders.

    The title of a paragraph is the name of its file, and its topic is the folder of that file. Long paragraphs are divided.
    """
    if not folder.is_dir():
        raise DataError(f"library: there is no folder {format_path(folder)}")
    found = (file for file in sorted(folder.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file())
    shown = (file for file in found if not any(name.startswith(".") for name in file.relative_to(folder).parts))
    return _read_files(folder, *((file, stamp_file(file)) for file in shown))


@lru_cache(maxsize=4)
def _read_files(folder: Path, *files: tuple[Path, tuple[int, int, int]]) -> Library:
    topics: dict[Fact, str] = {}
    for file, _ in files:
        text = "\n".join(read_text(file).removeprefix("\ufeff").splitlines())
        for paragraph in _BETWEEN_PARAGRAPHS.split(text):
            words = " ".join(paragraph.split())
            for start in range(0, len(words), MAX_PAGE_LENGTH):
                page = Fact(file.stem, words[start : start + MAX_PAGE_LENGTH])
                topics.setdefault(page, file.parent.relative_to(folder).as_posix())
        if len(topics) > MAX_PAGES:
            raise DataError(f"library: {format_path(folder)} has more than {MAX_PAGES:,} paragraphs")
    if not topics:
        raise DataError(f"library: {format_path(folder)} has no texts ({', '.join(SUFFIXES)})")
    return Library(tuple(topics), topics.__getitem__)
