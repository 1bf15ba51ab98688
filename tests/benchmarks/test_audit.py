"""The audit page: the quick form of every section gives the table that stands on the page, and no row is left out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.audit import PAGE, SECTIONS
from benchmarks.excerpts import make_marks
from benchmarks.findings import Findings
from benchmarks.fixed_replies import (
    OWN_PAGES,
    PAGES,
    Earned,
    describe_page,
    find_best,
    list_audited,
    list_sizes,
    name_env,
    play,
)
from benchmarks.kills import FAULTS
from benchmarks.mutants import change_once, count_changed, count_constants, count_survivors, leave_statements_out
from benchmarks.probes import PROBED, Probed, find_probes
from benchmarks.repeats import DRAWN
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning.generators.problems import Program
from fedagentgym.envs.verifiers.code import Call, Checks
from fedagentgym.partitions.samplers import SAMPLERS

NEEDED = {"probes": ("falsepass",), "losses": ("trl", "polgrad", "torch"), "mathematics": ("math_verify",)}
SLOW = ("faults",)
"""Sections whose quick forms take more than ten seconds."""


def read_table(page: Path, name: str) -> tuple[list[str], dict[str, list[str]]]:
    """The header of a table on a page, and its rows by name."""
    begin, end = make_marks(name)
    text = page.read_text("utf-8")
    assert text.count(begin) == text.count(end) == 1
    lines = text.partition(begin)[2].partition(end)[0].split("\n")
    header, _, *rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("|")
    ]
    return header, {row[0]: row[1:] for row in rows}


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in SECTIONS]
)
def test_a_section_has_the_form_of_its_quick_one(name: str) -> None:
    for module in NEEDED.get(name, ()):
        pytest.importorskip(module)
    found = SECTIONS[name](True)
    header, rows = read_table(PAGE, name)
    assert header == [found.row, *found.columns]
    assert found.rows and set(found.rows) <= set(rows)
    assert name in ("faults", "kills") or list(found.rows) == list(rows)
    assert all(len(cells) == len(found.columns) for cells in (*found.rows.values(), *rows.values()))
    figures = found.to_measurements()
    assert len({figure.name for figure in figures}) == len(figures) and all(figure.value >= 0 for figure in figures)


def test_every_environment_and_size_has_its_rows() -> None:
    names = [
        f"{name_env(env_id)}{f', {size}' if size else ''}" for env_id in list_audited() for size in list_sizes(env_id)
    ]
    for page, place in ((PAGE, "fixed-replies"), (PAGES / "index.md", "fixed-replies"), (PAGE, "replays")):
        assert list(read_table(page, place)[1]) == names
    probed = read_table(PAGE, "probes")[1]
    assert {name.partition(",")[0] for name in probed} == {name_env(env_id) for env_id in list_audited()}
    assert set(DRAWN) == {name for name in SAMPLERS.names() if not SAMPLERS.is_added(name)}
    assert list(read_table(PAGE, "faults")[1]) == list(FAULTS)


def test_the_line_of_each_environments_page_is_that_of_the_table() -> None:
    header, rows = read_table(PAGES / "index.md", "fixed-replies")
    cells = {name: (float(row[0]), *row[1:]) for name, row in rows.items()}
    found = Findings(header[0], dict.fromkeys(header[1:], ""), cells)
    for page in set(OWN_PAGES.values()):
        begin, end = make_marks("fixed-replies")
        told = (PAGES / page).read_text("utf-8").partition(begin)[2].partition(end)[0].strip()
        assert told == describe_page(found, page) and " %" in told
    assert {name_env(env_id) for env_id in list_audited()} == {*OWN_PAGES, "Guess"}


def test_what_the_page_says_is_good() -> None:
    """The bars that the page has to hold: a false pass, a live mutant or a lost kill is a fault and not a finding."""
    probes = read_table(PAGE, "probes")[1]
    named = {"Skills, replies=equation", "Math, verifier math-verify-reply"}
    assert [name for name, row in probes.items() if int(row[2]) and name not in named] == []
    mutants = read_table(PAGE, "mutants")[1]
    assert all(row[2] == "0" and row[4] == "0" for row in mutants.values())
    assert all(int(row[7]) <= 5 for row in mutants.values()) and {name.split(", ")[-1] for name in mutants} >= {
        "unseen"
    }
    exact = [row for name, row in read_table(PAGE, "mathematics")[1].items() if name.endswith("`exact`")]
    assert all(row[3] == "0" for row in exact) and all(float(row[4]) < 5 for row in exact)
    assert all(float(row[1]) < 1e-12 for row in read_table(PAGE, "losses")[1].values())
    assert all(row[0] == row[1] for row in read_table(PAGE, "replays")[1].values())
    assert all(row[0] == row[1] and row[3] == "0" for row in read_table(PAGE, "results")[1].values())
    assert all(row[4] == "0" for row in read_table(PAGE, "splits")[1].values())
    assert all(row[0] == row[1] for row in read_table(PAGE, "faults")[1].values())


# ---- what is counted --------------------------------------------------------------------------------------------------


def test_no_other_eight_numbers_find_more() -> None:
    env = open_env(GuessEnv, split="test")
    starts = env.reset_many(env.pool.ids, [0] * len(env.pool))
    best = find_best(GuessEnv.id, "", "test", 1_000)
    assert best.tasks == len(starts) and best.solved == play(env, starts, best.script).solved
    for first in range(1, 30):
        other = play(env, starts, tuple(f"guess {first + step}" for step in range(env.max_turns)))
        assert isinstance(other, Earned) and other.solved <= best.solved


def test_a_fixed_answer_solves_as_many_tasks_as_have_it() -> None:
    found = find_best("fedagentgym/Skills-v0", "", "test", 100_000)
    env = open_env("fedagentgym/Skills-v0", split="test")
    answers = [task.payload.answers[0] for task in env.pool]
    assert found.solved == max(map(answers.count, set(answers))) and found.tasks == len(answers)


def test_a_test_that_every_program_passes_kills_none() -> None:
    solution = "def f(x):\n    x = x + 1\n    x = x * 2\n    return x\n"
    weak = Program("", Checks("f", (Call((1,), 4),)), solution)
    strong = Program("", Checks("f", tuple(Call((one,), 2 * one + 2) for one in (1, 5, 9))), solution)
    assert count_constants(weak) == (1, 1) and count_constants(strong) == (3, 0)
    assert count_survivors(leave_statements_out(solution), strong) == (3, 0)
    made, passed = count_survivors(change_once(solution), strong)
    assert made == 4 and passed == 0
    assert count_changed(strong) == (4, 0, 0) and count_changed(weak)[2] > 0
    threshold = Program(
        "", Checks("f", (Call((3,), 0), Call((4,), 1))), "def f(x):\n    return 0 if x < 4 else 1 - x % 1"
    )
    assert count_changed(threshold)[1:] == (1, 1), "1 + x % 1 is equal, x % 2 differs at 5"
    lenient = Program("", Checks("f", (Call((-1,), 0),)), solution)
    assert count_survivors(leave_statements_out(solution), lenient)[1] == 1, "nothing times two is nothing"


@pytest.mark.skipif(find_spec("falsepass") is None, reason="needs falsepass")
def test_probes_find_a_grader_that_pays_too_much_and_one_that_pays_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedagentgym.envs.reasoning.qa import QAEnv
    from fedagentgym.envs.verifiers import right, wrong

    case = (Probed("QA, tiny", QAEnv.id, {"size": "tiny"}, 2),)
    assert find_probes(True, case).rows["QA, tiny"][2:] == (0, 0)
    for verdict, place in ((right("all"), 2), (wrong("none"), 3)):
        monkeypatch.setattr(
            QAEnv, "grade", lambda *_, said=verdict: (said._replace(parsed="x"), {"accuracy/qa": said.score})
        )
        rows = find_probes(True, case).rows["QA, tiny"]
        assert float(rows[place]) > 0 and rows[5 - place] == 0
    assert {one.name for one in PROBED} >= {"Math", "QA", "Code", "Skills", "Mixture", "Guess", "WebShop", "ALFWorld"}
