"""A handicap that keeps an expert from solving everything, so that hardness labels are not one-sided."""

from __future__ import annotations

from pydantic import Field

from fedagentgym.base.settings import Settings


class Handicap(Settings):
    """How often an expert errs and how many turns it has. With `error` 1 it is a random player."""

    error: float = Field(ge=0, le=1, description="probability of a random admissible action instead of the expert's")
    turns: int = Field(ge=1, description="turns after which an attempt has failed")
