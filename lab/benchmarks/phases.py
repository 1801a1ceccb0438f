"""`rfm bench engine --phases`: times of a batch's phases, and their use of the machine (vla.cpp, Tables 8 and 9).

Operations and bytes are counted, the machine's peaks measured; the roofline is Williams, Waterman and Patterson's (2009).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ros2_rfm_serving.engines.flow.device import settle
from ros2_rfm_serving.errors import BadMessageError, ModelError

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine
    from ros2_rfm_serving.engines.flow.engine import FlowEngine
    from ros2_rfm_serving.types import EncodedImage, InferenceRequest


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *rest: Any, **others: Any) -> int:
    flops: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return flops


ALSO_COUNTED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
"""Operation -> its count, for operations that PyTorch's counter omits."""
PROBE_ROWS, GPU_PROBE_ROWS, PROBE_BYTES, PROBE_CALLS = 1024, 8192, 256 << 20, 8
IMAGE_PX, SQUARE_PX = (640, 480), (480, 480)
"""Width and height of the photographs; the second is for models that accept squares alone."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks of this machine with the threads of the model, or of the model's GPU."""

    flops: float
    """Multiplications and additions per second, of a product of two matrices of 1024 x 1024 (on a GPU 8192 x 8192)."""
    bytes: float
    """Bytes read and written per second while 256 MB are copied."""
    dtype: str = "float32"
    """Type of the matrices: on a GPU that of the weights."""

    def __str__(self) -> str:
        return f"peaks, measured in {self.dtype}: {self.flops / 1e9:.0f} GFLOP/s, {self.bytes / 1e9:.1f} GB/s"


@dataclass(frozen=True, kw_only=True)
class Work:
    """Counted work of one call."""

    flops: float
    """Operations of matrix products, convolutions and attention, also on a CPU, as `torch.utils.flop_counter` counts them."""
    bytes: float
    """Bytes: weights once, and every result of an operation written once and read once."""

    @property
    def intensity(self) -> float:
        """Return the operations per byte."""
        return self.flops / max(1.0, self.bytes)


@dataclass(frozen=True, kw_only=True)
class Phase:
    name: str
    time_s: float
    """Median time of all calls of one batch together."""
    calls: int = 1
    work: Work | None = None
    """Work of one call; None: the roofline does not apply."""

    def roof(self, peaks: Peaks) -> float:
        """Return the share of the machine's limit at that intensity."""
        assert self.work is not None
        return self.calls * self.work.flops / self.time_s / min(peaks.flops, self.work.intensity * peaks.bytes)


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the bytes of results: each is once written and once read; views move none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            results = found if isinstance(found, (tuple, list)) else (found,)
            tensors = [result for result in results if isinstance(result, torch.Tensor)]
            self.num_bytes += sum(2 * tensor.numel() * tensor.element_size() for tensor in tensors)
        return found


def peaks_of(engine: Engine) -> Peaks:
    """Measure the peaks where the engine's loop runs. Raises: `ModelError`, as `phases_of`."""
    from ros2_rfm_serving.engines.flow.parity import Referenced

    flow = _sampled(engine)
    device, model = flow.sampling.device, flow.model
    on_gpu = torch.device(device).type != "cpu"
    stored = model.weights_dtype if isinstance(model, Referenced) and on_gpu else torch.float32
    return probe(device, stored if stored.is_floating_point and stored.itemsize > 1 else torch.float32)


