"""`rfm bench engine --phases --beside MODEL`: one checkpoint by our networks and by LeRobot's own code, eager and compiled.

LeRobot's own path is that of its users: its preprocessing of one observation, its policy's chunk, its postprocessing. The compiled
policy shows only the whole call, because perception and solver are one program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from lab.benchmarks.phases import HEADS, Peaks, Phase, Work, cells_of, counted, work_of
from ros2_rfm_serving.engines.flow.device import Stopwatch, settle
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.sampling import noise_of
from ros2_rfm_serving.errors import ModelError

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine
    from ros2_rfm_serving.types import InferenceRequest

OURS, EAGER, COMPILED = "rfm_serving", "LeRobot, eager", "LeRobot, compiled"
TOGETHER = "perception, solver"


class Times(NamedTuple):
    """Times of one batch in s."""

    perception_s: float
    solver_s: float
    whole_s: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Results by system."""

    phases: dict[str, list[Phase]]
    whole_s: dict[str, list[float]]
    """Duration of the whole call, per round."""
    compile_s: float
    """Compile time; 0: no system was compiled."""
    apart: float
    """Largest difference of two chunks from the same noise, ours and LeRobot's, over the largest action, in robot space."""


def beside(ours: Engine, theirs: Engine, size: int, rounds: int, mode: str) -> Beside:
    """Measure all systems in turns, batch by batch. mode: of `torch.compile`; `none`: LeRobot's is not compiled.

    Raises: `ModelError` when they have different checkpoints, or one without visible solver steps.
    """
    engine, policy = _same(ours, theirs)
    from ros2_rfm_serving.engines.lerobot.parity import requests_for

    few = [_square(request) for request in requests_for(policy)]
    requests = [replace(few[i % len(few)], id=replace(few[0].id, sequence=i)) for i in range(size)]
    engine.clock = time.perf_counter
    own = Own(policy)
    apart = _apart(engine, own, requests[0])
    own.run(requests)
    began_s = time.perf_counter()
    ways: dict[str, Callable[[], Times]] = {OURS: lambda: _ours(engine, requests), EAGER: lambda: own.run(requests)}
    if mode != "none":
        ways[COMPILED] = lambda: own.run_compiled(requests, mode)
        ways[COMPILED]()
    compile_s = time.perf_counter() - began_s if COMPILED in ways else 0.0
    times: dict[str, list[Times]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            times[name].append(run())
    works = {OURS: counted(engine, requests), EAGER: own.counted(requests)}
    phases = {name: _phases(times[name], *work) for name, work in works.items()}
    if COMPILED in ways:
        phases[COMPILED] = _together(times[COMPILED], *works[EAGER], times[EAGER][0].steps)
    return Beside(
        phases=phases,
        whole_s={name: [each.whole_s for each in own_times] for name, own_times in times.items()},
        compile_s=compile_s,
        apart=apart,
    )


def _same(ours: Engine, theirs: Engine) -> tuple[FlowEngine, Any]:
    """Return both engines after a check that they run one checkpoint. Raises: `ModelError`."""
    from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine
    from ros2_rfm_serving.engines.lerobot.models import SplitModel

    if not isinstance(theirs, LeRobotEngine) or not isinstance(theirs.model, SplitModel):
        raise ModelError(f"{theirs.contract.model!r} is no policy of LeRobot with solver steps; say `engine: lerobot`")
    if not isinstance(ours, FlowEngine):
        raise ModelError(f"{ours.contract.model!r} is no model that our loop samples from")
    for name in ("action_names", "cameras", "state_size", "chunk_length"):
        one, other = getattr(ours.contract, name), getattr(theirs.contract, name)
        if one != other:
            raise ModelError(
                f"not one checkpoint: {name} is {one} of {ours.contract.model!r}, {other} of {theirs.contract.model!r}"
            )
    return ours, theirs.model


def _square(request: InferenceRequest) -> InferenceRequest:
    """Crop images to squares, because some releases of LeRobot pad others differently (docs/reference/engines.md)."""
    sides = {camera: min(image.shape[:2]) for camera, image in request.images.items() if isinstance(image, np.ndarray)}
    return replace(request, images={camera: request.images[camera][:side, :side] for camera, side in sides.items()})  # type: ignore[index]


def _ours(engine: FlowEngine, requests: Sequence[InferenceRequest]) -> Times:
    began_s = time.perf_counter()
    (first, *_) = engine.infer(requests)
    whole_s = time.perf_counter() - began_s
    if isinstance(first, ModelError):
        raise first
    phases = first.phases
    return Times(phases.perception_s, phases.solver_s, whole_s, phases.solver_steps)


class Own:
    """Runner of LeRobot's own path. model: `SplitModel`."""

    def __init__(self, model: Any) -> None:
        self._model, self._policy = model, model.checkpoint.policy
        self._compiled: Any = None

    @torch.no_grad()
    def run(self, requests: Sequence[InferenceRequest]) -> Times:
        """Run one batch; where `sample_actions` is compiled, all of it counts as the solver's time."""
        device, watch = self._model.sampling.device, Stopwatch(time.perf_counter, self._model.sampling.device)
        began_s = time.perf_counter()
        batch = self.batch(requests)
        settle(device)
        prepared_s = time.perf_counter()
        if "sample_actions" in vars(self._policy.model):
            chunk = self._policy.predict_action_chunk(batch)
        else:
            with _marked_steps(self._policy.model, watch):
                chunk = self._policy.predict_action_chunk(batch)
        settle(device)
        chunk_s, steps_s = time.perf_counter() - prepared_s, watch.spans_s()
        self._model.checkpoint.postprocessor(chunk)
        settle(device)
        solver_s = sum(steps_s) if steps_s else chunk_s
        return Times(chunk_s - solver_s, solver_s, time.perf_counter() - began_s, len(steps_s))

    def run_compiled(self, requests: Sequence[InferenceRequest], mode: str) -> Times:
        with self.compiled(mode):
            return self.run(requests)

    def batch(self, requests: Sequence[InferenceRequest]) -> dict[str, Any]:
        from ros2_rfm_serving.engines.lerobot.parity import own_input
        from ros2_rfm_serving.engines.lerobot.processing import collated

        return collated([own_input(self._model, request) for request in requests])

    @contextmanager
    def compiled(self, mode: str) -> Iterator[None]:
        """Compile as LeRobot's option `compile_model` does."""
        flow = self._policy.model
        if self._compiled is None:
            self._compiled = torch.compile(flow.sample_actions, mode=mode)
        flow.sample_actions = self._compiled
        try:
            yield
        finally:
            del flow.sample_actions

    @torch.no_grad()
    def counted(self, requests: Sequence[InferenceRequest]) -> tuple[Work, Work]:
        """Return the work of perception and of one solver step."""
        batch, steps = self.batch(requests), list[Work]()
        with _replaced_steps(self._policy.model, lambda step: lambda **given: _noted(step, given, steps)):
            self._policy.predict_action_chunk(dict(batch))
        sampling = self._model.sampling
        velocity = torch.zeros(len(requests), self._model.contract.chunk_length, sampling.num_columns, device=sampling.device)
        with _replaced_steps(self._policy.model, lambda step: lambda **given: velocity):
            perceiving, _ = work_of(lambda: self._policy.predict_action_chunk(dict(batch)), 1.0)
        return perceiving, steps[0]

    @torch.no_grad()
    def chunk(self, request: InferenceRequest, noise: Tensor) -> Any:
        """Return the chunk [T, A] in robot space."""
        given = self._policy.predict_action_chunk(self.batch([request]), noise=noise)
        return self._model.checkpoint.postprocessor(given)[0].float().cpu().numpy()


def _noted(step: Callable[..., Tensor], given: dict[str, Any], steps: list[Work]) -> Tensor:
    work, velocity = work_of(lambda: step(**given), 1.0)
    steps.append(work)
    found: Tensor = velocity
    return found


@contextmanager
def _marked_steps(flow: Any, watch: Stopwatch) -> Iterator[None]:
    """Mark the begin and the end of each solver step."""

    def marked(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(**given: Any) -> Tensor:
            watch.mark()
            velocity = step(**given)
            watch.mark()
            return velocity

        return run

    with _replaced_steps(flow, marked):
        yield


@contextmanager
def _replaced_steps(flow: Any, other: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> Iterator[None]:
    flow.denoise_step = other(flow.denoise_step)
    try:
        yield
    finally:
        del flow.denoise_step


def _apart(engine: FlowEngine, own: Own, request: InferenceRequest) -> float:
    (answer,) = engine.infer([request])
    if isinstance(answer, ModelError):
        raise answer
    sampling = own._model.sampling
    noise = torch.from_numpy(noise_of(request, own._model.contract, sampling))[None].to(sampling.device)
    theirs = own.chunk(request, noise)
    return float(np.abs(answer.chunk_robot - theirs).max() / max(1e-9, np.abs(theirs).max()))


def _phases(times: Sequence[Times], perceiving: Work, stepping: Work) -> list[Phase]:
    return [
        Phase(name="perception", time_s=median(each.perception_s for each in times), work=perceiving),
        Phase(name="solver", time_s=median(each.solver_s for each in times), calls=times[0].steps, work=stepping),
        _processing(times),
    ]


def _together(times: Sequence[Times], perceiving: Work, stepping: Work, steps: int) -> list[Phase]:
    """Return the phases of a compiled policy; its operations are the same, but it moves fewer bytes than an eager one."""
    whole = Work(flops=perceiving.flops + steps * stepping.flops, bytes=perceiving.bytes + steps * stepping.bytes)
    time_s = median(each.perception_s + each.solver_s for each in times)
    return [Phase(name=TOGETHER, time_s=time_s, work=whole), _processing(times)]


def _processing(times: Sequence[Times]) -> Phase:
    return Phase(name="processing", time_s=median(each.whole_s - each.perception_s - each.solver_s for each in times))


def table_beside(found: Beside, peaks: Peaks, title: str) -> Table:
    table = Table("", *HEADS, title=title)
    table.caption = (
        f"{peaks}; chunks from the same noise are {found.apart:.1g} apart"
        f"{f'; compiled in {found.compile_s:.0f} s, operations and bytes are the eager ones' if found.compile_s else ''}"
    )
    for system, phases in found.phases.items():
        whole_s = sum(phase.time_s for phase in phases)
        for phase in phases:
            table.add_row(system, *cells_of(phase, peaks, whole_s))
        ratios = sorted(one / ours for one, ours in zip(found.whole_s[system], found.whole_s[OURS], strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f}) of ours"
        table.add_row(system, "whole", f"{1e3 * median(found.whole_s[system]):.2f} ms", spread, end_section=True)
    return table
