"""The tables of the skills environment: what is run, and what was expected before it was run.

    python -m benchmarks skills-fedagent      python -m benchmarks skills-fedgrpo
    python -m benchmarks skills-pubswap       python -m benchmarks skills-fedmoa
    python -m benchmarks skills-methods       all four methods, clients of three kinds

Clients hold four categories each, and the agent applies the wrong procedure in half of all categories. All rows
of a table play as many episodes to learn from; other costs (bytes, public tasks) are listed with them. Settings
are chosen on seeds from 100 on, reported are 0 to 11; every seed is a world of its own (`skills_worlds.py`).

Runs are shared by all tables (`runs/skills`), so a row that two tables have is played once, and a table that was stopped goes
on, with `--store FOLDER` also where `runs` was lost. `python -m benchmarks skills-pages` writes figures and pictures into
`docs/experiments/` (`skills_results.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from benchmarks.skills_results import (
    TableResults,
    collect_results,
    describe_results,
    describe_suite,
    load_results,
    make_metric_column,
    read_suite,
    save_results,
    write_page,
)
from benchmarks.skills_worlds import make_world
from benchmarks.tables import (
    Column,
    ExperimentTable,
    Record,
    list_cells,
    run_folder,
    run_table,
    success,
    to_measurements,
)
from fedagentgym.federation.records import read_metrics_log

RUNS = "skills"
PAGES = ROOT / "docs" / "experiments"
KEPT = ROOT / "benchmarks" / "results"
REPORTED_SEEDS = 12
EPISODES = 20_480
BASE = "tiny-skills:skills-32"
SHARED = ("accuracy/skills", "format")
STYLES = (("thought", "style/bare"), ("brevity", "style/unit"))
"""Rewards of clients with even and odd numbers, in addition to the common ones."""


@dataclass(frozen=True)
class Experiment:
    """A table, and what is said of it; the hypotheses, written before it was run, stand on its page."""

    table: ExperimentTable
    paper: str
    metric: str = "success on 640 held-out tasks of all 32 towns, at temperature 1, after the last round"
    episodes: int = EPISODES
    smallest: float = 0.04
    target: float = 0.7
    suite: str | None = None
    """The suite that plays the table with every row searched alike; its page shows it from the day on which it has results."""
    diagnostics: Mapping[str, Column] = field(default_factory=dict)
    """Read from the runs' records to explain a difference; they are not compared."""

    def make_quick_table(self) -> ExperimentTable:
        """Eight categories, one round and one seed: shows that the machinery runs."""
        rows = {
            name: re.sub(
                r"skills-32,|iid,|one-procedure,|x16|-20x4|-80x1",
                lambda part: "-5" if part[0][0] == "-" else "",
                source,
            )
            for name, source in self.table.rows.items()
        }
        changes = (
            "federation.rounds=1",
            "evaluation.tasks=80",
            "learning.tasks_per_step=2",
            "partition.tasks_per_client=64",
        )
        return self.table.make_quick(rows, changes, seeds=1)


def make_own_rewards_column(worst: bool = False) -> Column:
    """The mean of the clients' own rewards, on the categories of each: over all clients, or over those of the style that fares
    worse. A row without objectives is measured by the styles."""

    def read_own_rewards(folder: Path, record: Record) -> float:
        found = record["final"]["categories"]
        configured = record["config"].get("algorithm", {}).get("objectives") or [[*SHARED, *style] for style in STYLES]
        sets = [tuple(SHARED[0] if name == "accuracy" else name for name in one) for one in configured]
        by_set: dict[tuple[str, ...], list[float]] = {one: [] for one in sets}
        for client, categories in enumerate(list_categories(record)):
            own = sets[client % len(sets)]
            by_set[own] += [float(found[category][f"reward/{name}"]["mean"]) for category in categories for name in own]
        means = [sum(values) / len(values) for values in by_set.values()]
        return min(means) if worst else sum(means) / len(means)

    return read_own_rewards


def make_weight_column(objective: str) -> Column:
    """The mean weight over clients of an objective that all have, after the last round; an equal share where none trained."""

    def read_weight(folder: Path, record: Record) -> float:
        *_, last = read_metrics_log(folder / "metrics.jsonl")
        weights = [float(reported[f"weight/{objective}"]) for reported in last.get("clients", {}).values()]
        return sum(weights) / len(weights) if weights else 1 / len((*SHARED, *STYLES[0]))

    return read_weight


