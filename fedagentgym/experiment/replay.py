"""Replaying a file of episodes in the environments that the file names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import DataError, OptionError, join_names, unknown_name_error
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.registry import find_env_id
from fedagentgym.learning.evaluation import find_replay_differences
from fedagentgym.learning.export import read_json_lines

_NOT_OPTIONS = ("split", "tasks", "pool", "variant", "render_mode")


def check_episodes(
    file: str | Path,
    *,
    env: str | None = None,
    options: Mapping[str, Any] | None = None,
    split: str | None = None,
    only: str | None = None,
) -> list[str]:
    """Replay a file's actions; every difference is one sentence. Empty if there is none.

    `env`, `options` and `split` replace or complete the environment named by the file, or by the run that contains it.
    """
    path, given = Path(file), dict(options or {})
    heads = _read_heads(path)
    if only is not None and only not in heads:
        raise unknown_name_error(f"evaluation set of {path}", only, [name for name in heads if name])
    if env is not None and only is None and len(heads) > 1:
        raise OptionError(
            f"{path} holds the evaluation sets {join_names(heads)}: say which of them --env plays (--set)"
        )
    differences: list[str] = []
    for name, head in heads.items():
        if only is None or name == only:
            world = _open_world(path, name, head, env, given, split)
            differences += find_replay_differences(path, world, name or None)
    return differences


def _read_heads(path: Path) -> dict[str, dict[str, Any]]:
    """What the first line of each evaluation set contains besides its episode."""
    heads: dict[str, dict[str, Any]] = {}
    for _, about in read_json_lines(path):
        heads.setdefault(str(about.get("set", "")), about)
    if not heads:
        raise DataError(f"{path} holds no episodes")
    return heads


def _open_world(
    path: Path, name: str, head: Mapping[str, Any], env: str | None, given: Mapping[str, Any], split: str | None
) -> TextEnv:
    written = head.get("env")
    if env is None and not isinstance(written, str):
        raise OptionError(f"{path} does not name the environment in which it was played: name it (--env)")
    env_id = find_env_id(written if env is None else env)
    own = _find_options(path, name, head) if env_id == written else {}
    variant = head.get("variant") if env_id == written else None
    chosen = split or head.get("split", "val")
    if not isinstance(chosen, str) or not isinstance(variant, dict | None):
        raise DataError(f"{path}: split or variant of an episode is not what `fedagentgym eval` writes")
    kept = {} if variant is None else {"variant": variant}
    return open_env(env_id, **{**own, **given, **kept, "split": chosen})


def _find_options(path: Path, name: str, head: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a line, or those of the run that contains the file. Paths on this machine are not taken from a file."""
    if "options" in head:
        options = head["options"]
        if not isinstance(options, dict) or any(key in _NOT_OPTIONS for key in options):
            raise DataError(f"{path}: the options of an episode are not what `fedagentgym eval` writes")
        return ENVIRONMENTS.get(find_env_id(head["env"])).portable_options(options)  # type: ignore[no-any-return]
    return next((one for set_name, one in _iter_run_options(path) if set_name == name), {})


def _iter_run_options(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The options of each evaluation set of the run whose folder holds this file."""
    config_file = path.resolve().parent.parent / "config.yaml"
    if not config_file.is_file():
        return
    from fedagentgym.experiment.config import load_config
    from fedagentgym.learning.evaluation_sets import open_sets

    config = load_config(config_file)
    if config.evaluation is None or not config.evaluation.sets:
        yield "", config.env.options
        return
    for one in open_sets(config.evaluation, config.env.id, config.env.options):
        yield one.name, one.options
