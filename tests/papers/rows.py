"""The rows of the papers' tables and figures, as they are started: `fedagentgym train ROW`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

AGENTS = ("qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "llama-3.2-3b")
LOCAL = ("local-21", "local-42", "local-84")
WORLDS = ("paper-webshop", "paper-alfworld")
ABLATIONS = ("tasks-500", "tasks-1000", "clients-1", "clients-4", "epochs-1", "epochs-5")
PREFERENCES = ("preference-0.1", "preference-0.9")
COVERAGES, HARDNESSES = ("coverage-256", "coverage-1"), ("hardness-256", "hardness-1")
SHOPS = ("catalog-split", "index-fields", "bm25-weights", "lookalikes", "rank-wrapper")
FEDGRPO_METHODS = (
    *("zero-shot", "fedpetuning-grpo", "fedpetuning-sft", "dpsda-grpo", "dpsda-sft"),
    *("central-grpo", "fedgrpo"),
)
MATH_MODELS = ("qwen2.5-math-1.5b", "qwen2.5-3b", "qwen2.5-math-7b")
TAUS = (10, 40, 90, 120)
FEDPROX = ("fedprox-0.001", "fedprox-0.01", "fedprox-0.1")
PUBSWAP_METHODS = ("fedavg-grpo", *FEDPROX, "pubswap")
FEDMOA_METHODS = ("fedavg-grpo", "fedmoa")
CLIENTS_TOO = ("evaluation.at_clients=[held_out]", "evaluation.every=1")
"""Beside a row: each client's model is evaluated after every round."""


def cross(preset: str, *parts: Sequence[str | int]) -> tuple[str, ...]:
    """A preset with one variant of each part, in every combination; an empty variant is left out."""
    rows = [""]
    for part in parts:
        rows = [f"{row},{one}" if row and one else f"{row}{one}" for row in rows for one in part]
    return tuple(f"{preset}:{row}" if row else preset for row in rows)


def with_taus(front: Sequence[str], methods: Sequence[str], taus: Sequence[int], tau: str = "tau") -> tuple[str, ...]:
    """Rows of PubSwap's tables: the methods that train at every tau, and the agent as it is."""
    trained = cross("paper-pubswap", *[[one] for one in front], methods, [f"{tau}-{steps}" for steps in taus])
    return (*cross("paper-pubswap", *[[one] for one in front], ["zero-shot"]), *trained)


