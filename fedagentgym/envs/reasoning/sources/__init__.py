"""Task data of others: from files in the form in which people have them, or from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.errors import DataError, OptionError, unknown_name_error
from fedagentgym.base.extras import require
from fedagentgym.base.streams import stream
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources import mathematics, programs, questions
from fedagentgym.envs.reasoning.sources.rows import Row, digest_files, list_data_files, read_rows

Reader = Callable[[Row, str], LoadedTask | None]


class Source(NamedTuple):
    """A data set: which world plays it, how its rows are read, its split where files do not tell, and where the hub has it."""

    task: str
    read: Reader
    split: str
    hub: str
    subset: str | None = None


SOURCES: Mapping[str, Source] = {
    "gsm8k": Source("math", mathematics.gsm8k, "train", "openai/gsm8k", "main"),
    "math": Source("math", mathematics.math, "train", "nlile/hendrycks-MATH-benchmark"),
    "math500": Source("math", mathematics.math, "test", "HuggingFaceH4/MATH-500"),
    "dapo": Source("math", mathematics.dapo, "train", "BytedTsinghua-SIA/DAPO-Math-17k"),
    "openr1": Source("math", mathematics.openr1, "train", "open-r1/OpenR1-Math-220k"),
    "deepmath": Source("math", mathematics.deepmath, "train", "zwhe99/DeepMath-103K"),
    "aime": Source("math", mathematics.contest, "test", "AI-MO/aimo-validation-aime"),
    "amc": Source("math", mathematics.contest, "test", "AI-MO/aimo-validation-amc"),
    "minerva": Source("math", mathematics.minerva, "test", "math-ai/minervamath"),
    "olympiadbench": Source("math", mathematics.olympiadbench, "test", "Hothan/OlympiadBench", "OE_TO_maths_en_COMP"),
    "hotpotqa": Source("qa", questions.hotpotqa, "train", "hotpotqa/hotpot_qa", "distractor"),
    "2wikimultihopqa": Source("qa", questions.hotpotqa, "train", "framolfese/2WikiMultihopQA"),
    "musique": Source("qa", questions.musique, "train", "dgslibisey/MuSiQue"),
    "medqa": Source("qa", questions.medqa, "train", "GBaker/MedQA-USMLE-4-options"),
    "medmcqa": Source("qa", questions.medqa, "train", "openlifescienceai/medmcqa"),
    "humaneval": Source("code", programs.humaneval, "test", "openai/openai_humaneval"),
    "mbpp": Source("code", programs.mbpp, "train", "google-research-datasets/mbpp", "full"),
}


def load(
    task: str, name: str, data: str | Path | None, holdout: int, seed: int
) -> tuple[Sequence[LoadedTask], dict[str, Any]]:
    """The tasks of a data set, and what they were made from (for the pool's digest)."""
    known = [source for source in SOURCES if SOURCES[source].task == task]
    if name not in known:
        raise unknown_name_error(f"source of {task} tasks", name, known)
    if data is None:
        tasks, source = _from_hub(name)
    else:
        stamps = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in list_data_files(data))
        tasks, source = _from_files(name, str(data), stamps)
    if holdout:
        tasks = _hold_out(tasks, holdout, seed)
        source = {**source, "holdout": holdout, "seed": seed}
    return tasks, source


@lru_cache(maxsize=8)
def _from_files(
    name: str, data: str, stamps: tuple[tuple[str, int, int], ...]
) -> tuple[tuple[LoadedTask, ...], dict[str, Any]]:
    """Kept until a file changes (`stamps` tells)."""
    return _read(name, list(read_rows(data))), {"source": name, "files": digest_files(data)}


def _read(name: str, found: Sequence[Row]) -> tuple[LoadedTask, ...]:
    source = SOURCES[name]
    if name == "medmcqa":
        first = questions.detect_first_option(found)
        tasks = [questions.medmcqa(row, row.split or source.split, first) for row in found]
    else:
        tasks = [source.read(row, row.split or source.split) for row in found]
    kept = tuple(task for task in tasks if task is not None)
    if name == "dapo":
        unique: dict[str, LoadedTask] = {}
        for task in kept:
            unique.setdefault(task.payload.problem, task)
        kept = tuple(unique.values())
    if not kept:
        raise DataError(f"the data for source {name!r} holds no task")
    return kept


@lru_cache(maxsize=8)
def _from_hub(name: str) -> tuple[tuple[LoadedTask, ...], dict[str, Any]]:
    source = SOURCES[name]
    datasets = require("datasets", "data")
    try:
        loaded = datasets.load_dataset(source.hub, source.subset)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"cannot load {source.hub} from the Hugging Face hub ({first[:160]}): give a local file with data=FILE"
        ) from None
    splits = {"train": "train", "test": "test", "validation": "val", "dev": "val", "val": "val"}
    found = [
        Row(f"{source.hub}, {part}, record {number}", splits.get(part), fields)
        for part, table in loaded.items()
        for number, fields in enumerate(table, start=1)
    ]
    prints = {part: str(getattr(table, "_fingerprint", "")) for part, table in loaded.items()}
    return _read(name, found), {"source": name, "hub": source.hub, "rows": len(found), "fingerprints": prints}


def _hold_out(tasks: Sequence[LoadedTask], holdout: int, seed: int) -> tuple[LoadedTask, ...]:
    """Move training tasks to val and as many to test, chosen by the seed, where the data has none."""
    splits = {task.split for task in tasks}
    wanted = [split for split in ("val", "test") if split not in splits]
    training = [number for number, task in enumerate(tasks) if task.split == "train"]
    if holdout < 0 or len(training) <= holdout * len(wanted):
        raise OptionError(
            f"holdout={holdout}: there are {len(training)} training tasks to hold {len(wanted)} x {holdout} out of"
        )
    order = [training[place] for place in stream(seed, "holdout").permutation(len(training)).tolist()]
    moved = {
        number: split for place, split in enumerate(wanted) for number in order[place * holdout : (place + 1) * holdout]
    }
    return tuple(task._replace(split=moved.get(number, task.split)) for number, task in enumerate(tasks))
