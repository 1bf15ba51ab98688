"""Small models with random weights, made by the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call

from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.settings import AdapterSettings
from fedagentgym.base.streams import Stream

WORDS = ("go to the fridge and take an apple from it then put it on a table near red shoes",)


def sharpened(model: Any, seed: int = 1) -> Any:
    """Give random weights of a size that makes the distribution uneven: near-uniform log-probs would prove little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.15)
            else:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def make_policy(forward: str = "hf", adapter: bool = False, words: Any = WORDS, **options: Any) -> TorchPolicy:
    model, tokenizer = make_tiny_model(words, context_length=512)
    settings = AdapterSettings(rank=4, alpha=8.0) if adapter else None
    policy = TorchPolicy(sharpened(model), tokenizer, forward=forward, adapter=settings, **options)
    if adapter:
        wake_adapter(policy)
    return policy


def wake_adapter(policy: TorchPolicy) -> None:
    """Make the adapter change something: B starts at zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in policy.parameters().items():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)


def full_logprobs(policy: Any, ids: list[int], temperature: float = 1.0, exact: bool = True) -> torch.Tensor:
    """Log-probs of every token after the first, by one forward pass of the model as it is trained.

    `exact`: in float64, so that what is seen is the error of what is tested and not that of the reference.
    """
    model = policy.model
    with torch.no_grad():
        parts = {**dict(model.named_parameters()), **dict(model.named_buffers())} if exact else {}
        doubled = {name: part.double() for name, part in parts.items() if part.is_floating_point()}
        logits = functional_call(model, doubled, kwargs={"input_ids": torch.tensor([ids])}).logits[0].double()
        logits = logits / temperature
    return torch.log_softmax(logits, -1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def random_ids(source: Stream, policy: Any, length: int) -> list[int]:
    return [int(token) for token in source.integers(policy.tokenizer.size, size=length)]
