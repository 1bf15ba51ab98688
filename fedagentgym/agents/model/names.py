"""Names of an adapter's parameters, as `peft` gives them, of changes of the base, and of a value head."""

from __future__ import annotations

from collections.abc import Iterable

LOW, HIGH = ".lora_A.", ".lora_B."
BASE = "base"
"""`base/LAYER`: the change of the frozen weight of an adapted layer from the one that was loaded."""
VALUE_HEAD = "value_head."
"""`value_head.weight`, `value_head.bias`: the linear layer that gives a state its value."""


def pair_factors(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The names of A and B of each adapted layer, by the layer's name.

    >>> pair_factors(["up.lora_A.default.weight", "up.lora_B.default.weight", "norm.weight"])
    {'up': ('up.lora_A.default.weight', 'up.lora_B.default.weight')}
    """
    return {name.partition(LOW)[0]: (name, name.replace(LOW, HIGH)) for name in names if LOW in name}