TABLES: Mapping[str, tuple[str, ...]] = {
    "FedAgent, table 1": tuple(
        row for world in WORLDS for row in cross(world, AGENTS, ("", "centralized", *LOCAL, "zero-shot"))
    ),
    "FedAgent, figure 2": tuple(row for world in WORLDS for row in cross(world, ("", "centralized"))),
    "FedAgent, figure 3": tuple(row for world in WORLDS for row in cross(world, ABLATIONS)),
    "FedAgent, figure 4": tuple(
        row for world in WORLDS for row in cross(world, (*PREFERENCES, *COVERAGES, *HARDNESSES))
    ),
    "FedAgent, later worlds": cross("paper-webshop", SHOPS),
    "FedAgent, other rows": (
        *(
            row
            for world in WORLDS
            for row in cross(
                world,
                (
                    "published",
                    "tasks-per-step-64",
                    "preference-logit-0.1",
                    "preference-logit-0.9",
                    "lora",
                    "fedprox",
                    "ppo",
                ),
            )
        ),
        "paper-alfworld:unseen",
        *(row for world in WORLDS for row in cross(world, AGENTS[1:], ("published",))),
    ),
    "FedGRPO, table 1": cross("paper-fedgrpo", MATH_MODELS, ("math", "openr1"), FEDGRPO_METHODS),
    "FedGRPO, table 2": cross("paper-fedgrpo", MATH_MODELS, ("zero-shot", "central-grpo", "without-answers")),
    "FedGRPO, table 3": cross("paper-fedgrpo", ("qwen2.5-1.5b", "qwen2.5-3b"), ("qa",), FEDGRPO_METHODS),
    "FedGRPO, figure 3": cross("paper-fedgrpo", ("qwen2.5-math-1.5b",), ("clients-4", "clients-10", "clients-20")),
    "FedGRPO, figure 4": cross(
        "paper-fedgrpo", ("qwen2.5-math-1.5b",), ("experts-1", "experts-4", "experts-6", "experts-8")
    ),
    "FedGRPO, other rows": cross(
        "paper-fedgrpo",
        (
            "published",
            "qwen2.5-3b,published",
            "qwen2.5-math-7b,published",
            "iid",
            "random-experts",
            "fedpetuning-grpo,adapter-learning-rate-1e-4",
        ),
    ),
    "PubSwap, tables 1 and 7": tuple(
        row
        for model in ("qwen3-1.7b", "qwen2.5-math-1.5b")
        for data in ("math", "deepmath")
        for row in with_taus((model, data), PUBSWAP_METHODS, TAUS)
    ),
    "PubSwap, table 2": with_taus(("qwen3-4b", "deepmath"), PUBSWAP_METHODS, TAUS),
    "PubSwap, tables 3 and 8": with_taus(("llama-3.2-3b", "medical"), PUBSWAP_METHODS, TAUS, "medical-tau"),
    "PubSwap, table 4": with_taus(("qwen3-1.7b", "deepmath", "dirichlet-0.1"), PUBSWAP_METHODS, TAUS[1:]),
    "PubSwap, table 5": (
        *cross("paper-pubswap", ["qwen3-1.7b"], ["deepmath"], PUBSWAP_METHODS, ["tau-80", "tau-90", "tau-120"]),
        *cross(
            *("paper-pubswap", ["qwen3-1.7b"], ["deepmath"], ["pubswap"], ["swap-every-4", "swap-every-8"]),
            ["tau-80", "tau-90", "tau-120"],
        ),
    ),
    "PubSwap, table 6": (
        *cross("paper-pubswap", ["qwen2.5-math-1.5b"], ["deepmath"], PUBSWAP_METHODS, ["tau-90", "tau-120"]),
        *cross(
            *("paper-pubswap", ["qwen2.5-math-1.5b"], ["deepmath"], ["pubswap"], ["swap-every-4", "swap-every-8"]),
            ["tau-90", "tau-120"],
        ),
    ),
    "PubSwap, other rows": (
        *cross("paper-pubswap", ["swap-random", "swap-none"]),
        "paper-pubswap:qwen3-1.7b,deepmath,no-thinking,tau-90",
    ),
    "FedMOA, table 1": (
        *cross("paper-fedmoa", ("gsm8k", "math"), ("homo-homo", "homo-heter"), FEDMOA_METHODS),
        *cross("paper-fedmoa", ["code"], ("homo-homo", "code-homo-heter"), FEDMOA_METHODS),
        *cross("paper-fedmoa", ["heter-heter"], FEDMOA_METHODS),
    ),
    "FedMOA, table 2": cross("paper-fedmoa", ["heter-heter"], ("fedavg-grpo", "adaptive-aggregation-only", "fedmoa")),
    "FedMOA, other rows": cross(
        "paper-fedmoa",
        (
            "zero-shot",
            "hypergradient-answer",
            "hypergradient-sum",
            "hypergradient-cosine",
            "reset-reward-weights",
            "lora",
            "heter-heter,adaptive-weights-only",
        ),
    ),
}
"""Every table and figure whose rows are runs."""

SAMPLE: tuple[str, ...] = (
    "paper-webshop:qwen2.5-1.5b",
    "paper-webshop:llama-3.2-3b,local-84",
    "paper-alfworld:qwen2.5-3b,centralized",
    "paper-alfworld:published",
    "paper-fedgrpo:qwen2.5-math-7b,without-answers",
    "paper-fedgrpo:qwen2.5-3b,qa,dpsda-sft",
    "paper-fedgrpo:qwen2.5-3b,openr1,fedpetuning-grpo",
    "paper-fedgrpo:qwen2.5-math-1.5b,math,zero-shot",
    "paper-pubswap:qwen3-1.7b,math,pubswap,tau-40",
    "paper-pubswap:llama-3.2-3b,medical,fedavg-grpo,medical-tau-10",
    "paper-pubswap:qwen3-4b,deepmath,fedprox-0.01,tau-90",
    "paper-fedmoa:heter-heter,fedmoa",
)
"""Rows of every preset and every method, of which every second one is run by day; all others take minutes."""


def list_rows() -> dict[str, tuple[str, ...]]:
    """Every row with its changes. Rows that several tables share are there once, but for figure 2's."""
    rows: dict[str, tuple[str, ...]] = {}
    for table, names in TABLES.items():
        for name in names:
            if table == "FedAgent, figure 2":
                rows[f"{name} with clients"] = (name, *CLIENTS_TOO)
            else:
                rows.setdefault(name, (name,))
    return rows


