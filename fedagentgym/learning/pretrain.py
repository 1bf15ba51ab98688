"""`pretrain`: make an agent that imitates the expert of one environment.

1. the model: for `tiny`, a tokenizer of the environment's words and an untrained model (`agents/model/loading.py`), else a
   pretrained model;
2. demonstrations of the environment's expert on its `warmup` split, in the agent's own tokens;
3. imitation for a fixed number of steps, independent of time, so the same settings give the same weights;
4. an evaluation of the result on the validation split.

The result is an ordinary model folder. A note in it records the inputs and the machine; a request with the same inputs finds the
folder again. Some tiny agents come with the package (`agents/model/pretrained.py`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedagentgym.agents.model.loading import use_threads
from fedagentgym.agents.model.pretrained import PRETRAIN_NOTE, find_shipped, get_tiny_folder, list_shipped
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.encoding import canonical_json, digest
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import PART, atomic_folder, cache_folder, get_name, locate_replaced, read_json
from fedagentgym.base.process import get_logger, read_processor_name
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.envs.registry import format_env_words
from fedagentgym.envs.scripted import list_words
from fedagentgym.envs.tasks import shorten_env_id
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.misconceptions import describe_misconceptions
from fedagentgym.learning.settings import EvaluationSettings, WarmStartSettings
from fedagentgym.learning.state import get_trainable_policy
from fedagentgym.learning.supervised import warm_start
from fedagentgym.partitions.verification import refuse_imitated

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv

log = get_logger(__name__)
VERSION = 6
PLAYING = ("decoding", "adapter", "device", "threads", "forward", "rollouts", "options", "harness")
"""Settings of an agent that change how it plays and learns, but not how a tiny agent is made."""
LOOK = EvaluationSettings(tasks=100, confidence=0.99)
"""The evaluation of a new tiny agent."""


class PretrainResult(NamedTuple):
    """The folder of the model, whether it was made before, and its note."""

    folder: Path
    reused: bool
    note: dict[str, Any]


def pretrain_tiny(
    env_id: str,
    options: Mapping[str, Any],
    settings: WarmStartSettings | None = None,
    *,
    agent: AgentSettings | None = None,
    evaluation: EvaluationSettings | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
) -> PretrainResult:
    """Make the tiny agent of an environment, or find it if it was made from the same settings before.

    An agent that comes with the package is copied to the folder; with `force`, a new agent is made in any case.
    """
    imitation = _plan_tiny(env_id, options, settings, agent, evaluation, seed)
    target = Path(folder) if folder is not None else get_tiny_folder(imitation.env)
    return _find_or_make(lambda: _make_untrained_agent(imitation), imitation, target, made_from=None, force=force)


def start_tiny(
    env_id: str, options: Mapping[str, Any], settings: WarmStartSettings, agent: AgentSettings
) -> PretrainResult:
    """The tiny agent that a run starts from: the package's if it was made by the same recipe (the settings in `PLAYING` do not
    count), else one from the cache, else a new one."""
    imitation = _plan_tiny(env_id, options, settings, agent, None, 0)
    for one in list_shipped():
        usual = AgentSettings.load(one.note["agent"], "agent")
        same = agent.model_copy(update={name: getattr(usual, name) for name in PLAYING})
        if one.note["env"] == env_id and imitation._replace(player=same).compute_digest(None) == one.note["recipe"]:
            return PretrainResult(one.folder, True, dict(one.note))
    plain = [
        env_id,
        dict(options),
        settings.model_dump(mode="json"),
        agent.model_dump(mode="json", exclude={"harness"}),
    ]
    folder = cache_folder("tiny", f"start-{digest(plain).removeprefix('sha256:')[:16]}")
    if not (folder / PRETRAIN_NOTE).is_file():
        log.warning("%s", _explain_making(imitation))
    return pretrain_tiny(env_id, options, settings, agent=agent, folder=folder)


def _explain_making(imitation: _Imitation) -> str:
    """The message before a tiny agent is made: the reason, the amount of work, and how to avoid it."""
    env, settings = imitation.env, imitation.settings
    words = format_env_words(env.id, imitation.options)
    shipped = [one for one in list_shipped() if one.note["env"] == env.id]
    fits = [one for one in shipped if one.note["options"] == imitation.options]
    if not shipped:
        why, instead = "the package has none for this environment", ""
    elif not fits:
        why = "the package has one for other options only"
        instead = f"; the one for {format_env_words(env.id, shipped[0].note['options'])} comes with the package"
    else:
        given = {"warm_start": settings.model_dump(mode="json"), "agent": imitation.player.model_dump(mode="json")}
        why = f"the package's agent has other settings ({', '.join(_list_changes(fits[0].note, given))})"
        instead = "; without these settings the package's agent is used"
    cost = f"{settings.episodes:,} demonstrations, {settings.steps:,} steps of imitation, once; progress shows the time left"
    return (
        f"making a tiny agent for {words} ({cost}), since {why}{instead}; agent.model=FOLDER uses a model of your own"
    )


def _list_changes(note: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The settings of a warm start and of an agent that differ from those of a shipped agent."""
    usual = {
        "warm_start": WarmStartSettings.load(note["warm_start"], "warm_start").model_dump(mode="json"),
        "agent": AgentSettings.load(note["agent"], "agent").model_dump(mode="json"),
    }
    return [
        f"{section}.{name}"
        for section, values in given.items()
        for name, value in values.items()
        if value != usual[section].get(name) and name not in PLAYING
    ]


