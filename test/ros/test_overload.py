"""Whatever was too much for some seconds, nothing of it outlives its cause: every robot streams again within five. Every request is
accounted for.

`OVERLOAD_S=10 pytest -s test/ros/test_overload.py` overloads for longer and prints how long each took to be over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rfm_serving import msg, srv

from lab.benchmarks.neighbour.robots import request, session
from lab.benchmarks.path.sides import ACTION_NAMES, CAMERAS, STATE_SIZE, camera_image
from lab.benchmarks.processes import process, spinning
from lab.benchmarks.robots.report import _num_working, parameters_of, robot_parameters
from lab.benchmarks.robots.world import Surroundings
from ros2_rfm_serving.ros.wire import cdr, qos
from test.waiting import eventually

from .server_fleet import HEADER, JPEG, UNHURRIED, Gate, serving

NAMES = [f"robot_{i + 1}" for i in range(12)]
GUESTS = [f"guest_{i + 1}" for i in range(40)]
OVERLOAD_S = float(os.environ.get("OVERLOAD_S", "2"))
"""Longer than a server may be silent, and than a request may take."""
WITHIN_S = 5.0
LATE_S = 30.0
"""That a machine busy with other things may be late, in saying so too."""
QUICK_S, BUSY_S, SLOW_S = 0.01, 0.4, 2.0
"""Of a batch of up to eight: of what robots and guests ask for a busy engine answers a tenth, less than the robots alone need."""
GUESTS_HZ = 5.0
CATALOGUE = """
models:
  strained:
    engine: "test.paced_engine:build"
    action_names: [{actions}]
    cameras: [{cameras}]
    state_size: {state_size}
    options: {{seconds_file: "{file}", batch_size: 8}}
