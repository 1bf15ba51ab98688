"""Variants: how the environments of clients differ while their tasks stay the same.

An environment declares its variants on its class (`TextEnv.variants`); `register_variant` adds one to any environment. A
`Variant` holds the requested parameters (`federate(variant={"kind": "volume", "share": 0.3})`) and draws a `ClientVariant`
for each client. The draw depends only on these parameters, the seed and the client, so it is the same in every round and
process. It is stored in the split file as plain JSON and passed to the environment as its option `variant`. Evaluation uses no
variant, except where `evaluation.at_clients` asks for the clients' own variants.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fedagentgym.base.errors import OptionError, show_value, unknown_name_error
from fedagentgym.base.imports import Registry, load_installed_plugins
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import stream
from fedagentgym.envs.registry import ENVIRONMENTS
from fedagentgym.envs.view import View

if TYPE_CHECKING:
    from fedagentgym.envs.options import EnvOptions
    from fedagentgym.envs.pool import TaskPool

Plain = Mapping[str, Any]
"""A variant as written in configurations and split files: its kind, with its fields next to it."""


MAX_DRAWS = 1000
"""Maximum number of draws for the variants of newcomers; if they do not suffice, the request is refused."""


class ClientVariant(Settings):
    """Base class of the variant of one client; its fields are stored in the split file.

    An environment reads the fields of the variants that it declares itself. A variant that is registered for an environment
    overrides `change_view` or `change_action`, which are called around every step.
    """

    def change_view(self, view: View) -> View:
        """Return what this client sees; by default, what the unchanged environment shows. Reward, score, success and the end of
        the episode must not change.

        Args:
            view: The view of the unchanged environment.

        Returns:
            The client's view.
        """
        return view

    def change_action(self, action: str) -> str:
        """Return the action for the unchanged environment; by default, the client's own.

        Args:
            action: What this client plays.

        Returns:
            The action. An action of the unchanged environment must be returned unchanged, since experts play it.
        """
        return action


class Variant(Settings):
    """Base class of variants: how clients' environments differ while their tasks stay the same.

    Derive a class with the class attributes `kind`, its name, and `client_variant`, a class derived from `ClientVariant`; write
    `draw`, and register it with `fedagentgym.register_variant`, or list it in `TextEnv.variants` of your own environment. The
    fields are its parameters: `federate(env_id, variant={"kind": "volume", "share": 0.3})`. Every variant also has
    a `degree`, the share of the clients whose environment is changed.

    Examples:
        >>> from fedagentgym import stream
        >>> from fedagentgym.envs import ClientVariant, Variant
        >>> class Shout(ClientVariant):
        ...     loud: bool = False
        ...     def change_view(self, view):
        ...         return view._replace(observation=view.observation.upper()) if self.loud else view
        >>> class Volume(Variant):
        ...     kind = "volume"
        ...     client_variant = Shout
        ...     share: float = 0.5
        ...     def draw(self, seed, client):
        ...         return Shout(loud=stream(seed, "volume", client).uniform() < self.share)
    """

    kind: ClassVar[str]
    client_variant: ClassVar[type[ClientVariant]]

    degree: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="share of the clients whose environment is changed; the others play the unchanged one",
    )

    @model_serializer(mode="wrap")
    def _leave_out_full_degree(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit the degree if it is 1, so that split files are the same as before this field existed."""
        plain: dict[str, Any] = handler(self)
        if self.degree == 1.0:
            plain.pop("degree", None)
        return plain

    def assign(self, seed: int, client: int) -> ClientVariant | None:
        """Return the variant of one client, if the degree selects it; a higher degree selects the same clients and more.

        Args:
            seed: Seed of the split.
            client: Number of the client.

        Returns:
            What `draw` returns, or None for a client that plays the unchanged environment.
        """
        if stream(seed, "world", self.kind, "degree", client).uniform() >= self.degree:
            return None
        return self.draw(seed, client)

    def check_options(self, options: EnvOptions, pool: TaskPool | None) -> None:
        """Raise an `OptionError` if clients cannot have this variant in an environment with these options; called by `federate`
        before it divides. By default every environment can have it.

        Args:
            options: The options of the environment.
            pool: The tasks that replace those that the environment loads; None if none do.

        Raises:
            OptionError: If no client would differ, or a client's environment could not be made.
        """

    @abstractmethod
    def draw(self, seed: int, client: int) -> ClientVariant:
        """Draw the variant of one client; called by `federate`.

        Args:
            seed: Seed of the split.
            client: Number of the client.

        Returns:
            The client's variant. It depends on the parameters and the arguments alone: draw from `fedagentgym.stream`.
        """


