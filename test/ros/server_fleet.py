"""Model server processes with `mirror_engine.py`, and robots of the test's beside them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg, srv

from lab.benchmarks.path.sides import camera_image
from ros2_rfm_serving.ros.model_server_node import EXIT_HUNG
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.types import EncodedImage, ObservationRequest, RequestId, SessionRequest, empty
from test.waiting import eventually, watch

from .mirror_engine import NAMES, REACHED

CATALOGUE = """
models:
  mirror: {{engine: "test.ros.mirror_engine:build", options: {{batch_s: {batch_s}, serving: {serving}, gate: "{gate}"}}}}
  slow: {{engine: "test.ros.mirror_engine:build", options: {{load_gate: "{load_gate}"}}}}
  absent: {{engine: bundle, bundle: missing}}
  judge:
    engine: openai
    output: judgement
    options: {{base_url: "{judge_url}", max_concurrent: 2, timeout_s: 60, constraint: none}}
"""
HEADER = "model,gpu_type,batching,batch_size,rate_hz,mean_ms,p50_ms,p90_ms,p95_ms,p99_ms\n"
JPEG = camera_image(64, 0)
STARTS_S = 150.0
"""A process with PyTorch, beside others that start: it has taken more than a minute."""


UNHURRIED = {"hung_after_s": 600.0, "drain_timeout_s": 100.0}
"""Parameters of a server whose batches last until a test says so."""


class Gate:
    """Of a server's engine: while it is shut no batch ends, or no model is loaded."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._file, self._reached = folder / name, folder / f"{name}{REACHED}"

    def shut(self) -> None:
        self._reached.unlink(missing_ok=True)
        self._file.touch()

    def open(self) -> None:
        self._file.unlink()

    def holds(self) -> bool:
        """Somebody stands before it."""
        return self._reached.exists()


class Fleet(Node):
    """Robots of the test's on one node."""

    def __init__(self, *robots: str) -> None:
        super().__init__("test_fleet")
        names = qos.Names()
        self.chunks: dict[str, list[tuple[float, Any]]] = defaultdict(list)
        self.status: Any = None
        self.states: list[int] = []
        self.details: list[str] = []
        self.epochs: dict[str, int] = {}
        self.out = self.create_publisher(msg.Observation, names.server("s1", "observation"), qos.OBSERVATION_SENT)
        self.create_subscription(msg.ServerStatus, names.server("s1", "status"), self._on_status, qos.SERVER_STATUS)
        self.hears = {
            robot: self.create_subscription(msg.ActionChunk, names.robot(robot, "rfm/action_chunk"), self._on_chunk, qos.REPLY)
            for robot in robots
        }
        self.opener = self.create_client(srv.OpenSession, names.server("s1", "open_session"), qos_profile=qos.CONTROL)
        self.closer = self.create_client(srv.CloseSession, names.server("s1", "close_session"), qos_profile=qos.CONTROL)
        self.inference = ActionClient(self, action.Infer, names.server("s1", "infer"))
        self._sequence = 0
        self.executor_ = executor()
        self.executor_.add_node(self)

    def _on_status(self, message: Any) -> None:
        self.status = message
        if message.detail:
            self.details.append(message.detail)
        if not self.states or self.states[-1] != message.state:
            self.states.append(message.state)

    def _on_chunk(self, message: Any) -> None:
        self.chunks[message.id.robot].append((time.monotonic(), message))

    def wait(self, until: Callable[[], Any], seconds: float = STARTS_S, what: str = "") -> Any:
        found = eventually(until, seconds, self._turn)
        assert found, f"waited in vain {what}"
        return found

    def spin(self, seconds: float) -> None:
        watch(seconds, self._turn)

    def _turn(self) -> None:
        self.executor_.spin_once(timeout_sec=0.02)

    def opening(self, robot: str, **changes: Any) -> Any:
        """The future answer."""
        fields = {"robot": robot, "component": "system1", "action_names": NAMES, "cameras": ("front",), "state_size": 3, **changes}
        self.wait(self.opener.service_is_ready)
        return self.opener.call_async(session_request_to(SessionRequest(**fields)))

    def open(self, robot: str, **changes: Any) -> Any:
        future = self.opening(robot, **changes)
        self.wait(future.done)
        answer = future.result()
        if answer.success:
            self.epochs[robot] = answer.session_epoch
        return answer

    def close(self, robot: str) -> None:
        self.wait(self.closer.service_is_ready)
        done = self.closer.call_async(srv.CloseSession.Request(robot=robot, component="system1", session_epoch=self.epochs[robot]))
        self.wait(done.done)

    def infer(self, instruction: str) -> Any:
        """Result of one goal of the Infer action."""
        self.wait(self.inference.server_is_ready)
        sending = self.inference.send_goal_async(
            action.Infer.Goal(observation=self._observation("any", 0, 0.0, instruction, 1, JPEG))
        )
        self.wait(sending.done)
        result = sending.result().get_result_async()
        self.wait(result.done)
        return result.result().result

    def send(self, robot: str, value: float = 0.0, instruction: str = "go", episode: int = 1, image: bytes = JPEG) -> int:
        """A sequence number."""
        self._sequence += 1
        self.out.publish(self._observation(robot, self.epochs[robot], value, instruction, episode, image))
        return self._sequence

    def _observation(self, robot: str, epoch: int, value: float, instruction: str, episode: int, image: bytes) -> Any:
        identity = RequestId(robot=robot, component="system1", session_epoch=epoch, episode=episode, sequence=self._sequence)
        request = ObservationRequest(
            id=identity,
            stamp_ns=0,
            instruction=instruction,
            state=np.array([value, 0, 0], np.float32),
            images=(EncodedImage(camera="front", format="jpeg", data=image),),
            prefix_model=empty(0, 3),
            prefix_robot=empty(0, 3),
        )
        return convert.observation_to(request)

    def held(self, gate: Gate, robot: str, value: float = 0.0) -> set[int]:
        """Sequence numbers of which one runs, behind the gate; best effort, so again until it does."""
        sent = set[int]()

        def runs() -> bool:
            sent.add(self.send(robot, value))
            return bool(eventually(gate.holds, 5.0, self._turn))

        self.wait(runs, what=f"{robot}'s request to run")
        return sent

    def ask(self, robot: str, value: float = 0.0, **changes: Any) -> Any:
        """One answered request; best effort, so again until it is."""
        before = len(self.chunks[robot])

        def answered() -> bool:
            self.send(robot, value, **changes)
            return bool(eventually(lambda: len(self.chunks[robot]) > before, 1.0, self._turn))

        self.wait(answered, what=f"an answer to {robot}")
        return self.chunks[robot][-1][1]

    def refused(self, kind: str) -> int:
        return next((c.count for c in self.status.refused if c.name == kind), 0) if self.status else 0

    def is_refused(self, kind: str, robot: str, **changes: Any) -> None:
        """What is sent is counted under `kind`."""
        before = self.refused(kind)

        def seen() -> bool:
            self.send(robot, **changes)
            self.spin(0.3)
            return self.refused(kind) > before

        self.wait(seen, what=kind)


