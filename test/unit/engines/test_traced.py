"""Graphs of a network's operations: the same bits, with the weights that the network has."""

from __future__ import annotations

import torch
from torch import nn

from ros2_rfm_serving.engines.flow.graphs import Traced, key_of


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Linear(8, 2)).requires_grad_(False).eval()


def test_weights_are_the_networks_own() -> None:
    own, rows = network(), torch.randn(3, 4)
    traced = Traced(lambda x: (own(x),), own, key_of)
    (first,) = traced(rows)
    assert torch.equal(first, own(rows))
    own[3].weight.add_(1.0)
    own[2].running_mean.add_(1.0)
    (second,) = traced(rows)
    assert torch.equal(second, own(rows)) and not torch.equal(first, second)


def test_weights_that_could_be_trained_are_found_too() -> None:
    own, rows = network().requires_grad_(True), torch.randn(3, 4)
    traced = Traced(lambda x: (own(x),), own, key_of)
    with torch.no_grad():
        assert torch.equal(traced(rows)[0], own(rows))


def test_no_module_is_made_of_a_layer() -> None:
    """Which takes longer than to trace it."""
    own = network()
    traced = Traced(lambda x: (own(x),), own, key_of)
    for rows in (1, 2):
        traced(torch.randn(rows, 4))
    graphs = list(traced._graphs.values())
    assert len(graphs) == 2 and all(isinstance(graph, nn.Module) and len(list(graph.modules())) == 1 for graph in graphs)
