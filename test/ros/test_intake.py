"""Decoding is shared: an image that takes long holds up neither the executor nor other robots."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg

from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.server import decode_line, intake
from ros2_rfm_serving.ros.server.decode_line import Line
from ros2_rfm_serving.ros.server.intake import Intake
from ros2_rfm_serving.ros.wire import cdr
from ros2_rfm_serving.server import ModelServer, ServerConfig, images
from ros2_rfm_serving.types import EncodedImage, ObservationRequest, RequestId, SessionRequest

SMALL, LARGE = (simplejpeg.encode_jpeg(np.zeros((*size, 3), np.uint8)) for size in ((48, 64), (1200, 1600)))
LOCK = threading.Lock()
"""Of lines without an intake"""


class Rig:
    def __init__(self) -> None:
        spec = EmulatedSpec(model="m", action_names=("a", "b"), cameras=("front",), state_size=2, chunk_length=4)
        self.server = ModelServer(ServerConfig(name="s"), EmulatedEngine(spec, lambda size: 0.0, lambda seconds: None))
        self.complaints: list[BadMessageError] = []
        self.intake = Intake(self.server, lambda: None, self.complaints.append, 1)
        self.epochs = {robot: self._open(robot) for robot in ("large", "small")}

    def _open(self, robot: str) -> int:
        contract = self.server.contract
        asked = SessionRequest(
            robot=robot, component="system1", action_names=contract.action_names, cameras=contract.cameras, state_size=2
        )
        return self.server.open_session(asked).session_epoch

    def request(self, robot: str, sequence: int, data: bytes) -> ObservationRequest:
        identity = RequestId(robot=robot, component="system1", session_epoch=self.epochs[robot], episode=1, sequence=sequence)
        image = EncodedImage(camera="front", format="jpeg", data=data)
        return ObservationRequest(id=identity, stamp_ns=1, instruction="go", state=np.zeros(2, np.float32), images=(image,))

    def send(self, robot: str, sequence: int, data: bytes) -> None:
        self.intake.take(cdr.observation_to(self.request(robot, sequence, data)))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.intake.stop()
    assert not made.server.problems


def eventually(look: Callable[[], Any]) -> None:
    end_s = time.monotonic() + 60.0
    while not look():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


def test_an_image_that_takes_long_holds_nobody_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun, decode = threading.Event(), threading.Event(), images.decode

    def slow(image: EncodedImage, *how: Any) -> Any:
        if len(image.data) == len(LARGE):
            begun.set()
            assert go.wait(60)
        return decode(image, *how)

    monkeypatch.setattr(images, "decode", slow)
    rig.send("large", 1, LARGE)
    assert begun.wait(30)
    for sequence in range(1, 4):
        rig.send("small", sequence, SMALL)
    eventually(lambda: rig.server.num_waiting == 1)
    go.set()
    eventually(lambda: rig.server.num_waiting == 2)


def test_what_is_small_wakes_nobody_who_waits_for_what_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    class Watched(Line):
        def __len__(self) -> int:
            looked.append(threading.current_thread().name)
            return super().__len__()

    monkeypatch.setattr(intake, "Line", Watched)
    rig = Rig()
    eventually(lambda: {"decode_0", "decode_large_0"} <= set(looked))
    looked.clear()
    for sequence in range(1, 21):
        rig.send("small", sequence, SMALL)
        eventually(lambda: rig.intake.is_idle)
    assert "decode_0" in looked and "decode_large_0" not in looked
    rig.send("large", 1, LARGE)
    eventually(lambda: rig.server.num_waiting == 2)
    rig.intake.stop()
    assert "decode_large_0" in looked and not rig.server.problems


def test_requests_that_did_not_arrive_are_counted(rig: Rig) -> None:
    for sequence in (1, 2, 5, 6, 9):
        rig.send("small", sequence, SMALL)
    assert rig.server.refused["lost_on_the_way"] == 4


def test_a_flood_is_refused_before_it_waits_for_a_decoder_and_none_of_it_counts_as_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "clock", lambda: 7.0)
    rig.server.declare({("small", "system1"): 1.0})
    for sequence in range(1, 101):
        rig.send("small", sequence, SMALL)
    assert rig.server.refused["over_quota"] == len(rig.complaints) >= 90 and not rig.server.refused["lost_on_the_way"]


def test_a_newer_light_request_replaces_a_heavy_one_that_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun, decode = threading.Event(), threading.Event(), images.decode

    def slow(image: EncodedImage, *how: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return decode(image, *how)

    monkeypatch.setattr(images, "decode", slow)
    rig.send("large", 1, LARGE)
    assert begun.wait(30)
    rig.send("small", 1, LARGE)  # waits behind it
    rig.send("small", 2, SMALL)
    go.set()
    eventually(lambda: rig.server.num_waiting == 2)
    assert rig.server.snapshot(0.0).superseded == 1 and not rig.complaints


def test_who_asks_for_one_inference_is_told_what_was_wrong_with_it(rig: Rig) -> None:
    told: list[BadMessageError] = []
    broken = replace(rig.request("small", 1, SMALL[:200]))
    rig.intake.put(broken, 0.0, told.append)
    eventually(lambda: told)
    assert told[0].kind == "bad_image" and not rig.complaints


def test_a_decoder_that_other_programs_keep_from_running_is_not_stuck_and_one_that_waits_for_anything_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_s = [0.0]
    monkeypatch.setattr(decode_line, "processor_wait_s", lambda thread: waits_s[0])
    monkeypatch.setattr(os, "setpriority", lambda *arguments: None)
    polite, other = Line(LOCK, polite=True), Line(LOCK)
    for line in (polite, other):
        line.join()
        with LOCK:
            line.arrive("r1", "image")
    now_s = time.monotonic()
    waits_s[0] = 60.0
    assert polite.stalled_s(now_s + 61.0) < 2.0 and other.stalled_s(now_s + 61.0) > 60.0, "nobody has come"
    for line in (polite, other):
        line.begin()
    assert polite.stalled_s(now_s + 61.0) > 60.0, "what it had waited before says nothing"
    waits_s[0] = 120.0
    assert polite.stalled_s(now_s + 61.0) < 2.0 and other.stalled_s(now_s + 61.0) > 60.0
    for line in (polite, other):
        line.end("r1")
        assert line.stalled_s(now_s + 61.0) == 0.0 and line.is_idle


def test_a_robot_whose_decoding_others_kept_waiting_is_not_put_behind_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, used_s = [0.0], [0.0]
    monkeypatch.setattr(decode_line, "clock", lambda: now_s[0])
    monkeypatch.setattr(decode_line, "thread_time", lambda: used_s[0])
    line = Line(LOCK)
    line.join()
    for robot, wall_s in (("preempted", 10.0), ("other", 0.01)):
        with LOCK:
            line.arrive(robot, "image")
        assert line.begin() == (robot, "image")
        now_s[0] += wall_s
        used_s[0] += 0.01
        line.end(robot)
    for robot in ("preempted", "other"):
        with LOCK:
            line.arrive(robot, "image")
    assert line.begin()[0] == "preempted", "it came first and has had no more"


def test_what_the_processor_kept_a_thread_waiting_is_known_or_none() -> None:
    assert decode_line.processor_wait_s(threading.get_native_id()) >= 0.0
    assert decode_line.processor_wait_s(2**22 + 1) == 0.0
