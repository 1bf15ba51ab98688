"""Questions, queries and episodes: the expert is right everywhere, and what is nearly right is wrong."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from functools import cache
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.envs import open_env
from fedagentgym.envs.records.domains import DOMAINS, STYLES, Naming, Schema, Volume, draw_rows
from fedagentgym.envs.records.env import RecordsEnv, open_book
from fedagentgym.envs.records.guard import Budget, Database, Result
from fedagentgym.envs.records.plans import MISCONCEPTIONS, Plan, mutate_plan, write_clauses, write_query
from fedagentgym.envs.records.questions import (
    HOUSES,
    TEMPLATES,
    find_plan,
    list_forms,
    list_kinds,
    make_cells,
    parse_task,
    strip_task,
)
from fedagentgym.envs.records.sites import Site, build_database, find_check_volume, open_checks, open_site
from fedagentgym.envs.variants import assign_variants
from fedagentgym.envs.view import Episode
from fedagentgym.testing import check_env
from tests.envs.records.results import match_results
from tests.partitions.test_samplers import SPECS

RECORDS = "fedagentgym/Records-v0"
FORMS: list[dict[str, Any]] = [
    {"size": "tiny"},
    {"size": "tiny", "categories": "kind", "seed": 3},
    {"size": "tiny", "variant": {"kind": "schema", "style": "short", "split": True}},
    {"size": "tiny", "variant": {"kind": "rules", "house": 2}},
    {},
    {"variant": {"kind": "schema", "style": "long", "split": True}},
    {"variant": {"kind": "rows", "population": 7}, "categories": "kind"},
]
QUESTIONS, OTHERS = 500, 100
SIZES = ["tiny", pytest.param("default", marks=pytest.mark.slow)]


def play(env: Any, task: Any, expert: Any) -> Episode:
    (episode,) = env.reset_many([task], [0])
    while not episode.over:
        (episode,) = env.step_many([episode], [expert.act(episode)])
    return episode


def run(database: Database, query: str) -> Result:
    return database.query(query, Budget(10**9))


def list_site(site: Site) -> tuple[Database, ...]:
    return open_site(site), *open_checks(site)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_conformance(options: dict[str, Any]) -> None:
    check_env(RECORDS, **options)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_the_expert_is_right_in_every_cell_of_every_form(options: dict[str, Any]) -> None:
    env = open_env(RECORDS, split="test", **options)
    for number in range(60):
        episode = play(env, env.pool[number], env.expert())
        assert episode.view.success and episode.reward == 1.0, episode.task
        assert episode.view.rewards["executes"] == 1.0 and 0 < episode.view.rewards["brevity"] < 1


def find_lucky(
    size: Any, questions: int, others: int, domains: Collection[str] = DOMAINS
) -> tuple[int, list[tuple[str, str]]]:
    """The number of wrong plans that were judged, and those that were judged right although other databases tell them apart."""
    made = [*make_cells(size, 0, "domain"), *make_cells(size, 0, "domain", unseen=True)]
    cells = [cell for cell in made if cell.category in domains]
    more: dict[str, list[Database]] = {}
    judged, lucky = 0, []
    for number in range(questions):
        task = cells[number % len(cells)].deck[number // len(cells)]
        site = Site(task.database, size, 0)
        plan, schema, databases = find_plan(task, 0), site.schema, list_site(site)
        query, ordered = write_query(plan, schema), bool(plan.order)
        golds = [run(database, query) for database in databases]
        assert match_results(golds, golds, ordered=ordered)
        for wrong in list_wrong(plan, schema, size):
            judged += 1
            other = write_query(wrong, schema)
            if not match_results(golds, [run(database, other) for database in databases], ordered=ordered):
                continue
            if task.database not in more:
                volumes = [find_check_volume(size, 1000 + number) for number in range(others)]
                more[task.database] = [build_database(site, volume, "more", n) for n, volume in enumerate(volumes)]
            if any(
                not match_results([run(one, query)], [run(one, other)], ordered=ordered) for one in more[task.database]
            ):
                lucky.append((query, other))
    return judged, lucky


def list_wrong(plan: Plan, schema: Schema, size: str) -> list[Plan]:
    """Mutations; in the tiny form those that can be chosen there."""
    made = mutate_plan(plan, schema.domain)
    if size == "default":
        return made
    known = set(open_book(schema).tables)
    return [one for one in made if known.issuperset(write_clauses(one, schema))]


@pytest.mark.parametrize("size", ["tiny", "default"])
def test_every_query_has_twenty_mutations(size: Any) -> None:
    for cell in (*make_cells(size, 0, "domain"), *make_cells(size, 0, "domain", unseen=True)):
        for number in range(10):
            task = cell.deck[number]
            plan = find_plan(task, 0)
            made = mutate_plan(plan, DOMAINS[task.database])
            assert len({plan, *made}) == 1 + len(made) >= 21, task


@pytest.mark.parametrize(("size", "questions"), [("tiny", 30), ("default", 5)])
def test_a_changed_query_is_wrong(size: str, questions: int) -> None:
    judged, lucky = find_lucky(size, questions, 12, {"library"})
    assert judged > (20 if size == "default" else 4) * questions and not lucky


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "default"])
def test_a_changed_query_is_wrong_unless_it_is_the_same_on_a_hundred_databases(size: str) -> None:
    judged, lucky = find_lucky(size, QUESTIONS, OTHERS)
    assert judged > (20 if size == "default" else 4) * QUESTIONS and not lucky


@pytest.mark.parametrize("size", SIZES)
def test_no_query_answers_many_questions(size: str) -> None:
    """The rows of the gold on all databases differ from question to question, so no fixed query earns more than its share."""
    env: Any = open_env(RECORDS, split="test", size=size)
    answers = []
    for task in list(env.pool)[:150]:
        site = Site(task.payload.database, size, 0)
        query = write_query(find_plan(task.payload, 0), site.schema)
        answers.append(repr([sorted(run(one, query).rows, key=repr) for one in list_site(site)]))
    assert max(map(answers.count, answers)) / len(answers) < 0.05


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("domain", DOMAINS)
def test_every_template_has_the_same_rows_whatever_the_names(domain: str, style: Any, split: bool) -> None:
    """A query over renamed and divided tables finds what the plain one finds."""
    volume = Volume(60, 30, 240)
    plain, other = Site(domain, "default", 0), Site(domain, "default", 0, 0, Naming(style, split))
    here, there = build_database(plain, volume, "same"), build_database(other, volume, "same")
    for kind in list_kinds("default"):
        for form in list_forms(domain, kind, "default"):
            for number in (0, form.size // 2, form.size - 1):
                task = form.make_problem(number)
                assert task is not None
                for house in range(HOUSES):
                    plan = find_plan(task, house)
                    found = [run(one, write_query(plan, site.schema)) for one, site in ((here, plain), (there, other))]
                    assert match_results(found[:1], found[1:], ordered=bool(plan.order)), write_query(
                        plan, other.schema
                    )


@pytest.mark.parametrize("domain", DOMAINS)
def test_rows_are_complete_and_the_names_of_people_differ(domain: str) -> None:
    rows = draw_rows(DOMAINS[domain], Volume(2000, 300, 3000), 5, "rows")
    people, things, events = (rows[table] for table in DOMAINS[domain].tables)
    assert len({row[1] for row in people}) == 2000 and len({row[1] for row in things}) == 300
    assert {row[1] for row in events} <= {row[0] for row in people}
    assert rows == draw_rows(DOMAINS[domain], Volume(2000, 300, 3000), 5, "rows")


@cache
def list_tasks(size: str) -> list[Any]:
    """The tasks of all splits, which take seconds to be written."""
    return list(open_env(RECORDS, size=size, split="all").pool)


@pytest.mark.parametrize("size", SIZES)
def test_no_question_is_asked_twice(size: str) -> None:
    questions = [(task.payload.database, task.payload.question) for task in list_tasks(size)]
    assert len(set(questions)) == len(questions)


@pytest.mark.parametrize("size", SIZES)
def test_templates_of_unseen_are_in_no_other_split(size: str) -> None:
    used: dict[str, set[str]] = {}
    for task in list_tasks(size):
        used.setdefault(task.split, set()).add(task.payload.template)
    assert set(used) == set(RecordsEnv.splits) and len(used["unseen"]) > 4
    assert all(not used["unseen"] & templates for split, templates in used.items() if split != "unseen")
    env = open_env(RECORDS, size=size, split="unseen")
    assert all(play(env, env.pool[number], env.expert()).view.success for number in range(30))
    assert [task.payload for task in list_tasks(size)][-len(env.pool) :] == [task.payload for task in env.pool]


def test_a_query_about_rules_is_right_in_one_house_alone() -> None:
    """So the best policy that clients of all houses share solves a third of these questions, and all of the others."""
    envs: list[Any] = [
        open_env(RECORDS, size="tiny", categories="kind", split="test", variant={"kind": "rules", "house": house})
        for house in range(HOUSES)
    ]
    for task in list(envs[0].pool)[:36]:
        for env in envs:
            solved = []
            for house in envs:
                (episode,) = env.reset_many([task], [0])
                for action in (*house.list_clauses(task), "submit"):
                    (episode,) = env.step_many([episode], [action])
                solved.append(bool(episode.view.success))
            assert solved == [task.category != "rule" or house is env for house in envs], task


def test_houses_decide_what_only_rules_ask() -> None:
    seen = set()
    for name, template in TEMPLATES.items():
        task = list_forms("clinic", template.kind, "default")[0].make_problem(1)
        assert task is not None
        plans = {find_plan(task, house) for house in range(HOUSES)}
        assert len(plans) == (HOUSES if template.kind == "rule" else 1)
        seen.add(name)
    assert seen == set(TEMPLATES)


def test_a_rule_is_wrong_in_another_house() -> None:
    worlds = [
        open_env(RECORDS, size="tiny", split="test", variant={"kind": "rules", "house": house})
        for house in range(HOUSES)
    ]
    for task in [task for task in worlds[0].pool if task.payload.kind == "rule"][:12]:
        for env in worlds:
            wins = [play(env, task, RecordsEnv.expert(other)).view.success for other in worlds]
            assert wins == [env is other for other in worlds]


@given(st.integers(0, 10**9), st.integers(1, 4))
def test_clients_in_a_row_have_different_rules(seed: int, count: int) -> None:
    asked = {"kind": "rules", "choices": min(count, HOUSES)}
    drawn = assign_variants(RECORDS, RecordsEnv.variants, asked, seed, 4 * HOUSES)
    houses = [one["house"] for one in drawn if one is not None]
    rows = [houses[at : at + asked["choices"]] for at in range(0, len(houses), asked["choices"])]
    assert all(sorted(row) == list(range(asked["choices"])) for row in rows)


def test_misconceptions_are_wrong_and_admissible() -> None:
    env: Any = open_env(RECORDS, size="tiny", split="test")
    procedures = env.list_procedures()
    assert set(procedures) == {"clinic", "library", "shop"}
    assert all(set(one.others) == {*MISCONCEPTIONS, "wrong_rule"} for one in procedures.values())
    by_kind = open_env(RECORDS, size="tiny", split="test", categories="kind").list_procedures()
    assert by_kind["rule"].others == ("wrong_rule",) and set(by_kind["group"].others) == set(MISCONCEPTIONS)
    for name in (*MISCONCEPTIONS, "wrong_rule"):
        changed = 0
        for task in list(env.pool)[:80]:
            if env.list_clauses(task, name) == env.list_clauses(task):
                continue
            changed += 1
            episode = play(env, task, env.misled_expert(name))
            assert episode.terminated and not episode.view.success and episode.view.rewards["executes"] == 1.0
        assert changed > 5
    with pytest.raises(FedAgentGymError, match="a procedure here is right or one of wrong_key"):
        env.misled_expert("luck")


def test_a_table_is_described_and_a_fault_is_one_sentence() -> None:
    env: Any = open_env(RECORDS)
    observation, _ = env.reset(seed=0, options={"task": "records/train/00000"})
    assert observation.endswith("Tables: patients, doctors, visits")
    observation, *_, info = env.step(" describe[ PATIENTS ] ")
    assert observation.startswith("CREATE TABLE patients (id INTEGER PRIMARY KEY") and info["valid"]
    assert "( 3 rows )" in observation
    observation, *_, info = env.step("describe[nothing]")
    assert observation.startswith("There is no table nothing .") and not info["valid"]
    observation, *_, info = env.step("query[SELECT nme FROM patients]")
    assert observation == "SQL error : no such column: nme" and info["valid"] and info["rewards"]["executes"] == 0.0
    observation, *_, info = env.step("query[SELECT id, x'00' FROM patients ORDER BY id]")
    assert observation.splitlines()[1] == "1 | ( 1 bytes )" and observation.endswith("( 800 rows )")
    assert len(observation.splitlines()) == 12
    observation, reward, terminated, _, info = env.step("answer[SELECT 1 2]")
    assert terminated and not reward and observation.startswith("The answer is not right . SQL error")
    assert info["rewards"] == {"accuracy/records": 0.0, "executes": 0.0, "brevity": 1 - 5 / 12}


def test_an_answer_that_is_right_on_the_own_rows_alone_is_wrong() -> None:
    env: Any = open_env(RECORDS, split="val")
    for task in list(env.pool)[:40]:
        (episode,) = env.reset_many([task], [0])
        query = write_query(find_plan(task.payload, 0), Schema(DOMAINS[task.payload.database], Naming()))
        rows = run(open_site(Site(task.payload.database, "default", 0)), query).rows
        if len(rows) != 1 or len(rows[0]) != 1:
            continue
        value = rows[0][0]
        (episode,) = env.step_many(
            [episode], [f"answer[SELECT {value!r}]" if value is not None else "answer[SELECT NULL]"]
        )
        assert not episode.view.success and episode.view.rewards["executes"] == 1.0


def test_clauses_can_be_dropped_and_tried() -> None:
    env: Any = open_env(RECORDS, size="tiny")
    env.reset(seed=1)
    first = env.episode.view.admissible
    assert all(one.startswith("SELECT ") for one in first)
    observation, *_, info = env.step(first[0])
    assert observation == first[0] and info["admissible"][-3:] == ["run", "clear", "submit"]
    observation, *_, info = env.step("run")
    assert observation.endswith("rows )") and info["rewards"]["executes"] == 1.0
    observation, *_, info = env.step("clear")
    assert observation == "Nothing is chosen ." and tuple(info["admissible"]) == first


@pytest.mark.parametrize("name", SPECS)
def test_every_sampler_forms_clients(name: str) -> None:
    """By the domain, and by the kind of query as a field."""
    more: dict[str, dict[str, Any]] = {
        "natural": {"by": "kind"},
        "by_source": {"sources": None},
        "hardness": {"labels": "pool"},
    }
    own, clients = {**SPECS[name], **more.get(name, {})}, 6
    split = fedagentgym.federate(RECORDS, partition=name, clients=clients, env={"size": "tiny"}, **own)
    env: Any = split[1].open_env()
    assert play(env, env.pool[0], env.expert()).view.success


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments(mode: str) -> None:
    """Processes that are forked after databases were opened open their own."""
    open_env(RECORDS, size="tiny").reset(seed=0)
    vector = gymnasium.make_vec(RECORDS, num_envs=2, vectorization_mode=mode, size="tiny")
    _, infos = vector.reset(seed=4)
    for turn in range(3):
        action = "submit" if turn else infos["admissible"][0][0]
        observations, *_, infos = vector.step((action, action))
    assert len(observations) == 2
    vector.close()


def test_episodes_survive_a_process_and_pickling() -> None:
    env: Any = open_env(RECORDS, size="tiny")
    env.reset(seed=2)
    env.step(env.episode.view.admissible[0])
    again = pickle.loads(pickle.dumps(env))
    assert again.step("submit")[0] == env.step("submit")[0]


def test_a_payload_of_ones_own_and_a_wrong_one() -> None:
    task = next(iter(open_env(RECORDS).pool)).payload
    assert (
        parse_task(task._asdict()) == task
        and strip_task(task)._replace(template=task.template, values=task.values) == task
    )
    for wrong in (
        *({}, {"question": 3}, {"question": "How many ?", "template": "count"}, []),
        *({**task._asdict(), "values": (1,)}, {**task._asdict(), "database": "zoo"}, {**task._asdict(), "ordered": 1}),
    ):
        with pytest.raises(DataError, match="a payload of fedagentgym/Records-v0"):
            parse_task(wrong)
