"""Graphs that were recorded and are replayed give what the same network gives eagerly."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES
from ros2_rfm_serving.engines.flow.device import settle
from ros2_rfm_serving.engines.flow.graphs import Function, Graphed, Tensors, record_cuda
from test.gpu import rig


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_replayed_graphs_equal_eager_at_every_batch_size(name: str, device: str) -> None:
    plain, fast = rig.eager(name, device), rig.recorded(name, device)
    for rows in (1, 2, 3, 4):  # 3 is filled up to 4
        asked = rig.requests(plain, rows, first=10 * rows)
        first, again = rig.chunks(fast, asked), rig.chunks(fast, asked)
        np.testing.assert_array_equal(first, again)
        np.testing.assert_allclose(first, rig.chunks(plain, asked), atol=rig.close(name))


@pytest.mark.parametrize("name", ["smolvla", "groot_n1_6"])
def test_rows_by_turns_equal_eager_rows(name: str, device: str) -> None:
    plain, fast = rig.eager(name, device), rig.recorded(name, device)
    asked = rig.requests(plain, 4)
    np.testing.assert_allclose(rig.stepped(fast, asked), rig.chunks(plain, asked), atol=rig.EXACT)


def test_half_precision_is_recorded_too(device: str) -> None:
    plain, fast = (
        rig.eager("pi05", device, dtype="bfloat16"),
        rig.eager("pi05", device, dtype="bfloat16", cuda_graphs=device != "cpu"),
    )
    asked = rig.requests(plain, 2)
    np.testing.assert_allclose(rig.chunks(fast, asked), rig.chunks(plain, asked), atol=0.05)


def test_a_result_is_kept_while_the_graph_runs_again(device: str) -> None:
    function = Graphed(_doubled, record_cuda if device != "cpu" else _not_recorded)
    first = function(torch.ones(4, device=device))[0]
    second = function(torch.full((4,), 3.0, device=device))[0]
    assert first.tolist() == [2.0] * 4 and second.tolist() == [6.0] * 4


def test_each_shape_and_kind_has_a_graph_of_its_own(device: str) -> None:
    recordings: list[tuple[int, torch.dtype]] = []

    def record(function: Function, inputs: Tensors) -> Function:
        recordings.append((len(inputs[0]), inputs[0].dtype))
        return (record_cuda if device != "cpu" else _not_recorded)(function, inputs)

    function = Graphed(_doubled, record)
    for rows in (1, 2, 1, 2):
        assert function(torch.ones(rows, device=device))[0].shape == (rows,)
    function(torch.ones(1, device=device, dtype=torch.float64))
    assert recordings == [(1, torch.float32), (2, torch.float32), (1, torch.float64)]


def test_graphs_replayed_at_once_give_what_each_gives_alone(device: str) -> None:
    """Few rows and long sums: cuBLAS splits those, and adds up the parts in memory that it keeps."""
    torch.manual_seed(0)
    record = record_cuda if device != "cpu" else _not_recorded
    weights = [torch.randn(1 << 14, 64, device=device) for _ in range(2)]
    functions = [Graphed(partial(_product, own), record) for own in weights]
    x = torch.randn(4, 1 << 14, device=device)
    alone, found = [function(x)[0] for function in functions], list[list[Tensor]]([[], []])
    settle(device)
    streams = [nullcontext() if device == "cpu" else torch.cuda.stream(torch.cuda.Stream(device)) for _ in functions]
    for _ in range(50 if device != "cpu" else 2):
        for function, stream, own in zip(functions, streams, found, strict=True):
            with stream:
                own.append(function(x)[0])
    if device != "cpu":
        torch.cuda.synchronize(device)
    for expected, own in zip(alone, found, strict=True):
        for each in own:
            torch.testing.assert_close(each, expected)


def _product(weights: Tensor, x: Tensor) -> Tensors:
    return (x @ weights,)


def _doubled(x: Tensor) -> Tensors:
    return (2 * x,)


def _not_recorded(function: Function, inputs: Tensors) -> Function:
    return function
