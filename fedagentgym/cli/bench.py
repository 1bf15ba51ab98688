"""`fedagentgym bench`: suites that compare agents and methods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from fedagentgym.base.errors import DataError, OptionError, join_names, unknown_name_error
from fedagentgym.base.escape import add_plugins, escape_terminal, quote_word
from fedagentgym.base.progress import get_console, get_error_console, is_quiet, make_table, print_result
from fedagentgym.base.rounding import count_things, format_bytes, format_duration, format_fixed, format_range
from fedagentgym.cli.completion import complete_agents, complete_suites
from fedagentgym.cli.options import (
    AGENT_SET,
    GPU_NAMES,
    JSON,
    NOT_NEGATIVE,
    PATH,
    PLUGIN_NAMES,
    PLUGINS,
    TRUST_PLUGINS,
    Group,
    assignments,
    option,
    parse_agent_settings,
    refuse_keys,
    repeated,
)
from fedagentgym.leaderboard.metrics import Measures, find_ends, find_metric, format_spread
from fedagentgym.leaderboard.suite import (
    count_tasks,
    describe_few_seeds,
    describe_replicates,
    list_suites,
    load_suite,
    load_untuned,
    open_scenario,
    to_yaml,
)

if TYPE_CHECKING:
    from fedagentgym.experiment.estimate.plan import RunPlan
    from fedagentgym.leaderboard.entries import Entry
    from fedagentgym.leaderboard.play import SuiteRun
    from fedagentgym.leaderboard.results import Result
    from fedagentgym.leaderboard.suite import Suite

ROOT = Path("runs") / "leaderboard"
WORKERS = option("--workers", type=NOT_NEGATIVE, default=0, help="Runs played in parallel; 0: one for each core.")
SUITE = click.argument(
    "suite_name", metavar="SUITE", help="Name of a suite, or your own YAML file.", shell_complete=complete_suites
)
RUN_HELP = "Folder of an entry's runs (FOLDER/SUITE/ENTRY), or a folder that holds several such folders."


class BenchGroup(Group):
    """A group that answers the name of a suite, given in place of a command, with the command that runs the suite."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            if args[0] in list_suites():
                raise OptionError(f"{args[0]!r} is run by: fedagentgym bench run {quote_word(args[0])}")
            if not args[0].startswith("-"):
                raise unknown_name_error("command or suite", args[0], [*self.commands, *list_suites()])
        return super().resolve_command(ctx, args)