def read_weight_of_styles(folder: Path, record: Record) -> float:
    """The mean weight of a client's own styles after the last round; an equal share where none trained."""
    *_, last = read_metrics_log(folder / "metrics.jsonl")
    weights = [
        float(weight)
        for reported in last.get("clients", {}).values()
        for name, weight in reported.items()
        if name.startswith("weight/style/")
    ]
    return sum(weights) / len(weights) if weights else 1 / len((*SHARED, *STYLES[0]))


def read_success_elsewhere(folder: Path, record: Record) -> float:
    """Held-out success in the categories that client 0 does not hold: what it learns alone was never practised there."""
    found, own = record["final"]["categories"], set(list_categories(record)[0])
    elsewhere = [float(one["success"]["mean"]) for category, one in found.items() if category not in own]
    return sum(elsewhere) / len(elsewhere)


def list_categories(record: Record) -> list[list[str]]:
    """The categories of each client: of each source in the order of its name, as `by_source` numbers the clients."""
    sources = record["config"]["partition"].get("sources") or record["final"]["categories"]
    return [source.split("+") for source in sorted(sources)]


def _make_table(
    name: str, rows: Mapping[str, str], pairs: list[tuple[str, str]], columns: Mapping[str, Column] | None = None
) -> ExperimentTable:
    sources = {row: f"{BASE},{variants}" for row, variants in rows.items()}
    chosen = columns or {"held-out success": success}
    return ExperimentTable(f"skills-{name}", sources, chosen, pairs, REPORTED_SEEDS, world=make_world)


