"""Prompts in the layout of FedAgent's published code, with texts that are read from the user's copy of that code.

The published code keeps its prompts as string constants of a Python module, two for each environment: `NAME_TEMPLATE_NO_HIS` for
a turn without past turns, and `NAME_TEMPLATE` for the others. This package does not contain these texts. `read_prompts` takes
them from the module, which is parsed and never run, and a class derived from `PublishedTemplate` fills them:

    class FedAgentPrompts(PublishedTemplate):
        texts = read_prompts("fedagent/fedagent/envs/legacy_prompts.py")

    fedagentgym.register_template("fedagent", FedAgentPrompts)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, ClassVar

from fedagentgym.agents.text.prompts import PastTurn, Template
from fedagentgym.base.errors import DataError, OptionError, join_names, require_type
from fedagentgym.base.files import format_path, read_text

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.view import View

WITH_PAST, WITHOUT_PAST = "_TEMPLATE", "_TEMPLATE_NO_HIS"
PLACES = (
    "task_description",
    "step_count",
    "history_length",
    "action_history",
    "current_step",
    "current_observation",
    "admissible_actions",
    "available_actions",
)
"""The placeholders that a text may contain, as `{name}`."""
SEGMENT, TITLE, TASK = " [SEP] ", "Instruction:", "Your task is to: "
QUERY, PUBLISHED_QUERY = "search[<query>]", "search[<your query>]"


def read_prompts(path: str | Path) -> dict[str, str]:
    """Read the prompts of a Python module, which is parsed but not run.

    Args:
        path: The module, such as `agent_system/environments/prompts/webshop.py` in a copy of the published code.

    Returns:
        The texts, by the names of their constants.

    Raises:
        DataError: If the file is not a Python module or holds no prompt, if one of an environment's two prompts is missing, or
            if a text has an unknown placeholder.
    """
    require_type("prompts are read from the path of a Python module", path, str, Path)
    file = Path(path).expanduser()
    where = format_path(file)
    try:
        tree = ast.parse(read_text(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DataError(f"{where} is not a Python module") from None
    found: dict[str, str] = {}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found |= {one.id: value.value for one in targets if isinstance(one, ast.Name)}
    prompts = {name: text for name, text in found.items() if name.endswith((WITH_PAST, WITHOUT_PAST))}
    if not prompts:
        raise DataError(
            f"{where} holds no prompt: it assigns no text to a name that ends with {WITH_PAST} or {WITHOUT_PAST}"
        )
    for name, text in prompts.items():
        counterpart = name.removesuffix("_NO_HIS") if name.endswith(WITHOUT_PAST) else f"{name}_NO_HIS"
        if counterpart not in prompts:
            raise DataError(f"{where}: {name} is there, and {counterpart}, which belongs to it, is not")
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            raise DataError(f"{where}: {name} cannot be filled: {error}") from None
        unknown = [place for _, place, form, how in parts if place is not None and (place not in PLACES or form or how)]
        if unknown:
            raise DataError(f"{where}: {name} leaves open {unknown[0]!r}, known are {join_names(PLACES)}")
    return prompts


@dataclass(frozen=True, slots=True)
class PublishedTemplate(Template):
    """Prompts made from the texts of published code. Derive a class, and set `texts` to the result of `read_prompts`.

    An environment has two texts, whose names begin with its own: `WEBSHOP_TEMPLATE_NO_HIS` for a turn without past turns, and
    `WEBSHOP_TEMPLATE` for the others. They are meant for `context: window`. In a growing dialogue every turn uses the first text.

    Args:
        name: The name under which the class is registered.
        think: Whether a reply must have a thought. The texts are the same in both cases.
        system: A system prompt, which comes before everything.
        request: Not used, since the texts are the whole prompt.
    """

    texts: ClassVar[Mapping[str, str]] = {}

    def render_first(self, env: TextEnv, view: View) -> str:
        return self.render_window(env, view.observation, (), 0, view)

    def render_next(self, env: TextEnv, view: View, goal: str = "", listed: Sequence[str] | None = None) -> str:
        return self.render_window(env, view.observation, (), 1, view, goal)

    def render_window(
        self, env: TextEnv, start: str, past: Sequence[PastTurn], turn: int, view: View, goal: str = ""
    ) -> str:
        name = env.id.rpartition("/")[2].partition("-v")[0].upper() + (WITH_PAST if past else WITHOUT_PAST)
        if name not in self.texts:
            raise OptionError(f"{env.id}: template {self.name!r} has no {name}, only {join_names(self.texts)}")
        actions = [PUBLISHED_QUERY if one == QUERY else one for one in view.admissible or ()]
        if QUERY in (view.admissible or ()):
            actions.append("click[search]")
        begun = turn - len(past)
        turns = [
            f"[Observation {number}: '{_quote_segments(old.observation)}', Action {number}: '{old.action}']"
            for number, old in enumerate(past, start=begun + 1)
        ]
        filled = {
            "task_description": _find_task(start) or goal,
            "step_count": str(turn),
            "history_length": str(len(past)),
            "action_history": "\n".join(turns),
            "current_step": str(turn + 1),
            "current_observation": _quote_segments(view.observation),
            "admissible_actions": "\n ".join(f"'{one}'" for one in actions if one != "help"),
            "available_actions": "\n".join(f"'{one}'," for one in actions),
        }
        parts = Formatter().parse(self.texts[name])
        return "".join(said + (filled[place] if place is not None else "") for said, place, _, _ in parts)


def _find_task(start: str) -> str:
    """Return the task as it is worded in the first observation of an episode; empty if the observation has no task."""
    segments = start.split(SEGMENT)
    if TITLE in segments[:-1]:
        return segments[segments.index(TITLE) + 1]
    return start.rpartition(TASK)[2].strip() if TASK in start else ""


def _quote_segments(observation: str) -> str:
    """Return a shop's page as the published code shows it: the segments after the instruction, each in quotes.

    >>> _quote_segments("WebShop [SEP] Instruction: [SEP] buy a hat [SEP] Search [SEP] Next")
    "'Search' [SEP] 'Next'"
    """
    segments = observation.split(SEGMENT)
    if TITLE not in segments[:-1]:
        return observation
    return SEGMENT.join(f"'{one}'" for one in segments[segments.index(TITLE) + 2 :])
