"""Functions of tensors without Python between their operations: traced, or recorded as CUDA graphs (vla.cpp §4.3)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.kept_kernels import keep_kernels

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]
Key = tuple[tuple[torch.Size, torch.dtype], ...]
WARM_UP_CALLS = 3
"""Before recording and after tracing: libraries choose their kernels and allocate what they need."""


class Graphed:
    """A function of tensors to tensors, recorded at the first call with inputs of new shapes, replayed at all others.

    One thread at a time. Nothing that happened in the function can be differentiated.
    """

    def __init__(self, function: Function, record: Callable[[Function, Tensors], Function] | None = None) -> None:
        self._function, self._record = function, record or record_cuda
        self._replays: dict[Key, Function] = {}

    def __call__(self, *inputs: Tensor) -> Tensors:
        key = key_of(inputs)
        if key not in self._replays:
            self._replays[key] = self._record(self._function, inputs)
        return self._replays[key](*inputs)


class Traced:
    """A function of a network and tensors as a graph of the operations that it ran: the same to the last bit. Without Python
    between them it is faster, the smaller they are, and others may use the interpreter meanwhile.

    path(inputs): what decides which operations run; a graph is traced for each.
    """

    def __init__(self, function: Function, network: nn.Module, path: Callable[[Tensors], Hashable]) -> None:
        self._function, self._network, self._path = function, network, path
        self._graphs: dict[Hashable, Function] = {}

    def __call__(self, *inputs: Tensor) -> Tensors:
        key = self._path(inputs)
        if key not in self._graphs:
            self._graphs[key] = self._trace(inputs)
        return self._graphs[key](*inputs)

    def _trace(self, inputs: Tensors) -> Function:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what it points to compiles for half a minute per size
            around = _Around(self._network.eval(), self._function).eval()
            graph: Function = torch.jit.trace(around, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        for _ in range(WARM_UP_CALLS):
            graph(*inputs)
        return graph


class _Around(nn.Module):
    """So that the weights are found: side by side, as PyTorch takes longer to make a module of a graph of every layer, for each
    graph anew, than to trace it."""

    def __init__(self, network: nn.Module, function: Function) -> None:
        super().__init__()
        self._function = function
        for i, parameter in enumerate(network.parameters()):
            self.register_parameter(f"parameter_{i}", parameter)
        for i, buffer in enumerate(network.buffers()):
            self.register_buffer(f"buffer_{i}", buffer)

    def forward(self, *inputs: Tensor) -> Tensors:
        return self._function(*inputs)


def accelerated(function: Function, *, compiled: bool, recorded: bool) -> Function:
    """`function`, compiled, recorded, both or as it is; with gradients on, always as it is."""
    if not (compiled or recorded):
        return function
    if compiled:
        keep_kernels()
    fast: Function = torch.compile(function, dynamic=False) if compiled else function
    return without_gradients(function, Graphed(fast) if recorded else fast)


def without_gradients(function: Function, fast: Function) -> Function:
    """`fast` in place of `function` where nothing is differentiated."""

    def run(*inputs: Tensor) -> Tensors:
        return function(*inputs) if torch.is_grad_enabled() else fast(*inputs)

    return run


def key_of(inputs: Tensors) -> Key:
    """Inputs with equal keys run the same kernels on memory of the same layout."""
    return tuple((tensor.shape, tensor.dtype) for tensor in inputs)


def record_cuda(function: Function, inputs: Tensors) -> Function:
    """Inputs and outputs of the replay are copies: neither side needs to know that the graph's own memory is always the same.

    That memory is made outside inference mode, so that it can be written with and without it.
    """
    with torch.cuda.device(inputs[0].device), torch.inference_mode(False), torch.no_grad():
        memory = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                function(*memory)
        torch.cuda.current_stream().wait_stream(stream)
        graph: Any = torch.cuda.CUDAGraph()
        with _own_workspaces(), torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others send images meanwhile
            results = function(*memory)

    def replay(*inputs: Tensor) -> Tensors:
        for own, given in zip(memory, inputs, strict=True):
            own.copy_(given)
        graph.replay()
        return tuple(result.clone() for result in results)

    return replay


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """PyTorch keeps cuBLAS' memory by stream, and records all graphs on the same one: graphs that are replayed at once would write
    into one another's, and who resets one would take it from the others (pytorch/pytorch#193402). So it is forgotten before and
    after: each graph gets some of its own, which stays in its pool."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
