"""The data sets for the reasoning environments: how a row becomes a task, which splits exist, and where the data come from.

The numbers of tasks, the licences and the columns are those that the publishers state. A licence is "not stated" where the
page of a copy names none, even if the original has one. `fedagentgym data check` compares files with the numbers of tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fedagentgym.base.errors import UnknownNameError, unknown_name_error
from fedagentgym.envs.reasoning.pools import LoadedTask
from fedagentgym.envs.reasoning.sources import readers
from fedagentgym.envs.reasoning.sources.rows import Row

Reader = Callable[[Row, str], LoadedTask | None]
Counts = Mapping[str, int]


@dataclass(frozen=True)
class Source:
    """A data set.

    `task` is the kind of its tasks: `math`, `qa` or `code`. `read` makes a task from a row; a row whose file names no split is
    a training task. All tasks of a `test_only` set are test tasks, whatever split its files or the hub name. `published` lists
    the numbers of tasks by split, for every form in which the set is published. The published test split of a set that
    `hides_answers` has no answers. If a set `repeats` its problems, each is read once. `subsets` names alternative
    configurations, the default first, with the folders of their files. `adapt` makes the reader if it depends on all rows.
    """

    task: str
    read: Reader
    hub: str
    licence: str
    columns: str
    published: tuple[Counts, ...]
    test_only: bool = False
    hides_answers: bool = False
    repeats: bool = False
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other_names: tuple[str, ...] = ()
    adapt: Callable[[Sequence[Row]], Reader] | None = None

    @property
    def subset(self) -> str | None:
        """The configuration that is read by default."""
        return next(iter(self.subsets), None)


def _folders(*names: str) -> dict[str, tuple[str, ...]]:
    """Configurations whose files are in a folder of the same name."""
    return {name: (name.lower(),) for name in names}


SOURCES: Mapping[str, Source] = {
    "gsm8k": Source(
        "math",
        readers.gsm8k,
        hub="openai/gsm8k",
        licence="MIT",
        columns="question, answer",
        published=({"train": 7473, "test": 1319},),
        subsets=_folders("main", "socratic"),
    ),
    "math": Source(
        "math",
        readers.math,
        hub="nlile/hendrycks-MATH-benchmark",
        licence="MIT",
        columns="problem, solution, level, type or subject; answer, where it has a column",
        published=({"train": 7500, "test": 5000}, {"train": 12000, "test": 500}),
        other_names=("hendrycksmath", "competitionmath", "mathbenchmark"),
    ),
    "math-original": Source(
        "math",
        readers.math,
        hub="Dahoas/MATH",
        licence="not stated",
        columns="problem, solution, level, type",
        published=({"train": 7500, "test": 5000},),
    ),
    "math500": Source(
        "math",
        readers.math,
        hub="HuggingFaceH4/MATH-500",
        licence="not stated",
        columns="problem, solution, answer, subject, level",
        published=({"test": 500},),
        test_only=True,
    ),
    "dapo": Source(
        "math",
        readers.dapo,
        hub="BytedTsinghua-SIA/DAPO-Math-17k",
        licence="Apache-2.0",
        columns="prompt (messages), reward_model (ground_truth), data_source, ability",
        published=(),
        repeats=True,
    ),
    "dapo-processed": Source(
        "math",
        readers.dapo,
        hub="open-r1/DAPO-Math-17k-Processed",
        licence="not stated",
        columns="prompt, solution, data_source, source_prompt, ability, reward_model (ground_truth)",
        published=({"train": 17398}, {"train": 14116}, {"train": 3282}),
        repeats=True,
        subsets=_folders("all", "en", "cn"),
    ),
    "openr1": Source(
        "math",
        readers.openr1,
        hub="open-r1/OpenR1-Math-220k",
        licence="Apache-2.0",
        columns="problem, answer, problem_type, solution",
        published=({"train": 93733}, {"train": 131396}, {"train": 225129}),
        subsets={"default": ("data", "default"), "extended": ("extended",), "all": ("all",)},
        other_names=("openr1math",),
    ),
    "deepmath": Source(
        "math",
        readers.deepmath,
        hub="zwhe99/DeepMath-103K",
        licence="MIT",
        columns="question, final_answer, difficulty, topic, r1_solution_1",
        published=({"train": 103022},),
    ),
    "aime": Source(
        "math",
        readers.contest,
        hub="AI-MO/aimo-validation-aime",
        licence="Apache-2.0",
        columns="problem, solution, answer, url",
        published=({"test": 90},),
        test_only=True,
    ),
    "aime24": Source(
        "math",
        partial(readers.contest, name="2024 AIME"),
        hub="HuggingFaceH4/aime_2024",
        licence="not stated",
        columns="problem, answer (or a boxed one in solution), solution, url, year",
        published=({"test": 30},),
        test_only=True,
        other_names=("aime2024",),
    ),
    "aime25": Source(
        "math",
        partial(readers.contest, name="2025 AIME"),
        hub="math-ai/aime25",
        licence="Apache-2.0",
        columns="problem or question, answer",
        published=({"test": 30}, {"test": 15}),
        test_only=True,
        other_names=("aime2025",),
    ),
    "amc": Source(
        "math",
        readers.contest,
        hub="AI-MO/aimo-validation-amc",
        licence="Apache-2.0",
        columns="problem or question, answer, url",
        published=({"test": 83}, {"test": 40}),
        test_only=True,
        other_names=("amc23", "amc2023"),
    ),
    "minerva": Source(
        "math",
        readers.minerva,
        hub="math-ai/minervamath",
        licence="not stated",
        columns="question or problem, answer or a boxed one in solution",
        published=({"test": 272},),
        test_only=True,
        other_names=("minervamath",),
    ),
    "olympiadbench": Source(
        "math",
        readers.olympiadbench,
        hub="Hothan/OlympiadBench",
        licence="Apache-2.0",
        columns="question, final_answer, solution, subfield, is_multiple_answer",
        published=({"test": 674}, {"test": 675}),
        test_only=True,
        subsets=_folders("OE_TO_maths_en_COMP", "OE_TO_maths_zh_COMP", "OE_TO_maths_zh_CEE", "OE_TO_physics_en_COMP"),
        other_names=("olympiad",),
    ),
    "hotpotqa": Source(
        "qa",
        readers.hotpotqa,
        hub="hotpotqa/hotpot_qa",
        licence="CC BY-SA 4.0",
        columns="question, answer, type, level, context, supporting_facts",
        published=({"train": 90447, "val": 7405},),
        hides_answers=True,
        subsets=_folders("distractor", "fullwiki"),
    ),
    "2wikimultihopqa": Source(
        "qa",
        readers.hotpotqa,
        hub="framolfese/2WikiMultihopQA",
        licence="Apache-2.0",
        columns="question, answer, type, context, supporting_facts",
        published=({"train": 167454, "val": 12576},),
        hides_answers=True,
        other_names=("2wiki",),
    ),
    "musique": Source(
        "qa",
        readers.musique,
        hub="dgslibisey/MuSiQue",
        licence="CC BY 4.0",
        columns="id, question, answer, answer_aliases, answerable, paragraphs",
        published=({"train": 19938, "val": 2417},),
        hides_answers=True,
    ),
    "medqa": Source(
        "qa",
        readers.medqa,
        hub="GBaker/MedQA-USMLE-4-options",
        licence="CC BY 4.0",
        columns="question, options, answer, answer_idx, meta_info",
        published=({"train": 10178, "test": 1273}, {"train": 10178, "val": 1272, "test": 1273}),
    ),
    "medmcqa": Source(
        "qa",
        readers.medmcqa,
        hub="openlifescienceai/medmcqa",
        licence="Apache-2.0",
        columns="question, opa, opb, opc, opd, cop, subject_name, exp",
        published=({"train": 182822, "val": 4183},),
        hides_answers=True,
        adapt=readers.make_medmcqa_reader,
    ),
    "humaneval": Source(
        "code",
        readers.humaneval,
        hub="openai/openai_humaneval",
        licence="MIT",
        columns="task_id, prompt, canonical_solution, test, entry_point",
        published=({"test": 164},),
        test_only=True,
    ),
    "mbpp": Source(
        "code",
        readers.mbpp,
        hub="google-research-datasets/mbpp",
        licence="CC BY 4.0",
        columns="task_id, text or prompt, code, test_list, test_setup_code or test_imports",
        published=({"train": 374, "val": 90, "test": 500}, {"train": 120, "val": 43, "test": 257}),
        subsets=_folders("full", "sanitized"),
    ),
}


def find_source(name: str, task: str | None = None) -> str:
    """The table's name of a data set that is given in another spelling: `AIME24`, `MATH-500`, `openai/gsm8k`."""
    known = [source for source in SOURCES if task is None or SOURCES[source].task == task]
    wanted = _squeeze(name)
    for source in known:
        entry = SOURCES[source]
        hub = entry.hub.rpartition("/")[2]
        if wanted in {_squeeze(source), _squeeze(entry.hub), _squeeze(hub), *entry.other_names}:
            return source
    error = unknown_name_error("data set" if task is None else f"source of {task} tasks", name, known)
    raise error if task is None else UnknownNameError(f"{error}; data of your own has no source: give data= alone")


def _squeeze(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
