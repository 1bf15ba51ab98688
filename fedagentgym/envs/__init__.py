"""Environments and their tasks. This package imports nothing about clients or models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import attach

if TYPE_CHECKING:
    from fedagentgym.envs.alfworld.gamefiles import write_game_files as write_game_files
    from fedagentgym.envs.core import TextEnv as TextEnv
    from fedagentgym.envs.make import open_env as open_env
    from fedagentgym.envs.misconceptions import MisleadableEnv as MisleadableEnv
    from fedagentgym.envs.misconceptions import Procedures as Procedures
    from fedagentgym.envs.options import EnvOptions as EnvOptions
    from fedagentgym.envs.options import local as local
    from fedagentgym.envs.options import owner as owner
    from fedagentgym.envs.options import play as play
    from fedagentgym.envs.options import task as task
    from fedagentgym.envs.pool import TaskPool as TaskPool
    from fedagentgym.envs.reasoning.math import calculate as calculate
    from fedagentgym.envs.registry import DATA_SETS as DATA_SETS
    from fedagentgym.envs.registry import ENVIRONMENTS as ENVIRONMENTS
    from fedagentgym.envs.tasks import Task as Task
    from fedagentgym.envs.tasks import TaskSet as TaskSet
    from fedagentgym.envs.transcripts import format_transcript as format_transcript
    from fedagentgym.envs.transcripts import read_transcript as read_transcript
    from fedagentgym.envs.transcripts import replay as replay
    from fedagentgym.envs.variants import ClientVariant as ClientVariant
    from fedagentgym.envs.variants import Variant as Variant
    from fedagentgym.envs.verifiers import Verdict as Verdict
    from fedagentgym.envs.verifiers.code import Call as Call
    from fedagentgym.envs.verifiers.code import Checks as Checks
    from fedagentgym.envs.verifiers.code import grade_code as grade_code
    from fedagentgym.envs.verifiers.math import MathVerifier as MathVerifier
    from fedagentgym.envs.verifiers.math import grade_math as grade_math
    from fedagentgym.envs.verifiers.qa import grade_choice as grade_choice
    from fedagentgym.envs.verifiers.qa import grade_qa as grade_qa
    from fedagentgym.envs.view import Episode as Episode
    from fedagentgym.envs.view import View as View
    from fedagentgym.envs.wrappers import ShowPrompt as ShowPrompt

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".alfworld.gamefiles": ("write_game_files",),
        ".core": ("TextEnv",),
        ".make": ("open_env",),
        ".misconceptions": ("MisleadableEnv", "Procedures"),
        ".options": ("EnvOptions", "local", "owner", "play", "task"),
        ".pool": ("TaskPool",),
        ".reasoning.math": ("calculate",),
        ".registry": ("DATA_SETS", "ENVIRONMENTS"),
        ".tasks": ("Task", "TaskSet"),
        ".transcripts": ("format_transcript", "read_transcript", "replay"),
        ".variants": ("ClientVariant", "Variant"),
        ".verifiers": ("Verdict",),
        ".verifiers.code": ("Call", "Checks", "grade_code"),
        ".verifiers.math": ("MathVerifier", "grade_math"),
        ".verifiers.qa": ("grade_choice", "grade_qa"),
        ".view": ("Episode", "View"),
        ".wrappers": ("ShowPrompt",),
    },
)
