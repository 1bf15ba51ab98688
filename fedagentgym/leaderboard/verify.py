"""`bench verify`: checks a packed result, and reports for each claim whether it was proven or cannot be.

Proven is what follows from the episodes, since each is replayed in the verifier's own environment: that these actions earn these
rewards, that no task or seed is missing or repeated, and every number computed from them. Which agent played is proven if it is a
program of this package, or if its weights are available (`models`): on the methods track those of the ranked rounds, on the tasks
that rank and on val. What other rounds did on val is as the submitter wrote it, so that the choice among them is not proven. Nor
are the cost of a run, and hosted models. A method's own code is loaded only on the verifier's request, since it comes from the
submitter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedagentgym.agents.presets import get_model, starts_from_nothing
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.files import format_path, read_text, write_atomic
from fedagentgym.leaderboard.entries import ENDPOINT, identify_agent, load_settings, make_baseline
from fedagentgym.leaderboard.evidence import TOLERANCE, Checked, Examined, RefutedError, examine_cells, is_known
from fedagentgym.leaderboard.players import Spoken, check_model, check_packaged, check_program, find_models
from fedagentgym.leaderboard.record import Claim, Manifest, Rerun, Verification
from fedagentgym.leaderboard.results import (
    AGENT,
    CLIENTS,
    CONFIGS,
    CURVES,
    EPISODES,
    MANIFEST,
    SELECTION,
    SUITE,
    WORLDS,
    PackedCell,
    Result,
    ResultFolder,
    format_settings,
    make_client_table,
    make_curves,
    make_manifest,
    to_text,
)
from fedagentgym.leaderboard.suite import (
    OpenedScenario,
    Suite,
    list_suites,
    load_suite,
    name_twin,
    open_scenario,
    parse_suite,
)
from fedagentgym.version import __version__

FOLDERS = (EPISODES, SELECTION, WORLDS)
ABOUT = {
    "schema": "every file is written as this package writes it",
    "digests": "the files are those that the manifest names",
    "suite": "the suite is the published one, with its tasks, divisions and verifier",
    "complete": "every task of every scenario is there under every seed, once",
    "replayed": "every episode was played again: these actions are answered so, and earn these rewards",
    "recomputed": "every number of the tables and curves follows from the episodes as they are written",
    "configuration": "the configurations beside the result are those that the suite and the method's changes give",
    "selection": "the ranked round is the one that the suite ranks",
    "budget": "training stayed within the budget, by its recorded costs",
    "counted": "the recorded costs are those that the configuration takes: all episodes to prepare and to learn, and no more",
    "who-spoke": "the agent wrote these replies",
    "spent": "episodes, bytes and steps of training, and the privacy spent",
    "usage": "tokens and cost of the hosted model",
    "tokens": "numbers of tokens, and episodes that ended for want of room",
    "method": "the policies are what the method learned, under that configuration",
    "about": "who submitted it, when and on which machine it was made",
}


def verify(
    folder: Path, *, suite: Suite | None = None, models: Sequence[Path] = (), plugins: Sequence[str] = ()
) -> Verification:
    """Check a result; raises `RefutedError` at the first false claim.

    `suite` is the definition of a suite outside of the package. `models` are folders of the weights that are claimed to
    have played, `plugins` the already loaded code of the method.
    """
    result = ResultFolder(folder)
    try:
        manifest = result.manifest
    except DataError as error:
        raise RefutedError("schema", str(error)) from None
    check_files(folder, manifest)
    chosen = check_suite(folder, manifest, suite)
    opened = check_scenarios(chosen, manifest)
    held = Checked(result, chosen, opened, tuple(plugins))
    check_cells_listed(held)
    check_entry(held)
    cells = examine_cells(held)
    check_numbers(held, cells)
    spoke = (
        check_model(held, cells, find_models(models))
        if models
        else check_program(held, cells) or check_packaged(held, cells)
    )
    claims = tuple(list_claims(held, cells, spoke))
    return Verification(manifest=file_digest(folder / MANIFEST), version=__version__, claims=claims)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Check that the folder contains exactly what the manifest names, as plain files."""
    found = set()
    for entry in chain(folder.iterdir(), *((folder / name).iterdir() for name in FOLDERS if (folder / name).is_dir())):
        name = entry.relative_to(folder).as_posix()
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            raise RefutedError("digests", f"{name} is no plain file")
        if entry.is_dir() and name not in FOLDERS:
            raise RefutedError("digests", f"{name} is no folder of a result")
        if entry.is_file():
            found.add(name)
    found -= {MANIFEST}
    if odd := sorted(found ^ set(manifest.files)):
        counted = "not in the manifest" if odd[0] in found else "in the manifest, but not here"
        raise RefutedError("digests", f"{odd[0]} is {counted}")
    for name, expected in manifest.files.items():
        if file_digest(folder / name) != expected:
            raise RefutedError("digests", f"{name} is not the file that the manifest names")


