"""Parameter names of adapters (those of `peft`), of changes of the base model, and of a value head."""

from __future__ import annotations

from collections.abc import Iterable

LOW, HIGH = ".lora_A.", ".lora_B."
BASE = "base"
"""`base/LAYER` is the change of an adapted layer's frozen weight since the model was loaded."""
VALUE_HEAD = "value_head."
"""`value_head.weight` and `value_head.bias` are the linear layer that predicts the value of a state."""


def pair_factors(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the names of A and B of each adapted layer, by the layer's name.

    >>> pair_factors(["up.lora_A.default.weight", "up.lora_B.default.weight", "norm.weight"])
    {'up': ('up.lora_A.default.weight', 'up.lora_B.default.weight')}
    """
    return {name.partition(LOW)[0]: (name, name.replace(LOW, HIGH)) for name in names if LOW in name}
