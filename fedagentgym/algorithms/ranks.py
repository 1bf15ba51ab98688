"""Ranks of the clients' adapters: a list, or a law by which every client draws its rank once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import stream


class RankLaw(Settings):
    """`ranks: {law: zipf, high: 8}`: a rank follows from the run's seed and the client's number, the same in all rounds."""

    law: Literal["uniform", "zipf"] = Field(
        default="uniform",
        description="uniform: every rank from low to high is equally likely; zipf: low is the likeliest, and the n-th rank from"
        " there has a probability in proportion to 1 / n",
    )
    low: int = Field(default=1, ge=1, description="least rank")
    high: int = Field(ge=1, description="greatest rank, at most agent.adapter.rank")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low must be at most high, got {self.low} and {self.high}")
        return self

    def draw(self, seed: int, client: int) -> int:
        """Draw a client's rank.

        Args:
            seed: The run's seed.
            client: Number of the client.
        """
        count = self.high - self.low + 1
        chances = [1.0 if self.law == "uniform" else 1.0 / n for n in range(1, count + 1)]
        return self.low + stream(seed, "ranks", client).weighted(chances)


_LIST: TypeAdapter[tuple[int, ...]] = TypeAdapter(
    Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
)


def _read(value: Any) -> Any:
    """Read a law or a list, as the form of the value says, so that an error message is about one of them only."""
    if value is None or isinstance(value, RankLaw):
        return value
    if isinstance(value, Mapping):
        return RankLaw.model_validate(value)
    if not isinstance(value, list | tuple):
        raise ValueError("give a list of ranks, or a law such as {law: uniform, low: 1, high: 8}")
    return _LIST.validate_python(value)


Ranks = Annotated[tuple[int, ...] | RankLaw | None, BeforeValidator(_read)]
"""The type of a setting of ranks; None: all clients have the rank of the agent's adapter."""


def find_rank(ranks: tuple[int, ...] | RankLaw, seed: int, client: int) -> int:
    """Return the rank of a client's adapter.

    Args:
        ranks: The list of ranks, repeated if there are more clients, or the law.
        seed: The run's seed.
        client: Number of the client.
    """
    return ranks.draw(seed, client) if isinstance(ranks, RankLaw) else ranks[client % len(ranks)]


def find_highest(ranks: tuple[int, ...] | RankLaw) -> int:
    """Return the greatest rank that a client may have."""
    return ranks.high if isinstance(ranks, RankLaw) else max(ranks)


def check_ranks(name: str, ranks: tuple[int, ...] | RankLaw, most: int) -> None:
    """Raise `OptionError` if clients of the method `name` may have a rank above that of the agent's adapter."""
    if find_highest(ranks) > most:
        raise OptionError(
            f"{name}: algorithm.ranks must be at most agent.adapter.rank, {most}, got {find_highest(ranks)}"
        )
