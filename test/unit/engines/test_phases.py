"""What the phases of a batch take: measured by the clock that an engine was given, told with the reply, beside the roofline."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.benchmarks.phases import Peaks, Phase, Work, counted, peaks_of, phases_of, probe, work_of
from ros2_rfm_serving.engines.answers import checked
from ros2_rfm_serving.engines.base import SamplingConfig
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.engines.flow.device import Stopwatch
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import BadMessageError, ModelError
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import NO_PHASES, ActionChunk, EnginePhases, EngineReply, ObservationRequest, RequestId, SessionRequest
from test.unit.fakes import CONTRACT, FakeEngine, observation, session_request

PEAKS = Peaks(flops=100e9, bytes=10e9)


@pytest.mark.parametrize(("model", "steps"), [("rfm/metaworld-flow", 5), ("rfm/metaworld-diffusion", None)])
def test_our_loop_says_what_it_took_by_the_clock_that_it_was_given(model: str, steps: int | None) -> None:
    engine = load_engine(model)
    requests = [warmup_request(engine.contract)] * 2
    assert all(reply.phases == NO_PHASES for reply in engine.infer(requests))  # type: ignore[union-attr]
    reads = itertools.count()
    engine.clock = lambda: float(2 ** next(reads))  # each difference tells between which reads it lies
    phases = {reply.phases for reply in engine.infer(requests)}  # type: ignore[union-attr]
    (told,) = phases
    assert (told.perception_s, told.solver_s) == (1.0, 4.0) and next(reads) == 4
    assert told.solver_steps == steps or (steps is None and told.solver_steps > 1)


class Tells(FakeEngine):
    contract = replace(CONTRACT, cameras=())

    def infer(self, requests):  # type: ignore[no-untyped-def]
        rows = np.zeros((CONTRACT.chunk_length, len(CONTRACT.action_names)), np.float32)
        return [EngineReply(chunk_model=rows, chunk_robot=rows, phases=EnginePhases(0.25, 0.5, 10)) for _ in requests]


def test_a_chunk_says_what_its_batch_took() -> None:
    engine = Tells()
    server = ModelServer(ServerConfig(name="s"), engine)
    asks = SessionRequest(robot="r", component="system1", action_names=CONTRACT.action_names, state_size=CONTRACT.state_size)
    epoch = server.open_session(asks).session_epoch
    request_id = RequestId(robot="r", component="system1", session_epoch=epoch, episode=1, sequence=1)
    state = np.zeros(CONTRACT.state_size, np.float32)
    server.submit(ObservationRequest(id=request_id, stamp_ns=0, instruction="", state=state), 0.0)
    (chunk,) = server.loop.step(lambda: 0.0)
    assert isinstance(chunk, ActionChunk)
    assert (chunk.served.perception_s, chunk.served.solver_s, chunk.served.solver_steps) == (0.25, 0.5, 10)


@pytest.mark.parametrize(("takes_encoded", "decoding_s"), [(False, 0.25), (True, 0.0)])
def test_a_chunk_says_what_its_images_took_to_decode(takes_encoded: bool, decoding_s: float) -> None:
    engine = FakeEngine()
    engine.takes_encoded = takes_encoded
    engine.clock = lambda: next(reads)  # type: ignore[assignment]
    reads = itertools.count(0.0, 0.25)
    server = ModelServer(ServerConfig(name="s"), engine)  # type: ignore[arg-type]
    server.submit(observation(server.open_session(session_request()).session_epoch), 0.0)
    (chunk,) = server.loop.step(lambda: 0.0)
    assert chunk.served.decoding_s == decoding_s


def test_operations_and_bytes_are_counted_and_a_view_moves_nothing() -> None:
    weight = torch.nn.Parameter(torch.zeros(8, 4))
    x = torch.zeros(2, 4)
    with torch.inference_mode():
        work, _ = work_of(lambda: torch.nn.functional.linear(x, weight).view(16), 1.0)
        half, _ = work_of(lambda: torch.nn.functional.linear(x, weight), 0.5)
    assert work.flops == 2 * 2 * 4 * 8
    assert work.bytes == 4 * 8 * 4 + 2 * 4 * 2 * 8 and half.bytes == work.bytes / 2


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_counts_as_the_two_products_that_it_is(dtype: torch.dtype, masked: bool) -> None:
    """PyTorch's counter passes over the kernel that a CPU has for it."""
    query, key = torch.rand(2, 3, 5, 8, dtype=dtype), torch.rand(2, 3, 7, 8, dtype=dtype)
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool) if masked else None
    with torch.inference_mode():
        fused, _ = work_of(lambda: torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask), 1.0)
        plain, _ = work_of(lambda: (query @ key.transpose(-1, -2)).softmax(-1) @ key, 1.0)
    assert fused.flops == plain.flops == 2 * 2 * (2 * 3 * 5 * 7 * 8)


