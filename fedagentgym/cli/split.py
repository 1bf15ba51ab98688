"""`fedagentgym split`: make, show, verify, plot and compare splits of a pool among clients."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click
from rich.table import Column, Table

from fedagentgym.base.encoding import shorten_digest
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, unknown_name_error
from fedagentgym.base.escape import escape_terminal
from fedagentgym.base.files import parse_yaml, write_atomic
from fedagentgym.base.imports import require
from fedagentgym.base.progress import get_console, make_table, measure_path, print_result
from fedagentgym.base.rounding import count_things, format_fixed, format_share
from fedagentgym.cli.completion import complete_environments
from fedagentgym.cli.options import (
    ENV_SET,
    JSON,
    NOT_NEGATIVE,
    PATH,
    PLUGINS,
    POSITIVE,
    Command,
    Group,
    assignments,
    option,
    parse_assignments,
    parse_env_options,
    repeated,
)
from fedagentgym.envs.registry import find_env_id

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import ClientSplit
    from fedagentgym.partitions.record import SplitRecord

FILE = click.argument("file", type=PATH, help="A split file (.json, .zip or a folder).")
UNVERIFIED = 3
"""Exit code if no check fails, but some check cannot be made here."""
POOL = option(
    "--pool",
    "tasks",
    type=PATH,
    metavar="FILE",
    help="File of the divided tasks, if they are your own: JSON lines with category and payload, as for TaskPool.from_records.",
)
_NOT_PARAMETERS = ("env_id", "partition", "env", "split", "server_overlap", "pool")
_DECIDED = ("env_id", "partition", "env")
_TEXTS = ("by", "labels", "variant")
"""Options whose values are taken as texts; values of the samplers' other options are read as YAML."""


@click.group(cls=Group)
def split() -> None:
    """Divide tasks among clients; show, verify, plot and compare splits."""


