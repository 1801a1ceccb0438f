"""Streams: whoever works on one of its own gives and gets what it would alone."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from lab.benchmarks.pipelines.executors import measure
from lab.benchmarks.pipelines.modes import DEC, auras, par
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.device import Stopwatch, settle
from ros2_rfm_serving.engines.flow.perception_stream import InlinePerception
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.operate.pipeline_timing import Policy, stream_of
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import EngineReply, InferenceRequest, PipelineConfig
from test.gpu import rig


def test_two_engines_on_streams_of_their_own_answer_as_alone(device: str) -> None:
    engines = [rig.eager(name, device) for name in ("smolvla", "groot_n1_6")]
    asked = [rig.requests(engine, 2) for engine in engines]
    alone = [rig.chunks(engine, own) for engine, own in zip(engines, asked, strict=True)]
    answered: list[list[np.ndarray]] = [[], []]

    def work(which: int) -> None:
        with stream_of(device):
            for _ in range(20):
                answered[which].append(rig.chunks(engines[which], asked[which]))

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which in (0, 1):
        assert len(answered[which]) == 20
        for chunks in answered[which]:
            np.testing.assert_allclose(chunks, alone[which], atol=1e-5)


def test_what_one_stream_perceived_another_generates_from(device: str) -> None:
    engine = rig.eager("pi05", device)
    model, asked = engine.model, rig.requests(engine, 1)
    found: list[tuple[torch.Tensor, ...]] = []

    def perceive() -> None:
        with torch.inference_mode(), stream_of(device):
            context = model.perceive(asked)
            settle(device)
            found.append(context)  # type: ignore[arg-type]

    thread = threading.Thread(target=perceive)
    thread.start()
    thread.join()
    with torch.inference_mode():
        here = model.perceive(asked)
    for own, other in zip(here, found[0], strict=True):  # type: ignore[call-overload]
        torch.testing.assert_close(own, other)


def test_what_is_copied_from_pinned_memory_is_what_stood_there(device: str) -> None:
    """A buffer that is written again while its copy is under way would spoil what a request saw."""
    pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=device != "cpu")
    copies = []
    for value in range(8):
        pinned.fill_(value)
        copies.append(pinned.to(device, non_blocking=True, copy=True))
        settle(device)
    assert [int(copy.min()) for copy in copies] == [int(copy.max()) for copy in copies] == list(range(8))


def test_settling_waits_and_phases_are_the_devices(device: str) -> None:
    ticks = iter(range(100))
    watch = Stopwatch(lambda: float(next(ticks)), device)
    left = torch.rand(512, 512, device=device)
    for _ in range(4):
        watch.mark()
        left = (left @ left).clamp(-1, 1)
    settle(device)
    phases = watch.phases(3)
    assert phases.perception_s > 0 and phases.solver_s > 0 and phases.solver_steps == 3


def test_every_way_of_execution_answers(device: str) -> None:
    engine = rig.eager("smolvla", device)
    policy = Policy(model=engine.model, config=engine.sampling, engine=engine)
    for mode in (DEC, par(2), auras(2)):
        assert measure(policy, mode, frame_s=0.001, answers=8, seconds=0.5).answers >= 4


@pytest.mark.parametrize("name", ["pi05", "groot_n1_6"])
def test_rows_perceived_beside_others_in_flight_are_those_alone(name: str, device: str) -> None:
    """A row enters whenever there is room, so that some are perceived while others take their steps."""
    engine = rig.recorded(name, device)
    asked = rig.requests(engine, 8)
    alone = np.concatenate([rig.chunks(engine, [each]) for each in asked])
    answers, coming = dict[int, EngineReply | ModelError](), list(range(8))
    while len(answers) < 8:
        if coming and len(engine.ready()) < 4:
            assert not engine.enter({(row := coming.pop(0)): asked[row]})
        answers |= engine.iterate(engine.ready())
    for row, answer in answers.items():
        assert isinstance(answer, EngineReply), answer
        np.testing.assert_allclose(answer.chunk_model, alone[row], atol=rig.EXACT)


@pytest.mark.parametrize("offset", [0, -1])
@pytest.mark.parametrize("perception", [1, 2])
def test_pipelined_chunks_are_those_of_one_after_the_other(offset: int, perception: int, device: str) -> None:
    options = BundleOptions(device=device, compile=False, cuda_graphs=device != "cpu", trace=False, batch_sizes=rig.SIZES)
    aside = load_embedded("flow", shipped("models") / "metaworld_flow", options)
    assert isinstance(aside, SteppingEngine)
    after = SteppingEngine(aside.stepped, aside.sampling, InlinePerception())
    how, found = PipelineConfig(pp_perception=perception, pp_generation=3, fetch_offset=offset), []
    for engine in (after, aside):
        answers = dict[int, EngineReply | ModelError]()
        for number in range(12):
            asked = rig.request(engine, number, pipelining=how)
            asked = replace(asked, id=replace(asked.id, robot="arm", sequence=number + 1))
            assert not engine.enter({number: asked})
            while rows := engine.ready():
                answers |= engine.iterate(rows)
        engine.leave(range(12))
        found.append(answers)
        settle(device)
    assert found[0].keys() == found[1].keys() and len(found[0]) >= 8
    for row, expected in found[0].items():
        own = found[1][row]
        assert isinstance(expected, EngineReply) and isinstance(own, EngineReply) and own.ended_with == expected.ended_with
        np.testing.assert_allclose(own.chunk_model, expected.chunk_model, atol=rig.EXACT)


def test_a_row_in_flight_does_not_wait_for_what_is_perceived(device: str) -> None:
    """On a CPU perception has been done when a row has entered."""
    engine = rig.recorded("pi05", device)
    engine.warm_up()
    first, second = rig.requests(engine, 2)
    assert not engine.enter({0: first})
    engine.iterate([0])
    perceive = engine.stepped.perceive

    def slowly(requests: list[InferenceRequest]) -> tuple[torch.Tensor, ...]:
        for _ in range(5):
            rig.busy(device)
        return perceive(requests)

    engine.stepped.perceive = slowly  # type: ignore[method-assign, assignment]
    assert not engine.enter({1: second})
    assert engine.ready() == ([0] if device != "cpu" else [0, 1])
    engine.iterate([0])
    assert device == "cpu" or engine.ready() == [0], "its step waited for the other's perception"
    settle(device)
    answers = dict[int, EngineReply | ModelError]()
    while rows := engine.ready():
        answers |= engine.iterate(rows)
    assert answers.keys() == {0, 1}