FEDAGENT = Experiment(
    _make_table(
        "fedagent",
        {
            "zero-shot": "zero-shot",
            "a client alone": "local-0,tasks-per-step-32,tau-5x16",
            "centralized": "centralized,tasks-per-step-32,tau-5x16",
            "FedAgent, tau = 5": "fedavg-grpo,tau-5x16",
            "FedAgent, tau = 20": "fedavg-grpo,tau-20x4",
            "FedAgent, tau = 80": "fedavg-grpo,tau-80x1",
            "favoured: FedAgent, tau = 5": "no-misconceptions,fedavg-grpo,tau-5x16",
            "favoured: FedAgent, tau = 80": "no-misconceptions,fedavg-grpo,tau-80x1",
        },
        [
            ("a client alone", "zero-shot"),
            ("FedAgent, tau = 5", "centralized"),
            ("FedAgent, tau = 20", "FedAgent, tau = 5"),
            ("FedAgent, tau = 80", "FedAgent, tau = 5"),
            ("favoured: FedAgent, tau = 80", "favoured: FedAgent, tau = 5"),
        ],
        {"held-out success": success, "success outside client 0's towns": read_success_elsewhere},
    ),
    "FedAgent",
    suite="skills-fedagent-v1",
)
PUBSWAP = Experiment(
    _make_table(
        "pubswap",
        {
            "zero-shot": "zero-shot",
            "FedAvg-GRPO, tau = 20": "fedavg-grpo,tau-20x4",
            "swap none, tau = 20": "pubswap,swap-none,tau-20x4",
            "PubSwap, tau = 20": "pubswap,tau-20x4",
            "FedAvg-GRPO, tau = 80": "fedavg-grpo,tau-80x1",
            "swap none, tau = 80": "pubswap,swap-none,tau-80x1",
            "PubSwap, tau = 80": "pubswap,tau-80x1",
            "PubSwap random, tau = 80": "pubswap,swap-random,tau-80x1",
        },
        [
            ("PubSwap, tau = 20", "swap none, tau = 20"),
            ("swap none, tau = 20", "FedAvg-GRPO, tau = 20"),
            ("PubSwap, tau = 80", "swap none, tau = 80"),
            ("swap none, tau = 80", "FedAvg-GRPO, tau = 80"),
            ("PubSwap random, tau = 80", "PubSwap, tau = 80"),
        ],
    ),
    "PubSwap",
    suite="skills-pubswap-v1",
    diagnostics={
        "public answers": make_metric_column("public/answers", total=True),
        "public answers, right": make_metric_column("public/right", total=True),
        "public answers, swapped": make_metric_column("public/swapped", total=True),
        "length of an update": make_metric_column("update_norm"),
    },
)
FEDGRPO = Experiment(
    _make_table(
        "fedgrpo",
        {
            "zero-shot": "zero-shot",
            "central GRPO": "centralized,tasks-per-step-64,tau-5x16",
            "competence": "fedgrpo,strong-experts",
            "random experts": "fedgrpo,strong-experts,random-experts",
            "oracle": "fedgrpo,strong-experts,oracle-experts",
            "competence, M = 2": "fedgrpo,strong-experts,experts-2",
            "random experts, M = 2": "fedgrpo,strong-experts,experts-2,random-experts",
            "competence, half of the questions held": "fedgrpo,strong-experts,server-overlap-0.5",
            "competence, half of the answers held": "fedgrpo,strong-experts,with-answers",
        },
        [
            ("competence", "random experts"),
            ("oracle", "competence"),
            ("competence, M = 2", "random experts, M = 2"),
            ("competence, half of the questions held", "competence"),
            ("competence, half of the answers held", "competence, half of the questions held"),
            ("central GRPO", "oracle"),
        ],
    ),
    "FedGRPO",
    episodes=2 * EPISODES,
    suite="skills-fedgrpo-v1",
    diagnostics={"mean score that experts gave": make_metric_column("scores/mean")},
)
FEDMOA = Experiment(
    _make_table(
        "fedmoa",
        {
            "zero-shot": "reply-styles,zero-shot",
            "fixed weights": "reply-styles,fedmoa,style-rewards,fixed-weights,tau-5x16",
            "only weights": "reply-styles,fedmoa,style-rewards,adaptive-weights-only,tau-5x16",
            "only alpha": "reply-styles,fedmoa,style-rewards,adaptive-aggregation-only,tau-5x16",
            "FedMOA, cosine": "reply-styles,fedmoa,style-rewards,tau-5x16",
            "FedMOA, raw": "reply-styles,fedmoa,style-rewards,hypergradient-raw,tau-5x16",
            "unequal sets: fixed weights": "reply-styles,fedmoa,unequal-objectives,fixed-weights,tau-5x16",
            "unequal sets: only alpha": "reply-styles,fedmoa,unequal-objectives,adaptive-aggregation-only,tau-5x16",
            "unequal sets: FedMOA, cosine": "reply-styles,fedmoa,unequal-objectives,tau-5x16",
        },
        [
            *((row, "fixed weights") for row in ("only weights", "only alpha", "FedMOA, cosine", "FedMOA, raw")),
            *((f"unequal sets: {row}", "unequal sets: fixed weights") for row in ("only alpha", "FedMOA, cosine")),
        ],
        {
            "own rewards": make_own_rewards_column(),
            "own rewards of the worse style": make_own_rewards_column(worst=True),
            "held-out success": success,
        },
    ),
    "FedMOA",
    suite="skills-fedmoa-v1",
    metric="mean of accuracy, layout and each client's own style on held-out tasks of its town, after the last round",
    diagnostics={
        **{f"weight of {name} at the end": make_weight_column(name) for name in SHARED},
        "weight of a style at the end": read_weight_of_styles,
        **{
            f"reward for the layout, round {number}": make_metric_column("reward/format", at=number)
            for number in (1, 4)
        },
        **{
            f"agreement of {name}": make_metric_column(f"delta/{name}")
            for name in (*SHARED, "style/bare", "style/unit")
        },
        "success of clients on their own tasks while they learn, last round": make_metric_column("success", at=16),
        "length of an update": make_metric_column("update_norm"),
    },
)
HETEROGENEITIES = {"alike": "iid,", "four towns": "", "one procedure": "one-procedure,"}
"""Clients with tasks of all categories; with four categories, of both procedures as in the other tables; with four of one."""
METHODS_COMPARED = {
    "FedAvg-GRPO": "fedavg-grpo,tau-20x4",
    "PubSwap": "pubswap,tau-20x4",
    "FedGRPO": "fedgrpo,strong-experts-half-budget",
    "FedMOA": "fedmoa,two-objectives,tau-20x4",
}
METHODS = Experiment(
    _make_table(
        "methods",
        {
            "zero-shot": "zero-shot",
            "centralized": "centralized,tasks-per-step-32,tau-5x16",
            "centralized, large steps": "centralized,tasks-per-step-128,tau-5x4",
            **{
                f"{clients}: {method}": f"{how}{variants}"
                for clients, how in HETEROGENEITIES.items()
                for method, variants in METHODS_COMPARED.items()
            },
        },
        [
            (f"{clients}: {method}", f"{clients}: FedAvg-GRPO")
            for clients in HETEROGENEITIES
            for method in METHODS_COMPARED
            if method != "FedAvg-GRPO"
        ],
    ),
    "Four methods",
    suite="skills-methods-v1",
)
EXPERIMENTS = (FEDAGENT, FEDGRPO, PUBSWAP, FEDMOA, METHODS)