def check_suite(folder: Path, manifest: Manifest, own: Suite | None) -> Suite:
    """The definition to check against: the package's, or the verifier's own; never the submitted one."""
    name = manifest.suite.name
    if own is None and name not in list_suites():
        raise RefutedError("suite", f"{name!r} is no suite of this package: give its definition with --suite FILE")
    suite = load_suite(name) if own is None else own
    if manifest.suite != suite.reference:
        found, wanted = manifest.suite, suite.reference
        raise RefutedError(
            "suite",
            f"the result is of {found.name}, version {found.version} ({found.digest[:19]}...), the suite is {wanted.name},"
            f" version {wanted.version} ({wanted.digest[:19]}...)",
        )
    try:
        carried = parse_suite(read_text(folder / SUITE), SUITE) if SUITE in manifest.files else None
    except FedAgentGymError as error:
        raise RefutedError("suite", str(error)) from None
    if carried is None or carried.reference != suite.reference:
        raise RefutedError("suite", f"{SUITE} is missing or another definition than the suite's")
    if manifest.ranked != suite.rank_by or manifest.seeds != suite.seeds:
        counted = f"the suite ranks by {suite.rank_by} under the seeds {suite.seeds}, the result does not"
        raise RefutedError("suite", counted)
    return suite


def check_scenarios(suite: Suite, manifest: Manifest) -> dict[str, OpenedScenario]:
    """The suite's scenarios on this machine; the manifest must describe exactly these, on the agents track some of them."""
    counted = [record.name for record in manifest.scenarios]
    due = [name for name in suite.scenarios if suite.track == "methods" or name in counted]
    if counted != due or not due:
        raise RefutedError("complete", f"the suite has the scenarios {list(suite.scenarios)}, the result {counted}")
    opened = {name: open_scenario(suite, name) for name in due}
    for record, here in zip(manifest.scenarios, opened.values(), strict=True):
        found = record.model_dump()
        wanted = here.describe_all().model_dump()
        for key in dict.fromkeys([*wanted, *found]):
            if found.get(key) != wanted.get(key):
                odd = f"{key} is written as {found.get(key)!r}, it is {wanted.get(key)!r} here"
                raise RefutedError("suite", f"scenario {record.name!r}: {odd}")
    return opened


def check_cells_listed(folder: Checked) -> None:
    """A cell for every scenario and seed, in order, with the files that belong to it."""
    suite, manifest = folder.suite, folder.manifest
    due = [(scenario, seed) for scenario in folder.opened for seed in suite.seeds]
    if (found := [(cell.scenario, cell.seed) for cell in manifest.cells]) != due:
        odd = next((one for one in due if one not in found), "their order or number")
        raise RefutedError("complete", f"cells: {odd} is missing or wrong: {len(found)} of {len(due)}")
    keys = [cell.key for cell in manifest.cells]
    files = {SUITE, *(f"{EPISODES}/{key}.jsonl.xz" for key in keys)}
    if folder.is_method:
        if suite.in_own_worlds:
            files |= {f"{WORLDS}/{key}.jsonl.xz" for key in keys}
        files |= {CURVES, CLIENTS, CONFIGS, *(f"{SELECTION}/{key}.jsonl.xz" for key in keys)}
    else:
        files |= {AGENT}
    if odd_files := sorted(files ^ set(manifest.files)):
        raise RefutedError("complete", f"{odd_files[0]} is missing or belongs to no cell")
    if folder.is_method and [(one.scenario, one.seed) for one in folder.result.configs.cells] != due:
        raise RefutedError("complete", f"{CONFIGS}: a cell is missing, twice there or wrong")
    if not folder.is_method and read_text(folder.place / AGENT) != format_settings(manifest.entry.agent.settings):
        raise RefutedError("configuration", f"{AGENT} differs from the manifest")


