"""What differs between the clients' worlds: the same tasks in another variant of their environment.

An environment declares its variants on its class (`TextEnv.variants`); `register_variant` adds one to any environment. A
`Variant` holds the parameters that are asked for (`federate(variant={"kind": "volume", "share": 0.3})`) and draws for each
client a `ClientVariant`, which depends on (seed, client) alone and is therefore the same in every round and process. It is
stored in the split file as plain JSON and reaches the environment as its option `variant`. Evaluation is always without.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from fedagentgym.base.errors import OptionError, show_value, unknown_name_error
from fedagentgym.base.registry import Registry
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import stream
from fedagentgym.envs.registry import ENVIRONMENTS
from fedagentgym.envs.view import View

Plain = Mapping[str, Any]
"""A variant as it stands in configurations and split files: its kind, and its fields beside it."""


class ClientVariant(Settings):
    """What one client's environment is told. An environment reads the fields of the variants that it declares; a variant from
    elsewhere works through the two methods, which are called around every step."""

    def change_view(self, view: View) -> View:
        """What this client sees instead of a view of the unchanged environment."""
        return view

    def change_action(self, action: str) -> str:
        """What the unchanged environment is told when this client says `action`. It must let the environment's own actions
        through, which experts say."""
        return action


class Variant(Settings):
    """One way in which clients' worlds differ. The fields are its parameters and go into the split file as they are."""

    kind: ClassVar[str]
    client_variant: ClassVar[type[ClientVariant]]

    @abstractmethod
    def draw(self, seed: int, client: int) -> ClientVariant:
        """The variant of one client. Depends on nothing but the parameters and the arguments; draw from named streams."""


class ChosenVariant(Variant):
    """A variant with a short list of possibilities, of which each client draws one."""

    possibilities: ClassVar[tuple[ClientVariant, ...]]

    choices: int | None = Field(default=None, ge=1, description="use only the first so many possibilities; None: all")

    def draw(self, seed: int, client: int) -> ClientVariant:
        count = self.choices if self.choices is not None else len(self.possibilities)
        if count > len(self.possibilities):
            raise OptionError(
                f"the variant {self.kind!r} has {len(self.possibilities)} possibilities to choose from, {count} are asked for"
            )
        return self.possibilities[stream(seed, "world", self.kind, client).integers(count)]


# ---- which variants an environment has --------------------------------------------------------------------------

_REGISTERED: dict[str, Registry] = {}


def register_variant(env_id: str, variant: type[Variant], *, replace: bool = False) -> None:
    """Add a variant to an environment, your own or somebody else's."""
    if not (isinstance(variant, type) and issubclass(variant, Variant)):
        raise OptionError(f"a variant is a class derived from fedagentgym.envs.variants.Variant, got {variant!r}")
    for name in ("kind", "client_variant"):
        if not hasattr(variant, name):
            raise OptionError(f"the variant {variant.__name__} lacks the class attribute {name!r}")
    cls = ENVIRONMENTS.get(env_id)
    if variant.kind in (declared.kind for declared in cls.variants):
        raise OptionError(f"{env_id} has a variant {variant.kind!r} of its own: choose another kind")
    _REGISTERED.setdefault(cls.id, Registry(f"variant of {env_id}")).register(variant.kind, variant, replace=replace)


def variants_of(env_id: str, declared: Sequence[type[Variant]]) -> dict[str, type[Variant]]:
    """Every variant of an environment by its kind: those that its class declares, and those registered for it."""
    added: Registry | tuple[()] = _REGISTERED.get(env_id, ())
    return {
        **{variant.kind: variant for variant in declared},
        **{kind: _REGISTERED[env_id].get(kind) for kind in added},
    }


def variant_class(env_id: str, declared: Sequence[type[Variant]], given: Any) -> tuple[type[Variant], dict[str, Any]]:
    """The class of a plain variant, and the fields beside its kind."""
    known = variants_of(env_id, declared)
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        kinds = ", ".join(known) or "none"
        raise OptionError(
            f"a variant of {env_id} is an object with the key 'kind' (known are {kinds}), got {show_value(given)}"
        )
    if given["kind"] not in known:
        raise unknown_name_error(f"variant of {env_id}", given["kind"], known)
    return known[given["kind"]], {key: value for key, value in given.items() if key != "kind"}


# ---- from a request to the variant of a client ------------------------------------------------------------------


def complete_request(
    env_id: str, declared: Sequence[type[Variant]], variant: str | Plain | None
) -> dict[str, Any] | None:
    """What was asked for, complete: the kind and every parameter."""
    if variant is None:
        return None
    given = {"kind": variant} if isinstance(variant, str) else variant
    cls, parameters = variant_class(env_id, declared, given)
    settings = cls.load(parameters, f"variant {cls.kind}")
    settings.draw(0, 0)
    return {"kind": cls.kind, **{key: value for key, value in settings.model_dump().items() if value is not None}}


def assign_variants(
    env_id: str, declared: Sequence[type[Variant]], request: Plain, seed: int, clients: int
) -> Sequence[Plain]:
    """The variant of every client, as plain values."""
    cls, parameters = variant_class(env_id, declared, request)
    settings = cls.load(parameters, f"variant {cls.kind}")
    drawn = (settings.draw(seed, client) for client in range(clients))
    return tuple({"kind": cls.kind, **one.model_dump(mode="json", exclude_unset=True)} for one in drawn)


def load_variant(env_id: str, declared: Sequence[type[Variant]], given: Plain) -> ClientVariant:
    """A client's variant from its plain value, checked."""
    cls, fields = variant_class(env_id, declared, given)
    return cls.client_variant.load(fields, "variant")