def write_profiles(folder: Path, batch_s: float = 0.01, mode: str = "shared", judge_url: str = "http://127.0.0.1:9/v1") -> None:
    """Gates of `mirror` and of the loading of `slow` are `gate` and `load_gate` in that folder."""
    gates = {"gate": folder / "gate", "load_gate": folder / "load_gate"}
    (folder / "profiles").mkdir(parents=True)
    text = CATALOGUE.format(batch_s=batch_s, serving=mode, judge_url=judge_url, **gates)
    (folder / "profiles" / "models.yaml").write_text(text)
    (folder / "profiles" / "none.csv").write_text(HEADER)


@contextmanager
def started(
    folder: Path,
    *,
    batch_s: float = 0.01,
    mode: str = "shared",
    judge_url: str = "http://127.0.0.1:9/v1",
    namespace: str = "/",
    **parameters: object,
) -> Iterator[Any]:
    """The process. namespace: of its node."""
    write_profiles(folder, batch_s, mode, judge_url)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "ros2_rfm_serving.ros.model_server_node",
        "--ros-args",
        "-r",
        f"__ns:={namespace}",
    ]
    given = {"server": "s1", "model": "mirror", "batch_size": 8, "max_sessions": 8, **parameters}
    for name, value in {**given, "profiles_folder": str(folder / "profiles")}.items():
        command += ["-p", f"{name}:={value}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) in (0, EXIT_HUNG)


@contextmanager
def launched(folder: Path, *robots: str, **parameters: Any) -> Iterator[Any]:
    """(fleet, process)"""
    with started(folder, **parameters) as process:
        rclpy.init()
        fleet = Fleet(*robots)
        try:
            yield fleet, process
        finally:
            fleet.executor_.shutdown()
            fleet.destroy_node()
            rclpy.try_shutdown()


@contextmanager
def serving(folder: Path, *robots: str, **parameters: Any) -> Iterator[Any]:
    with launched(folder, *robots, **parameters) as (fleet, process):
        fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.READY, STARTS_S, "ready")
        yield fleet, process
