"""A check for trackers of your own."""

from __future__ import annotations

import copy
import random
import tempfile
from typing import Any

import numpy as np

from fedagentgym.experiment.trackers import make_tracker


def check_tracker(name: str, **options: Any) -> None:
    """Check that a registered tracker takes a whole run, keeps its hands off what it is given, and draws no random numbers.

    Args:
        name: The name under which it is registered.
        **options: Its options, as in `output.trackers`.

    Raises:
        AssertionError: What is wrong, in one sentence.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = {"name": "check", "seed": 0, "output": {"folder": folder}, "federation": {"rounds": 2}}
        result = {"rounds": 2, "final": {"round": 2}, "seconds": 1.0}
        metrics = {"train/loss": 0.5, "evaluation/success": 0.25, "bytes/total": 10.0, "failures": 0.0}
        given = copy.deepcopy((config, metrics, result))
        states = random.getstate(), repr(np.random.get_state())
        tracker = make_tracker({"name": name, **options})
        tracker.start(config)
        for number in range(3):
            tracker.log(number, metrics)
        tracker.finish(result)
        assert (config, metrics, result) == given, f"tracker {name!r} changes what it is given"
        assert (random.getstate(), repr(np.random.get_state())) == states, f"tracker {name!r} draws random numbers"
