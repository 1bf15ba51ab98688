"""A pretended `cuda:0` for machines without a GPU: tensors of torch's `FakeTensorMode`, which have a shape, a type and a device
but no numbers, and which refuse every operation that mixes devices.

What a program reads of such a tensor is given by hand: `1.0` of a number, `READ_ID` of a token, `True` of a mark. What is learnt
from these tests is therefore where tensors lie and in which types products run, never whether a result is right.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import BackwardCFunction

CUDA = torch.device("cuda", 0)
MEMORY = 80 * 10**9
READ_ID = 30
"""The value of every read of whole numbers: a token that ends no reply."""

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>) }
"""
"""A build of torch without CUDA has no device guard for it, and asks for one at every operation on a fake tensor."""


def load_guard(cache: Path) -> None:
    """Compile the guard once for each release of torch, and load it."""
    if torch.version.cuda is not None:
        return  # such a build has a guard of its own, or puts an empty one in its place
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here to compile the device guard of a pretended GPU")
    built = cache / f"cuda_guard_{hashlib.sha256((GUARD + torch.__version__).encode()).hexdigest()[:16]}.so"
    if not built.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        home, partial = Path(torch.__file__).parent, built.with_suffix(f".{id(built)}.so")
        command = [compiler, "-x", "c++", "-", "-DNDEBUG", "-std=c++20", "-shared", "-fPIC", f"-I{home / 'include'}"]
        command += ["-o", str(partial), f"-L{home / 'lib'}", "-lc10"]
        done = subprocess.run(command, input=GUARD, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"g++ cannot compile the device guard of a pretended GPU: {done.stderr[-300:]}")
        partial.replace(built)
    torch.ops.load_library(built)


class Product(NamedTuple):
    """A matrix product or an attention that ran: its name, and the types and devices of its tensors."""

    name: str
    dtypes: frozenset[torch.dtype]
    devices: frozenset[str]


class PretendedCuda(FakeTensorMode):
    """Everything that runs inside is on fake tensors; products are noted down."""

    avoid_device_init = True  # whatever `torch.cuda.is_available` pretends

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.products: list[Product] = []
        self._inside = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            return read_number(args[0].dtype)
        if name == "_unique2":  # of several lengths one, as if all were equal
            return args[0].new_empty(1), args[0].new_empty(0), args[0].new_empty(0)
        if self._inside:  # an operation that torch works a fake tensor's shape out with
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        if name in PRODUCTS:
            tensors = [value for value in args if value.ndim > 1]
            dtypes, devices = {value.dtype for value in tensors}, {value.device.type for value in tensors}
            self.products.append(Product(name, frozenset(dtypes), frozenset(devices)))
        if func not in self.lift_fns:
            args = tuple(self._make_fake(value) for value in args)
        self._inside = True
        try:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        finally:
            self._inside = False

    def _make_fake(self, value: Any) -> Any:
        """Without its number, if it is but one: torch would compute with it, on the device that is not there."""
        if isinstance(value, FakeTensor):
            value.constant = None
        elif isinstance(value, torch.Tensor):
            return self.from_tensor(value)
        return value

    def list_product_dtypes(self, devices: str = "cuda") -> set[torch.dtype]:
        """The types that linear layers computed in, since the last call; all of them on this device."""
        linear, self.products = [one for one in self.products if one.name in ("mm", "addmm")], []
        assert linear and all(one.devices == {devices} for one in linear)
        return {dtype for one in linear for dtype in one.dtypes}


PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


def read_number(dtype: torch.dtype) -> Any:
    """The value that is read of one number."""
    if dtype == torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else READ_ID


def read_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The value that is read of a tensor, which has to lie in the processor's memory."""
    if tensor.device.type != "cpu":
        raise TypeError(f"can't convert {tensor.device} device type tensor to numpy")
    if tensor.dtype == torch.bfloat16:
        raise TypeError("Got unsupported ScalarType BFloat16")
    kind = torch.zeros((), dtype=tensor.dtype, device="meta").dtype
    return np.full(tuple(tensor.shape), read_number(kind), dtype=str(kind).removeprefix("torch."))


