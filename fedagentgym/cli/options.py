"""Shared by commands: the class of their groups, options with the same meaning everywhere, and how these are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.escape import add_plugins, quote_word

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.experiment.evaluation import NamedClient

MAX_NUMBER = (1 << 63) - 1
HELP = ("-h", "--help")
ASSIGNMENT = "KEY=VALUE"
GPU_NAMES = ("h100", "h200", "a100", "l40s", "l4")
"""Those of `experiment.estimate.hours`, which help need not import."""


def _silence(context: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    if quiet:
        from fedagentgym.base.progress import set_verbosity

        set_verbosity("quiet")


def _make_quiet() -> click.Option:
    about = "Print results only, no progress."
    return click.Option(["--quiet", "-q"], is_flag=True, expose_value=False, callback=_silence, help=about)


class Command(click.Command):
    """A command that takes `-q` as the program does, and refuses options which it would not use.

    An option that is given twice is refused too, where one value counts.

    Args:
        *arguments: Those of `click.Command`.
        modes: Option -> the other parameters that the command uses with it; the rest are refused beside it.
        needs: Option -> parameters of which at least one must be given with it.
        excludes: Pairs of which one alone may be given.
        same: Parameter -> the key that says the same in the assignments of this option: `{"seed": ("changes", "seed")}`.
        **options: Those of `click.Command`.
    """

    def __init__(
        self,
        *arguments: Any,
        modes: Mapping[str, Collection[str]] | None = None,
        needs: Mapping[str, Sequence[str]] | None = None,
        excludes: Collection[tuple[str, str]] = (),
        same: Mapping[str, tuple[str, str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.modes, self.needs, self.excludes, self.same = modes or {}, needs or {}, excludes, same or {}
        self.params.append(_make_quiet())

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return list(HELP)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            values, _, given = self.make_parser(ctx).parse_args(list(args))
            for one, times in Counter(given).items():
                if times > 1 and isinstance(one, click.Option) and not (one.multiple or one.is_flag or one.count):
                    raise click.UsageError(f"{one.opts[0]} is given {times} times: give it once", ctx)
                if isinstance(one, click.Option) and one.metavar == ASSIGNMENT:
                    for key, often in Counter(_list_keys(values[str(one.name)])).items():
                        if often > 1:
                            raise click.UsageError(
                                f"{one.opts[0]} {key[:80]} is given {often} times: give it once", ctx
                            )
            named = {str(one.name): one for one in given if _is_given(one, values[str(one.name)])}
            self._check_use(ctx, named)
            self._check_same(ctx, named, values)
        return super().parse_args(ctx, args)

    def _check_use(self, ctx: click.Context, given: Mapping[str, click.Parameter]) -> None:
        """Refuse what is given in vain; `given` are parameters by their names."""
        shown = {
            str(one.name): one.opts[0] if isinstance(one, click.Option) else one.make_metavar(ctx)
            for one in self.params
        }
        for mode in self.modes.keys() & given:
            used = {mode, "quiet", "help", *self.modes[mode]}
            if vain := [name for name, one in given.items() if isinstance(one, click.Option) and name not in used]:
                raise click.UsageError(
                    f"{shown[vain[0]]} does nothing beside {shown[mode]}: leave one of them out", ctx
                )
        for name, partners in self.needs.items():
            if name in given and not given.keys() & set(partners):
                wanted = " or ".join(shown[partner] for partner in partners)
                raise click.UsageError(f"{shown[name]} does nothing without {wanted}", ctx)
        for first, second in self.excludes:
            if first in given and second in given:
                raise click.UsageError(
                    f"{shown[first]} and {shown[second]} exclude each other: give one of the two", ctx
                )

    def _check_same(self, ctx: click.Context, given: Mapping[str, click.Parameter], values: Mapping[str, Any]) -> None:
        """Refuse a setting that two options give."""
        for name, (assigned, key) in self.same.items():
            if name in given and assigned in given and key in _list_keys(values[assigned]):
                first, second = (
                    one.opts[0] if isinstance(one, click.Option) else one.make_metavar(ctx)
                    for one in (given[name], given[assigned])
                )
                raise click.UsageError(f"{first} and {second} {key} are the same setting: give one of the two", ctx)


def _list_keys(texts: Sequence[str]) -> list[str]:
    """`list_keys`, imported on use so that help need not import the settings."""
    from fedagentgym.base.settings import list_keys

    return list_keys(texts) if texts else []


def _is_given(parameter: click.Parameter, value: object) -> bool:
    """Return whether a parameter stands on the command line; the parser lists arguments that do not."""
    return isinstance(parameter, click.Option) or (isinstance(value, str | tuple) and len(value) > 0)


class Group(click.Group):
    """A group that lists its commands in the order of their declaration, each with the first paragraph of its help."""

    command_class = Command

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not any("-q" in one.opts for one in self.params):
            self.params.append(_make_quiet())

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return list(HELP)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.get_summary(ctx, name)) for name in self.list_commands(ctx)])

    def get_summary(self, ctx: click.Context, name: str) -> str:
        """Return what the group's help says about a command."""
        command = self.get_command(ctx, name)
        return " ".join((command.help or "").partition("\n\n")[0].split()) if command is not None else ""


