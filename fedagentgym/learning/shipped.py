"""The tiny agents in the package: their list, how they are made, and the check that their recipes still make them.

They are in `agents/shipped`, one folder for each recipe named here, so that an agent is available right after installation.
`fedagentgym pretrain tiny --ship` makes the files, `pretrain tiny --check` makes the agents again and compares. On the same
kind of processor and with the same torch every bit must agree. Elsewhere floating-point results differ in their last bits, and
training amplifies this; there the success of the new agent must lie in the confidence interval of the shipped agent's success.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from fedagentgym.agents.model.pretrained import PRETRAIN_NOTE, compute_weights_digest, get_shipped_folder
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import atomic_folder, read_json
from fedagentgym.learning import pretrain
from fedagentgym.learning.pretrain import PretrainResult, compute_recipe
from fedagentgym.learning.recipe import Recipe, load_recipe

SHIPPED = (
    "tiny-alfworld",
    "tiny-alfworld-misconceptions",
    "tiny-guess",
    "tiny-math",
    "tiny-records",
    "tiny-skills",
    "tiny-webshop-misconceptions",
)
"""The recipes whose agents come with the package."""
_PACKED = ("*.json", "*.safetensors")


class Comparison(NamedTuple):
    """A shipped agent and one just made by the same recipe. `bits` is True if both were made on machines that are alike, so that
    the weights must be equal."""

    name: str
    bits: bool
    equal: bool
    success: float
    interval: tuple[float, float]

    @property
    def agrees(self) -> bool:
        if self.bits:
            return self.equal
        return self.equal or self.interval[0] <= self.success <= self.interval[1]


def list_shipped_recipes(env_id: str | None = None) -> dict[str, Recipe]:
    """The recipes of the shipped agents by name, of one environment or of all."""
    found = {name: load_recipe(name) for name in SHIPPED}
    chosen = {name: recipe for name, recipe in found.items() if env_id in (None, recipe.env.id)}
    if not chosen:
        raise OptionError(f"no tiny agent of {env_id} comes with the package: there are {', '.join(SHIPPED)}")
    return chosen


def ship(name: str, recipe: Recipe) -> PretrainResult:
    """Make the agent of a recipe, and replace the one in the package."""
    target = get_shipped_folder() / name
    with tempfile.TemporaryDirectory() as scratch:
        made = _make(name, recipe, scratch)
        shutil.rmtree(target, ignore_errors=True)
        with atomic_folder(target) as part:
            for file in (file for pattern in _PACKED for file in made.folder.glob(pattern)):
                shutil.copyfile(file, part / file.name)
    return made._replace(folder=target)


def compare(name: str, recipe: Recipe) -> Comparison:
    """Make a shipped agent again, in a temporary folder, and compare it with the shipped one."""
    folder = get_shipped_folder() / name
    note = read_json(folder / PRETRAIN_NOTE)
    if note["recipe"] != compute_recipe(recipe.env.id, recipe.env.options, recipe.warm_start, recipe.agent):
        raise DataError(f"{name}: the package's agent was made by another recipe than today's: run it with --ship")
    with tempfile.TemporaryDirectory() as scratch:
        made = _make(name, recipe, scratch)
        equal = compute_weights_digest(made.folder) == compute_weights_digest(folder)
    low, high = note["interval"]
    return Comparison(name, made.note["machine"] == note["machine"], equal, made.note["success"], (low, high))


def _make(name: str, recipe: Recipe, scratch: str) -> PretrainResult:
    folder = Path(scratch) / name
    return pretrain.pretrain_tiny(
        recipe.env.id, recipe.env.options, recipe.warm_start, agent=recipe.agent, folder=folder, force=True
    )