def probe(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Peaks:
    """Measure for a second or two. The best of several calls counts, because other load only slows them."""
    rows = PROBE_ROWS if torch.device(device).type == "cpu" else GPU_PROBE_ROWS
    left = torch.rand(rows, rows, device=device, dtype=dtype)
    source = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    product_s = min(_seconds(lambda: left @ left, device) for _ in range(PROBE_CALLS))
    copy_s = min(_seconds(lambda: target.copy_(source), device) for _ in range(PROBE_CALLS))
    return Peaks(flops=2 * rows**3 / product_s, bytes=2 * PROBE_BYTES / copy_s, dtype=str(dtype).removeprefix("torch."))


def _sampled(engine: Engine) -> FlowEngine:
    from ros2_rfm_serving.engines.flow.engine import FlowEngine

    if not isinstance(engine, FlowEngine):
        raise ModelError(f"{engine.contract.model!r} is no model that our loop samples from: its phases are not known apart")
    return engine


def phases_of(given: Engine, size: int, calls: int) -> list[Phase]:
    """Measure the phases. Raises: `ModelError` for an engine whose loop is not ours."""
    engine = _sampled(given)
    engine.clock = time.perf_counter
    requests, decoding_s = _decoded(engine, size)
    engine.infer(requests)
    whole_s, measured = [], []
    for _ in range(calls):
        began_s = time.perf_counter()
        (first, *_) = engine.infer(requests)
        whole_s.append(time.perf_counter() - began_s)
        if isinstance(first, ModelError):
            raise first
        measured.append(first.phases)
    steps = measured[0].solver_steps
    if not steps:
        raise ModelError(f"{engine.contract.model!r} does not say what its phases take")
    perceiving, stepping = counted(engine, requests)
    rest_s = [whole - phases.perception_s - phases.solver_s for whole, phases in zip(whole_s, measured, strict=True)]
    return [
        Phase(name="decoding", time_s=decoding_s),
        Phase(name="perception", time_s=median(phases.perception_s for phases in measured), work=perceiving),
        Phase(name="solver", time_s=median(phases.solver_s for phases in measured), calls=steps, work=stepping),
        Phase(name="processing", time_s=median(rest_s)),
    ]


def _decoded(engine: FlowEngine, size: int) -> tuple[list[InferenceRequest], float]:
    """Return requests with photographs of 640 x 480, and the time that a decoding thread needs for those of a batch.

    A model that accepts squares alone, such as a GR00T whose processor keeps a picture's shape, gets photographs of 480 x 480.
    """
    from ros2_rfm_serving.engines.warmup import warmup_request
    from ros2_rfm_serving.server.intake import readying

    contract = engine.contract
    ready = readying(contract, engine.takes_encoded, engine.fit_image, engine.decode_image)
    encoded = _photographs(contract.cameras, IMAGE_PX)
    try:
        for image in encoded.values():
            ready(image)
    except BadMessageError:
        encoded = _photographs(contract.cameras, SQUARE_PX)
        for image in encoded.values():
            ready(image)
    began_s = time.perf_counter()
    rows = [{camera: ready(image) for camera, image in encoded.items()} for _ in range(size)]
    took_s = time.perf_counter() - began_s
    return [replace(warmup_request(contract), images=images) for images in rows], took_s


def _photographs(cameras: Sequence[str], size_px: tuple[int, int]) -> dict[str, EncodedImage]:
    from lab.benchmarks.path.pictures import photograph
    from ros2_rfm_serving.types import EncodedImage

    pictures = {camera: photograph(*size_px, seed=seed) for seed, camera in enumerate(cameras)}
    return {camera: EncodedImage(camera=camera, format="jpeg", data=data) for camera, data in pictures.items()}


@torch.inference_mode()
def counted(engine: FlowEngine, requests: list[InferenceRequest]) -> tuple[Work, Work]:
    """Return the work of perception and of one solver step, counted without graphs, which hide their operations."""
    from ros2_rfm_serving.engines.flow.parity import Referenced

    model, scale, device = engine.model, 1.0, engine.sampling.device
    if isinstance(model, Referenced):
        device = "cpu"  # references run there
        scale = model.weights_dtype.itemsize / torch.float64.itemsize
        model = getattr(model, "whole_reference", model.reference)()
    contract = model.contract
    columns = engine.sampling.num_columns or len(contract.action_names)
    dtype = torch.float64 if isinstance(engine.model, Referenced) else torch.float32
    x = torch.zeros(len(requests), contract.chunk_length, columns, dtype=dtype, device=device)
    times = torch.ones(x.shape[:2], dtype=dtype, device=device)
    perceiving, context = work_of(lambda: model.perceive(requests), scale)
    stepping, _ = work_of(lambda: model.velocity(x, times, context), scale)
    return perceiving, stepping


def work_of(call: Callable[[], Any], scale: float) -> tuple[Work, Any]:
    """Return the work and the result of a call. scale: real bytes of a number over its bytes in the count."""
    weights = _Weights()
    with FlopCounterMode(display=False, custom_mapping=ALSO_COUNTED) as flops, Traffic() as traffic, weights:
        found = call()
    return Work(flops=float(flops.get_total_flops()), bytes=scale * (traffic.num_bytes + weights.num_bytes)), found


class _Weights(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the bytes of parameters that operations read, each once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[int, int] = {}

    @property
    def num_bytes(self) -> int:
        return sum(self._seen.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in args:
            if isinstance(value, torch.nn.Parameter):
                self._seen[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return func(*args, **(kwargs or {}))


def _seconds(call: Callable[[], Any], device: str) -> float:
    began_s = time.perf_counter()
    call()
    settle(device)
    return time.perf_counter() - began_s


HEADS = ("phase", "time", "share", "per call", "GFLOP", "MB", "FLOP per byte", "GFLOP/s", "of the roofline", "bound by")


def table_of(phases: list[Phase], peaks: Peaks, title: str) -> Table:
    table = Table(*HEADS, title=title)
    table.caption = str(peaks)
    whole_s = sum(phase.time_s for phase in phases)
    for phase in phases:
        table.add_row(*cells_of(phase, peaks, whole_s))
    return table


def cells_of(phase: Phase, peaks: Peaks, whole_s: float) -> tuple[str, ...]:
    """Return the cells in the order of `HEADS`."""
    share, per_call = f"{phase.time_s / whole_s:.0%}", f"{phase.calls} x {1e3 * phase.time_s / phase.calls:.2f} ms"
    figures = _roofline(phase, peaks) if phase.work and phase.work.flops else ("-",) * 6
    return phase.name, f"{1e3 * phase.time_s:.2f} ms", share, per_call, *figures


def _roofline(phase: Phase, peaks: Peaks) -> tuple[str, ...]:
    work = phase.work
    assert work is not None
    bound = "arithmetic" if work.intensity > peaks.flops / peaks.bytes else "memory"
    attained = phase.calls * work.flops / phase.time_s
    figures = f"{work.flops / 1e9:.4f}", f"{work.bytes / 1e6:.2f}", f"{work.intensity:.1f}", f"{attained / 1e9:.2f}"
    return *figures, f"{phase.roof(peaks):.0%}", bound
