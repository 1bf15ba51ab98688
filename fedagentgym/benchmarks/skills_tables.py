"""The tables of the world of skills: what is run, and what was expected of it before it was run.

    fedagentgym bench run skills-fedagent      fedagentgym bench run skills-fedgrpo
    fedagentgym bench run skills-pubswap       fedagentgym bench run skills-fedmoa

Clients hold four towns of one procedure each, and the agent believes in half of the towns what is right in the others. All rows
of a table play as many episodes to learn from; what they cost beside that (bytes, public tasks) stands next to them. Settings
are chosen on seeds from 100 on (`Experiment.make_tuning_table`), reported are 0 to 7.

Runs are shared by all tables (`runs/skills`), so a row that two tables have is played once, and a table that was stopped goes
on. `fedagentgym bench skills-pages` writes figures and pictures into `docs/results/` (`skills_results.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedagentgym.base.measurement import Measurement
from fedagentgym.benchmarks.skills_results import (
    TableResults,
    collect_results,
    describe_results,
    load_results,
    save_results,
    write_page,
)
from fedagentgym.experiment.plan import ExperimentTable, list_cells, run_table
from fedagentgym.experiment.result_table import Column, Record, success, to_measurements

FOLDER = Path("runs")
RUNS = FOLDER / "skills"
PAGES = Path("docs") / "results"
KEPT = Path(__file__).parent / "results"
REPORTED_SEEDS, FIRST_TUNING_SEED = 8, 100
EPISODES = 40_960
BASE = "tiny-skills:skills-32"
SHARED = ("accuracy/skills", "format")
STYLES = (("thought", "style/bare"), ("brevity", "style/unit"))
"""What clients with even and with odd numbers want beside what all of them want."""


@dataclass(frozen=True)
class Experiment:
    """A table, and what was said of it before it was run."""

    table: ExperimentTable
    paper: str
    hypotheses: tuple[str, ...]
    metric: str = "success on 1,600 held-out tasks of all 32 towns, at temperature 1, after the last round"
    episodes: int = EPISODES
    smallest: float = 0.04
    target: float = 0.7

    def make_tuning_table(self) -> ExperimentTable:
        """The same table on the seeds that settings may be chosen on."""
        return replace(self.table, name=f"{self.table.name}-tuning", first_seed=FIRST_TUNING_SEED)

    def make_quick_table(self) -> ExperimentTable:
        """Eight towns, one round and one seed: shows that the machinery runs."""
        rows = {name: source.replace("skills-32,", "") for name, source in self.table.rows.items()}
        changes = (
            "federation.rounds=1",
            "evaluation.tasks=80",
            "learning.tasks_per_step=2",
            "partition.tasks_per_client=64",
        )
        return self.table.make_quick(rows, changes, seeds=1)


def make_own_rewards_column(worst: bool = False) -> Column:
    """The mean of what clients are rewarded for, on the towns of each: over all clients, or over those of the style that fares
    worse."""

    def read_own_rewards(folder: Path, record: Record) -> float:
        found = record["final"]["categories"]
        by_style: dict[tuple[str, ...], list[float]] = {style: [] for style in STYLES}
        for client, towns in enumerate(list_towns(record)):
            style = STYLES[client % len(STYLES)]
            by_style[style] += [
                float(found[town][f"reward/{name}"]["mean"]) for town in towns for name in (*SHARED, *style)
            ]
        means = [sum(values) / len(values) for values in by_style.values()]
        return min(means) if worst else sum(means) / len(means)

    return read_own_rewards


def list_towns(record: Record) -> list[list[str]]:
    """The towns of each client: of each source in the order of its name, as `by_source` numbers the clients."""
    sources = record["config"]["partition"].get("sources") or record["final"]["categories"]
    return [source.split("+") for source in sorted(sources)]


def _make_table(
    name: str, rows: Mapping[str, str], pairs: list[tuple[str, str]], columns: Mapping[str, Column] | None = None
) -> ExperimentTable:
    sources = {row: f"{BASE},{variants}" for row, variants in rows.items()}
    chosen = columns or {"held-out success": success}
    return ExperimentTable(f"skills-{name}", sources, chosen, pairs, REPORTED_SEEDS)


FEDAGENT = Experiment(
    _make_table(
        "fedagent",
        {
            "zero-shot": "zero-shot",
            "a client alone": "local-0,as-much,tau-5",
            "centralized": "centralized,as-much,tau-5",
            "FedAgent, tau = 5": "fedavg-grpo,tau-5",
            "FedAgent, tau = 10": "fedavg-grpo,tau-10",
            "FedAgent, tau = 40": "fedavg-grpo,tau-40",
            "favoured: FedAgent, tau = 5": "favoured,fedavg-grpo,tau-5",
            "favoured: FedAgent, tau = 40": "favoured,fedavg-grpo,tau-40",
        },
        [
            ("a client alone", "zero-shot"),
            ("FedAgent, tau = 5", "centralized"),
            ("FedAgent, tau = 10", "FedAgent, tau = 5"),
            ("FedAgent, tau = 40", "FedAgent, tau = 5"),
            ("favoured: FedAgent, tau = 40", "favoured: FedAgent, tau = 5"),
        ],
    ),
    "FedAgent",
    (
        "A client alone is not above zero-shot: what it learns in its town is wrong in as many others.",
        "FedAgent at tau = 5 equals or beats centralized training on as many episodes.",
        "Success falls with tau.",
        "With the right procedure favoured everywhere (no misconceptions) the difference between tau = 40 and tau = 5 vanishes.",
    ),
)
PUBSWAP = Experiment(
    _make_table(
        "pubswap",
        {
            "zero-shot": "zero-shot",
            "FedAvg-GRPO, tau = 10": "fedavg-grpo,tau-10",
            "swap none, tau = 10": "pubswap,swap-none,tau-10",
            "PubSwap, tau = 10": "pubswap,tau-10",
            "FedAvg-GRPO, tau = 40": "fedavg-grpo,tau-40",
            "swap none, tau = 40": "pubswap,swap-none,tau-40",
            "PubSwap, tau = 40": "pubswap,tau-40",
            "PubSwap random, tau = 40": "pubswap,swap-random,tau-40",
        },
        [
            ("PubSwap, tau = 10", "swap none, tau = 10"),
            ("swap none, tau = 10", "FedAvg-GRPO, tau = 10"),
            ("PubSwap, tau = 40", "swap none, tau = 40"),
            ("swap none, tau = 40", "FedAvg-GRPO, tau = 40"),
            ("PubSwap random, tau = 40", "PubSwap, tau = 40"),
        ],
    ),
    "PubSwap",
    (
        "At tau = 40 PubSwap is above the same public steps with nothing exchanged: this difference, and no other, is swapping.",
        "At tau = 10 the difference is smaller than at tau = 40.",
        "Public steps without swapping are above FedAvg-GRPO, since public tasks are of all towns.",
        "Swapping by balance is not below swapping at random.",
    ),
)
FEDGRPO = Experiment(
    _make_table(
        "fedgrpo",
        {
            "zero-shot": "zero-shot",
            "central GRPO": "centralized,as-much,tau-5",
            "competence": "fedgrpo",
            "random experts": "fedgrpo,random-experts",
            "oracle": "fedgrpo,oracle",
            "competence, M = 2": "fedgrpo,experts-2",
            "random experts, M = 2": "fedgrpo,experts-2,random-experts",
            "competence, half of the answers held": "fedgrpo,with-answers",
        },
        [
            ("competence", "random experts"),
            ("oracle", "competence"),
            ("competence, M = 2", "random experts, M = 2"),
            ("competence, half of the answers held", "competence"),
            ("central GRPO", "oracle"),
        ],
    ),
    "FedGRPO",
    (
        "Experts chosen by competence are above experts chosen at random, with one expert and with two.",
        "An oracle that knows a question's town is not far above competence: the repeated name lets embeddings see the skill.",
        "Experts that hold the answer of half of the questions add to competence.",
        "Central GRPO on the true reward is at least as good as the oracle.",
    ),
)
FEDMOA = Experiment(
    _make_table(
        "fedmoa",
        {
            "zero-shot": "manners,zero-shot",
            "fixed weights": "manners,fedmoa,styles,fixed-weights,tau-5",
            "only weights": "manners,fedmoa,styles,only-weights,tau-5",
            "only alpha": "manners,fedmoa,styles,only-alpha,tau-5",
            "FedMOA, cosine": "manners,fedmoa,styles,tau-5",
            "FedMOA, raw": "manners,fedmoa,styles,raw,tau-5",
        },
        [(row, "fixed weights") for row in ("only weights", "only alpha", "FedMOA, cosine", "FedMOA, raw")],
        {
            "own rewards": make_own_rewards_column(),
            "own rewards of the worse style": make_own_rewards_column(worst=True),
            "held-out success": success,
        },
    ),
    "FedMOA",
    (
        "The mean of the clients' own rewards is higher with moving weights than with fixed equal ones.",
        "The worse of the two styles gains at least as much as the better one.",
        "The layout saturates first: its weight falls, and that of accuracy rises, in the course of a run (client metrics).",
        "The cosine moves weights in every round; the raw inner product moves them only while gradients are large.",
    ),
    metric="mean of accuracy, layout and each client's own style on held-out tasks of its town, after the last round",
)
EXPERIMENTS = (FEDAGENT, FEDGRPO, PUBSWAP, FEDMOA)


def describe_experiment(experiment: Experiment) -> str:
    """What a page says of an experiment before it is run."""
    table = experiment.table
    lines = [f"{number}. {text}" for number, text in enumerate(experiment.hypotheses, start=1)]
    lines += [
        "",
        f"- Metric: {experiment.metric}.",
        f"- Budget: {experiment.episodes:,} episodes to learn from in every row but zero-shot.",
        f"- Seeds: 0 to {table.seeds - 1}; settings are chosen on {FIRST_TUNING_SEED} to {FIRST_TUNING_SEED + table.seeds - 1}.",
        f"- The smallest difference that counts: {experiment.smallest}; differences are paired by seed, with 95 % intervals, and "
        f"corrected for {len(table.pairs)} comparisons.",
        "",
        "| row | run alone |",
        "|---|---|",
        *(f"| {row} | `fedagentgym train {source}` |" for row, source in table.rows.items()),
    ]
    return "\n".join(lines) + "\n"


def run_fedagent(quick: bool = False) -> list[Measurement]:
    """FedAgent among 32 towns: alone, together, and in one place, with and without misconceptions."""
    return _run(FEDAGENT, quick)


def run_fedgrpo(quick: bool = False) -> list[Measurement]:
    """FedGRPO among 32 towns: experts by competence, at random, by an oracle."""
    return _run(FEDGRPO, quick)


def run_pubswap(quick: bool = False) -> list[Measurement]:
    """PubSwap among 32 towns, beside the same public steps with nothing exchanged."""
    return _run(PUBSWAP, quick)


def run_fedmoa(quick: bool = False) -> list[Measurement]:
    """FedMOA among 32 towns whose clients want different styles, beside fixed weights and each part alone."""
    return _run(FEDMOA, quick)


def write_pages(quick: bool = False) -> list[Measurement]:
    """Figures and pictures of docs/results, from the files that are kept with the source; to be called at its root."""
    from fedagentgym.benchmarks.skills_figures import draw_results

    written = []
    for experiment in EXPERIMENTS:
        results = load_kept_results(experiment)
        if results is None:
            continue
        short = experiment.table.name.removeprefix("skills-")
        pictures = draw_results(results, PAGES, short)
        write_page(PAGES / f"{short}.md", describe_figures(experiment, results, pictures))
        written.append(Measurement(f"{PAGES / short}.md", len(results.rows), "rows"))
    return written


def load_kept_results(experiment: Experiment) -> TableResults | None:
    """The results of a table that are kept with the source."""
    kept = KEPT / f"{experiment.table.name}.json"
    return load_results(kept) if kept.is_file() else None


def describe_figures(experiment: Experiment, results: TableResults, pictures: Mapping[str, str]) -> str:
    """What stands between the markers of a page: the tables, and the pictures (title -> file)."""
    shown = "\n".join(f"![{title}]({file})" for title, file in pictures.items())
    return f"{describe_results(results, experiment.table.pairs, experiment.smallest)}\n{shown}\n"


def save_finished(experiment: Experiment, table: ExperimentTable) -> Path | None:
    """`results.json` of what is finished of a table, also of one that was stopped."""
    folder = FOLDER / table.name
    results = collect_results(table, list_cells(table, folder, shared=RUNS), experiment.target)
    if results is None:
        return None
    save_results(results, folder / "results.json")
    return folder / "results.json"


def _run(experiment: Experiment, quick: bool) -> list[Measurement]:
    table = experiment.make_quick_table() if quick else experiment.table
    try:
        return to_measurements(run_table(table, FOLDER / table.name, shared=RUNS))
    finally:
        save_finished(experiment, table)
