"""What differs between the clients' worlds: same tasks, another world. Evaluation is always in the unperturbed one.

A variant depends on (seed, client) alone, so it is the same in every round and process. Environments read the plain value
and apply it; what each field does is told in their pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from fedagentgym.base.errors import OptionError, unknown
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive, stream
from fedagentgym.envs.task import short_name

World = Mapping[str, Any]


class WorldKind(Settings):
    """One way in which worlds differ. The fields are its parameters, written into the split file as they are."""

    kind: ClassVar[str]
    envs: ClassVar[tuple[str, ...]]

    def variant(self, seed: int, client: int) -> dict[str, Any]:
        raise NotImplementedError


class _OneOf(WorldKind):
    """A kind with a short list of variants, each client drawing one of the first `variants`."""

    choices: ClassVar[tuple[Mapping[str, Any], ...]]

    variants: int | None = Field(default=None, ge=1, description="how many of the variants are in use; None: all")

    def variant(self, seed: int, client: int) -> dict[str, Any]:
        count = self.variants if self.variants is not None else len(self.choices)
        if count > len(self.choices):
            raise OptionError(f"the world {self.kind!r} has {len(self.choices)} variants, {count} are asked for")
        chosen = stream(seed, "world", self.kind, client).integers(count)
        return {"kind": self.kind, **self.choices[chosen]}


class CatalogSplit(WorldKind):
    """WebShop, content: the client's own targets and its own part of all other products."""

    kind = "catalog_split"
    envs = ("webshop",)

    env_div: float = Field(default=0.7, ge=0, le=1, description="0: all see the same distractors, 1: independent ones")
    keep_ratio: float = Field(default=0.7, gt=0, le=1, description="share of the other products that a client keeps")

    def variant(self, seed: int, client: int) -> dict[str, Any]:
        shared = derive(seed, "world", self.kind)
        return {
            "kind": self.kind,
            "env_div": self.env_div,
            "keep_ratio": self.keep_ratio,
            "seed": shared,
            "client": client,
        }


class IndexFields(_OneOf):
    """WebShop, encoding: which product fields the search covers."""

    kind = "index_fields"
    envs = ("webshop",)
    choices = tuple(
        {"fields": fields}
        for fields in (
            ["name", "description", "bullets", "features"],
            ["name"],
            ["description"],
            ["bullets"],
            ["features"],
            ["name", "bullets"],
            ["description", "features"],
            ["description", "bullets", "features"],
        )
    )


class BM25Weights(_OneOf):
    """WebShop, matching: how the search weighs repetition (k1) and length (b)."""

    kind = "bm25_weights"
    envs = ("webshop",)
    choices = tuple(
        {"k1": k1, "b": b}
        for k1, b in (
            (1.2, 0.75),
            (1.2, 0.0),
            (0.3, 0.75),
            (5.0, 0.75),
            (0.1, 0.75),
            (1.2, 1.0),
            (2.0, 0.5),
            (0.3, 0.0),
        )
    )


class Lookalikes(_OneOf):
    """WebShop, content and matching: near-copies of targets that rank high and miss one term of the reward."""

    kind = "lookalikes"
    envs = ("webshop",)
    choices = tuple({"attack": term} for term in ("price", "color", "size", "price+color"))

    def variant(self, seed: int, client: int) -> dict[str, Any]:
        return {**super().variant(seed, client), "seed": derive(seed, "world", self.kind)}


class RankWrapper(_OneOf):
    """WebShop, rendering: in which order results are shown."""

    kind = "rank_wrapper"
    envs = ("webshop",)
    choices = tuple({"mode": mode} for mode in ("as_ranked", "shuffle", "reverse", "random_half"))

    def variant(self, seed: int, client: int) -> dict[str, Any]:
        return {**super().variant(seed, client), "seed": derive(seed, "world", self.kind), "client": client}


class SceneSplit(WorldKind):
    """ALFWorld: the client's errands happen in rooms of its own, which no other client and no evaluation game has."""

    kind = "scene_split"
    envs = ("alfworld",)

    def variant(self, seed: int, client: int) -> dict[str, Any]:
        return {"kind": self.kind, "client": client, "seed": derive(seed, "world", self.kind)}


class Wording(WorldKind):
    """Math, QA, code: the same problem under another phrasing of the prompt."""

    kind = "wording"
    envs = ("math", "qa", "code")

    variants: int = Field(default=8, ge=1, description="how many phrasings are in use")

    def variant(self, seed: int, client: int) -> dict[str, Any]:
        return {"kind": self.kind, "variant": stream(seed, "world", self.kind, client).integers(self.variants)}


KINDS: dict[str, type[WorldKind]] = {
    cls.kind: cls for cls in (CatalogSplit, IndexFields, BM25Weights, Lookalikes, RankWrapper, SceneSplit, Wording)
}


def world_request(world: str | World | None, env_id: str) -> dict[str, Any] | None:
    """What was asked for, complete: the kind and every parameter."""
    if world is None:
        return None
    given = {"kind": world} if isinstance(world, str) else dict(world)
    kind = given.pop("kind", None)
    if kind not in KINDS:
        raise unknown("world", kind, KINDS)
    cls = KINDS[kind]
    if env_id.startswith("fedagentgym/") and short_name(env_id) not in cls.envs:
        fitting = [name for name, other in KINDS.items() if short_name(env_id) in other.envs]
        hint = f"it has {', '.join(fitting)}" if fitting else "it has no world variants"
        raise OptionError(f"the world {kind!r} is for {', '.join(cls.envs)}, not for {env_id}: {hint}")
    settings = cls.load(given, f"world {kind}")
    settings.variant(0, 0)
    return {"kind": kind, **{key: value for key, value in settings.model_dump().items() if value is not None}}


def assign_worlds(request: World, seed: int, clients: int) -> Sequence[World]:
    """The variant of every client."""
    parameters = {key: value for key, value in request.items() if key != "kind"}
    settings = KINDS[request["kind"]].load(parameters)
    return tuple(settings.variant(seed, client) for client in range(clients))