def compute_recipe(env_id: str, options: Mapping[str, Any], settings: WarmStartSettings, agent: AgentSettings) -> str:
    """The digest of all inputs of a tiny agent with seed 0."""
    return _plan_tiny(env_id, options, settings, agent, None, 0).compute_digest(None)


def _plan_tiny(
    env_id: str,
    options: Mapping[str, Any],
    settings: WarmStartSettings | None,
    agent: AgentSettings | None,
    evaluation: EvaluationSettings | None,
    seed: int,
) -> _Imitation:
    player = agent or AgentSettings(name="tiny")
    if player.adapter is not None:
        raise OptionError("a tiny model is made with all its weights: leave the adapter out, and add it when you train")
    env = open_env(env_id, **{**options, "split": "warmup"})
    return _Imitation(env, dict(options), settings or WarmStartSettings(), evaluation or LOOK, player, seed)


def pretrain_model(
    agent: AgentSettings,
    env_id: str,
    options: Mapping[str, Any],
    settings: WarmStartSettings,
    *,
    evaluation: EvaluationSettings | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    force: bool = False,
) -> PretrainResult:
    """Let a pretrained model imitate the expert of an environment, or find the result of an earlier call with the same inputs.

    The result is a full model: if an adapter is trained (`agent.adapter`), it is merged into the base at the end. Merging and
    saving use float32, because the changes by imitation are smaller than the precision of bfloat16.
    """
    from fedagentgym.agents.model.store import identify_model, locate_model
    from fedagentgym.agents.presets import make_agent, require_model

    named = require_model(agent)
    player = agent.model_copy(update={"dtype": "float32", "rollouts": "torch", "model": str(locate_model(named))})
    env = open_env(env_id, **{**options, "split": "warmup"})
    imitation = _Imitation(env, dict(options), settings, evaluation or EvaluationSettings(tasks=20), player, seed)
    identity = identify_model(named)

    def load() -> TokenAgent:
        made: TokenAgent = make_agent(player, env, derive(seed, "agent"))  # type: ignore[assignment]
        get_trainable_policy(made)
        return made

    recipe = imitation.compute_digest({"identity": identity}).removeprefix("sha256:")
    usual = cache_folder("warm", f"{get_name(Path(named))}-{shorten_env_id(env.id)}-{recipe[:16]}")
    target = usual if folder is None else Path(folder)
    return _find_or_make(load, imitation, target, made_from={"model": named, "identity": identity}, force=force)


class _Imitation(NamedTuple):
    """The inputs of an imitation: the environment on its warm-up split, the settings, the evaluation, the agent, the seed."""

    env: TextEnv
    options: dict[str, Any]
    settings: WarmStartSettings
    evaluation: EvaluationSettings
    player: AgentSettings
    seed: int

    def compute_digest(self, made_from: Mapping[str, str] | None) -> str:
        """The digest of the inputs. A model is identified by its files, not by their path. Options that change no task count
        too, because they can change what is imitated, such as the wording of questions."""
        plain = self.player.model_dump(mode="json", exclude={"harness"})
        parts = [VERSION, self.env.id, self.env.pool.digest, self.settings.model_dump(mode="json")]
        marks = self.env.options.get_marks()
        names = [name for name in self.options if marks[name] in ("play", "owner")]
        parts += [{name: self.options[name] for name in sorted(names)}] if names else []
        if made_from is None:
            return digest([*parts, plain, self.seed])
        return digest([*parts, {**plain, "model": made_from["identity"]}, self.seed])