def check_entry(folder: Checked) -> None:
    """The entry's identity: distinguished from others as this package does, and a baseline only if it is one."""
    entry, suite = folder.manifest.entry, folder.suite
    if (entry.method is not None) != folder.is_method:
        raise RefutedError("schema", "an entry has a method on the methods track, and only there")
    if not folder.is_method and (odd := _find_odd_agent(folder)) is not None:
        raise RefutedError("configuration", odd)
    if not entry.baseline:
        if entry.method is not None and entry.method.stream:
            raise RefutedError("configuration", "another random stream is for a suite's control alone")
        return
    try:
        own = make_baseline(suite, entry.name)
    except FedAgentGymError as error:
        raise RefutedError("configuration", f"the entry calls itself a baseline: {error}") from None
    if entry.method is not None:
        method = entry.method
        same = (method.changes, method.plugins, method.stream) == (own.changes, (), own.stream)
    else:
        settings = load_settings(own, suite.ranking.temperature)
        same = entry.agent.settings == settings.model_dump(mode="json", exclude_unset=True)
    if not same or entry.title != own.title:
        raise RefutedError("configuration", f"the entry is not the suite's baseline {entry.name!r}, as it calls itself")


def _find_odd_agent(folder: Checked) -> str | None:
    """The agent of the agents track: its kind and the name of its model follow from its settings."""
    agent = folder.manifest.entry.agent
    try:
        settings = AgentSettings.load(agent.settings, "agent")
    except FedAgentGymError as error:
        return str(error)
    if agent.settings != settings.model_dump(mode="json", exclude_unset=True):
        return "the agent's settings are not written as this package writes them"
    model, many = get_model(settings), starts_from_nothing(settings)
    kind = "hosted" if settings.name == ENDPOINT else "model" if model is not None or many else "program"
    if (agent.kind, agent.model) != (kind, model):
        return f"the agent is written as {agent.kind} {agent.model or ''}, its settings say {kind} {model or ''}"
    if kind != "model" and (agent.weights, agent.revision) != (None, None):
        return f"a {kind} agent has no weights"
    if any((cell.policy is not None) != many for cell in folder.manifest.cells) or (many and agent.weights is not None):
        return "a tiny agent has a model of its own in every cell, others have one model"
    counted, due = (agent.settings.get("decoding") or {}).get("temperature"), folder.suite.ranking.temperature
    if agent.kind == "hosted" and counted != due:
        return f"the hosted model was called at temperature {counted}, not {due}"
    return None


def check_numbers(folder: Checked, cells: Sequence[Examined]) -> None:
    """Check that every aggregate of the manifest, the curves and the clients follows from the episodes."""
    manifest, data = folder.manifest, [cell.data for cell in cells]
    packed = tuple(PackedCell(one, "") for one in data)
    expected = make_manifest(Result(folder.suite, manifest.entry, manifest.scenarios, packed), manifest.files)
    counted = {**expected.model_dump(mode="json"), "made": manifest.made.model_dump(mode="json")}
    compare(MANIFEST, counted, manifest.model_dump(mode="json"))
    if folder.is_method:
        curves, clients = folder.result.curves, folder.result.clients
        compare(CURVES, make_curves(data).model_dump(mode="json"), curves.model_dump(mode="json"))
        compare(CLIENTS, make_client_table(data).model_dump(mode="json"), clients.model_dump(mode="json"))