# ---- the published numbers ------------------------------------------------------------------------------------------

MODELS = {
    "Qwen2.5-Math-1.5B": "qwen2.5-math-1.5b",
    "Qwen2.5-Math-7B": "qwen2.5-math-7b",
    "Qwen2.5-3B": "qwen2.5-3b",
    "Qwen2.5-1.5B": "qwen2.5-1.5b",
    "Qwen2.5-1.5B-Instruct": "qwen2.5-1.5b",
    "Qwen2.5-3B-Instruct": "qwen2.5-3b",
    "Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "Llama-3.2-3B-Instruct": "llama-3.2-3b",
    "Qwen3-1.7B": "qwen3-1.7b",
    "Qwen3-4B-Instruct-2507": "qwen3-4b",
}
METHODS = {
    "Zero-shot": "zero-shot",
    "Base": "zero-shot",
    "Fedpetuning+GRPO": "fedpetuning-grpo",
    "Fedpetuning+SFT": "fedpetuning-sft",
    "DPSDA-FL+GRPO": "dpsda-grpo",
    "DPSDA-FL+SFT": "dpsda-sft",
    "Central-GRPO": "central-grpo",
    "FedGRPO": "fedgrpo",
    "FedAvg-GRPO": "fedavg-grpo",
    "FedAvg-PubSwap": "pubswap",
    "FedMOA": "fedmoa",
    "FedMOA without adaptive weights": "adaptive-aggregation-only",
    "FedAgent": "",
    "Centralized": "centralized",
    "Local(21)": "local-21",
    "Local(42)": "local-42",
    "Local(84)": "local-84",
}
SETS = {"MATH": "math", "DeepMath": "deepmath", "MedQA+MedMCQA": "medical", "GSM8K": "gsm8k", "Code": "code"}


def name_published(number: Mapping[str, Any]) -> Iterator[str]:
    """The rows that a published number belongs to: several, where a method was tuned."""
    paper, table, setting = number["paper"], number["table"], number.get("setting") or {}
    model = MODELS.get(number["model"], "")
    methods: Sequence[str] = FEDPROX if number["method"] == "FedProx-GRPO" else (METHODS[number["method"]],)
    for method in methods:
        yield {"FedAgent": _name_fedagent, "FedGRPO": _name_fedgrpo, "PubSwap": _name_pubswap, "FedMOA": _name_fedmoa}[
            paper
        ](table, model, method, number["dataset"], setting)


def _join(preset: str, *variants: str) -> str:
    return f"{preset}:{','.join(filter(None, variants))}"


def _name_fedagent(table: str, model: str, method: str, data: str, setting: Mapping[str, Any]) -> str:
    world = f"paper-{data.partition(' ')[0].lower()}"
    return f"{world} with clients" if "Figure 2" in table else _join(world, model, method)


def _name_fedgrpo(table: str, model: str, method: str, data: str, setting: Mapping[str, Any]) -> str:
    if "Figure 3" in table:
        return _join("paper-fedgrpo", model, f"clients-{setting['clients']}")
    if table == "Table 2":
        return _join("paper-fedgrpo", model, "without-answers" if method == "fedgrpo" else method)
    trained_on = {"Math-benchmark": "math", "OpenR1-Math": "openr1", "2WikiMultiHopQA": "qa"}[setting["train_set"]]
    return _join("paper-fedgrpo", model, trained_on, method)


def _name_pubswap(table: str, model: str, method: str, data: str, setting: Mapping[str, Any]) -> str:
    tau = "" if method == "zero-shot" else f"{'medical-' if 'Med' in data else ''}tau-{setting['tau']}"
    beta = "dirichlet-0.1" if setting.get("dirichlet") == 0.1 else ""
    swap = f"swap-every-{setting['tau_swap']}" if setting.get("tau_swap", 2) != 2 else ""
    return _join("paper-pubswap", model, SETS[data], beta, method, swap, tau)


def _name_fedmoa(table: str, model: str, method: str, data: str, setting: Mapping[str, Any]) -> str:
    kind = setting["data_reward"].lower().replace("+", "-")
    if kind == "heter-heter":
        return _join("paper-fedmoa", kind, method)
    trained_on = SETS.get(data, "code")
    return _join(
        "paper-fedmoa", trained_on, "code-homo-heter" if (trained_on, kind) == ("code", "homo-heter") else kind, method
    )
