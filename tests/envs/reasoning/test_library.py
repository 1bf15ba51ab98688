"""Search through a library that all tasks share, or through the part of it that a client has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedagentgym
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs import open_env
from fedagentgym.envs.reasoning.generators.problems import Fact
from fedagentgym.envs.reasoning.library import NOTHING, OwnLibrary, collect_pages, open_folder, open_generated
from fedagentgym.envs.reasoning.qa import open_loaded
from fedagentgym.testing import check_env, check_variant

QA = "fedagentgym/QA-v0"
SEARCHING: dict[str, Any] = {"tools": ["search"], "corpus": "all"}
ROWS = [
    {
        "question": f"Where does number {n} live?",
        "answer": f"town {n}",
        "context": {"title": [f"number {n}", "rain"], "sentences": [[f"number {n} lives in town {n}."], ["It rains."]]},
    }
    for n in range(30)
]


def ask(env: Any, task: Any, query: str) -> str:
    (episode,) = env.reset_many([task], [0])
    (episode,) = env.step_many([episode], [f"<tool> search[{query}] </tool>"])
    return str(episode.view.observation)


def play(env: Any, task: Any) -> Any:
    (episode,), expert = env.reset_many([task], [0]), env.expert()
    while not episode.over:
        (episode,) = env.step_many([episode], [expert.act(episode)])
    return episode


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "wards").mkdir()
    (tmp_path / "wards" / "north.txt").write_text("The north ward has nine beds.\n\nIt is led by Ada.")
    (tmp_path / "south.md").write_text("The south ward treats burns. " * 80)
    (tmp_path / "notes.pdf").write_bytes(b"\xff\xfe")
    return tmp_path


def test_conformance(texts: Path) -> None:
    check_env(QA, **SEARCHING)
    check_env(QA, tools=["search"], library=str(texts))


@pytest.mark.slow
def test_conformance_of_clients_with_a_part_of_the_library() -> None:
    check_variant(QA, "corpus_split", env=SEARCHING, by="random")


def test_every_page_of_the_base_is_found_by_its_name_and_by_its_words() -> None:
    env: Any = open_env(QA, split="test", **SEARCHING)
    pages = open_generated(0).pages
    assert len(pages) == 8_600
    task = env.pool[0]
    for page in pages[::173]:
        assert page.text in ask(env, task, page.title.lower())
        words = page.text.replace(".", " ").replace(",", " ")
        assert page.text in ask(env, task, words[:190])
    assert ask(env, task, "zzz") == ask(env, task, "") == NOTHING


def test_the_expert_needs_as_many_searches_as_a_question_has_pages() -> None:
    env: Any = open_env(QA, split="test", **SEARCHING)
    for number in range(40):
        episode = play(env, env.pool[number])
        assert episode.view.success and episode.turn == len(env.pool[number].payload.path) + 1


def test_a_task_is_the_same_whatever_search_looks_through() -> None:
    plain, other = (open_env(QA, split="val", tools=["search"], corpus=corpus) for corpus in ("own", "all"))
    assert plain.pool.digest == other.pool.digest and plain.task_set == other.task_set
    foreign = next(page for page in open_generated(0).pages if page not in plain.pool[0].payload.facts)
    assert foreign.text not in ask(plain, plain.pool[0], foreign.title)
    assert foreign.text in ask(other, other.pool[0], foreign.title)


@pytest.mark.by_day(3)
@pytest.mark.parametrize("by", ["topic", "random"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_what_a_library_lacks_cannot_be_found(by: Any, share: float) -> None:
    part = OwnLibrary(share=share, by=by, client=2, seed=5)
    env: Any = open_env(QA, split="test", **SEARCHING, variant={"kind": "corpus_split", **part.model_dump()})
    library, held, count = open_generated(0), 0, 0
    for page in library.pages[::43]:
        found = [page.text in ask(env, env.pool[0], query) for query in (page.title, page.text[:150])]
        assert found[0] == found[1]
        held, count = held + found[0], count + 1
    assert abs(held / count - share) < 0.25 and (share not in (0, 1) or held == share * count)


def test_a_topic_is_held_as_a_whole() -> None:
    """People born in one country, their works, its cities and the firms there."""
    env: Any = open_env(
        QA, **SEARCHING, variant={"kind": "corpus_split", "share": 0.5, "by": "topic", "client": 0, "seed": 1}
    )
    base_cities = [page for page in open_generated(0).pages if " is a city in " in page.text]
    countries: dict[str, set[bool]] = {}
    for page in base_cities:
        countries.setdefault(page.text.rpartition(" ")[2], set()).add(page.text in ask(env, env.pool[0], page.title))
    assert all(len(found) == 1 for found in countries.values()) and len(countries) == 40
    assert {found.pop() for found in countries.values()} == {True, False}


def test_clients_have_different_parts_in_every_process() -> None:
    split = fedagentgym.federate(
        QA, clients=3, tasks_per_client=4, variant={"kind": "corpus_split", "share": 0.5}, env=SEARCHING
    )
    envs = [client.open_env() for client in split]
    titles = [page.title for page in open_generated(0).pages[::500]]
    seen = [tuple(title in ask(env, env.pool[0], title) for title in titles) for env in envs]
    assert len(set(seen)) == 3
    assert seen == [
        tuple(title in ask(env, env.pool[0], title) for title in titles) for env in (one.open_env() for one in split)
    ]


def test_a_part_of_a_tasks_own_facts() -> None:
    """Without a shared library the variant takes away facts of the task; shown facts stay."""
    lost = {"kind": "corpus_split", "share": 0.0, "by": "random", "client": 0}
    env: Any = open_env(QA, size="tiny", tools=["search"], variant=lost)
    assert ask(env, env.pool[0], env.pool[0].payload.path[0]) == NOTHING
    shown, plain = open_env(QA, size="tiny", variant=lost), open_env(QA, size="tiny")
    assert shown.reset(seed=3)[0] == plain.reset(seed=3)[0]


def test_the_paragraphs_of_data_are_the_corpus() -> None:
    env: Any = open_env(QA, data=ROWS, **SEARCHING)
    assert ask(env, env.pool[3], "number 17") == "number 17 lives in town 17."
    assert ask(env, env.pool[3], "rain") == "It rains."
    assert "number 4 lives" in ask(env, env.pool[0], "who lives in town 4")
    assert "number 17" not in ask(open_env(QA, data=ROWS, tools=["search"]), env.pool[3], "17 of the town")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Files as HotpotQA publishes them: of each question two paragraphs that it needs and two of another one."""
    rows = []
    for number in range(24):
        pages = [
            [title, [f"{title} {verb} {other}.", " It rains often."]]
            for one in (number, (number + 7) % 24)
            for title, verb, other in ((f"Ann {one}", "lives in", f"Bo {one}"), (f"Bo {one}", "is in", f"Cado {one}"))
        ]
        found = [[f"Ann {number}", 0], [f"Bo {number}", 0]]
        asked = {"_id": str(number), "question": f"In which land does Ann {number} live?", "answer": f"Cado {number}"}
        rows.append({**asked, "type": "bridge", "level": "easy", "context": pages, "supporting_facts": found})
    (tmp_path / "hotpot_train_v1.1.json").write_text(json.dumps(rows[:16]))
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps(rows[16:]))
    return tmp_path


