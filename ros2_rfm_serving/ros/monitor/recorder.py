"""Node of the recorder: its parameters, subscriptions and diagnostics."""

from __future__ import annotations

import functools
import socket
import time
from datetime import datetime
from pathlib import Path
from random import SystemRandom
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from std_srvs.srv import Trigger

from ros2_rfm_serving.audit.bag import OBSERVATION, PAGE
from ros2_rfm_serving.audit.bag_metadata import ros_distro
from ros2_rfm_serving.audit.bag_writer import free
from ros2_rfm_serving.audit.chain import OWN
from ros2_rfm_serving.audit.recording.flight import Flight, FlightLimits
from ros2_rfm_serving.audit.recording.intake import Intake, Topic
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.recording.recorder import DAY_S, GB, MB, Limits, Recorder
from ros2_rfm_serving.audit.recording.told import Told, broken_lines
from ros2_rfm_serving.audit.recording.topics import Selection
from ros2_rfm_serving.audit.recording.writing import END_S, Sink, Writing
from ros2_rfm_serving.audit.signatures import problem_of
from ros2_rfm_serving.ros.monitor import definitions
from ros2_rfm_serving.ros.monitor.hearing import Hearing, written
from ros2_rfm_serving.ros.monitor.recorder_parameters import SPECS
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics, key_values
from ros2_rfm_serving.ros.node.doorkeeper import verifier_of_process
from ros2_rfm_serving.ros.node.parameters import Values, declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names
from ros2_rfm_serving.ros.node.signer import signer_of_process
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import qos

LAST_WORDS = frozenset({"rfm_serving/msg/RobotStatus", "rfm_serving/msg/ServerStatus", "rfm_serving/msg/Schedule"})
"""Types whose publishers come and go with the factory's nodes."""
LOOK_PERIOD_S, QUIET_PERIOD_S, BUSY_S = 0.1, 0.5, 10.0
"""Periods of polling the graph, after a change and without one, and the time for which a change counts."""
COMPLAIN_PERIOD_S = 5.0
RECENT_S = 60.0
"""Time for which a loss is reported as a warning."""


