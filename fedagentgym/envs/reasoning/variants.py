"""Variants of reply environments: the same problem in other words."""

from __future__ import annotations

from pydantic import Field

from fedagentgym.base.streams import stream
from fedagentgym.envs.variants import ClientVariant, Variant


class Phrasing(ClientVariant):
    """Which of the environment's phrasings is put around every problem; 0 is the plain one."""

    phrasing: int = Field(ge=0, strict=True)


class Wording(Variant):
    """The same problem under another phrasing of the prompt."""

    kind = "wording"
    client_variant = Phrasing

    choices: int = Field(default=8, ge=1, description="how many phrasings are in use")

    def draw(self, seed: int, client: int) -> Phrasing:
        return Phrasing(phrasing=stream(seed, "world", self.kind, client).integers(self.choices))