def run_fedagent(quick: bool = False, store: Path | None = None) -> list[Measurement]:
    """FedAgent with 32 categories: alone, together, and in one place, with and without misconceptions."""
    return _run(FEDAGENT, quick, store)


def run_fedgrpo(quick: bool = False, store: Path | None = None) -> list[Measurement]:
    """FedGRPO with 32 categories: experts by competence, at random, by an oracle."""
    return _run(FEDGRPO, quick, store)


def run_pubswap(quick: bool = False, store: Path | None = None) -> list[Measurement]:
    """PubSwap with 32 categories, compared with the same public steps without an exchange."""
    return _run(PUBSWAP, quick, store)


def run_methods(quick: bool = False, store: Path | None = None) -> list[Measurement]:
    """Four methods with iid clients, with clients that hold four categories, and with clients of one procedure."""
    return _run(METHODS, quick, store)


def run_fedmoa(quick: bool = False, store: Path | None = None) -> list[Measurement]:
    """FedMOA with 32 categories, whose clients want different styles, compared with fixed weights and each part alone."""
    return _run(FEDMOA, quick, store)


def write_pages(quick: bool = False) -> list[Measurement]:
    """Write the tables and pictures of docs/experiments, and README's two pictures, from the kept results."""
    from benchmarks.pictures import PICTURES
    from benchmarks.pictures.results import draw_overview, draw_small_model
    from benchmarks.skills_figures import draw_results
    from benchmarks.small_model import CURVES, load_kept, write_small_page

    written = []
    for experiment in EXPERIMENTS:
        shown = describe_experiment(experiment)
        if shown is None:
            continue
        results, tables = shown
        short = experiment.table.name.removeprefix("skills-")
        pictures = draw_results(results, PAGES, short)
        write_page(PAGES / f"{short}.md", f"{tables}\n{link_pictures(pictures)}\n")
        written.append(Measurement(f"docs/experiments/{short}.md", len(results.rows), "rows"))
        if experiment is FEDAGENT:
            draw_overview(results).save(PICTURES / "overview.svg")
    write_small_page()
    if (small := load_kept().get(CURVES.name)) is not None:
        draw_small_model(small).save(PICTURES / "small-model.svg")
    return written


def load_kept_results(experiment: Experiment) -> TableResults | None:
    """The results of a table that are kept with the source."""
    kept = KEPT / f"{experiment.table.name}.json"
    return load_results(kept) if kept.is_file() else None


def describe_experiment(experiment: Experiment) -> tuple[TableResults, str] | None:
    """The results of an experiment and their tables: of its suite if that was played, else of the table that is kept."""
    if experiment.suite is not None:
        played = read_suite(experiment.suite, ROOT / "leaderboard" / "results", experiment.diagnostics)
        if played is not None:
            return played, describe_suite(played)
    kept = load_kept_results(experiment)
    return None if kept is None else (kept, describe_results(kept, experiment.table.pairs, experiment.smallest))


def link_pictures(pictures: Mapping[str, str]) -> str:
    """The pictures of a page (title -> file)."""
    return "\n".join(f"![{title}]({file})" for title, file in pictures.items())


def save_finished(experiment: Experiment, table: ExperimentTable) -> Path | None:
    """`results.json` of the finished part of a table, also of an interrupted one."""
    folder = run_folder(table.name)
    results = collect_results(
        table, list_cells(table, folder, shared=run_folder(RUNS)), experiment.target, experiment.diagnostics
    )
    if results is None:
        return None
    save_results(results, folder / "results.json")
    return folder / "results.json"


def _run(experiment: Experiment, quick: bool, store: Path | None) -> list[Measurement]:
    table = experiment.make_quick_table() if quick else experiment.table
    try:
        return to_measurements(run_table(table, run_folder(table.name), shared=run_folder(RUNS), store=store))
    finally:
        save_finished(experiment, table)
