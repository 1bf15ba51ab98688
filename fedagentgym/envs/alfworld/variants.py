"""How one client's houses can differ from the others'."""

from __future__ import annotations

from pydantic import Field

from fedagentgym.base.streams import derive
from fedagentgym.envs.variants import ClientVariant, Variant


class OwnRooms(ClientVariant):
    """Three rooms of each kind that no other client and no split has."""

    client: int = Field(ge=0, strict=True)
    seed: int = Field(default=0, ge=0, strict=True)

    @property
    def owner(self) -> str:
        """Whose private rooms the houses are made of, as the generator names it."""
        return f"{self.seed}.{self.client}"


class SceneSplit(Variant):
    """The client's errands happen in rooms of its own, which no other client and no evaluation game has."""

    kind = "scene_split"
    client_variant = OwnRooms

    def draw(self, seed: int, client: int) -> OwnRooms:
        return OwnRooms(client=client, seed=derive(seed, "world", self.kind))