def test_the_paragraphs_of_published_files_are_the_corpus(published: Path) -> None:
    files: dict[str, Any] = {"source": "hotpotqa", "data": str(published), **SEARCHING}
    env: Any = open_env(QA, split="val", **files)
    assert env.split_sizes() == {"train": 16, "val": 8, "test": 0, "warmup": 0, "unseen": 0}
    for task in env.pool:
        assert "In which land" in env.reset(options={"task": task.id})[0] and "lives in" not in env.reset()[0]
        episode = play(env, task)
        assert episode.view.success and episode.turn == 3
    assert ask(env, env.pool[0], "Ann 3") == "Ann 3 lives in Bo 3. It rains often."
    assert open_loaded(env.load_pool("all")) is open_loaded(open_env(QA, split="train", **files).load_pool("all"))
    with pytest.raises(FedAgentGymError, match="only generated tasks have this split"):
        open_env(QA, split="unseen", **files)
    clients = fedagentgym.federate(
        QA, clients=2, variant={"kind": "corpus_split", "share": 0.5, "by": "random"}, env=files
    )
    envs = [client.open_env() for client in clients]
    known = [tuple(f"Ann {n} lives" in ask(env, env.pool[0], f"Ann {n}") for n in range(24)) for env in envs]
    assert known[0] != known[1] and all(0 < sum(held) < 24 for held in known)