class RecorderNode(Node):
    """Node that records a factory. Raises: `RfmError` when the folder cannot be used."""

    stop_s = END_S + 2.0
    """Time for `stop`, which waits for the disk, and for logging that the disk does not respond."""

    def __init__(self, **options: Any) -> None:
        super().__init__("recorder", enable_rosout=False, **options)
        declare(self, SPECS)
        values = Values(self, SPECS)
        self._root = fleet_names(self, is_robots=False).schedule.removesuffix("/rfm/schedule")
        self._about = {"namespace": self._root, "host": socket.gethostname(), "ros_distro": ros_distro()}
        self._intake = Intake(int(values.number("queue_mb") * MB))
        sink = self._sink(values)
        self._flight = sink if isinstance(sink, Flight) else None
        self._writing = Writing(self._intake, sink, self._failed)
        self._hearing = Hearing(self, self._selection(values).of, self._intake.put)
        self._diagnostics = Diagnostics(self, lambda: [self._status], self._numbers)
        self._linger_s, self._drain_s = values.number("linger_s"), 0.0
        self._lost, self._lost_s, self._complained_s = 0, -RECENT_S, -COMPLAIN_PERIOD_S
        self._looked_s = 0.0
        every(self, LOOK_PERIOD_S, self._look)
        if self._flight is not None:
            self.create_service(Trigger, f"{self._root}/rfm/recorder/save", self._save)
        self._expect(*(tuple(filter(None, values.texts(name))) for name in ("robots", "servers")))
        self._hearing.look()
        self._writing.start()

    @property
    def told(self) -> Told:
        return self._writing.told

    @property
    def topics(self) -> frozenset[str]:
        """Topics that are recorded."""
        return self._hearing.topics

    def drain(self) -> None:
        """Wait for the last messages of nodes that end at the same time."""
        self._drain_s = clock() + self._linger_s

    @property
    def drained(self) -> bool:
        return clock() >= self._drain_s or not any(self.count_publishers(topic) for topic in self._hearing.of(LAST_WORDS))

    def close_files(self) -> None:
        """Write everything received and close the bag; called from another thread when the end of the process hangs."""
        self._writing.stop()

    def stop(self) -> None:
        """Write what was received, close the bag, and report that this recorder has ended."""
        if self._writing.stop():
            self._diagnostics.report_end()
        else:
            self.get_logger().error(f"the disk does not come back: {self.told.words()}")

    def _sink(self, values: Values) -> Sink:
        folder = Path(values.text("folder") or f"recordings/{datetime.now().astimezone():%Y%m%d-%H%M%S}")
        if not values.number("flight_s"):
            folder = free(folder)
        limits = Limits(
            split_bytes=int(values.number("split_mb") * MB),
            split_s=values.number("split_minutes") * 60.0,
            keep_bytes=int(values.number("keep_gb") * GB),
            keep_s=values.number("keep_days") * DAY_S,
        )
        name = values.text("name") or socket.gethostname()
        page = Topic(f"{self._root}/{OWN}", PAGE, definitions.message(PAGE), written([qos.AUDIT]))
        random, sign, verifier = SystemRandom(), signer_of_process(), verifier_of_process()
        prove = functools.partial(problem_of, check=verifier.check_said) if verifier is not None else None

        def begin(folder: Path, limits: Limits, more: dict[str, Any]) -> Recorder:
            about = {**self._about, "stamp": time.time(), "folder": str(folder), **more}
            ledger = Ledger(name, random.randrange(1, 1 << 63), clock(), about, sign)
            return Recorder(folder, limits, ledger, page, sign=sign, prove=prove)

        if not (flight_s := values.number("flight_s")):
            return begin(folder, limits, {})
        bounds = FlightLimits(
            before_s=flight_s,
            after_s=values.number("after_s"),
            memory_bytes=int(values.number("flight_mb") * MB),
            per_hour=values.integer("incidents_per_hour"),
        )
        return Flight(folder, bounds, limits, begin)

    def _selection(self, values: Values) -> Selection:
        return Selection(
            namespace=self._root,
            cameras=values.flag("cameras"),
            topics=tuple(filter(None, values.texts("topics"))),
            exclude=tuple(filter(None, values.texts("exclude"))),
        )

    @property
    def _num_lost(self) -> int:
        return sum(self.told.lost.values()) + self._intake.num_unsaid

    def _expect(self, robots: tuple[str, ...], servers: tuple[str, ...]) -> None:
        names, hear = qos.Names(self._root), self._hearing.expect
        for robot in robots:
            hear(names.robot(robot, "rfm/status"), "rfm_serving/msg/RobotStatus", qos.ROBOT_STATUS)
            hear(names.robot(robot, "rfm/action_chunk"), "rfm_serving/msg/ActionChunk", qos.REPLY_SENT)
            hear(names.robot(robot, "rfm/audit"), PAGE, qos.AUDIT)
        for server in servers:
            hear(names.server(server, "status"), "rfm_serving/msg/ServerStatus", qos.SERVER_STATUS)
            hear(names.server(server, "observation"), OBSERVATION, qos.OBSERVATION_SENT)
            hear(names.server(server, "audit"), PAGE, qos.AUDIT)

    def _look(self) -> None:
        now_s = clock()
        if now_s - self._hearing.changed_s < BUSY_S or now_s - self._looked_s >= QUIET_PERIOD_S:
            self._looked_s = now_s
            self._hearing.look()
        self._complain(now_s)

    def _complain(self, now_s: float) -> None:
        lost, problem = self._num_lost, self.told.problem
        if lost > self._lost:
            self._lost, self._lost_s = lost, now_s
        if (problem or now_s - self._lost_s < COMPLAIN_PERIOD_S) and now_s - self._complained_s >= COMPLAIN_PERIOD_S:
            self._complained_s = now_s
            self.get_logger().warning(f"{problem or 'the disk is too slow'}; {lost} messages are lost so far: {self.told.words()}")

    def _save(self, request: Any, response: Any) -> Any:
        assert self._flight is not None
        self._flight.ask()
        response.success, response.message = True, f"the last seconds are written to a folder in {self.told.folder}"
        return response

    def _failed(self, trace: str) -> None:
        self.get_logger().error(f"recording failed, and goes on:\n{trace}", throttle_duration_sec=COMPLAIN_PERIOD_S)

    def _numbers(self) -> dict[str, int]:
        """Return the counters for metrics."""
        told = self.told
        return {
            "recorder_messages": told.messages,
            "recorder_lost": self._num_lost,
            "recorder_bytes": told.size,
            "recorder_problem": int(bool(told.problem)),
        }

    def _status(self) -> DiagnosticStatus:
        told = self.told
        level, message = DiagnosticStatus.OK, "recording"
        if clock() - self._lost_s < RECENT_S:
            level, message = DiagnosticStatus.WARN, f"{self._num_lost} messages were lost"
        if told.broken:
            level, message = DiagnosticStatus.WARN, "; ".join(broken_lines(told.broken))
        if told.problem:
            level, message = DiagnosticStatus.ERROR, f"nothing can be written: {told.problem}"
        values = {
            "folder": told.folder,
            "topics": len(self.topics),
            "messages": told.messages,
            "size_mb": told.size / 1e6,
            "files": told.files,
            "lost": self._num_lost,
            "broken_chains": sum(count for count, _ in told.broken.values()),
            "waiting_mb": self._intake.waiting / 1e6,
            **({"held_s": told.held_s, "incidents": told.incidents} if self._flight is not None else {}),
        }
        return DiagnosticStatus(
            level=level, name="recorder: recording", message=message, hardware_id="recorder", values=key_values(values)
        )