class ChosenVariant(Variant):
    """A variant with a short list of possibilities; each client draws one."""

    possibilities: ClassVar[tuple[ClientVariant, ...]]

    choices: int | None = Field(
        default=None, ge=1, description="number of possibilities used, from the first on; None: all"
    )

    def list_choices(self) -> tuple[ClientVariant, ...]:
        """Return the possibilities that are used.

        Returns:
            The first `choices` of them, or all.

        Raises:
            OptionError: If `choices` is larger than their number.
        """
        count = self.choices if self.choices is not None else len(self.possibilities)
        if count > len(self.possibilities):
            raise OptionError(
                f"the variant {self.kind!r} has {len(self.possibilities)} possibilities to choose from, {count} are asked for"
            )
        return self.possibilities[:count]

    def draw(self, seed: int, client: int) -> ClientVariant:
        choices = self.list_choices()
        return choices[stream(seed, "world", self.kind, client).integers(len(choices))]


# ---- which variants an environment has --------------------------------------------------------------------------

_REGISTERED: dict[str, Registry] = {}


def register_variant(env_id: str, variant: type[Variant], *, replace: bool = False) -> None:
    """Register a variant of an environment, for `federate(variant=...)` and `partition.variant` in configurations.

    Args:
        env_id: Id of the environment, yours or one of this package.
        variant: A class derived from `Variant`, with the class attributes `kind`, its name, and `client_variant`.
        replace: Whether a registered variant of this kind is replaced.

    Raises:
        UnknownNameError: If there is no such environment.
        OptionError: If this is no such class, or the environment has a variant of this kind already.
    """
    if not (isinstance(variant, type) and issubclass(variant, Variant)):
        raise OptionError(f"a variant must be a class derived from fedagentgym.envs.Variant, got {variant!r}")
    for name in ("kind", "client_variant"):
        if not hasattr(variant, name):
            raise OptionError(f"the variant {variant.__name__} lacks the class attribute {name!r}")
    cls = ENVIRONMENTS.get(env_id)
    if variant.kind in (declared.kind for declared in cls.variants):
        raise OptionError(f"{env_id} has a variant {variant.kind!r} of its own: choose another kind")
    _REGISTERED.setdefault(cls.id, Registry(f"variant of {env_id}")).register(variant.kind, variant, replace=replace)


def variants_of(env_id: str, declared: Sequence[type[Variant]]) -> dict[str, type[Variant]]:
    """Every variant of an environment by its kind: those declared by its class, and those registered for it."""
    added: Registry | tuple[()] = _REGISTERED.get(env_id, ())
    return {
        **{variant.kind: variant for variant in declared},
        **{kind: _REGISTERED[env_id].get(kind) for kind in added},
    }


def variant_class(env_id: str, declared: Sequence[type[Variant]], given: Any) -> tuple[type[Variant], dict[str, Any]]:
    """The class of a plain variant, and its fields other than the kind."""
    known = variants_of(env_id, declared)
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        kinds = ", ".join(known) or "none"
        raise OptionError(
            f"a variant of {env_id} must be an object with the key 'kind' (known are {kinds}), got {show_value(given)}"
        )
    if given["kind"] not in known:
        load_installed_plugins()
        known = variants_of(env_id, declared)
    if given["kind"] not in known:
        raise unknown_name_error(f"variant of {env_id}", given["kind"], known, registered=True)
    return known[given["kind"]], {key: value for key, value in given.items() if key != "kind"}