@click.group(cls=BenchGroup, invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Run benchmark suites, pack and verify their results."""
    if context.invoked_subcommand is None:
        context.invoke(list_all)


@bench.command("list", epilog="Example: fedagentgym bench list")
@JSON
def list_all(as_json: bool) -> None:
    """List the suites in groups, each with a description and the time that its own entries take.

    Minutes are for two cores. Hours on a GPU are estimates: the first number is for replies as long as the expert's, the second
    for the longest replies.
    """
    from fedagentgym.experiment.estimate.hours import GPUS
    from fedagentgym.leaderboard.costs import estimate_hours

    suites = [load_suite(name) for name in list_suites()]
    hours = {one.name: estimate_hours(one, GPUS[GPU_NAMES[0]]) for one in suites if one.hardware}
    if as_json:
        rows = [
            {"name": one.name, "kind": one.track, "title": one.title, "minutes": one.minutes}
            | {"gpu_hours": hours.get(one.name)}
            for one in suites
        ]
        click.echo(json.dumps(rows))
        return
    groups: dict[str, list[Suite]] = {head: [] for head in _GROUPS}
    for suite in suites:
        groups[_choose_group(suite, [one.name for one in suites])].append(suite)
    for head, members in groups.items():
        if members:
            print_result(head)
        for suite in members:
            _print_entry(suite.name, f"{suite.title}{_describe_run(suite, hours.get(suite.name))}")


_GROUPS = (
    "run these first",
    "agents track",
    "methods track",
    "methods track: protocols of papers, on a GPU",
    "methods track: earlier versions",
)


def _choose_group(suite: Suite, names: Sequence[str]) -> str:
    """The heading under which a suite is listed. Suites that take up to five minutes are in the first group."""
    first, agents, methods, papers, earlier = _GROUPS
    if f"{suite.name.rpartition('-v')[0]}-v{suite.version + 1}" in names:
        return earlier
    if suite.hardware:
        return papers
    if suite.minutes is not None and suite.minutes <= 5:
        return first
    return agents if suite.track == "agents" else methods


def _describe_run(suite: Suite, hours: tuple[float, float] | None) -> str:
    """The time of a suite, and the scenarios in which methods are known not to differ."""
    same = [name for name, one in suite.scenarios.items() if not one.methods_differ]
    notes = [] if suite.minutes is None else [f"{suite.minutes:g} min"]
    notes += [] if hours is None else [f"{format_range(*hours, 0)} hours of an {GPU_NAMES[0].upper()}"]
    if same:
        notes.append(f"methods do not differ{'' if len(same) == len(suite.scenarios) else f' in {join_names(same)}'}")
    return f" ({'; '.join(notes)})" if notes else ""


def _print_entry(name: str, description: str) -> None:
    """Print a name and its description, whose further lines are indented in a narrow terminal."""
    width = get_console().width
    text = fill(f"  {name:28s} {description}", width, subsequent_indent=" " * 31, break_on_hyphens=False)
    print_result(text)


@bench.command(epilog="Example: fedagentgym bench show smoke")
@SUITE
@PLUGINS
@option("--check", is_flag=True, help="Open every scenario, compare its digests with the suite's, and print them.")
@JSON
def show(suite_name: str, check: bool, as_json: bool) -> None:
    """Show the definition of a suite, and how many tasks it plays."""
    suite = load_suite(suite_name)
    if as_json:
        plain = {"suite": suite.model_dump(mode="json"), "digest": suite.digest}
        plain["tasks"] = {name: count_tasks(suite, name) for name in suite.scenarios}
        if check:
            plain["opened"] = {name: open_scenario(suite, name).describe() for name in suite.scenarios}
        click.echo(json.dumps(plain))
        return
    click.echo(escape_terminal(to_yaml(suite)), nl=False)
    click.echo(f"# digest: {suite.digest}")
    if (few := describe_few_seeds(suite)) is not None:
        click.echo(f"# {few}")
    if suite.power is not None:
        click.echo(f"# decides differences of {format_fixed(100 * suite.power, 1)} points in four of five experiments")
    for scenario, one in suite.scenarios.items():
        click.echo(f"# {scenario}: {_describe_counts(suite, scenario)}")
        if not one.methods_differ:
            click.echo(escape_terminal(f"# {scenario}: methods do not differ here: {one.because or one.about}"))
    for scenario in suite.scenarios if check else ():
        found = open_scenario(suite, scenario).describe()
        click.echo(f"# {scenario}: {json.dumps(found)}")


def _describe_counts(suite: Suite, scenario: str) -> str:
    """Return the number of tasks that choose the round or draw the curve, and of those that rank; none at all is refused."""
    counts, ranked = count_tasks(suite, scenario), suite.get_ranking(scenario).split
    played = {suite.selection.split: ["choose the round" if suite.ranked_round == "best" else "draw the curve"]}
    played.setdefault(ranked, []).append("rank")
    return ", ".join(
        f"{' or '.join(f'{size:,}' for size in sorted(set(sizes)))} tasks of {split} {' and '.join(played[split])}"
        for split, sizes in counts.items()
    )


@bench.command(epilog="Example: fedagentgym bench config smoke zero-shot uniform-seed0")
@SUITE
@PLUGINS
@click.argument("baseline", help="One of the suite's own entries, such as fedprox.")
@click.argument("run", help="A scenario and a seed, such as uniform-seed0.")
def config(suite_name: str, baseline: str, run: str) -> None:
    """Print the configuration of one run of a baseline, as a file that `train` takes (methods track)."""
    from fedagentgym.base.files import format_yaml
    from fedagentgym.leaderboard.entries import make_baseline
    from fedagentgym.leaderboard.play import make_run_config
    from fedagentgym.leaderboard.results import name_run
    from fedagentgym.runs.folder import publish_config

    suite = load_suite(suite_name)
    if suite.track != "methods":
        raise OptionError(f"{suite.name} is on the agents track, where nothing is trained")
    runs = {name_run((scenario, seed)): (scenario, seed) for scenario in suite.scenarios for seed in suite.seeds}
    if run not in runs:
        raise unknown_name_error(f"run of {suite.name}", run, runs)
    found = make_run_config(suite, make_baseline(suite, baseline), runs[run])
    click.echo(escape_terminal(format_yaml(publish_config(found.plain()))), nl=False)


@bench.command(epilog="Example: fedagentgym bench replicates methods-tiny-worlds-v1")
@SUITE
@PLUGINS
def replicates(suite_name: str) -> None:
    """Maintainers: print the digests of the tasks of every seed, as the section `replicates` of a suite's file."""
    suite = load_suite(suite_name)
    if not suite.world:
        raise OptionError(f"{suite.name} has the same tasks under every seed: it lists no digests by seed")
    click.echo("replicates:")
    for seed, found in describe_replicates(suite).items():
        click.echo(f"  {seed}: {json.dumps(found.model_dump(mode='json'))}")


@bench.command(
    epilog="Example: fedagentgym bench plan agents-v1 --agent Qwen/Qwen3-8B --price 2.5",
    needs={"gpu": ("agent",), "price": ("agent",)},
    excludes=(("agent", "prices"), ("details", "as_json")),
)
@SUITE
@PLUGINS
@option(
    "--details", is_flag=True, help="Methods track: print the full `fedagentgym plan` of each baseline and scenario."
)
@option(
    "--prices",
    type=click.FloatRange(min=0),
    nargs=2,
    metavar="PROMPT REPLY",
    help="Agents track: price of a million prompt tokens, and of a million reply tokens.",
)
@option(
    "--agent",
    shell_complete=complete_agents,
    help="Agents track: a model that plays on a GPU, by its hub id or folder.",
)
@option("--gpu", type=click.Choice(GPU_NAMES), help=f"With --agent: the GPU; by default {GPU_NAMES[0]}.")
@option("--price", type=click.FloatRange(min=0), help="With --agent: price of the GPU for an hour.")
@JSON
def plan(
    suite_name: str,
    details: bool,
    prices: tuple[float, float] | None,
    agent: str | None,
    gpu: str | None,
    price: float | None,
    as_json: bool,
) -> None:
    """Print the costs of a suite: of its own baselines (methods track), or of an agent on a server or a GPU (agents track).

    On the methods track these are episodes, tokens, bytes and memory of every baseline. On the agents track they are sampling
    settings, episodes, tokens and price.
    """
    from fedagentgym.experiment.estimate.plan import format_plan, make_plain, plan_run
    from fedagentgym.leaderboard.entries import list_baselines
    from fedagentgym.leaderboard.play import make_run_config

    suite = load_suite(suite_name)
    if suite.track != "methods":
        from fedagentgym.experiment.estimate.hours import GPUS
        from fedagentgym.leaderboard.costs import describe_costs, estimate_rental, estimate_suite

        if details:
            raise OptionError(f"{suite.name} is on the agents track, whose plan has no --details")
        cost = estimate_suite(suite, prices)
        rental = None if agent is None else estimate_rental(cost, agent, GPUS[gpu or GPU_NAMES[0]], price)
        if as_json:
            click.echo(json.dumps(asdict(cost) | {"rental": None if rental is None else asdict(rental)}))
            return
        for line in describe_costs(suite, cost, rental):
            print_result(line)
        return
    for name, given in (("--prices", prices), ("--agent", agent), ("--gpu", gpu), ("--price", price)):
        if given is not None:
            covers = "whose plan covers the suite's own baselines and has no price"
            raise OptionError(f"{suite.name} is on the methods track, {covers}: leave {name} out")
    lines = [f"{scenario}: {_describe_counts(suite, scenario)}" for scenario in suite.scenarios]
    lines += filter(None, [describe_few_seeds(suite), _describe_minutes(suite)])
    plans = {
        (entry.name, scenario): plan_run(make_run_config(suite, entry, (scenario, suite.seeds[0])))
        for entry in list_baselines(suite)
        for scenario in suite.scenarios
    }
    if as_json:
        rows = [{"baseline": entry, "scenario": one, **make_plain(plan)} for (entry, one), plan in plans.items()]
        click.echo(json.dumps({"seeds": list(suite.seeds), "minutes": suite.minutes, "runs": rows}))
        return
    seeds = count_things(len(suite.seeds), "seed")
    if details:
        for (entry_name, scenario), plan in plans.items():
            lines.append(f"{entry_name}, {scenario}, each of {seeds}")
            lines += [f"  {line}".rstrip() for line in format_plan(plan)]
        print_result("\n".join(lines))
        return
    print_result("\n".join([*lines, f"one of {seeds} of each baseline costs at most, without evaluations:"]))
    print_result(
        make_table(("baseline", "scenario", "episodes", "tokens", "sent", "memory"), _list_costs(plans), text=2)
    )
    print_result("for the full plans: --details")


def _describe_minutes(suite: Suite) -> str | None:
    """The time of one entry, if the suite's file states the time of all its baselines."""
    from fedagentgym.leaderboard.entries import list_baselines

    if suite.minutes is None:
        return None
    each = format_duration(60 * suite.minutes / max(len(list_baselines(suite)), 1))
    return f"about {each} an entry on two cores, as its file states: {suite.minutes:g} min for all baselines"


def _list_costs(plans: Mapping[tuple[str, str], RunPlan]) -> list[tuple[str, ...]]:
    """The rows of a suite's plan. Scenarios in which a baseline has the same costs share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for (entry, scenario), plan in plans.items():
        total = plan.total
        cost = (
            f"{total.episodes + total.scored:,}",
            f"{plan.generated_tokens:,}",
            format_bytes(plan.count_bytes_down(total) + plan.count_bytes_up(total)),
            format_bytes(plan.peak),
        )
        rows.setdefault((entry, *cost), []).append(scenario)
    count = len({scenario for _, scenario in plans})
    return [
        (entry, "each" if len(names) == count > 1 else ", ".join(names), *cost)
        for (entry, *cost), names in rows.items()
    ]


@bench.command(
    epilog="Example: fedagentgym bench run agents-tiny-v1 --agent tiny",
    needs={"agent_set": ("agent",), "scenarios": ("agent",)},
    excludes=(("agent", "baselines"), ("agent", "changes"), ("baselines", "changes")),
)
@SUITE
@repeated("--baseline", "baselines", help="Only this baseline of the suite; may be repeated.")
@option(
    "--agent", shell_complete=complete_agents, help="Agents track: a registered agent, or a model's folder or hub id."
)
@AGENT_SET
@repeated("--scenario", "scenarios", metavar="NAME", help="Agents track: only this scenario; may be repeated.")
@assignments("--set", "changes", help="Methods track: a setting of your method, as for train.")
@option("--name", help="Name of your entry.")
@option("--title", help="Title of your entry in the table.")
@option("--submitted-by", help="Your name, for the table.")
@option("--link", help="A page that describes the agent or method.")
@option("--note", help="A note for readers of the table.")
@option("--secret", type=PATH, metavar="FILE", help="Maintainers: play the suite with the secret seed in this file.")
@option("--out", type=PATH, metavar="FOLDER", default=ROOT, help="Folder of all runs: OUT/SUITE/ENTRY/SCENARIO-seedN.")
@option(
    "--store",
    type=PATH,
    metavar="FOLDER",
    help="Folder for an archive of each finished run; runs that it holds are not played. At the end it has one archive for each"
    " entry.",
)
@WORKERS
@PLUGIN_NAMES
@JSON
def run(
    suite_name: str,
    baselines: tuple[str, ...],
    agent: str | None,
    agent_set: tuple[str, ...],
    scenarios: tuple[str, ...],
    changes: tuple[str, ...],
    name: str | None,
    secret: Path | None,
    out: Path,
    store: Path | None,
    workers: int,
    plugins: tuple[str, ...],
    as_json: bool,
    **about: str | None,
) -> None:
    """Run a suite, with its own entries or with yours.

    Finished runs are not played again, so the same command continues an interrupted suite.
    """
    suite = load_suite(suite_name)
    if secret is not None:
        from fedagentgym.leaderboard.suite import make_twin, read_secret

        suite = make_twin(suite, read_secret(secret))
    about["title"] = about["title"] or name
    chosen: dict[str, Any] = {key: value for key, value in about.items() if value}
    if scenarios:
        chosen["scenarios"] = list(dict.fromkeys(scenarios))
    entries = _choose_entries(suite, baselines, agent, agent_set, changes, name, plugins, chosen)
    _play(suite, entries, out, workers, as_json, store)


def play_suite(
    name: str,
    agent: str,
    agent_set: Sequence[str],
    scenarios: Sequence[str],
    plugins: Sequence[str],
    out: Path,
    as_json: bool,
) -> None:
    """Run `fedagentgym eval --suite NAME --agent ...`: play the scenarios of a suite of the agents track with an agent."""
    suite, about = load_suite(name), {"scenarios": list(scenarios)}
    _play(suite, _choose_entries(suite, (), agent, agent_set, (), None, plugins, about), out, 0, as_json)


def _choose_entries(
    suite: Suite,
    baselines: Sequence[str],
    agent: str | None,
    agent_set: Sequence[str],
    changes: Sequence[str],
    name: str | None,
    plugins: Sequence[str],
    about: dict[str, Any],
) -> list[Entry]:
    """The entries that a command line names."""
    from fedagentgym.leaderboard.entries import (
        check_name,
        describe_plugins,
        list_baselines,
        make_agent_entry,
        make_method_entry,
    )

    if plugins:
        about = {**about, "plugins": describe_plugins(plugins)}
    if agent is not None:
        if suite.track != "agents":
            hint = "all its entries have the same agent, give a method with --set"
            raise OptionError(f"{suite.name} is on the methods track: {hint}")
        refuse_keys(agent_set, {"decoding.temperature": "a suite plays every agent at its own temperature"})
        own = make_agent_entry(parse_agent_settings(agent, agent_set), name, **about)
        check_name(suite, own)
        return [own]
    if changes:
        if suite.track != "methods":
            raise OptionError(f"{suite.name} is on the agents track: name an agent with --agent")
        if name is None:
            raise OptionError("give your method a name: --name NAME")
        own = make_method_entry(changes, name, **about)
        check_name(suite, own)
        return [own]
    if name is not None:
        raise OptionError("--name is for an entry of your own: give one with --agent or --set")
    if given := [key for key, value in about.items() if value and key != "plugins"]:
        option = given[0].replace("_", "-").removesuffix("s")
        raise OptionError(f"--{option} is for an entry of your own: give one with --agent or --set")
    return list_baselines(suite, baselines)


@bench.command(epilog="Example: fedagentgym bench tune mine.yaml --store leaderboard/tuning")
@SUITE
@PLUGINS
@repeated("--row", "rows", metavar="NAME", help="Play only the settings of this row; may be repeated.")
@option("--out", type=PATH, metavar="FOLDER", default=ROOT, help="Folder of the runs: OUT/SUITE-tuning/ROW.SETTING.")
@option(
    "--store",
    type=PATH,
    metavar="FOLDER",
    default=Path("results"),
    help="Folder of the trials, at the end one archive for each row; trials that it holds are not played again.",
)
@option(
    "--chosen",
    "to",
    type=PATH,
    metavar="FILE",
    help="File for the chosen settings; by default beside your suite's file.",
)
@WORKERS
@JSON
def tune(
    suite_name: str, rows: tuple[str, ...], out: Path, store: Path, to: Path | None, workers: int, as_json: bool
) -> None:
    """Choose the settings of every row of a suite from its grid, in worlds that are not reported (methods track).

    Every setting is played and verified. The chosen settings are written to a file beside the suite, and `bench run` uses them.
    Finished runs are not played again, so the same command continues an interrupted search.
    """
    from fedagentgym.base.files import write_atomic
    from fedagentgym.leaderboard.grid import TUNED
    from fedagentgym.leaderboard.tune import list_edges
    from fedagentgym.leaderboard.tune import tune as tune_suite
    from fedagentgym.runs.folder import format_document

    own = Path(suite_name)
    is_file = own.suffix in (".yaml", ".yml")
    suite = load_untuned(suite_name)
    if to is None and not is_file:
        raise OptionError(
            f"{suite.name} belongs to the package: name a file for the chosen settings, --chosen {suite.name}{TUNED}"
        )
    place = to or own.with_suffix(TUNED)
    choice = tune_suite(suite, out, store, workers, rows)
    if choice is None:
        print_result(f"{', '.join(rows)}: played; nothing is chosen until the other rows are played")
        return
    write_atomic(place, format_document(choice))
    chosen, edges = choice.get_chosen(), list_edges(suite, choice)
    if as_json:
        found = {row: {**one.model_dump(mode="json"), "at_an_end": edges[row]} for row, one in chosen.items()}
        click.echo(json.dumps({"suite": suite.name, "choice": str(place), "rows": found}))
        return
    metric = find_metric(choice.measure)
    shown = []
    for row, one in chosen.items():
        runs = choice.rows[row].trials[choice.rows[row].chosen].runs
        shown.append((row, str(one), format_spread(one.reached, runs, metric), ", ".join(edges[row])))
    print_result(
        make_table(("row", "settings", f"{metric.title} on {suite.selection.split}", "end of the grid"), shown, text=2)
    )
    print_result(f"{place}: `bench run` plays {suite.name} with these settings")


@bench.command(epilog="Example: fedagentgym bench twin agents-v1 --out secret.json")
@SUITE
@PLUGINS
@option("--out", "to", type=PATH, required=True, metavar="FILE", help="File for the secret; do not publish it.")
def twin(suite_name: str, to: Path) -> None:
    """Maintainers: draw the secret seed of a suite, and print its digest, which the suite publishes."""
    from fedagentgym.base.files import write_atomic
    from fedagentgym.leaderboard.suite import draw_secret

    if to.exists():
        raise OptionError(f"{to} exists: a secret is drawn once, since its digest is published")
    drawn = draw_secret(load_suite(suite_name))
    write_atomic(to, json.dumps(drawn._asdict()) + "\n", mode=0o600)
    click.echo(f'secret: {{digest: "{drawn.digest}"}}')


@bench.command(epilog="Example: fedagentgym bench resume runs/leaderboard")
@click.argument(
    "runs", type=PATH, nargs=-1, required=True, metavar="RUN...", help="Folders of runs, or folders that hold several."
)
@WORKERS
@PLUGIN_NAMES
@TRUST_PLUGINS
@JSON
def resume(runs: tuple[Path, ...], workers: int, plugins: tuple[str, ...], trust_plugins: bool, as_json: bool) -> None:
    """Resume interrupted runs of suites."""
    from fedagentgym.experiment.stored import Trust
    from fedagentgym.leaderboard.play import load_entry, play

    found = [load_entry(folder, Trust(plugins, trust_plugins)) for folder in _find_entries(runs)]
    _name_entries("resuming", found)
    play(found, workers)
    _print_results(found, as_json)


def _find_entries(folders: Sequence[Path]) -> list[Path]:
    from fedagentgym.leaderboard.play import find_entries

    found = [place for folder in folders for place in find_entries(folder)]
    if not found:
        searched = ", ".join(map(str, folders))
        raise OptionError(f"there is no run of a suite in {searched}: begin one with `fedagentgym bench run`")
    return found


def _name_entries(doing: str, entries: Sequence[SuiteRun]) -> None:
    """Print the folders and entries of the next step, unless output is quiet."""
    for one in () if is_quiet() else entries:
        get_error_console().print(f"{doing} {one.folder}: {one.suite.name}, {one.entry.name}", highlight=False)


def _play(
    suite: Suite, entries: Sequence[Entry], out: Path, workers: int, as_json: bool, store: Path | None = None
) -> None:
    from fedagentgym.leaderboard.play import open_entry, play

    opened = [open_entry(suite, entry, out) for entry in entries]
    play(opened, workers, store)
    _print_results(opened, as_json)


def _print_results(entries: Sequence[SuiteRun], as_json: bool) -> None:
    """Print the results of entries, and the next command."""
    from fedagentgym.leaderboard.results import Result

    found = [(one, Result(one.folder)) for one in entries]
    if as_json:
        plain = [
            {
                "run": str(one.folder),
                "overall": {name: each.model_dump() for name, each in _choose_measures(made).items()},
            }
            for one, made in found
        ]
        click.echo(json.dumps(plain))
        return
    rows = []
    for one, made in sorted(found, key=lambda each: (each[1].suite.name, -_get_ranked(each[1])[0])):
        _, mean, ends = _get_ranked(made)
        rows.append((made.suite.name, made.entry.title, str(one.folder), mean, ends))
    print_result(make_table(("suite", "entry", "run", "success", "95 % interval"), rows, text=3))
    for one in entries:
        if one.left_out:
            print_result(f"{one.folder}: not played: {', '.join(one.left_out)}")
    pack = f"fedagentgym bench pack {quote_word(entries[0].folder) if len(entries) == 1 else 'RUN'}"
    plugins = [path for one in entries for path in one.entry.plugin_paths]
    print_result(f"next: {add_plugins(pack, plugins)}", soft_wrap=True)


def _choose_measures(made: Result) -> Measures:
    """The measures over all scenarios, or over the played ones if some were not played."""
    return made.numbers.overall or made.numbers.played


def _get_ranked(made: Result) -> tuple[float, str, str]:
    """The mean of the ranked measure, the mean as text, and the interval as text (empty without one)."""
    measure = made.suite.rank_by
    ranked = _choose_measures(made)[measure]
    ends = find_ends(ranked, find_metric(measure))
    return ranked.mean, format_fixed(ranked.mean, 3), "" if ends is None else format_range(*ends, 3)


@bench.command(epilog="Example: fedagentgym bench status runs/leaderboard")
@click.argument("run", type=PATH, default=ROOT, help=RUN_HELP)
@JSON
def status(run: Path, as_json: bool) -> None:
    """Show for every run of a suite whether it is finished, running or waiting."""
    from fedagentgym.leaderboard.play import load_entry

    found = [load_entry(folder) for folder in _find_entries([run])]
    if as_json:
        states = {str(one.folder): {each.name: one.describe_state(each) for each in one.runs} for one in found}
        click.echo(json.dumps([{"run": folder, "runs": runs} for folder, runs in states.items()]))
        return
    for one in found:
        done = len(one.runs) - len(one.missing)
        print_result(f"{one.folder}: {done} of {count_things(len(one.runs), 'run')} finished")
        for each in one.missing:
            print_result(f"  {each.name:40s} {one.describe_state(each)}")


@bench.command(
    epilog="Example: fedagentgym bench pack runs/leaderboard/smoke/zero-shot", needs={"trust_plugins": ("weights",)}
)
@click.argument("run", type=PATH, help=RUN_HELP)
@option(
    "--out",
    "to",
    type=PATH,
    metavar="FOLDER",
    default=Path("results"),
    help="Folder of the archives: OUT/SUITE/ENTRY.zip.",
)
@option(
    "--weights",
    type=PATH,
    metavar="FOLDER",
    help="Methods track: also write the ranked policies to WEIGHTS/SUITE/ENTRY, for `bench verify --agent`.",
)
@PLUGIN_NAMES
@TRUST_PLUGINS
def pack(run: Path, to: Path, weights: Path | None, plugins: tuple[str, ...], trust_plugins: bool) -> None:
    """Pack the finished runs of an entry, with all their episodes, into one archive that anyone can verify."""
    from fedagentgym.experiment.stored import Trust
    from fedagentgym.leaderboard.play import check_weights, load_entry, write_weights
    from fedagentgym.leaderboard.results import Result
    from fedagentgym.leaderboard.results import pack as pack_result

    trust = Trust(plugins, trust_plugins)
    entries = [load_entry(folder) for folder in _find_entries([run])]
    for one in entries:  # before anything is written
        one.check_finished()
        if (place := to / one.suite.name / f"{one.entry.name}.zip").exists():
            raise DataError(f"cannot create {place}: it exists already")
        if weights is not None:
            check_weights(one, weights / one.suite.name / one.entry.name)
    _name_entries("packing", entries)
    for one in entries:
        place, made = to / one.suite.name / f"{one.entry.name}.zip", Result(one.folder)
        pack_result(made, place)
        _, mean, ends = _get_ranked(made)
        score = f"{made.suite.rank_by} {mean}{f' ({ends})' if ends else ''}"
        check = add_plugins(f"fedagentgym bench verify {quote_word(place)}", one.entry.plugin_paths)
        print_result(f"{place}: {score}; check it with: {check}", soft_wrap=True)
        if weights is not None:
            below = weights / one.suite.name / one.entry.name
            policies = write_weights(one, below, trust)
            print_result(f"{below}: the policies of {count_things(len(policies), 'run')}")


@bench.command(
    epilog="Example: fedagentgym bench verify results/smoke/zero-shot.zip",
    needs={"rerun": ("to",), "by": ("rerun",)},
)
@click.argument(
    "folders", type=PATH, nargs=-1, required=True, metavar="RESULT...", help="Archives, or folders of runs."
)
@option("--suite", metavar="FILE", help="A suite of your own, for results of suites outside the package.")
@repeated(
    "--agent",
    "agents",
    type=PATH,
    metavar="FOLDER",
    help="Folder of the weights that played, or a folder of such folders; they must give the same replies; may be repeated.",
)
@option(
    "--out",
    "to",
    type=PATH,
    metavar="FOLDER",
    help="Folder for the findings: OUT/SUITE/ENTRY.json, for `leaderboard build`.",
)
@repeated(
    "--rerun",
    type=PATH,
    metavar="FOLDER",
    help="Maintainers: your own result of the same entry, on the suite or its secret twin, whose numbers are also recorded;"
    " may be repeated.",
)
@option("--by", default="the maintainers", help="With --rerun: name of those who ran the entry again.")
@PLUGIN_NAMES
@JSON
def verify(
    folders: tuple[Path, ...],
    suite: str | None,
    agents: tuple[Path, ...],
    to: Path | None,
    rerun: tuple[Path, ...],
    by: str,
    plugins: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check that results are complete, replay all their episodes, and compute all their numbers again."""
    from fedagentgym.leaderboard.entries import describe_plugins
    from fedagentgym.leaderboard.results import ENTRY, Result, find_results
    from fedagentgym.leaderboard.verify import describe_rerun, write_verification
    from fedagentgym.leaderboard.verify import verify as verify_result

    own = None if suite is None else load_suite(suite)
    if rerun and len(folders) > 1:
        raise OptionError("--rerun is about one result: name one")
    plain = []
    given = [one.model_copy(update={"path": None}) for one in describe_plugins(plugins)]
    for folder in folders:
        if not (folder / ENTRY).is_file() and (inside := find_results(folder)) != [folder]:
            named = f": name each result, such as {inside[0]}" if inside else ""
            raise OptionError(f"{folder} is no result, and holds {count_things(len(inside), 'result')}{named}")
        again = describe_rerun(folder, rerun, by) if rerun else None
        found = verify_result(folder, suite=own, models=agents, plugins=plugins)
        if to is not None:
            write_verification(found, folder, to, again)
        if as_json:
            plain.append(found.model_dump(mode="json"))
            continue
        print_result(f"{folder}: verified")
        rows = [(claim.status, claim.name, claim.about) for claim in found.claims]
        print_result(make_table(("", "", ""), rows, text=3))
        open_claims = [one.name for one in found.claims if one.status != "proven"]
        unproven = [name for name in ("configuration", "counted") if name in open_claims]
        code = list(Result(folder).entry.publish().plugins)
        if unproven and code and code != given:
            here = {one.name for one in given}
            told = [f"another version of {one.name}" if one.name in here else one.name for one in code]
            print_result(
                f"made with {join_names(told)}: name it (--plugin) to prove {' and '.join(unproven)}", soft_wrap=True
            )
    if as_json:
        click.echo(json.dumps(plain))


@bench.command(epilog="Example: fedagentgym bench regrade results/smoke/zero-shot.zip --out new.zip")
@click.argument("result", type=PATH, help="A result: an archive, or a folder of runs.")
@option("--out", "to", type=PATH, required=True, metavar="NEW", help="The archive to write, NEW.zip.")
@option("--suite", metavar="FILE", help="A suite of your own, for results of suites outside the package.")
@PLUGIN_NAMES
@JSON
def regrade(result: Path, to: Path, suite: str | None, plugins: tuple[str, ...], as_json: bool) -> None:
    """Grade the recorded replies of a result again by today's rules, without a model, and list the changed episodes."""
    from fedagentgym.leaderboard.regrade import regrade_result

    found = regrade_result(result, to, suite=None if suite is None else load_suite(suite), plugins=plugins)
    if as_json:
        click.echo(json.dumps(found.to_plain()))
        return
    for part in found.describe():
        print_result(part)


@bench.command(epilog="Example: fedagentgym bench export results --out runs.parquet")
@click.argument("results", type=PATH, nargs=-1, required=True, metavar="RESULT...", help="Results, or folders of them.")
@option("--out", "table", type=PATH, required=True, metavar="FILE", help="Parquet file to write, one row for each run.")
def export(results: tuple[Path, ...], table: Path) -> None:
    """Write a table with one row for each run of results, for pandas, duckdb or a viewer of data sets (extra `[data]`)."""
    from fedagentgym.leaderboard.results import write_parquet

    if table.suffix != ".parquet":
        raise OptionError(f"--out {table}: the table is a Parquet file, so its name ends with .parquet")
    count = write_parquet(results, table)
    print_result(f"{table}: {count_things(count, 'run')}")
