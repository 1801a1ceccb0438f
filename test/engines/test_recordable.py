"""Functions that a GPU records as graphs, run on a device without memory: what no graph may contain is seen without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from lab.benchmarks.gpu import networks
from ros2_rfm_serving.engines.architectures.base import Architecture, Observation
from ros2_rfm_serving.engines.architectures.bundle import Unfilled
from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES, architecture_of
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.warmup import warmup_request

DEVICE = "meta"
"""It stands for a GPU: it is not the host, and nobody can read values there."""
FROM_THE_HOST = (torch.tensor, torch.as_tensor, torch.from_numpy, Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy)


class NoValues(TorchFunctionMode):
    """A refusal of calls that make a tensor of the host's values, or read values: on a GPU these are copies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in FROM_THE_HOST, f"{func} copies from or to the host"
        if func is Tensor.__setitem__ and not isinstance(args[2], Tensor):
            assert args[0][args[1]].dim() > 0, "a value that is assigned to one element is copied from the host"
        return func(*args, **(kwargs or {}))


class OfOneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A refusal of operations that read or write the host's memory: PyTorch copies nothing to or from it while it records
    (`Cannot copy between CPU and CUDA tensors during CUDA graph capture`), and sizes that depend on values end in an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_flatten((args, kwargs, result))[0] if isinstance(leaf, Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        assert devices <= {DEVICE}, f"{func}: {sorted(devices)}"
        return result


@contextmanager
def recording() -> Iterator[None]:
    with torch.no_grad(), NoValues(), OfOneDevice():  # type: ignore[no-untyped-call]
        yield


def there(tensors: Tensors) -> Tensors:
    """Return tensors like these on the device without memory."""
    return tuple(torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE) for tensor in tensors)


def network_there(name: str) -> Architecture:
    with Unfilled(), torch.device(DEVICE):
        return architecture_of(name)(networks.config_of(name, "toy")).eval().requires_grad_(requires_grad=False)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_perception_and_steps_copy_nothing_from_the_host_while_they_are_recorded(name: str) -> None:
    engine = networks.engine_of(name, "toy", BundleOptions(device="cpu", compile=False, cuda_graphs=False, trace=False))
    policy: Any = engine.stepped
    observation = policy.processor.observation([warmup_request(engine.contract, (224, 224))] * 2)
    with torch.inference_mode():
        context = policy._network.perceive(observation)
    network = network_there(name)
    if network.RECORDS_PERCEPTION:
        with recording():
            network.perceive(Observation(*there(observation)))
    length, columns = network.config.chunk_length, network.config.action_columns
    x, time = torch.empty(2, length, columns, device=DEVICE), torch.empty(2, length, device=DEVICE)
    given = there(context)
    with recording():
        assert network.velocity(x, time, given).shape == x.shape


def _assigns_an_element() -> None:
    torch.zeros(4, dtype=torch.bool, device=DEVICE)[-1] = True


def _makes_a_tensor_of_values() -> None:
    torch.zeros(4, device=DEVICE) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=DEVICE)


def _is_indexed_by_the_host() -> None:
    torch.zeros(4, device=DEVICE)[torch.arange(2)]


def _reads_a_value() -> None:
    torch.zeros(4, device=DEVICE).sum().item()


@pytest.mark.parametrize("function", [_assigns_an_element, _makes_a_tensor_of_values, _is_indexed_by_the_host, _reads_a_value])
def test_what_a_graph_cannot_contain_is_seen(function: Callable[[], None]) -> None:
    with pytest.raises(AssertionError), recording():
        function()