# ---- from a request to the variant of a client ------------------------------------------------------------------


def complete_request(env_id: str, declared: Sequence[type[Variant]], variant: str | Plain) -> dict[str, Any]:
    """The request as its kind and all parameters, with defaults; null and a degree of 1 are left out."""
    given = {"kind": variant} if isinstance(variant, str) else variant
    cls, parameters = variant_class(env_id, declared, given)
    settings = cls.load(parameters, f"variant {cls.kind}")
    _check_drawn(settings, settings.draw(0, 0))
    return {"kind": cls.kind, **{key: value for key, value in settings.model_dump().items() if value is not None}}


def check_request(
    env_id: str, declared: Sequence[type[Variant]], request: Plain, options: EnvOptions, pool: TaskPool | None
) -> None:
    """Raise if the environments of clients cannot have the requested variant under these options, or with this given pool."""
    cls, parameters = variant_class(env_id, declared, request)
    cls.load(parameters, f"variant {cls.kind}").check_options(options, pool)


def _check_drawn(settings: Variant, drawn: object) -> ClientVariant | None:
    """The result of `draw` or `assign`, if it is a client's variant or None."""
    if drawn is None or isinstance(drawn, ClientVariant):
        return drawn
    wanted = settings.client_variant.__name__
    raise OptionError(
        f"the variant {settings.kind!r}: draw must return an instance of {wanted}, got {show_value(drawn)}"
    )


def assign_variants(
    env_id: str, declared: Sequence[type[Variant]], request: Plain, seed: int, clients: int
) -> Sequence[Plain | None]:
    """The variant of every client, as plain values; None for a client that plays the unchanged environment."""
    cls, parameters = variant_class(env_id, declared, request)
    settings = cls.load(parameters, f"variant {cls.kind}")
    drawn = (_check_drawn(settings, settings.assign(seed, client)) for client in range(clients))
    return tuple(
        None if one is None else {"kind": cls.kind, **one.model_dump(mode="json", exclude_unset=True)} for one in drawn
    )


def draw_newcomers(
    env_id: str,
    declared: Sequence[type[Variant]],
    request: Plain | None,
    seed: int,
    known: Sequence[Plain | None],
    count: int,
) -> list[Plain]:
    """Variants of the requested kind that none of the `known` clients has; the request's degree and choices do not limit them."""
    if request is None:
        raise OptionError(
            "newcomers have variants that no client has, but this split has no variants: set partition.variant, or leave out"
            " newcomers"
        )
    cls, parameters = variant_class(env_id, declared, request)
    wide = {name: value for name, value in parameters.items() if name not in ("degree", "choices")}
    settings = cls.load(wide, f"variant {cls.kind}")
    fresh: list[Plain] = []
    for client in range(len(known), len(known) + MAX_DRAWS):
        drawn = _check_drawn(settings, settings.assign(seed, client))
        one = None if drawn is None else {"kind": cls.kind, **drawn.model_dump(mode="json", exclude_unset=True)}
        if one is not None and one not in fresh and one not in known:
            fresh.append(one)
        if len(fresh) == count:
            return fresh
    raise OptionError(
        f"the variant {cls.kind!r} has {len(fresh)} possibilities that no client has, {count} are asked for as newcomers:"
        " give the clients fewer choices, or ask for fewer"
    )


def load_variant(env_id: str, declared: Sequence[type[Variant]], given: Plain) -> ClientVariant:
    """A client's variant from its plain value, validated."""
    cls, fields = variant_class(env_id, declared, given)
    return cls.client_variant.load(fields, "variant")
