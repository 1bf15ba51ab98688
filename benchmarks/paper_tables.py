"""The papers' tables in small, each one command with three seeds; `--quick` for the small grid.

    python -m benchmarks table1-tiny          python -m benchmarks fedgrpo-tiny
    python -m benchmarks pubswap-tiny         python -m benchmarks fedmoa-tiny

Rows are presets with variants (`experiment/presets/`), so that every run of a table is also a run of its own, for example
`fedagentgym train tiny-math:fedgrpo,experts-4`. What comes out is reported as it comes out: in `runs/NAME/table.md`, and that of
the small grids in `benchmarks/results/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measurement import Measurement
from benchmarks.tables import (
    Column,
    ExperimentTable,
    Record,
    make_success_column,
    run_folder,
    run_table,
    to_measurements,
)


def make_mean_column(category: str, objectives: tuple[str, ...]) -> Column:
    """The mean of several rewards on the held-out tasks of one category."""

    def read_category_mean(folder: Path, record: Record) -> float:
        found = record["final"]["categories"][category]
        return sum(float(found[f"reward/{name}"]["mean"]) for name in objectives) / len(objectives)

    return read_category_mean


TABLE1 = ExperimentTable(
    "table1-tiny",
    {
        "zero-shot": "tiny-alfworld:zero-shot",
        "local 3": "tiny-alfworld:local-3",
        "local 9": "tiny-alfworld:local-9",
        "local 16": "tiny-alfworld:local-16",
        "centralized": "tiny-alfworld:centralized",
        "fedagent": "tiny-alfworld",
    },
    processes=1,
)
TABLE1_QUICK = TABLE1.make_quick(
    TABLE1.rows, ("federation.rounds=4", "evaluation.tasks=60", "evaluation.every=4"), seeds=1
)

FEDGRPO = ExperimentTable(
    "fedgrpo-tiny",
    {
        "zero-shot": "tiny-math:zero-shot",
        "central GRPO": "tiny-math:central-grpo",
        "Fedpetuning + GRPO": "tiny-math:fedpetuning-grpo",
        "Fedpetuning + SFT": "tiny-math:fedpetuning-sft",
        "DPSDA-FL + GRPO": "tiny-math:dpsda-grpo",
        "FedGRPO": "tiny-math:fedgrpo",
        "FedGRPO, without answers": "tiny-math:fedgrpo,without-answers",
        "FedGRPO, untrained experts": "tiny-math:fedgrpo,untrained-experts",
        "FedGRPO, random experts": "tiny-math:fedgrpo,random-experts",
        **{f"FedGRPO, M = {count}": f"tiny-math:fedgrpo,experts-{count}" for count in (1, 4, 6, 8)},
        **{f"FedGRPO, K = {count}": f"tiny-math:fedgrpo,clients-{count}" for count in (4, 8, 20)},
    },
    pairs=[
        *(
            (name, "zero-shot")
            for name in ("central GRPO", "Fedpetuning + GRPO", "FedGRPO", "FedGRPO, without answers")
        ),
        ("FedGRPO", "central GRPO"),
        ("FedGRPO", "Fedpetuning + GRPO"),
        ("FedGRPO", "FedGRPO, without answers"),
        ("FedGRPO", "FedGRPO, random experts"),
    ],
)
FEDGRPO_QUICK = FEDGRPO.make_quick(
    [name for name in FEDGRPO.rows if name not in ("FedGRPO, M = 6", "FedGRPO, K = 8", "FedGRPO, untrained experts")],
    ["learning.tasks_per_step=16"],
)

PUBSWAP_METHODS = {
    "FedAvg-GRPO": "fedavg-grpo",
    "FedProx 0.01": "fedprox-0.01",
    "PubSwap": "pubswap",
    "FedProx 0.001": "fedprox-0.001",
    "FedProx 0.1": "fedprox-0.1",
    "PubSwap, random": "pubswap,swap-random",
    "PubSwap, every 4th step": "pubswap,swap-every-4",
}


def make_tau_rows(methods: Mapping[str, str], taus: Sequence[int], prefix: str = "") -> dict[str, str]:
    """A row for each method and each number of local steps, after the agent as it is."""
    rows = {
        f"{name}, tau = {tau}": f"tiny-math:lora,{variants},{prefix}tau-{tau}"
        for tau in taus
        for name, variants in methods.items()
    }
    return {"zero-shot": "tiny-math:lora,zero-shot", **rows}


PUBSWAP = ExperimentTable(
    "pubswap-tiny",
    make_tau_rows(PUBSWAP_METHODS, (10, 40, 120)),
    pairs=[
        (f"{name}, tau = {tau}", f"FedAvg-GRPO, tau = {tau}")
        for tau in (10, 40, 120)
        for name in PUBSWAP_METHODS
        if name != "FedAvg-GRPO"
    ],
)
PUBSWAP_QUICK = PUBSWAP.make_quick(
    make_tau_rows(
        {name: PUBSWAP_METHODS[name] for name in ("FedAvg-GRPO", "FedProx 0.01", "PubSwap")}, (10, 40), "short-"
    ),
    [],
)

SETTINGS = {"Homo+Homo": "homo", "Homo+Heter": "heter"}
FEDMOA = ExperimentTable(
    "fedmoa-tiny",
    {
        "zero-shot": "tiny-mixture:zero-shot",
        **{
            f"{kind}, {setting}, {method}": f"tiny-mixture:{kind}-{variant},{method.lower()}"
            for kind in ("math", "code")
            for setting, variant in SETTINGS.items()
            for method in ("fedavg-grpo", "FedMOA")
        },
        "Heter+Heter, fedavg-grpo": "tiny-mixture:heter-heter,fedavg-grpo",
        "Heter+Heter, only alpha": "tiny-mixture:heter-heter,adaptive-aggregation-only",
        "Heter+Heter, only weights": "tiny-mixture:heter-heter,adaptive-weights-only",
        "Heter+Heter, FedMOA": "tiny-mixture:heter-heter,fedmoa",
        "Heter+Heter, FedMOA raw": "tiny-mixture:heter-heter,fedmoa,hypergradient-raw",
    },
    columns={
        "math": make_success_column("math"),
        "math rewards": make_mean_column("math", ("accuracy/math", "format", "tags")),
        "code": make_success_column("code"),
        "code rewards": make_mean_column("code", ("accuracy/code", "code_format", "tags")),
    },
    pairs=[
        *(
            (f"{kind}, {setting}, FedMOA", f"{kind}, {setting}, fedavg-grpo")
            for kind in ("math", "code")
            for setting in SETTINGS
        ),
        *(
            (f"Heter+Heter, {part}", "Heter+Heter, fedavg-grpo")
            for part in ("only alpha", "only weights", "FedMOA", "FedMOA raw")
        ),
    ],
)
FEDMOA_QUICK = FEDMOA.make_quick(
    [name for name in FEDMOA.rows if not name.startswith("code") and not name.endswith("raw")],
    ["federation.rounds=3", "learning.tasks_per_step=8"],
)


def run_table1_tiny(quick: bool = False) -> list[Measurement]:
    """FedAgent against local and centralized training (its paper's table 1)."""
    return _run_and_measure(TABLE1_QUICK if quick else TABLE1)


def run_fedgrpo_tiny(quick: bool = False) -> list[Measurement]:
    """FedGRPO against its baselines, with and without answers, over M and K (its paper's tables 1-2, figures 3-4)."""
    return _run_and_measure(FEDGRPO_QUICK if quick else FEDGRPO)


def run_pubswap_tiny(quick: bool = False) -> list[Measurement]:
    """PubSwap against FedAvg-GRPO and FedProx over tau under strong heterogeneity (its paper's tables 1 and 4)."""
    return _run_and_measure(PUBSWAP_QUICK if quick else PUBSWAP)


def run_fedmoa_tiny(quick: bool = False) -> list[Measurement]:
    """FedMOA against FedAvg of local GRPO in three settings, with its ablations (its paper's tables 1 and 2)."""
    return _run_and_measure(FEDMOA_QUICK if quick else FEDMOA)


def _run_and_measure(table: ExperimentTable) -> list[Measurement]:
    return to_measurements(run_table(table, run_folder(table.name)))
