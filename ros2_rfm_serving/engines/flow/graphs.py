"""Functions of tensors that run without Python between their operations: traced, or captured as CUDA graphs (vla.cpp §4.3)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.kernel_cache import use_kernel_cache

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]
Key = tuple[tuple[torch.Size, torch.dtype], ...]
WARM_UP_CALLS = 3
"""Calls before capture and after tracing, in which libraries choose their kernels and allocate memory."""


class Graphed:
    """Function of tensors that is captured at the first call with inputs of new shapes, and replayed at all later calls.

    It is not thread-safe, and its operations cannot be differentiated.
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
    """Function of a network and tensors that runs as a traced graph of its operations, with equal results to the last bit.

    Without Python between them the operations are faster, the smaller they are the more so, and other threads may use the
    interpreter meanwhile. path(inputs): the value that decides which operations run; one graph is traced for each.
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
            warnings.simplefilter("ignore", DeprecationWarning)  # the suggested replacement compiles for half a minute per size
            around = _Around(self._network.eval(), self._function).eval()
            graph: Function = torch.jit.trace(around, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        for _ in range(WARM_UP_CALLS):
            graph(*inputs)
        return graph


class _Around(nn.Module):
    """Module with all weights of a network side by side, so that the trace finds them.
    For each graph, PyTorch would take longer to build a module for every layer than to trace it."""

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
    """Return `function`, compiled, captured, both or unchanged. With gradients on, it always runs unchanged."""
    if not (compiled or recorded):
        return function
    if compiled:
        use_kernel_cache()
    fast: Function = torch.compile(function, dynamic=False) if compiled else function
    return without_gradients(function, Graphed(fast) if recorded else fast)


def without_gradients(function: Function, fast: Function) -> Function:
    """Return a function that runs `fast` where nothing is differentiated, else `function`."""

    def run(*inputs: Tensor) -> Tensors:
        return function(*inputs) if torch.is_grad_enabled() else fast(*inputs)

    return run


def key_of(inputs: Tensors) -> Key:
    """Return a key of inputs: those with equal keys run the same kernels on memory of the same layout."""
    return tuple((tensor.shape, tensor.dtype) for tensor in inputs)


def record_cuda(function: Function, inputs: Tensors) -> Function:
    """Capture a function as a CUDA graph, and return its replay.

    Inputs and outputs of the replay are copies, so that neither side needs to know that the graph always uses the same memory. That
    memory is allocated outside inference mode, so that it can be written with and without it.
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
        with _own_workspaces(), torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads send images meanwhile
            results = function(*memory)

    def replay(*inputs: Tensor) -> Tensors:
        for own, given in zip(memory, inputs, strict=True):
            own.copy_(given)
        graph.replay()
        return tuple(result.clone() for result in results)

    return replay


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Give a graph cuBLAS workspaces of its own.

    PyTorch keeps cuBLAS workspaces by stream, and captures all graphs on the same one. Graphs that are replayed at once would write
    into one another's workspace, and the reset of one would free that of the others (pytorch/pytorch#193402). So the workspaces are
    cleared before and after the capture: each graph gets its own, which stays in its pool.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
