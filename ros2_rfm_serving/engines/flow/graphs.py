"""CUDA graphs: a function's kernels are recorded once per input shapes and then launched together (vla.cpp §4.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]
Key = tuple[tuple[torch.Size, torch.dtype], ...]
WARM_UP_CALLS = 3
"""Before recording: libraries choose their kernels and allocate what they need."""


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


def accelerated(function: Function, *, compiled: bool, recorded: bool) -> Function:
    """`function`, compiled, recorded, both or as it is; with gradients on, always as it is."""
    if not (compiled or recorded):
        return function
    fast: Function = torch.compile(function, dynamic=False) if compiled else function
    if recorded:
        fast = Graphed(fast)

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
        with torch.cuda.graph(graph):
            results = function(*memory)

    def replay(*inputs: Tensor) -> Tensors:
        for own, given in zip(memory, inputs, strict=True):
            own.copy_(given)
        graph.replay()
        return tuple(result.clone() for result in results)

    return replay
