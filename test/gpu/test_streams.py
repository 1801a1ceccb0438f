"""Streams: whoever works on one of its own gives and gets what it would alone."""

from __future__ import annotations

import threading

import numpy as np
import torch

from ros2_rfm_serving.benchmarks.pipelines.executors import Policy, measure, stream_of
from ros2_rfm_serving.benchmarks.pipelines.modes import DEC, auras, par
from ros2_rfm_serving.engines.flow.device import Stopwatch, settle
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
