"""The page of the documentation that lists the options of every environment: `fedagentgym envs --markdown`.

It is read from the classes that check the options, so that it agrees with the environments.
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
configurations. Values are written as in YAML: `null` is Python's `None`. `fedagentgym envs NAME --markdown` prints the options of
one environment, also of a plugin (`--plugin`). [Each environment has its own page](environments/index.md).

The mark of an option says what the option decides:
"""

_MARKS = (
    ("task", "the tasks of the pool", "only with the split's value", "yes; it is part of the identity of the tasks"),
    ("play", "how tasks are played or shown", "yes", "yes, if it was given"),
    (
        "local",
        "a path on this machine",
        "yes, if its tasks are those of the split",
        "no; only the word `installed`, which means the same everywhere",
    ),
    ("owner", "a decision of the machine's owner", "yes", "no"),
)

_STORED = """
The column "beside a client split" says whether the option can be given together with a client split. The last column says whether
the option is written to client splits, results and exported agents, and sent between server and clients. A split, an agent or a
recipe of others that has a `local` path or an `owner` option is refused: only you may set these.
"""

DOOR = {
    "split": (
        "text",
        "split whose tasks are played: train, val, test, warmup (demonstrations; disjoint from the others), unseen, all, or"
        " another split of the environment",
    ),
    "tasks": ("list of texts or `TaskSet`", "ids of the tasks that are played; null: all"),
    "pool": ("`TaskPool`", "tasks to play in place of the environment's"),
    "variant": ("mapping", "a client's [variant](variants.md), as plain values"),
    "client_split": (
        "`ClientSplit` or path",
        "[a split](../how-to/make-a-split.md) or its file, for the tasks and the variant of one client;"
        " `tasks`, `variant` and options that would change the tasks are refused beside it",
    ),
    "client": ("whole number", "number of the client in `client_split`"),
}
"""The keywords of every environment that are not options: name -> kind of value and meaning."""


def write_options(env_ids: Sequence[str]) -> str:
    """The page of these environments, in Markdown."""
    # the defaults of the other keywords are those of `make` and of gymnasium's entry point
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
        "\nThese keywords select the tasks and are not options:\n",
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
            about += f" Also the options of [{heads[base]}](#{heads[base].lower().replace(', ', '-')})."
        blocks += ["", f"## {head}", "", about.strip(), "", *_list_options(part)]
    return "\n".join(blocks) + "\n"


def _list_parts(options: type[EnvOptions]) -> list[type[EnvOptions]]:
    """The classes that declare these options, the most general first, without `EnvOptions`."""
    above = [part for part in reversed(options.__mro__) if issubclass(part, EnvOptions) and part is not EnvOptions]
    return [part for part in above if _list_names(part)]


def _list_names(part: type[EnvOptions]) -> list[str]:
    """The names of the options that a class itself declares."""
    return [name for name in inspect.get_annotations(part) if name in part.model_fields]


def _list_options(part: type[EnvOptions]) -> list[str]:
    rows, marks = [], part.get_marks()
    for name in _list_names(part):
        field = part.model_fields[name]
        default = describe_default(field) or '""'
        shown = default if default == REQUIRED else f"`{default}`"
        rows.append((f"`{name}`", describe_field(field), shown, marks[name], field.description or ""))
    return write_table(("option", "value", "default", "mark", "meaning"), rows)