def _find_or_make(
    load: Callable[[], TokenAgent],
    imitation: _Imitation,
    target: Path,
    *,
    made_from: Mapping[str, str] | None,
    force: bool,
) -> PretrainResult:
    """The existing folder if it was made from the same inputs, else a copy of the package's agent, else a new agent, which
    imitates, is evaluated and is saved."""
    recipe = imitation.compute_digest(made_from)
    if target.exists() and not force:
        note = _read_metadata(target)
        if note.get("recipe") == recipe:
            return PretrainResult(target, True, note)
    place = locate_replaced(target)
    if not force and made_from is None and (shipped := find_shipped(recipe)) is not None:
        with _replacing(place) as scratch:
            for file in shipped.folder.iterdir():
                shutil.copyfile(file, scratch / file.name)
        return PretrainResult(target, True, dict(shipped.note))
    import torch

    env, evaluation, seed = imitation.env, imitation.evaluation, imitation.seed
    unseen = open_env(env.id, **{**imitation.options, "split": evaluation.split})
    refuse_imitated(env, unseen, evaluation.split, evaluation.tasks)
    with use_threads(imitation.player.threads):
        made = load()
        losses = warm_start(made, env, imitation.settings, derive(seed, "warm start"))
        found = evaluate(made, unseen, evaluation, seed=seed)
        # besides the recipe, the bits of a model depend on these
        processor = f"{read_processor_name()}, {torch.backends.cpu.get_cpu_capability()}"
        machine = {"torch": torch.__version__, "processor": processor, "threads": torch.get_num_threads()}
    success = found.overall["success"]
    note = {
        "recipe": recipe,
        **(made_from or {}),
        "env": env.id,
        "options": imitation.options,
        "seed": seed,
        "loss": losses[-1],
        "tasks": found.tasks,
        "success": success.mean,
        "interval": [success.low, success.high],
        "score": found.overall["score"].mean,
        "format_broken": found.overall["format_broken"].mean,
        **describe_misconceptions(env, imitation.settings.misconceptions, unseen, found.groups),
        "warm_start": imitation.settings.model_dump(mode="json"),
        "agent": imitation.player.model_dump(mode="json", exclude_unset=True, exclude={"harness"}),
        "machine": machine,
    }
    with _replacing(place) as scratch:
        get_trainable_policy(made).save(scratch)
        (scratch / PRETRAIN_NOTE).write_text(canonical_json(note) + "\n", "utf-8")
    return PretrainResult(target, False, note)


def _make_untrained_agent(imitation: _Imitation) -> TokenAgent:
    """A tiny model with random weights, with the tiny agent's prompts and decoding."""
    import tempfile

    from fedagentgym.agents.model.loading import make_tiny_model
    from fedagentgym.agents.model.policy import TorchPolicy
    from fedagentgym.agents.presets import make_agent

    env, settings, seed = imitation.env, imitation.settings, imitation.seed
    model, tokenizer = make_tiny_model(list_words(env), settings.size, settings.context_length, derive(seed, "weights"))
    init_weights(model, derive(seed, "spread"))
    with tempfile.TemporaryDirectory() as scratch:
        TorchPolicy(model, tokenizer).save(scratch)
        chosen = AgentSettings.load(
            merge(imitation.player.model_dump(exclude_unset=True), {"name": "tiny", "model": scratch})
        )
        made: TokenAgent = make_agent(chosen, env, seed)  # type: ignore[assignment]
    return made


def init_weights(model: Any, seed: int) -> None:
    """Initialise every matrix with standard deviation 1 / sqrt(width). With the library's 0.02, a narrow model needs twice as
    many steps to learn to copy words."""
    import torch

    random = torch.Generator().manual_seed(seed)
    scale = float(model.config.hidden_size) ** -0.5
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a folder to write, which is renamed to the target when it is complete. An older model of this package is moved away
    just before, and then removed."""
    fresh, old = (target.with_name(f".{target.name}.{word}{PART}") for word in ("fresh", "old"))
    _remove(fresh)
    with atomic_folder(fresh) as scratch:
        yield scratch
    if target.exists():
        _read_metadata(target)
        _remove(old)
        target.replace(old)
    fresh.replace(target)
    _remove(old)


def _read_metadata(folder: Path) -> dict[str, Any]:
    """The note in a folder that `pretrain` made; any other folder is refused."""
    if not (folder / PRETRAIN_NOTE).is_file():
        raise DataError(f"{folder} exists and was not made by `fedagentgym pretrain`: choose another --out")
    note = read_json(folder / PRETRAIN_NOTE)
    return note if isinstance(note, dict) else {}


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