class SamplerCommand(Command):
    """A command that has an option for every parameter of every sampler."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from fedagentgym.partitions.samplers import SAMPLERS

        own = {name for one in self.params for name in one.opts}
        found: dict[str, dict[str, list[str]]] = {}
        """The samplers that have a parameter, by its name and by what it means for them."""
        for sampler in SAMPLERS.names():
            for name, field in getattr(SAMPLERS.get(sampler), "model_fields", {}).items():
                found.setdefault(name, {}).setdefault(field.description or "", []).append(sampler)
        further = []
        for name, meanings in found.items():
            if (flag := f"--{name.replace('_', '-')}") not in own:
                about = " ".join(f"{', '.join(samplers)}: {about}." for about, samplers in meanings.items())
                further.append(click.Option([flag], metavar="VALUE", help=about))
        return [*super().get_params(ctx), *further]


@split.command(
    cls=SamplerCommand,
    epilog="Example: fedagentgym split make --preset fedagent-alfworld-hardness-1",
    needs={"server_overlap": ("role",)},
)
@click.argument("sampler", required=False, help="Name of a sampler, for example preference; or use --preset.")
@option("--env", shell_complete=complete_environments, help="Environment id or short name, for example WebShop.")
@option("--clients", type=POSITIVE, help="Number of clients.")
@option("--tasks-per-client", type=POSITIVE, help="Tasks of every client, or the mean if sizes differ.")
@option("--omega", type=float, help="Preference: strength of the skew; 0.1 mild, 0.9 strong.")
@option("--xi", type=float, help="Coverage and hardness: concentration; 256 mild, 1 strong.")
@option("--beta", "--alpha", "beta", type=float, help="Dirichlet: concentration; 100 mild, 0.1 strong.")
@option("--min-tasks", type=NOT_NEGATIVE, help="Coverage: fewest tasks of a client.")
@option("--mean-tasks", type=float, help="Coverage: mean tasks per client.")
@option("--max-tasks", type=POSITIVE, help="Coverage: most tasks of a client.")
@option("--overlap", type=float, help="Mean number of clients that hold a task.")
@option("--by", help="Natural: the field of the tasks whose values are the clients.")
@assignments("--set", "parameters", help="Any other parameter of the sampler as key=value.")
@option("--variant", help="Kind of variants by which clients' environments differ, or {kind: ..., key: value}.")
@repeated("--role", metavar="NAME=NUMBER", help="Tasks set aside, for example public=200.")
@option("--server-overlap", type=float, default=1.0, help="Share of the server's tasks that clients hold too.")
@option("--labels", help="Label file for hardness, or 'pool'.")
@option("--preset", help="A named setting of a paper (`split presets` lists them).")
@ENV_SET
@PLUGINS
@option("--split", "divided", default="train", help="Split of the environment that is divided.")
@option("--seed", type=int, help="Seed of the split.")
@option("--out", type=PATH, default=Path("split.json"), help="File to write: .json, .zip, or a folder.")
@option("--plot", type=PATH, help="Also draw the split, as .png or .svg.")
@JSON
def make(
    sampler: str | None,
    env: str | None,
    parameters: tuple[str, ...],
    variant: str | None,
    role: tuple[str, ...],
    server_overlap: float,
    preset: str | None,
    env_set: tuple[str, ...],
    divided: str,
    out: Path,
    plot: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Make a split and write it to a file."""
    from fedagentgym.partitions.client_split import federate
    from fedagentgym.partitions.plots import validate_figure_path
    from fedagentgym.partitions.presets import get_preset

    if plot is not None:
        validate_figure_path(plot)
        if out.resolve() in (plot.resolve(), *plot.resolve().parents):
            raise OptionError(f"--plot must be another file than --out, and outside of it, got {plot} and {out}")
        require("matplotlib", "plots")
    keywords: dict[str, Any] = {} if preset is None else get_preset(preset)
    if sampler is not None:
        keywords["partition"] = sampler
    if env is not None:
        keywords["env_id"] = find_env_id(env)
    if "env_id" not in keywords or "partition" not in keywords:
        raise OptionError("name a sampler and an environment, for example: split make preference --env WebShop ...")
    keywords["env"] = {**keywords.get("env", {}), **parse_env_options(env_set)}
    roles: dict[str, int] = {}
    for text in role:
        name, equals, number = text.partition("=")
        if not equals or not number.strip().isdecimal() or len(number) >= 20:
            raise OptionError(f"cannot read the role {text[:80]!r}: write it as name=number, for example public=200")
        if name.strip() in roles:
            raise OptionError(f"--role {name.strip()} is given twice: give it once")
        roles[name.strip()] = int(number)
    kind = None if variant is None else parse_yaml(variant, "--variant")
    if variant is not None and not isinstance(kind, str | dict):
        raise OptionError(f"cannot read the variant {variant!r}: give a kind, or {{kind: bm25_weights, choices: 4}}")
    given |= {"roles": roles or None, "variant": kind}
    keywords.update({key: value for key, value in given.items() if value is not None})
    written = {key: value for key, value in given.items() if isinstance(value, str) and key not in _TEXTS}
    keywords = parse_assignments([f"{key}={value}" for key, value in written.items()], keywords)
    for assignment in parameters:
        if (name := assignment.partition("=")[0].partition(".")[0].strip()) in _NOT_PARAMETERS:
            raise OptionError(f"--set {name}: not a parameter of a sampler, see split make --help")
        if given.get(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(f"{flag} and --set {name} are the same setting: give one of the two")
    keywords = parse_assignments(parameters, keywords)
    made = federate(keywords.pop("env_id"), split=divided, server_overlap=server_overlap, **keywords)
    _write(made, out, plot)
    _print_report(made, as_json, str(out))


def _write(made: ClientSplit, out: Path, plot: Path | None) -> None:
    """Write a split and its figure, or neither of them."""
    before = plot.read_bytes() if plot is not None and plot.is_file() else None
    if plot is not None:
        made.plot(plot)
    try:
        made.save(out)
    except BaseException:
        if plot is not None and before is None:
            plot.unlink()
        elif plot is not None and before is not None:
            write_atomic(plot, before)
        raise


@split.command(epilog="Example: fedagentgym split presets")
@JSON
def presets(as_json: bool) -> None:
    """List the named settings of the papers."""
    from fedagentgym.partitions.presets import PRESETS

    if as_json:
        click.echo(json.dumps(dict(PRESETS), indent=2))
        return
    for name, keywords in PRESETS.items():
        rest = ", ".join(f"{key} {value}" for key, value in keywords.items() if key not in _DECIDED)
        print_result(name)
        print_result(fill(f"    {keywords['partition']} of {keywords['env_id']}: {rest}", subsequent_indent=" " * 4))


@split.command(epilog="Example: fedagentgym split show split.json")
@FILE
@POOL
@ENV_SET
@PLUGINS
@JSON
def show(file: Path, tasks: Path | None, env_set: tuple[str, ...], as_json: bool) -> None:
    """Summarise a split: sizes, mixture, overlap, Jaccard, dispersion, the client farthest from the pool.

    If the divided tasks are not on this machine, only the information in the file is shown.
    """
    from fedagentgym.partitions import split_files

    record = split_files.load(file)
    try:
        _print_report(_open_split(file, env_set, tasks), as_json, str(file))
    except FedAgentGymError as error:
        if tasks is not None or env_set or _has_pool(record):
            raise
        _print_rows([*_describe_record(record, str(file)), ("pool", f"not here: {error}")], as_json, str(file), record)


def _has_pool(record: SplitRecord) -> bool:
    """Return whether the environment can load the divided pool here. If it can, an error is the split's."""
    from fedagentgym.partitions.table import open_pool

    try:
        return open_pool(record.env_id, record.env_split, record.env_options).digest == record.pool_digest
    except FedAgentGymError:
        return False


@split.command(epilog="Example: fedagentgym split verify split.json")
@FILE
@POOL
@ENV_SET
@PLUGINS
@JSON
def verify(file: Path, tasks: Path | None, env_set: tuple[str, ...], as_json: bool) -> None:
    """Check a split: content, pool, roles, evaluation tasks, re-sampling from its seed, axes that are left to chance.

    Exits with 0 if all checks pass, 2 if a check fails, and 3 if a check cannot be made here.
    """
    checks = _open_split(file, env_set, tasks).verify()
    failed = [check for check in checks if check.ok is False]
    unknown = [check for check in checks if check.ok is None]
    if as_json:
        click.echo(json.dumps([check.__dict__ for check in checks], indent=2))
    else:
        marks = {True: "ok", False: "FAILED", None: "unknown"}
        print_result(make_table(("", "", ""), [(marks[one.ok], one.name, one.detail) for one in checks], text=3))
    if failed:
        raise DataError(f"{file} fails the check {failed[0].name}: {failed[0].detail}")
    if unknown:
        message = f"fedagentgym: {file} is not verified: {unknown[0].name}: {unknown[0].detail}"
        click.echo(escape_terminal(message), err=True)
        raise click.exceptions.Exit(UNVERIFIED)


@split.command(epilog="Example: fedagentgym split export split.json --client 3 --out client-3")
@FILE
@option("--client", type=NOT_NEGATIVE, help="The client whose tasks are written.")
@option("--all", "every_client", is_flag=True, help="Write all clients, each in its own folder.")
@option("--out", "folder", type=PATH, required=True, help="Folder to write; it must not exist.")
@ENV_SET
@PLUGINS
def export(file: Path, client: int | None, every_client: bool, folder: Path, env_set: tuple[str, ...]) -> None:
    """Write the tasks of a client, with their answers, into a folder for the client's own machine."""
    from fedagentgym.base.files import atomic_folder
    from fedagentgym.partitions.held import export_client

    if (client is None) != every_client:
        raise OptionError("name one client with --client, or give --all")
    opened = _open_split(file, env_set)
    if client is not None:
        export_client(opened.client(client), folder)
        print_result(f"client {client} of {file} is in {folder}")
        return
    with atomic_folder(folder) as part:
        for one in opened:
            export_client(one, part / f"client-{one.index}")
    print_result(f"{folder} has {count_things(len(opened), 'client')} of {file}")


@split.command(epilog="Example: fedagentgym split plot split.json --out split.svg")
@FILE
@option("--out", type=PATH, default=Path("split.png"), help="File of the figure, .png or .svg.")
@POOL
@ENV_SET
@PLUGINS
def plot(file: Path, out: Path, tasks: Path | None, env_set: tuple[str, ...]) -> None:
    """Draw a split, in the kind of figure that fits its sampler."""
    _open_split(file, env_set, tasks).plot(out)
    print_result(f"drawn: {out}")


@split.command(
    epilog="Example: fedagentgym split compare split.json even.json --out two.svg",
    needs={"unit": ("out",), "clients": ("env",), "seed": ("env",)},
)
@click.argument(
    "splits",
    nargs=-1,
    required=True,
    metavar="SPLIT...",
    help="Split files; with --env also samplers, for example preference,omega=0.9",
)
@option("--out", type=PATH, help="Draw the splits side by side, as .png or .svg.")
@option("--unit", default="share", help="Unit of the bars: share (of the client's tasks) or tasks (their number).")
@option("--env", shell_complete=complete_environments, help="Environment whose tasks the samplers divide.")
@option("--clients", type=POSITIVE, help="Number of clients for the samplers.")
@option("--seed", type=int, default=0, help="Seed of the samplers.")
@ENV_SET
@PLUGINS
@JSON
def compare(
    splits: tuple[str, ...],
    out: Path | None,
    unit: str,
    env: str | None,
    clients: int | None,
    seed: int,
    env_set: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare how several splits of the same tasks skew their clients, in a table and a figure."""
    from fedagentgym.partitions.plots import validate_figure_path
    from fedagentgym.partitions.side_by_side import describe_sampler, plot_side_by_side, refuse_other_pools

    if out is not None:
        validate_figure_path(out)
    if unit not in ("share", "tasks"):
        raise OptionError(f"--unit is share or tasks, got {unit!r}")
    made = [_open_or_make(text, env, clients, seed, env_set) for text in splits]
    if env is not None and all(Path(text).exists() for text in splits):
        raise OptionError("--env is for samplers, and all of these are split files: leave it out")
    refuse_other_pools(made)
    if out is not None:
        plot_side_by_side(made, out, unit="share" if unit == "share" else "tasks")
    if as_json:
        rows = [
            {"split": text, "digest": one.digest, "statistics": one.statistics().to_dict()}
            for text, one in zip(splits, made, strict=True)
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = []
    for one in made:
        found = one.statistics()
        low, high = int(found.sizes.min()), int(found.sizes.max())
        row = (
            ": ".join(part for part in describe_sampler(one.record) if part),
            f"{len(one):,}",
            f"{low:,}" if low == high else f"{low:,} to {high:,}",
            format_fixed(found.distances.mean(), 3),
            format_fixed(found.jaccard_mean, 3),
        )
        table.append(row)
    heads = ("sampler", "clients", "tasks of a client", "distance to pool", "Jaccard")
    print_result(make_table(heads, table))
    if out is not None:
        print_result(f"drawn: {out}")


def _open_or_make(text: str, env: str | None, clients: int | None, seed: int, env_set: Iterable[str]) -> ClientSplit:
    """Open a split file, or make the split of a sampler that is written as name,key=value,key=value."""
    from fedagentgym.partitions.client_split import federate
    from fedagentgym.partitions.samplers import SAMPLERS

    try:
        is_there = Path(text).exists()
    except OSError:  # a name that no file can have
        is_there = False
    if is_there:
        return _open_split(Path(text), env_set)
    name, *assignments = re.split(r",(?![^{\[]*[}\]])", text)  # at commas outside of lists and mappings
    if name not in SAMPLERS:
        raise unknown_name_error("split file or sampler", name, SAMPLERS.names(), registered=True)
    if env is None:
        raise OptionError(f"the sampler {name!r} divides the tasks of an environment: name one with --env")
    keys = [assignment.partition("=")[0].strip() for assignment in assignments]
    for key in keys:
        if key in _NOT_PARAMETERS:
            raise OptionError(f"{text}: {key!r} is no parameter of a sampler")
        if keys.count(key) > 1:
            raise OptionError(f"{text}: {key} is given twice: give it once")
    keywords = parse_assignments(assignments, {"clients": clients, "seed": seed})
    return federate(find_env_id(env), partition=name, env=parse_assignments(env_set), **keywords)


@split.command(epilog="Example: fedagentgym split diff split.json even.json")
@click.argument("first", type=PATH, help="A split file (.json, .zip or a folder).")
@click.argument("second", type=PATH, help="A split file (.json, .zip or a folder).")
@PLUGINS
@JSON
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Compare two splits: the settings in which they differ, and the clients whose tasks differ."""
    from fedagentgym.partitions.verification import compare as compare_records

    found = compare_records(_load_record(first), _load_record(second))
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
        return
    if found.identical:
        print_result(f"{first} and {second} are the same split ({found.digests[0]})")
        return
    rows = [(name, _shorten(left), _shorten(right)) for name, (left, right) in found.fields.items()]
    print_result(make_table(("field", str(first), str(second)), rows, text=3))
    print_result(
        f"{found.changed:,} of {found.clients:,} common clients differ; tasks in common per client: "
        f"mean Jaccard {format_fixed(found.mean_jaccard, 3)},"
        f" least {format_fixed(found.least_jaccard, 3)} (client {found.least_client})"
    )


def _shorten(value: object) -> str:
    """The value of a field as text, with a digest shortened."""
    return shorten_digest(value) if isinstance(value, str) and value.startswith("sha256:") else str(value)


def _open_split(file: Path, env_set: Iterable[str], tasks: Path | None = None) -> ClientSplit:
    """Open the split of a file with its pool. `tasks` is a file of the pool's tasks, with one record per line."""
    from fedagentgym.base.files import read_jsonl
    from fedagentgym.envs import TaskPool
    from fedagentgym.partitions import split_files
    from fedagentgym.partitions.client_split import open_client_split

    pool = None
    if tasks is not None:
        record = split_files.load(file)
        found = [one for _, one in read_jsonl(tasks)]
        pool = TaskPool.from_records(found, env=record.env_id, split=record.env_split)
    return open_client_split(file, env=parse_assignments(env_set), pool=pool)


def _load_record(file: Path) -> SplitRecord:
    """Read a split record with task ids, and check every client against its digest. A split that names its tasks by number is
    opened with its pool."""
    from fedagentgym.partitions import split_files

    record = split_files.load(file)
    if record.ids is None:
        record = _open_split(file, ()).record
    record.check_clients()
    return record


def _print_report(client_split: ClientSplit, as_json: bool, where: str) -> None:
    record, statistics = client_split.record, client_split.statistics()
    found = statistics.to_dict()
    if as_json:
        _print_rows([], as_json, where, record, found)
        return
    mixture, overlap = found["mixture"], found["overlap"]
    held = sorted({overlap["min_copies"], overlap["max_copies"]})
    shares = dict(zip(statistics.categories, statistics.shares[statistics.worst_client].tolist(), strict=True))
    worst = ", ".join(f"{name} {format_share(share)}" for name, share in _take_largest(shares, 4) if share > 0)
    lows, highs = statistics.shares.min(axis=0).tolist(), statistics.shares.max(axis=0).tolist()
    ranges = dict(zip(statistics.categories, zip(lows, highs, strict=True), strict=True))
    largest = [name for name, _ in _take_largest(mixture["pool"])]
    pool = ", ".join(f"{name} {format_share(mixture['pool'][name], 1)}" for name in largest)
    mixtures = (f"{name} {format_share(ranges[name][0])} to {format_share(ranges[name][1])}" for name in largest)
    rows = [
        ("pool", f"{count_things(found['tasks_in_pool'], 'task')}: {pool}"),
        ("clients' mixtures", ", ".join(mixtures)),
        (
            "distance to pool",
            f"mean {format_fixed(mixture['mean_distance'], 3)}, greatest {format_fixed(mixture['max_distance'], 3)}"
            f" (client {mixture['worst_client']}: {worst})",
        ),
        (
            "overlap",
            f"{format_share(overlap['covered'], 1)} of the tasks are held, by"
            f" {' to '.join(map(str, held))} client{'' if held == [1] else 's'}, mean {format_fixed(overlap['mean_copies'], 2)}",
        ),
        (
            "Jaccard",
            f"mean {format_fixed(found['jaccard']['mean'], 4)}, greatest {format_fixed(found['jaccard']['max'], 4)}",
        ),
        ("dispersion", f"{format_fixed(found['dispersion']['value'], 4)} ({found['dispersion']['measure']})"),
    ]
    if "hardness" in found:
        hard = found["hardness"]
        spread = f"clients {format_share(hard['min'], 1)} to {format_share(hard['max'], 1)}, mean {format_share(hard['mean'], 1)}"
        rows.append(("solved share", f"pool {format_share(hard['pool_solved'], 1)}; {spread}"))
    _print_rows([*_describe_record(record, where), *rows], as_json, where, record)


def _describe_record(record: SplitRecord, where: str) -> list[tuple[str, str]]:
    """The rows of a report that need only the split's file, not its pool."""
    parameters = ", ".join(f"{key} {value}" for key, value in sorted(record.parameters.items()))
    options = "".join(f", {key} {value}" for key, value in record.env_options.items())
    sizes = record.clients.sizes
    spread = f"{sizes.min():,} each"
    if sizes.min() != sizes.max():
        spread = f"{sizes.min():,} to {sizes.max():,}, mean {format_fixed(sizes.mean(), 1)}"
        spread += f", standard deviation {format_fixed(sizes.std(), 1)}"
    rows = [
        ("split", where),
        ("environment", f"{record.env_id} ({record.env_split}{options})"),
        ("sampler", f"{record.sampler} ({parameters}), seed {record.seed}"),
        ("clients", f"{len(record):,} with {count_things(record.clients.items.size, 'task')}: {spread}"),
    ]
    if record.roles:
        rows.append(("roles", ", ".join(f"{name} {len(ids):,}" for name, ids in record.roles.items())))
    if record.variant is not None:
        rows.append(("variant", ", ".join(f"{key} {value}" for key, value in record.variant.items())))
    return rows


def _print_rows(
    rows: Sequence[tuple[str, str]],
    as_json: bool,
    where: str,
    record: SplitRecord,
    statistics: Mapping[str, Any] | None = None,
) -> None:
    """Print a report as a table, or as JSON the record with its statistics (null if the pool is not available)."""
    if as_json:
        about = {"file": where, "digest": record.digest, **record.to_header()}
        about["roles"] = {name: len(ids) for name, ids in record.roles.items()}
        about.pop("labels")
        click.echo(json.dumps({**about, "statistics": statistics}, indent=2))
        return
    names, least = max(len(name) for name, _ in rows), max(measure_path(text) for _, text in rows)
    table = Table(
        Column(style="bold"), Column(overflow="fold", min_width=least), box=None, pad_edge=False, show_header=False
    )
    if names + 2 + least > get_console().width:
        table.width = names + 2 + least
    for name, text in rows:
        table.add_row(name, text)
    print_result(table)
    print_result(f"digest  {record.digest}")


def _take_largest(shares: Mapping[str, float], most: int = 8) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda entry: -entry[1])[:most]
