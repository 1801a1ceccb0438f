"""What `record_cuda` asks of PyTorch: a stand-in that keeps cuBLAS' memory by stream, as `CublasHandlePool.cpp` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from ros2_rfm_serving.engines.flow.graphs import Graphed, Tensors

from .streams import Cuda


class Blas:
    """cuBLAS in one process, and graphs, which all are recorded on the same stream."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.recording = self.cuda.Stream()
        self.workspaces: dict[Any, object] = {}
        self.used: list[object] = []
        """Of each product that was recorded"""

    def product(self, x: Tensor) -> Tensors:
        own = self.workspaces.setdefault(self.cuda.current, object())
        if self.cuda.current is self.recording:
            self.used.append(own)
        return (2 * x,)

    @contextmanager
    def graph(self, graph: object, *, capture_error_mode: str) -> Iterator[None]:
        with self.cuda.stream(self.recording):
            yield


class Replayed:
    def replay(self) -> None:
        return


@pytest.fixture
def blas(monkeypatch: pytest.MonkeyPatch) -> Blas:
    blas = Blas()
    for name in ("Stream", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(blas.cuda, name))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replayed)
    monkeypatch.setattr(torch.cuda, "graph", blas.graph)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", blas.workspaces.clear, raising=False)
    return blas


def test_graphs_that_are_replayed_at_once_share_no_workspace(blas: Blas) -> None:
    """Nor do they with what runs on a stream that PyTorch hands out again and is the recording one."""
    with blas.cuda.stream(blas.recording):
        blas.product(torch.ones(1))
    (eager,) = blas.used
    perceive, step = Graphed(blas.product), Graphed(blas.product)
    for function, rows in ((perceive, 1), (step, 1), (perceive, 2)):
        function(torch.ones(rows))
    assert len({eager, *blas.used}) == 4
    assert not blas.workspaces, "what the last graph reads is in no other's way"


def test_what_cannot_be_recorded_leaves_no_workspace(blas: Blas) -> None:
    def fails(x: Tensor) -> Tensors:
        blas.product(x)
        if blas.cuda.current is blas.recording:
            raise torch.OutOfMemoryError
        return (x,)

    with pytest.raises(torch.OutOfMemoryError):
        Graphed(fails)(torch.ones(1))
    assert not blas.workspaces
