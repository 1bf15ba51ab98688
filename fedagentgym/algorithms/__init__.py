"""Floor 5: one module per federated method, plugged in by name."""

from fedagentgym.base.registry import Registry

ALGORITHMS = Registry("algorithm", {})
