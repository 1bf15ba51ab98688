"""Shared parts of commands: the classes of commands and groups, options with the same meaning everywhere, and their parsing."""

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
"""The names of `GPUS` in `experiment.estimate.hours`, listed here so that help need not import that module."""


def _silence(context: click.Context, parameter: click.Parameter, quiet: bool) -> None:
    if quiet:
        from fedagentgym.base.progress import set_verbosity

        set_verbosity("quiet")


def _make_quiet() -> click.Option:
    about = "Print results only, no progress."
    return click.Option(["--quiet", "-q"], is_flag=True, expose_value=False, callback=_silence, help=about)


class Command(click.Command):
    """A command that takes `-q` and refuses options that it would not use.

    An option that takes one value and is given twice is refused too.

    Args:
        *arguments: Arguments of `click.Command`.
        modes: Option -> the other options that the command uses with it; all others are refused beside it.
        needs: Option -> parameters of which at least one must be given with it.
        excludes: Pairs of parameters that must not be given together.
        same: Parameter -> the option and key that set the same: `{"seed": ("changes", "seed")}` for `--set seed=...`.
        **options: Keyword arguments of `click.Command`.
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
        """Refuse options without effect and options that exclude each other. `given` are the given parameters by name."""
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
        """Refuse a setting that is given by an option and by an assignment."""
        for name, (assigned, key) in self.same.items():
            if name in given and assigned in given and key in _list_keys(values[assigned]):
                first, second = (
                    one.opts[0] if isinstance(one, click.Option) else one.make_metavar(ctx)
                    for one in (given[name], given[assigned])
                )
                raise click.UsageError(f"{first} and {second} {key} are the same setting: give one of the two", ctx)


def _list_keys(texts: Sequence[str]) -> list[str]:
    """Call `list_keys` of `base.settings`, imported on use so that help need not import it."""
    from fedagentgym.base.settings import list_keys

    return list_keys(texts) if texts else []


def _is_given(parameter: click.Parameter, value: object) -> bool:
    """Return whether a parameter was given on the command line. The parser also lists arguments that were not."""
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
        """Return the text about a command in the group's help."""
        command = self.get_command(ctx, name)
        return " ".join((command.help or "").partition("\n\n")[0].split()) if command is not None else ""


class Option(click.Option):
    """An option that refuses `nan`, infinity and numbers beyond 64 bits, which would otherwise fail later."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        found = super().type_cast_value(ctx, value)
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, int | float) and not -MAX_NUMBER <= one <= MAX_NUMBER:
                raise click.BadParameter(f"{str(one)[:40]!r} is not a number of at most 64 bits.", ctx, self)
        return found


class PathType(click.Path):
    """A path. An empty text is refused: shells make it of unset variables, and it would mean the current folder."""

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
"""Loads plugins before other options are read, and does not pass them to the command."""
PLUGIN_NAMES = _plugin_option()
"""Loads plugins, and passes their names as `plugins` to the command."""

TRUST_PLUGINS = option(
    "--trust-plugins",
    is_flag=True,
    help="Trust the folder: load the plugins that it names, and accept its trackers and model servers, and that protections"
    " are missing here.",
)

# ---- environments ---------------------------------------------------------------------------------------------------

ENV_SET = assignments(
    "--env-set", help="Option of the environment as key=value, for example size=tiny; may be repeated."
)


def parse_assignments(texts: Iterable[str], settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Parse `key=value` texts to a mapping, in which they change the given `settings`."""
    from fedagentgym.base.settings import assign

    return reduce(assign, texts, settings or {})


def parse_env_options(texts: Iterable[str], *, instead: str | None = "give --split {}") -> dict[str, Any]:
    """Parse `--env-set`. Arguments of `gymnasium.make` are refused, since they are no options that a record could hold. The key
    `split` is refused with the advice `instead`, into which its value is put, or accepted if this is None."""
    from fedagentgym.envs.options import RESERVED

    options = parse_assignments(texts)
    if "split" in options and instead is not None:
        raise OptionError(f"--env-set split does nothing here: {instead.format(options['split'])}")
    if taken := sorted((RESERVED - {"split"}) & set(options)):
        raise OptionError(
            f"--env-set {taken[0]}: this is an argument of gymnasium.make and no option of an environment"
        )
    return options


def open_named_env(name: str, options: dict[str, Any]) -> TextEnv:
    """Open an environment, without gymnasium's wrappers, by its id or short name."""
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
    """The client that `--client` and `--client-split` name together; None if neither is given."""
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
"""The agent's settings that `eval` decides, each with the reason for refusing it."""


def refuse_keys(texts: Iterable[str], decided: Mapping[str, str]) -> None:
    """Refuse agent settings that something else decides; `decided` maps their keys to reasons."""
    for key in _list_keys(tuple(texts)):
        if key in decided:
            raise OptionError(f"--agent-set {key} does nothing here: {decided[key]}")


AGENT_SET = assignments("--agent-set", help="Agent setting as key=value, for example context=window.")


def parse_agent_settings(name: str, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """Parse `--agent` and `--agent-set` to agent settings. A name that is not registered is a model; an exported folder brings
    the settings that it was exported with."""
    from fedagentgym.agents import AGENTS
    from fedagentgym.agents.model.store import find_model, list_models
    from fedagentgym.experiment.agent_file import has_agent_file, read_agent_file
    from fedagentgym.runs.folder import RunFolder

    refuse_keys(assignments := tuple(assignments), {"name": f"the agent is already named {name!r}"})
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
