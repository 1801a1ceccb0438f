"""Weights of 8 bits beside torchao's, and layers that compute with integers: `python -m test.unit.engines.bench_integers`.

One thread, CPU time, in turns. torchao is no dependency: `pip install --no-deps --target DIR torchao`, with DIR in PYTHONPATH.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, sampling_of
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.precision import INT8, _layers, num_bytes, quantize
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.shipped import shipped

ROUNDS, CALLS = 15, 20
SHAPES = ((32, 1024), (1, 1024), (32, 96))
"""Rows, and width in and out"""


def network() -> FlowPolicyNetwork:
    found, _ = bundle.load(shipped("models", "metaworld_flow"))
    assert isinstance(found, FlowPolicyNetwork)
    return found.eval().requires_grad_(False)


def engine(made: FlowPolicyNetwork, dtype: str, *, trace: bool) -> Engine:
    options = BundleOptions.model_validate({"device": "cpu", "dtype": dtype, "trace": trace})
    return SteppingEngine(FlowPolicy("m", made, "h", options), sampling_of(made.config, options))


def by_torchao(of: nn.Module, exact: tuple[str, ...], kind: str) -> nn.Module:
    """The same layers as ours."""
    from torchao import quantization

    chosen = {id(layer) for layer in _layers(of, exact)}
    quantization.quantize_(of, getattr(quantization, kind)(), filter_fn=lambda layer, name: id(layer) in chosen)
    return of


def bytes_of(made: nn.Module) -> int:
    """A tensor of torchao's is made of others."""
    parts: list[Tensor] = []
    for tensor in (*made.parameters(), *made.buffers()):
        names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        parts += [getattr(tensor, name) for name in names] or [tensor]
    return sum(part.numel() * part.element_size() for part in parts)


def in_turns(calls: Mapping[str, Callable[[], Any]], repeated: int = 1) -> dict[str, float]:
    """Median milliseconds of each."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            began_s = time.process_time()
            for _ in range(repeated):
                call()
            took[name].append((time.process_time() - began_s) / repeated)
    return {name: 1e3 * float(np.median(of)) for name, of in took.items()}


def chunks() -> None:
    calls: dict[str, Callable[[], Any]] = {}
    for trace in (False, True):
        theirs = by_torchao(network(), FlowPolicyNetwork.EXACT, "Int8WeightOnlyConfig")
        assert isinstance(theirs, FlowPolicyNetwork)
        for name, made, dtype in (("float32", network(), "float32"), ("ours", network(), INT8), ("torchao", theirs, "float32")):
            server = engine(made, dtype, trace=trace)
            blank = warmup_request(server.contract)
            request = replace(blank, state=np.linspace(-0.2, 0.8, len(blank.state), dtype=np.float32), instruction="push the puck")
            calls[f"{name}, {'traced' if trace else 'as it is'}"] = partial(server.infer, [request])
            print(f"{name}: {(num_bytes if dtype == INT8 else bytes_of)(made) / 1e6:.2f} MB")
    for name, ms in in_turns(calls).items():
        print(f"chunk, {name}: {ms:.2f} ms")


def layers() -> None:
    for rows, width in SHAPES:
        layer, x = nn.Linear(width, width).requires_grad_(requires_grad=False), torch.randn(rows, width)
        ours = nn.Sequential(copy.deepcopy(layer))
        quantize(ours, INT8, ())
        dynamic = torch.ao.quantization.quantize_dynamic(nn.Sequential(copy.deepcopy(layer)), {nn.Linear}, dtype=torch.qint8)
        made: dict[str, Callable[[Tensor], Tensor]] = {"float32": layer, "ours": ours, "torch.ao, dynamic": dynamic}
        for kind in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"):
            made[f"torchao, {kind}"] = by_torchao(nn.Sequential(copy.deepcopy(layer)), (), kind)
        want = layer(x)
        times = in_turns({name: partial(of, x) for name, of in made.items()}, CALLS)
        for name, ms in times.items():
            off = float((made[name](x) - want).abs().max() / want.abs().max())
            print(f"{rows} x {width} x {width}, {name}: {ms:.3f} ms, off by {off:.4f} of the largest")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with torch.inference_mode():
        chunks()
        layers()