@contextlib.contextmanager
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    """Let torch say that there is a GPU, and run what follows on fake tensors."""
    properties = SimpleNamespace(total_memory=MEMORY, name="pretended")
    said: dict[str, Any] = {
        "is_available": True,
        "is_bf16_supported": True,
        "get_device_properties": properties,
        "mem_get_info": (MEMORY, MEMORY),
        "get_rng_state": None,
        "set_rng_state": None,
    }
    with monkeypatch.context() as patch:
        for name, value in said.items():
            patch.setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
        patch.setattr(torch.nn.Module, "_apply", move_module)
        for module in (torch.autograd, torch.autograd.graph):
            patch.setattr(module, "_engine_run_backward", run_backward)
        numpy = torch.Tensor.numpy
        patch.setattr(
            torch.Tensor,
            "numpy",
            lambda self, **k: read_array(self) if isinstance(self, FakeTensor) else numpy(self, **k),
        )
        with PretendedCuda() as mode:
            yield mode


def move_module(
    module: torch.nn.Module, convert: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """Do as `module.to`, tied weights included, which torch itself would untie between a real and a fake tensor."""
    done: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for part in module.modules() if recurse else (module,):
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    moved = convert(tensor.detach())
                    if isinstance(tensor, torch.nn.Parameter):
                        moved = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
                    done[id(tensor)] = tensor, moved
                table[name] = done[id(tensor)][1]
    return module


@torch.no_grad()
def run_backward(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[torch.Tensor] = (),
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Do as torch's engine, node by node. The engine itself wants streams of a device that is not there."""
    roots = [_find_edge(output) for output in outputs]
    wanted = [_find_edge(leaf) for leaf in inputs]
    waiting = _count_uses([node for node, _ in roots])
    given: dict[Any, dict[int, torch.Tensor]] = defaultdict(dict)
    for (node, place), output, gradient in zip(roots, outputs, gradients, strict=True):
        _add(given[node], place, torch.ones_like(output) if gradient is None else gradient)
    found: dict[tuple[Any, int], torch.Tensor] = {}
    ready = [node for node in dict.fromkeys(node for node, _ in roots) if not waiting[node]]
    while ready:
        node = ready.pop()
        own = given.pop(node, {})
        found |= {(node, place): gradient for place, gradient in own.items() if (node, place) in wanted}
        accumulates = type(node).__name__ == "AccumulateGrad"
        passed: Any = ()
        if own and not (accumulates and inputs):
            arguments = [_fill(own.get(place), metadata) for place, metadata in enumerate(node._input_metadata)]
            passed = node.apply(*arguments) if isinstance(node, BackwardCFunction) else node(*arguments)
        passed = passed if isinstance(passed, tuple) else (passed,)
        for index, (following, place) in enumerate(node.next_functions):
            if following is None:
                continue
            if index < len(passed) and passed[index] is not None:
                metadata = following._input_metadata[place]
                assert passed[index].device == metadata.device, (node, passed[index].device, metadata.device)
                _add(given[following], place, passed[index].sum_to_size(metadata.shape).to(metadata.dtype))
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return tuple(found.get(edge) for edge in wanted)


def _find_edge(tensor: torch.Tensor) -> tuple[Any, int]:
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _count_uses(roots: Sequence[Any]) -> dict[Any, int]:
    """The number of nodes that pass a gradient to each node."""
    uses: dict[Any, int] = dict.fromkeys(roots, 0)
    seen, open_nodes = set(roots), list(roots)
    while open_nodes:
        for following, _ in open_nodes.pop().next_functions:
            if following is not None:
                uses[following] = uses.get(following, 0) + 1
                if following not in seen:
                    seen.add(following)
                    open_nodes.append(following)
    return uses


def _add(table: dict[int, torch.Tensor], place: int, gradient: torch.Tensor) -> None:
    table[place] = table[place] + gradient if place in table else gradient


def _fill(gradient: torch.Tensor | None, metadata: Any) -> torch.Tensor:
    """Nodes with several outputs get zeros for those that nobody used."""
    if gradient is not None:
        return gradient
    return torch.zeros(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
