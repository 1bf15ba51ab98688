"""The commands that rank 0 sends to the other ranks, as plain values, and their execution. Weights are exchanged directly."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from fedagentgym.agents.engines.lora import add_adapter
from fedagentgym.agents.engines.torch_policy import TorchPolicy
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.base.errors import DataError
from fedagentgym.base.extras import require
from fedagentgym.learning.rows import Row
from fedagentgym.learning.settings import LearningSettings, SupervisedSettings
from fedagentgym.learning.sharding.model import ShardedModel
from fedagentgym.learning.supervised import Example, SupervisedTraining
from fedagentgym.learning.update import PolicyUpdate
from fedagentgym.learning.whole_arrays import make_stand_in

Arrays = dict[str, NDArray[Any]]
_OF_REWARDS = {"advantage", "objectives", "format_penalty", "format_penalty_on", "sharding"}
"""Settings of a step that only rank 0 needs, since it makes rows of the episodes."""


def describe_model(model: Any, adapter: AdapterSettings | None) -> dict[str, Any]:
    """The description from which another rank makes the same model, with any weights."""
    config = model.config
    return {
        "config": config.to_json_string(use_diff=False),
        "attention": config._attn_implementation,
        "adapter": None if adapter is None else adapter.model_dump(mode="json"),
        "parameters": [
            [name, list(value.shape), str(value.dtype).removeprefix("torch."), value.requires_grad]
            for name, value in model.named_parameters()
        ],
    }


def make_model(described: Mapping[str, Any]) -> torch.nn.Module:
    """A model of that description. Its weights are never written, and so take no memory before they are sharded."""
    model = _make_base_model(described)
    if described["adapter"] is not None:
        model = add_adapter(model, AdapterSettings.load(described["adapter"], "adapter"), 0)
    own = dict(model.named_parameters())
    wanted = {name: (tuple(shape), dtype, trained) for name, shape, dtype, trained in described["parameters"]}
    if {name: tuple(value.shape) for name, value in own.items()} != {name: one[0] for name, one in wanted.items()}:
        odd = min(set(own) ^ set(wanted), default="some shape")
        raise DataError(f"a model that does not follow from its configuration cannot be sharded: {odd} differs")
    for name, value in own.items():
        _, dtype, trained = wanted[name]
        value.data = value.data.to(getattr(torch, dtype))
        value.requires_grad_(trained)
    made: torch.nn.Module = model
    return made


def _make_base_model(described: Mapping[str, Any]) -> Any:
    transformers = require("transformers", "train")
    initialization = require("transformers.initialization", "train")
    config = transformers.AutoConfig.for_model(**json.loads(described["config"]))
    with initialization.no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=described["attention"])
    model.tie_weights()
    return model.eval()


def make_whole_policy(like: TorchPolicy, weights: Mapping[str, NDArray[Any]]) -> TorchPolicy:
    """A policy of its own on a CPU, with the same model and adapter as another one, and these weights."""
    described = describe_model(like.model, like.adapter)
    base = _make_base_model(described)
    base.generation_config = like.model.generation_config
    made = TorchPolicy(base, like.tokenizer, name=like.name, context_length=like.context_length, adapter=like.adapter)
    with torch.no_grad():
        for name, value in made.model.named_parameters():
            value.copy_(torch.from_numpy(np.array(weights[name])))
    return made


def rows_to_plain(rows: Sequence[Row]) -> list[list[NDArray[Any]]]:
    return [[getattr(row, field.name) for field in fields(Row)] for row in rows]


def examples_to_plain(batch: Sequence[Example]) -> list[list[NDArray[Any]]]:
    return [list(example) for example in batch]


def learning_to_plain(settings: LearningSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude=_OF_REWARDS)


def supervised_to_plain(settings: SupervisedSettings) -> dict[str, Any]:
    return {name: value for name, value in settings.model_dump(mode="json").items() if name in _SUPERVISED}


_SUPERVISED = frozenset(SupervisedSettings.model_fields)


class Follow:
    """A following rank: its parts of models, the steps that train them, and one method for each command."""

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self._mesh, self._device = mesh, device
        self._models: dict[int, ShardedModel] = {}
        self._updates: dict[int, PolicyUpdate] = {}
        self._imitations: dict[int, SupervisedTraining] = {}
        self._commands: dict[str, Callable[..., object]] = {
            "sharding": self._shard,
            "a look at the weights": lambda number: self._models[number].get_weights(),
            "a look at all weights": lambda number: self._models[number].get_all_weights(),
            "a change of the weights": self._set_weights,
            "gathering": lambda number: self._models[number].gather(),
            "the start of an update": self._start_update,
            "the load of a site": self._load,
            "a policy step": self._train_step,
            "the scoring of rows": self._score,
            "a gradient at the last block": self._find_bias_gradient,
            "a look at the update's weights": lambda number: self._updates[number].get_weights(),
            "a look at the moments": lambda number: self._updates[number].get_optimizer_state(),
            "a look at the anchor": lambda number: self._updates[number].get_anchor_weights(),
            "the start of imitation": self._start_imitation,
            "a supervised step": self._imitate,
        }

    def run(self, command: Mapping[str, Any]) -> None:
        """Execute a command, after dropping objects that are no longer needed."""
        for number in command["dropped"]:
            for held in (self._models, self._updates, self._imitations):
                held.pop(number, None)
        self._commands[command["do"]](command["number"], **command["arguments"])

    def _shard(self, number: int, described: Mapping[str, Any], offload: bool) -> None:
        self._models[number] = ShardedModel(make_model(described), self._mesh, self._device, offload)

    def _set_weights(self, number: int) -> None:
        model = self._models[number]
        model.set_weights(make_stand_ins(model))

    def _start_update(
        self,
        number: int,
        model: int,
        decoding: Mapping[str, Any],
        learning: Mapping[str, Any],
        proximal: float,
        base: bool,
    ) -> None:
        sharded = self._models[model]
        self._updates[number] = PolicyUpdate(
            sharded,
            Decoding.load(decoding, "decoding"),
            LearningSettings.load(learning, "learning"),
            proximal=proximal,
            base=make_stand_ins(sharded) if base else None,
            passes=sharded,
        )

    def _load(self, number: int, model: int, counts: NDArray[Any] | None, anchor: bool) -> None:
        stand_ins = make_stand_ins(self._models[model])
        moments: Arrays = {}
        if counts is not None:
            moments = {f"{name}/{one}": value for one, value in stand_ins.items() for name in ("exp_avg", "exp_avg_sq")}
            moments["counts"] = counts
        self._updates[number].load(stand_ins, moments, stand_ins if anchor else {})

    def _train_step(self, number: int, rows: list[list[NDArray[Any]]], rate: float, order: int) -> None:
        self._updates[number].train_step(_read_rows(rows), rate, order)

    def _score(self, number: int, rows: list[list[NDArray[Any]]]) -> None:
        self._updates[number].score_rows(_read_rows(rows))

    def _find_bias_gradient(self, number: int, rows: list[list[NDArray[Any]]]) -> None:
        self._updates[number].compute_bias_gradient(_read_rows(rows))

    def _start_imitation(self, number: int, model: int, settings: Mapping[str, Any]) -> None:
        sharded = self._models[model]
        loaded = SupervisedSettings.load(settings, "settings")
        self._imitations[number] = SupervisedTraining(sharded, loaded, passes=sharded)

    def _imitate(self, number: int, batch: list[list[NDArray[Any]]]) -> None:
        self._imitations[number].train_step([Example(*one) for one in batch])


def _read_rows(plain: list[list[NDArray[Any]]]) -> list[Row]:
    return [Row(*row) for row in plain]


def make_stand_ins(model: ShardedModel) -> Arrays:
    """Placeholders for arrays of all trainable parameters, which rank 0 has."""
    return {name: make_stand_in(tuple(value.shape), np.dtype(np.float32)) for name, value in model.parameters().items()}