def test_a_folder_of_texts_is_the_corpus(texts: Path) -> None:
    env: Any = open_env(QA, size="tiny", tools=["search"], library=str(texts))
    task = env.pool[0]
    assert ask(env, task, "North") == "The north ward has nine beds. It is led by Ada."
    assert ask(env, task, "how many beds?") == "The north ward has nine beds."
    assert len(ask(env, task, "south")) > 2_000
    some = {"kind": "corpus_split", "share": 0.5, "by": "topic", "client": 1, "seed": 0}
    lacks = set()
    for client in range(12):
        options: dict[str, Any] = {"library": str(texts), "variant": {**some, "client": client}}
        part = open_env(QA, size="tiny", tools=["search"], **options)
        lacks.add(tuple(ask(part, task, query) == NOTHING for query in ("north", "south")))
    assert len(lacks) > 2


def test_texts_as_editors_write_them(tmp_path: Path) -> None:
    """A mark at the start, other ends of lines, blanks on an empty line, capital suffixes, and one name in two folders."""
    for name, text in {
        "marked.txt": "\ufeffAda leads it.\n\nIt has nine beds.",
        "windows.TXT": "Bea leads it.\r\n\r\nIt has eight beds.\r\n",
        "old.md": "Cem leads it.\r\rIt has six beds.",
        "blanks.txt": "Dan leads it.\n \t\nIt has five beds.",
        "north/notes.txt": "Eva leads the north.",
        "south/notes.txt": "Fay leads the south.",
        ".git/hidden.txt": "Gil leads nothing.",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    library = open_folder(tmp_path)
    assert [page.text for page in library.pages if page.title == "marked"] == ["Ada leads it.", "It has nine beds."]
    assert len(library.pages) == 10 and library is open_folder(tmp_path)
    for name in ("marked", "windows", "old", "blanks"):
        assert len([page for page in library.pages if page.title == name]) == 2
    parts = {by: [OwnLibrary(share=0.5, by=by, client=one) for one in range(20)] for by in ("topic", "random")}
    found = {library.choose(part).search("notes") for part in parts["topic"]}
    assert found == {
        NOTHING,
        "Eva leads the north.",
        "Fay leads the south.",
        "Eva leads the north. Fay leads the south.",
    }
    (tmp_path / "marked.txt").write_text("Hal leads it now.")
    assert library is not open_folder(tmp_path)
    assert {library.choose(part).search("Gil") for part in parts["random"]} == {NOTHING}


def test_the_same_paragraph_is_one_page() -> None:
    assert len(collect_pages([Fact("a", "b"), Fact("a", "b"), Fact("a", "c")]).pages) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": "all"}, "corpus=all sets the pages that search covers: add tools="),
        ({"library": "/nowhere"}, "library= sets the pages that search covers: add tools="),
        ({"corpus": "all", "tools": ["search"], "size": "tiny"}, "with size=tiny every task has its own"),
        ({"library": "/nowhere", "tools": ["search"]}, "there is no folder"),
        ({"corpus": "al"}, "did you mean 'all'"),
    ],
)
def test_what_cannot_be_searched(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedAgentGymError, match=message):
        open_env(QA, **options)


def test_an_empty_folder_and_a_shared_library(tmp_path: Path) -> None:
    with pytest.raises(FedAgentGymError, match="has no texts"):
        open_env(QA, tools=["search"], library=str(tmp_path))
    assert open_generated(0) is open_generated(0)
