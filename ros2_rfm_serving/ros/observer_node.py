"""Node that feeds a `Board` from the graph; `rfm up` and the benchmarks use it inside their own process."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.board import SCHEDULE, Board, ComponentRow, Histograms, ProcessRow, Score
from ros2_rfm_serving.ros.dated import Dated, ShownScheduler
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import NUMBER, PROCESS
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.proven import Proven
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.ros.wire.proofs import CERTIFICATE, SIGNATURE
from ros2_rfm_serving.types import RobotState, ServerState, TaskPhase
from ros2_rfm_serving.types.histogram import Histogram

COUNTERS = ("refused", "transitions", "fallbacks")
"""Fields that are lists of `Counter`."""
ALIVE_PERIOD_S = 1.0
PROCESSES = "processes"
"""Key under which unverified process reports are counted."""
MAX_PROCESSES, MAX_CHARACTERS, MAX_NUMBERS = 4096, 255, 32
"""Limits of process reports: anybody with write access to the graph chooses their number, names and values."""


class ObserverNode(Node):
    def __init__(self, board: Board, fleet_namespace: str = "", enclave: Path | None = None) -> None:
        """Subscribe to the factory's topics.
        enclave: its authority verifies statuses and schedules when the environment names none. Raises: `ConfigurationError`."""
        self._proven = Proven(board, enclave)
        super().__init__("rfm_observer", enable_rosout=False, start_parameter_services=False)
        self._board = board
        self.refused: Counter[str] = Counter()
        """Messages that could not be read or verified."""
        names = self._names = qos.Names(fleet_namespace)
        self._shown = ShownScheduler(board, Dated(self, names, board, self._proven.verifier))
        check = self._proven.check_schedule
        self._schedules = self._hear(
            msg.Schedule, names.schedule, self._on_schedule, qos.SCHEDULE_HEARD, SCHEDULE, repeated=True, prove=check
        )
        self._hear_processes(names.processes)
        every(self, ALIVE_PERIOD_S, self._alive)
        for server in board.servers:
            self.watch_server(server)
        for robot in board.robots:
            self.watch_robot(robot)

    def _hear(
        self, kind: type, topic: str, callback: Callable[[Any], None], profile: QoSProfile, about: str, **options: Any
    ) -> Any:
        """Create a validated subscription. about: the process whose messages these are, for counting."""
        return bounded.hear(self, kind, topic, callback, profile, partial(self._refuse, about=about), **options)

    def _hear_processes(self, topic: str) -> None:
        try:
            self.create_subscription(DiagnosticArray, topic, self._on_process, qos.PROCESS_STATUS_RECEIVED)
        except RuntimeError as error:  # the permissions were issued by an earlier version
            self.get_logger().warning(f"{topic} may not be read: {error}; `rfm security` issues permissions anew")

    def _on_process(self, message: Any) -> None:
        for status in message.status:
            name, _, part = status.name.rpartition(": ")
            rows = self._board.processes
            key = name, status.hardware_id
            too_many = key not in rows and len(rows) >= MAX_PROCESSES
            too_long = max(len(name), len(status.hardware_id)) > MAX_CHARACTERS or len(status.values) > MAX_NUMBERS
            if part != "process" or too_many or too_long:
                self.refused["bad_process"] += 1
                continue
            try:
                self._proven.check_report(status, name.removeprefix(f"{self._names.root}/"))
            except BadMessageError as error:
                self._refuse(error, PROCESSES)
                continue
            figures = [value for value in status.values if value.key not in (PROCESS, NUMBER, CERTIFICATE, SIGNATURE)]
            numbers = {value.key: number for value in figures if math.isfinite(number := _number(value.value))}
            self._board.processes = {**rows, key: ProcessRow(seen_s=clock(), numbers=numbers)}

    def _refuse(self, error: BadMessageError, about: str) -> None:
        self.refused[error.kind] += 1
        self._proven.count(error, about)

    def _alive(self) -> None:
        self._board.looked_s = clock()

    def watch_server(self, server: str) -> Any:
        """Return the new subscription to a server's status."""
        events = SubscriptionEventCallbacks(liveliness=lambda event: self._on_liveliness(server, event))
        topic, check = self._names.server(server, "status"), partial(self._proven.check_status, server)
        return self._hear(msg.ServerStatus, topic, self._on_server, qos.SERVER_STATUS, server, prove=check, event_callbacks=events)

    def watch_robot(self, robot: str) -> Any:
        """Return the new subscription to a robot's status; also subscribe to its score."""
        self._hear(msg.EpisodeScore, self._names.robot(robot, "world/score"), self._on_score, qos.SCORE, robot)
        topic, check = self._names.robot(robot, "rfm/status"), partial(self._proven.check_status, robot)
        return self._hear(msg.RobotStatus, topic, self._on_robot, qos.ROBOT_STATUS, robot, prove=check)

    def factory_is_running(self) -> bool:
        """Return whether a publisher of schedules is matched; the graph alone would also show those of other DDS partitions."""
        return bool(self._schedules.get_publisher_count())

    def _on_schedule(self, message: Any) -> None:
        if self._shown.is_rivals(message.scheduler, clock()):
            return
        self._board.schedule_epoch = message.epoch
        self._board.predicted_actions_hz = message.predicted_actions_hz
        self._board.descriptor = message.descriptor
        self._board.factory, self._board.policy, self._board.gap = message.factory, message.policy, message.gap
        self._board.planned_servers = frozenset(placement.server for placement in message.placements)
        self._board.planned_robots = frozenset(route.robot for route in message.routes)
        self._board.schedule_seen_s = clock()
        for placement in message.placements:
            if placement.server in self._board.servers:
                self._board.servers[placement.server].standby = placement.standby
        self._take_routes(message)

    def _take_routes(self, message: Any) -> None:
        """Read placements and routes of a schedule that a robot would follow, once per epoch: it is repeated and may be large."""
        board = self._board
        if (board.scheduler, board.placed_epoch) == (message.scheduler, message.epoch):
            return
        try:
            schedule = convert.schedule_from(message)
        except BadMessageError as error:
            self._refuse(error, SCHEDULE)
            return
        board.placements, board.routes = schedule.placements, schedule.routes
        board.scheduler, board.placed_epoch = schedule.scheduler, schedule.epoch

    def _on_liveliness(self, server: str, event: Any) -> None:
        row = self._board.servers.get(server)
        if row is not None:
            row.lost = not event.alive_count and (row.lost or event.alive_count_change < 0)

    def _on_server(self, message: Any) -> None:
        row = self._board.servers.get(message.header.frame_id)
        if row is None:
            return
        progresses = message.served != row.served or not message.waiting
        _copy(message, row, state=_named(ServerState, message.state).lower())
        row.note(self._board.schedule_seen_s > -math.inf and not self._board.is_followed_by(row), clock())
        if progresses:
            row.progressed_s = row.seen_s
        if message.state == ServerState.READY:
            row.ready_s = row.seen_s

    def _on_robot(self, message: Any) -> None:
        row = self._board.robots.get(message.header.frame_id)
        if row is None:
            return
        _copy(message, row, state=_named(RobotState, message.state), phase=_named(TaskPhase, message.phase).lower())
        row.note(clock())
        if message.state == RobotState.STREAMING:
            self._board.streams(message.header.frame_id, row.seen_s)

    def _on_score(self, message: Any) -> None:
        robot = message.header.frame_id
        if robot not in self._board.robots:
            return
        row = self._board.robots[robot]
        row.real_time_factor, row.declared_time_scale = message.real_time_factor, message.declared_time_scale
        row.late_ticks, row.overwritten_commands = message.late_ticks, message.overwritten_commands
        score = Score(message.task, message.seed, message.success, message.steps, message.finished)
        self._board.score(robot, message.episode, score)


