"""Settings whose class is chosen by name: `{name: fedadam, beta1: 0.8}` becomes an instance of what is registered as `fedadam`.

The registered classes share a base, itself a `NamedSettings`:

    class Rule(NamedSettings): ...

    RULES = Registry("rule", {"mean": "my_package:Mean"})
    AnyRule = Annotated[Rule, Choice(RULES)]

A field of type `AnyRule` takes a name, a mapping with a name, or an instance of `Rule`; it is dumped with the fields of the
instance's own class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedagentgym.base.errors import UnknownNameError
from fedagentgym.base.registry import Registry
from fedagentgym.base.settings import Settings


class NamedSettings(Settings):
    """Settings registered under a name, so that a dump of them can be loaded again.

    A class that is also constructed directly declares its own: `name: Literal["mean"] = "mean"`.
    """

    name: str = Field(description="name under which the class is registered")


@dataclass(frozen=True)
class Choice:
    """Annotation of a settings class: the class that a value becomes is found in a registry, by the value's `name`.

    A mapping without a name gets the `default` one; without a default it is refused.
    """

    registry: Registry
    default: str | None = None

    def settings_class(self, data: object) -> type[Settings] | None:
        """The class that plain data selects; None if it names nothing registered."""
        name = self._name(data)
        found = self.registry.get(name) if isinstance(name, str) and name in self.registry else None
        return found if isinstance(found, type) and issubclass(found, Settings) else None

    def __get_pydantic_core_schema__(self, source: type[NamedSettings], handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(data: object) -> NamedSettings:
            return self._validate(source, data)

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.simple_ser_schema("any")
        )

    def _name(self, data: object) -> object:
        return data.get("name", self.default) if isinstance(data, Mapping) else data

    def _validate(self, base: type[NamedSettings], data: object) -> NamedSettings:
        if isinstance(data, base):
            return _with_name_set(data)
        kind, name = self.registry.kind, self._name(data)
        if name is None and isinstance(data, Mapping):
            raise ValidationError.from_exception_data(kind, [{"type": "missing", "loc": ("name",), "input": data}])
        if not isinstance(name, str):
            raise PydanticCustomError("choice", "give the name of the {kind}", {"kind": kind})
        try:
            found = self.registry.get(name)
        except UnknownNameError as error:
            raise PydanticCustomError("choice", "{error}", {"error": str(error)}) from None
        if not (isinstance(found, type) and issubclass(found, base)):
            sentence = "{kind} {name} is not a class derived from {base}"
            raise PydanticCustomError("choice", sentence, {"kind": kind, "name": repr(name), "base": base.__name__})
        if missing := sorted(found.__abstractmethods__):
            sentence = "{kind} {name} does not define {missing}"
            raise PydanticCustomError("choice", sentence, {"kind": kind, "name": repr(name), "missing": missing[0]})
        plain = dict(data) if isinstance(data, Mapping) else {}
        return _with_name_set(found.model_validate({**plain, "name": name}))


def _with_name_set(settings: NamedSettings) -> NamedSettings:
    """Mark a name that is its class's default as set; otherwise a dump of the set fields would lose it."""
    if "name" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"name": settings.name})