class Option(click.Option):
    """An option that refuses `nan`, infinity and numbers beyond 64 bits: each would fail later, in another place."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        found = super().type_cast_value(ctx, value)
        if isinstance(found, int | float) and not -MAX_NUMBER <= found <= MAX_NUMBER:
            raise click.BadParameter(f"{str(value)[:40]!r} is not a number of at most 64 bits.", ctx, self)
        return found


class PathType(click.Path):
    """A path; an empty text, which a shell makes of an unset variable, would be the folder of the shell."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("a path is expected, and this is an empty text", param, ctx)
        return super().convert(value, param, ctx)


command = partial(click.command, cls=Command)
option = partial(click.option, cls=Option)
repeated = partial(option, multiple=True)
assignments = partial(repeated, metavar=ASSIGNMENT)
PATH = PathType(path_type=Path)
POSITIVE = click.IntRange(min=1)
NOT_NEGATIVE = click.IntRange(min=0)

JSON = option("--json", "as_json", is_flag=True, help="Machine-readable output.")

# ---- plugins --------------------------------------------------------------------------------------------------------


def _load_plugins(context: click.Context, parameter: click.Parameter, plugins: tuple[str, ...]) -> tuple[str, ...]:
    from fedagentgym.base.imports import load_plugins

    load_plugins(plugins)
    return plugins


_plugin_option = partial(
    repeated,
    "--plugin",
    "plugins",
    metavar="FILE_OR_MODULE",
    help="A file (mine.py) or module that registers environments, methods or the like; may be repeated.",
    callback=_load_plugins,
    is_eager=True,
)
PLUGINS = _plugin_option(expose_value=False)
"""Loads plugins before other options are read; the command itself need not know them."""
PLUGIN_NAMES = _plugin_option()
"""Loads plugins, and passes their names as `plugins` to a command that writes them down."""

TRUST_PLUGINS = option(
    "--trust-plugins",
    is_flag=True,
    help="Trust whoever made the folder: load the plugins that it names, and accept its trackers, its model servers and"
    " protections that are missing here.",
)

# ---- environments ---------------------------------------------------------------------------------------------------

ENV_SET = assignments(
    "--env-set", help="Option of the environment as key=value, for example size=tiny; may be repeated."
)


def parse_assignments(texts: Iterable[str], settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """`key=value` texts as a mapping; they change `settings`, if given."""
    from fedagentgym.base.settings import assign

    return reduce(assign, texts, settings or {})


def parse_env_options(texts: Iterable[str]) -> dict[str, Any]:
    """`--env-set` of a command that has `--split`."""
    options = parse_assignments(texts)
    if "split" in options:
        raise OptionError(f"--env-set split: the split is given by --split: --split {options['split']}")
    return options


def open_named_env(name: str, options: dict[str, Any]) -> TextEnv:
    """The environment without gymnasium's wrappers; its name may be the short one."""
    from fedagentgym.envs import open_env
    from fedagentgym.envs.registry import find_env_id

    return open_env(find_env_id(name), **options)


CLIENT = option(
    "--client",
    type=NOT_NEGATIVE,
    help="Use the environment of this client of --client-split: its tasks, in its variant.",
)
CLIENT_SPLIT = option("--client-split", type=PATH, metavar="FILE", help="Split file that --client belongs to.")


def find_named_client(client: int | None, file: Path | None) -> NamedClient | None:
    """The client that `--client` and `--client-split` name together."""
    if client is None and file is None:
        return None
    if client is None or file is None:
        missing = "--client" if client is None else "--client-split"
        raise OptionError(
            f"{missing} is missing: --client 3 --client-split FILE together name the environment of a client"
        )
    from fedagentgym.experiment.evaluation import NamedClient

    return NamedClient(file, client)


# ---- agents ---------------------------------------------------------------------------------------------------------

EVALUATED = {"decoding.temperature": "evaluations sample at --temperature"}
"""The agent's settings that `eval` decides."""


def refuse_keys(texts: Iterable[str], decided: Mapping[str, str]) -> None:
    """Refuse an agent's setting that something else decides, with the reason of its key."""
    for key in _list_keys(tuple(texts)):
        if key in decided:
            raise OptionError(f"--agent-set {key} does nothing here: {decided[key]}")


AGENT_SET = assignments("--agent-set", help="Agent setting as key=value, for example context=window.")


def parse_agent_settings(name: str, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """`--agent` and `--agent-set` as agent settings; an unregistered name is a model, with its own prompt if it was
    exported with one."""
    from fedagentgym.agents import AGENTS
    from fedagentgym.agents.model.store import find_model, list_models
    from fedagentgym.experiment.agent_file import has_agent_file, read_agent_file
    from fedagentgym.runs.folder import RunFolder

    refuse_keys(assignments := tuple(assignments), {"name": f"the agent is named already, {name!r}"})
    known = name in AGENTS
    if not known and (Path(name) / "config.yaml").is_file() and (Path(name) / "rounds").is_dir():
        export = add_plugins(f"fedagentgym export {quote_word(name)} --out FOLDER", RunFolder(Path(name)).plugins)
        raise OptionError(
            f"{name} is a run: evaluate its policy with --run {quote_word(name)}, or export it ({export})"
        )
    if not known and "/" not in name and not Path(name).exists() and find_model(name) is None:
        names = dict.fromkeys((*AGENTS.names(), *(one.name for one in list_models())))
        raise unknown_name_error("agent", name, names, registered=True)
    settings: dict[str, Any] = {"name": name} if known else {"name": "transformers", "model": name}
    if not known and has_agent_file(name):
        settings = read_agent_file(name).agent.model_dump(mode="json", exclude_unset=True)
    return parse_assignments(assignments, settings)
