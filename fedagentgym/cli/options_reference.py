"""The page of the documentation that lists the options of every environment: `fedagentgym envs --markdown`.

It is read from the classes that check them, so that it agrees with what environments take.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from fedagentgym.base.kinds import REQUIRED, describe_default, describe_field, describe_value, write_table
from fedagentgym.envs.make import env_class, make
from fedagentgym.envs.options import EnvOptions
from fedagentgym.envs.tasks import plain_name
from fedagentgym.registration import make_env

_HEAD = """# Options of environments

Every option of every environment, made from the classes that check them (`fedagentgym envs --markdown`). An option is a keyword
of `gymnasium.make` and `open_env`, `--env-set NAME=VALUE` in commands, and a key of [`env.options`](settings.md#env) in
configurations. Values are written as there: `null` is Python's `None`. `fedagentgym envs NAME --markdown` prints those of one
environment, also of a plugin (`--plugin`). [The environments have pages of their own](environments/index.md).

The mark of an option says what it decides:
"""

_MARKS = (
    ("task", "which tasks there are", "with the value that the split has", "yes; it is part of what names the tasks"),
    ("play", "how tasks are played or shown", "yes", "yes, where it was given"),
    (
        "local",
        "a place on this machine",
        "yes, if the tasks there are those of the split",
        "no; only the word `installed`, which means the same everywhere",
    ),
    ("owner", "what only the owner of a machine decides", "yes", "no"),
)

_STORED = """
The last column is about client splits, results, exported agents, and what server and clients send each other. A split, an agent
or a recipe of others that names a place or decides for the owner is refused: only you give these.
"""

DOOR = {
    "split": (
        "text",
        "split whose tasks are played: train, val, test, warmup (demonstrations; disjoint from the others), unseen, all, or a"
        " name that the environment itself uses",
    ),
    "tasks": ("list of texts or `TaskSet`", "ids of the tasks that are played; null: all"),
    "pool": ("`TaskPool`", "tasks to play in place of the environment's"),
    "variant": ("mapping", "a client's [variant](variants.md), as plain values"),
    "client_split": (
        "`ClientSplit` or path",
        "[a split](../how-to/make-a-split.md) or its file: the tasks and the variant are those of one client;"
        " `tasks`, `variant` and options of other tasks are refused beside it",
    ),
    "client": ("whole number", "number of that client"),
}
"""The keywords of every environment that are no options of it: name -> kind of value and meaning."""


def write_options(env_ids: Sequence[str]) -> str:
    """The page of these environments, in Markdown."""
    # what is no option has the defaults that `make` and gymnasium's entry point have
    defaults = {**inspect.signature(make).parameters, **inspect.signature(make_env).parameters}
    door = [
        (f"`{name}`", kind, f"`{describe_value(defaults[name].default)}`", meaning)
        for name, (kind, meaning) in DOOR.items()
    ]
    blocks = [
        _HEAD,
        *write_table(
            ("mark", "decides", "beside a client split", "stored and sent"),
            [(f"`{mark}`", *said) for mark, *said in _MARKS],
        ),
        _STORED,
        "## Every environment\n",
        *_list_options(EnvOptions),
        "\nWhat decides which tasks are opened, and is no option:\n",
        *write_table(("keyword", "value", "default", "meaning"), door),
    ]
    takers: dict[type[EnvOptions], list[str]] = {}
    for env_id in sorted(env_ids, key=lambda name: plain_name(name).lower()):
        for part in _list_parts(env_class(env_id).Options):
            takers.setdefault(part, []).append(plain_name(env_id))
    heads = {part: ", ".join(names) for part, names in takers.items()}
    for part, head in heads.items():
        about = inspect.cleandoc(part.__doc__ or "").partition("\n\n")[0]
        for base in _list_parts(part)[:-1]:
            about += f" And those of [{heads[base]}](#{heads[base].lower().replace(', ', '-')})."
        blocks += ["", f"## {head}", "", about.strip(), "", *_list_options(part)]
    return "\n".join(blocks) + "\n"


def _list_parts(options: type[EnvOptions]) -> list[type[EnvOptions]]:
    """The classes that declare these options, from the most general one on, without those that all environments have."""
    above = [part for part in reversed(options.__mro__) if issubclass(part, EnvOptions) and part is not EnvOptions]
    return [part for part in above if _list_names(part)]


def _list_names(part: type[EnvOptions]) -> list[str]:
    """The options that a class declares itself."""
    return [name for name in inspect.get_annotations(part) if name in part.model_fields]


def _list_options(part: type[EnvOptions]) -> list[str]:
    rows, marks = [], part.get_marks()
    for name in _list_names(part):
        field = part.model_fields[name]
        default = describe_default(field) or '""'
        shown = default if default == REQUIRED else f"`{default}`"
        rows.append((f"`{name}`", describe_field(field), shown, marks[name], field.description or ""))
    return write_table(("option", "value", "default", "mark", "meaning"), rows)
