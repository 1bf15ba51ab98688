"""Federated methods, one module each, registered by name."""

from fedagentgym.base.registry import Registry

APPLICATION = "fedagentgym.algorithms.make:build_algorithm"
"""What workers and clients' machines build for a run: the algorithm with its operations."""

ALGORITHMS = Registry(
    "algorithm",
    {
        "fedagent": "fedagentgym.algorithms.fedagent:FedAgent",
        "fedavg-grpo": "fedagentgym.algorithms.fedavg_grpo:FedAvgGRPO",
        "fedprox": "fedagentgym.algorithms.fedprox:FedProx",
        "centralized": "fedagentgym.algorithms.centralized:Centralized",
        "local": "fedagentgym.algorithms.local:Local",
        "fedgrpo": "fedagentgym.algorithms.fedgrpo:FedGRPO",
        "pubswap": "fedagentgym.algorithms.pubswap:PubSwap",
        "fedmoa": "fedagentgym.algorithms.fedmoa:FedMOA",
        "fedpetuning": "fedagentgym.algorithms.fedpetuning:FedPETuning",
        "dpsda-fl": "fedagentgym.algorithms.dpsda_fl:DPSDA",
        "zero-shot": "fedagentgym.algorithms.zero_shot:ZeroShot",
    },
)