@pytest.mark.parametrize(("work", "roof"), [(Work(flops=1e9, bytes=1e9), 10e9), (Work(flops=1e12, bytes=1e9), 100e9)])
def test_the_roof_is_memory_or_arithmetic(work: Work, roof: float) -> None:
    phase = Phase(name="solver", time_s=10 * work.flops / roof, calls=5, work=work)
    assert phase.roof(PEAKS) == pytest.approx(0.5)


def test_peaks_and_work_are_of_the_device_that_the_model_is_on() -> None:
    """`meta` stands for it: it computes nothing, and refuses what lies elsewhere."""
    weight = torch.nn.Parameter(torch.zeros(3, 5, device="meta"))
    model = SimpleNamespace(
        contract=CONTRACT,
        perceive=lambda requests: weight @ weight.T,
        velocity=lambda x, times, context: (x * times[..., None]) @ weight,
    )
    engine = SimpleNamespace(model=model, sampling=SamplingConfig(device="meta", num_columns=3))
    perceiving, stepping = counted(engine, [warmup_request(CONTRACT)] * 2)  # type: ignore[arg-type]
    assert perceiving.flops == 2 * 3 * 5 * 3
    assert stepping.flops == 2 * 2 * CONTRACT.chunk_length * 3 * 5
    peaks = probe("meta", torch.bfloat16)
    assert peaks.flops > 0 and peaks.bytes > 0 and "bfloat16" in str(peaks)
    assert peaks_of(load_engine("rfm/metaworld-flow")).dtype == "float32"
    with pytest.raises(ModelError, match="its phases are not known apart"):
        peaks_of(
            EmulatedEngine(EmulatedSpec(model="e", action_names=("a",), chunk_length=2), lambda size: 0.0, lambda seconds: None)
        )


def test_a_stopwatch_tells_what_lies_between_each_pair_of_marks() -> None:
    reads = iter([1.0, 2.0, 10.0, 14.0, 20.0, 21.0])
    watch = Stopwatch(lambda: next(reads), "cpu")
    for _ in range(6):
        watch.mark()
    assert watch.spans_s() == [1.0, 4.0, 1.0]


def test_a_policy_in_four_phases_and_who_has_none() -> None:
    found = phases_of(load_engine("rfm/metaworld-flow"), 1, 2)
    assert [phase.name for phase in found] == ["decoding", "perception", "solver", "processing"]
    assert all(phase.time_s > 0 for phase in found) and found[2].calls == 5
    perception, solver = found[1].work, found[2].work
    assert perception and solver and perception.flops > solver.flops > 1e6 and solver.bytes > 1e6
    spec = EmulatedSpec(model="e", action_names=("a",), chunk_length=2)
    with pytest.raises(ModelError, match="its phases are not known apart"):
        phases_of(EmulatedEngine(spec, lambda size: 0.0, lambda seconds: None), 1, 1)


def test_a_policy_that_takes_squares_alone_is_measured_with_squares() -> None:
    engine = load_engine("rfm/metaworld-flow")
    fit, seen = engine.fit_image, []
    assert fit is not None

    def squares_alone(image):  # type: ignore[no-untyped-def]
        seen.append(image.shape[:2])
        if image.shape[0] != image.shape[1]:
            raise BadMessageError("bad_image", "squares alone")
        return fit(image)

    engine.fit_image = squares_alone  # type: ignore[method-assign, assignment]
    assert len(phases_of(engine, 1, 1)) == 4
    assert seen[0][0] != seen[0][1] and seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(
    "phases", [None, (1.0, 2.0, 3), EnginePhases(float("nan"), 0.0, 1), EnginePhases(0.0, -1.0, 1), EnginePhases(0.0, 0.0, "5")]
)  # type: ignore[arg-type]
def test_phases_that_are_none_cost_their_row(phases: object) -> None:
    rows = np.zeros((2, 2), np.float32)
    contract = replace(CONTRACT, chunk_length=2)
    assert isinstance(
        checked(contract, EngineReply(chunk_model=rows, chunk_robot=rows, phases=EnginePhases(0.1, 0.2, 3))), EngineReply
    )
    answer = checked(contract, EngineReply(chunk_model=rows, chunk_robot=rows, phases=phases))  # type: ignore[arg-type]
    assert isinstance(answer, ModelError) and "phases are" in str(answer)