def _named(words: type[enum.IntEnum], number: int) -> str:
    """Return the state's name, or its number when a newer version of the message has a state that this one does not know."""
    return words(number).name if number in set(words) else str(number)


def _number(text: str) -> float:
    """Return the number; NaN when the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _component(figures: Any) -> ComponentRow:
    words = {word.name: word.count for word in figures.words}
    return ComponentRow(slo_s=figures.slo_s, in_time=figures.in_time, late=figures.late, words=words)


def _histograms(told: Any) -> Histograms:
    """Return the well-formed histograms: one count for each bound, and one more."""
    found: Histograms = {}
    for one in told:
        if len(one.counts) == len(one.bounds) + 1:
            bounds, counts = tuple(one.bounds), list(one.counts)
            found.setdefault(one.name, {})[one.component] = Histogram(bounds, counts, one.sum)
    return found


def _copy(message: Any, row: Any, **named: str) -> None:
    """Copy the fields that message and row share by name. named: fields whose text the caller gives. Other threads read the row."""
    for name in vars(row):
        if name in named:
            setattr(row, name, named[name])
        elif name in COUNTERS and hasattr(message, name):
            setattr(row, name, {c.name: c.count for c in getattr(message, name)})
        elif name == "histograms":
            row.histograms = _histograms(message.histograms)
        elif name == "components":
            row.components = {c.component: _component(c) for c in message.components}
        elif hasattr(message, name):
            setattr(row, name, getattr(message, name))