def compare(place: str, expected: Any, found: Any) -> None:
    """Raise at the first value that differs; numbers may differ in their last digits."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if (key in expected) != (key in found):
                odd = "missing" if key in expected else "one too many"
                raise RefutedError("recomputed", f"{place}: {key!r} is {odd}")
            compare(f"{place}: {key}" if place.endswith(".json") else f"{place}.{key}", expected[key], found[key])
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            raise RefutedError("recomputed", f"{place}: {len(found)} values, {len(expected)} follow from the episodes")
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            compare(f"{place}[{number}]", one, other)
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=1e-12):
            raise RefutedError("recomputed", f"{place} is written as {found!r}, {expected!r} follows from the episodes")
    elif expected != found:
        odd = f"{str(found)[:80]!r}, it should be {str(expected)[:80]!r}"
        raise RefutedError("recomputed", f"{place} is written as {odd}")


def list_claims(folder: Checked, cells: Sequence[Examined], spoke: Spoken | None) -> list[Claim]:
    """Return what was proven, and what cannot be; `spoke` describes how the player was verified, if it was."""
    agent = folder.manifest.entry.agent
    proven = ["schema", "digests", "suite", "complete", "replayed", "recomputed"]
    unproven = ["about"]
    if folder.is_method:
        (proven if is_known(folder) else unproven).append("configuration")
        chosen = folder.suite.ranked_round == "best" and any(cell.rivals for cell in cells)
        (unproven if chosen else proven).append("selection")
        (proven if all(cell.is_counted for cell in cells) else unproven).append("counted")
        unproven += ["budget", "spent", "method"]
    if agent.kind == "hosted":
        unproven.append("usage")
    (proven if spoke is not None and spoke.everywhere else unproven).append("who-spoke")
    if agent.kind == "model":
        (proven if spoke is not None and spoke.exact else unproven).append("tokens")
    details = describe_details(folder, cells, spoke)
    return [
        Claim(
            name=name, status="proven" if name in proven else "not provable", about=ABOUT[name] + details.get(name, "")
        )
        for name in [*proven, *unproven]
    ]


def describe_details(folder: Checked, cells: Sequence[Examined], spoke: Spoken | None) -> dict[str, str]:
    """Which episodes a claim is about, by its name."""
    ranked, selection = (
        sum(cell.ranked for cell in cells),
        sum(len(group) for cell in cells for group in cell.selection),
    )
    compared, rivals = sum(cell.compared for cell in cells), sum(cell.rivals for cell in cells)
    found = {"replayed": f" ({ranked:,} episodes)"}
    if folder.is_method:
        found["replayed"] = f" ({ranked:,} ranked episodes, {selection + compared:,} on val)"
        rest = f"the other {rivals:,} rounds, {compared:,} episodes, are compared as they are written, not played under weights"
        best = (
            f"no other did better on val; {rest}" if rivals else f"no other round was evaluated; {selection:,} episodes"
        )
        found["selection"] = f" ({best if folder.suite.ranked_round == 'best' else 'the last one'})"
    if left_out := [name for name in folder.suite.scenarios if name not in folder.opened]:
        found["complete"] = f" (not played: {', '.join(left_out)})"
    if spoke is not None:
        found["who-spoke"] = f" ({spoke.about})"
    if cut_short := sum(cell.cut_short for cell in cells):
        found["tokens"] = f" ({cut_short:,} episodes)"
    return found


# ---- the results of maintainers who ran an entry again ---------------------------------------------------------------


def write_verification(found: Verification, result: Path, verified: Path, rerun: Rerun | None) -> None:
    """Write what was found into the verifier's own folder; an earlier rerun of the same manifest is kept."""
    folder = ResultFolder(result, verified)
    before = folder.verification
    rerun = rerun or (None if before is None else before.rerun)
    write_atomic(folder.verification_file, to_text(found.model_copy(update={"rerun": rerun})))


def describe_rerun(result: Path, again: Sequence[Path], by: str) -> Rerun:
    """Compare own results with a submitted one; each must be of the same entry, on its suite or on the twin."""
    submitted, found = ResultFolder(result).manifest, Rerun(date="", by=by)
    for folder in again:
        made = ResultFolder(folder).manifest
        check_same_entry(submitted, made, folder)
        if made.suite == submitted.suite:
            changes: dict[str, object] = {"public": made.overall}
        elif made.suite.name == name_twin(submitted.suite.name):
            changes = {"secret": made.overall, "secret_suite": made.suite.digest}
        else:
            raise OptionError(
                f"{format_path(folder)} is of {made.suite.name}: neither the suite of {format_path(result)}, "
                f"{submitted.suite.name}, nor its secret twin"
            )
        found = found.model_copy(update={**changes, "date": max(found.date, made.made.date)})
    return found


def check_same_entry(submitted: Manifest, made: Manifest, folder: Path) -> None:
    """Refuse a result of another agent or method."""
    first, second = submitted.entry, made.entry
    same = identify_agent(first.agent) == identify_agent(second.agent) and first.method == second.method
    if first.method is None:
        same = same and [cell.policy for cell in submitted.cells] == [cell.policy for cell in made.cells]
    if not same:
        raise OptionError(f"{format_path(folder)} was not played by the entry {first.name!r}, but by {second.name!r}")