"""


class Fleet:
    def __init__(self, running: ExitStack, folder: Path) -> None:
        self._seconds = folder / "seconds"
        self.batches_take(QUICK_S)
        _write_profiles(folder, self._seconds)
        robots = len(NAMES) + len(GUESTS)
        server = {"server": "s", "model": "strained", "batch_size": 8, "max_sessions": robots, "profiles_folder": str(folder)}
        of_server = running.enter_context(parameters_of(server))
        of_robots = running.enter_context(parameters_of(robot_parameters(NAMES, "timer")))
        self.server = running.enter_context(process("ros2_rfm_serving.ros.model_server_node", *of_server))
        self.robots = running.enter_context(process("ros2_rfm_serving.ros.robots_node", *of_robots))
        self.node, self._spin = running.enter_context(spinning(lambda: Surroundings(NAMES, "s", 96)))
        topics = qos.Names()
        self._out = self.node.create_publisher(msg.Observation, topics.server("s", "observation"), qos.OBSERVATION_SENT)
        self._open = self.node.create_client(srv.OpenSession, topics.server("s", "open_session"), qos_profile=qos.CONTROL)
        self.disturbed = False
        """Some robot has said that it does not stream."""
        self._images = tuple(camera_image(96, i) for i in range(len(CAMERAS)))

    def batches_take(self, seconds: float) -> None:
        written = self._seconds.with_suffix(".part")
        written.write_text(str(seconds), encoding="ascii")
        written.rename(self._seconds)

    def wait(self, until: Callable[[], bool], what: str, limit_s: float = 60.0) -> float:
        """How long it took, s."""
        begun_s = time.monotonic()
        self._spin(until, limit_s)
        took_s = time.monotonic() - begun_s
        assert until(), f"{what}: not within {limit_s:g} s"
        return took_s

    def all_stream(self) -> bool:
        stream = _num_working(self.node) == len(NAMES)
        self.disturbed |= not stream
        return stream

    def live(self, seconds: float) -> None:
        self._spin(lambda: self.all_stream() and False, seconds)

    def suffer(self, seconds: float) -> None:
        """And on until it is told: robots speak once a second, and some seconds may pass between two of their words."""
        self.live(seconds)
        self.wait(lambda: self.disturbed or not self.all_stream(), "a word of the overload")

    def held_up(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.suffer(OVERLOAD_S)
        os.kill(pid, signal.SIGCONT)

    def slow(self) -> None:
        self.batches_take(SLOW_S)
        self.suffer(OVERLOAD_S + SLOW_S)
        self.batches_take(QUICK_S)

    def crowded(self) -> None:
        """Forty more robots, and an engine that has been quick enough for twelve."""
        opened = [self._open.call_async(session(guest)) for guest in GUESTS]
        self.wait(lambda: all(answer.done() for answer in opened), "guests")
        epochs = [answer.result().session_epoch for answer in opened]
        self.batches_take(BUSY_S)
        begun_s, sent = time.monotonic(), 0
        while (since_s := time.monotonic() - begun_s) < OVERLOAD_S or not self.disturbed:
            assert since_s < 60.0, "no word of the guests"
            while sent < since_s * GUESTS_HZ * len(GUESTS):
                sequence, guest = divmod(sent, len(GUESTS))
                sent += 1
                self._out.publish(cdr.observation_to(request(GUESTS[guest], epochs[guest], sequence + 1, self._images)))
            self.live(0.01)
        self.batches_take(QUICK_S)


def _write_profiles(folder: Path, seconds: Path) -> None:
    words = {"actions": ", ".join(ACTION_NAMES), "cameras": ", ".join(CAMERAS), "state_size": STATE_SIZE, "file": seconds}
    (folder / "models.yaml").write_text(CATALOGUE.format(**words), encoding="utf-8")
    (folder / "none.csv").write_text(HEADER, encoding="utf-8")


@pytest.fixture
def fleet(ros_domain: int, tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as running:
        yield Fleet(running, tmp_path)


def test_every_robot_streams_again_after_an_overload(fleet: Fleet) -> None:
    fleet.wait(fleet.all_stream, "streaming")
    overloads: dict[str, Callable[[], None]] = {
        "a server that is cut off": lambda: fleet.held_up(fleet.server),
        "robots that are held up": lambda: fleet.held_up(fleet.robots),
        "a slow engine": fleet.slow,
        "too many robots": fleet.crowded,
    }
    for cause, overload in overloads.items():
        fleet.disturbed = False
        overload()
        ended_s = time.monotonic()
        fleet.wait(fleet.all_stream, f"streaming again after {cause}", WITHIN_S + LATE_S)
        print(f"{cause} for {OVERLOAD_S:g} s: all stream again after {time.monotonic() - ended_s:.1f} s")


def test_every_request_is_accounted_for(ros_domain: int, tmp_path: Path) -> None:
    """Sent is answered, replaced by a newer one, refused, ended with its session, or lost on the way."""
    robots = [f"r{i}" for i in range(6)]
    with serving(tmp_path, *robots, batch_s=0.05, batch_size=2, max_request_rate_hz=40.0, **UNHURRIED) as (fleet, process_):
        sent, gate = 0, Gate(tmp_path)

        def send(robot: str, **changes: Any) -> None:
            nonlocal sent
            sent += 1
            numbers[robot] += 1
            fleet._sequence = numbers[robot] - 1  # each session counts without a gap
            fleet.send(robot, **changes)

        def settled() -> bool:
            """The last of each is answered, so that nothing after it can be lost without a gap."""
            for robot in robots:
                send(robot)
            fleet.spin(0.5)
            return all(fleet.chunks[robot] and fleet.chunks[robot][-1][1].id.sequence == numbers[robot] for robot in robots)

        def one_runs() -> bool:
            gate.shut()
            send("r1")
            if eventually(gate.holds, 20.0, fleet._turn):
                return True
            gate.open()
            return False

        def open_anew() -> None:
            """While something of it waits, and ends with its former session: what is lost at the end of one leaves no gap."""
            fleet.wait(lambda: settled() and one_runs(), what="a batch that runs")
            fleet.wait(lambda: fleet.status.waiting == 0, what="nothing that waits")
            fleet.wait(lambda: send("r0") or eventually(lambda: fleet.status.waiting == 1, 5.0, fleet._turn), what="one that waits")
            assert fleet.open("r0").success
            numbers["r0"] = 0
            gate.open()

        numbers = dict.fromkeys(robots, 0)
        for robot in robots:
            assert fleet.open(robot).success
        for part in range(60):
            if part == 10:
                open_anew()
            if part == 30:
                process_.send_signal(signal.SIGSTOP)
            if part == 45:
                process_.send_signal(signal.SIGCONT)
            for robot in robots:
                send(robot, image=b"no image" if part % 7 == 3 else JPEG)
                for _ in range(8 * (robot == "r5" and part >= 15)):
                    send(robot)
            fleet.spin(0.02)

        fleet.wait(settled, what="the last answers")

        def counted() -> int:
            return int(fleet.status.served + fleet.status.superseded + sum(count.count for count in fleet.status.refused))

        with contextlib.suppress(AssertionError):
            fleet.wait(lambda: counted() == sent, 30.0)
        told = {count.name: count.count for count in fleet.status.refused}
        assert counted() == sent, (sent, fleet.status.served, fleet.status.superseded, told)
        assert (
            told["session_ended"]
            and told["over_quota"]
            and told["lost_on_the_way"]
            and told["bad_image"]
            and fleet.status.superseded
        ), told
