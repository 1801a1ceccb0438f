"""Servers that follow a scheduler, as far as it receives their statuses; used for service replies and for `/diagnostics`."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.following import TWO_SCHEDULERS
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.node.patient_service import Awaited
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.types import ScheduleVerdict
from ros2_rfm_serving.types.schedule_follower import REPEAT_PERIOD_S, SILENT_AFTER_S

HARDWARE = f"scheduler on {platform.node()}"
"""Hardware id of the scheduler's diagnostics."""
FORGED = "somebody publishes schedules in this scheduler's name"
SILENT_SERVER_S = 4 * qos.STATUS_PERIOD_S
"""Age of the last status after which a server is no longer waited for."""
PATIENCE_S = SILENT_AFTER_S + 2 * REPEAT_PERIOD_S
"""Maximum time to wait until a schedule is followed: a new scheduler takes over once its predecessor has been silent."""


@dataclass(frozen=True)
class _Follower:
    scheduler: int
    epoch: int
    heard_s: float


class Followers:
    """Tracker of the servers that follow the schedule of the scheduler `identity`.
    It also receives schedules of other schedulers."""

    def __init__(self, node: Node, names: qos.Names, identity: int) -> None:
        self._node, self._names, self._identity = node, names, identity
        self._servers: set[str] = set()
        """Servers of the schedule."""
        self._since_s: dict[str, float] = {}
        self._followers: dict[str, _Follower] = {}
        self._epoch, self._published = 0, b""
        """Epoch of the last schedule, and its serialized form as others receive it."""
        self._own_words: list[Any] = []
        """Messages that are known to be the own schedule: a repeated one is the same object."""
        self._reader = reader = bounded.Repeated(msg.Schedule, ScheduleHearer.of_process().check)
        self._foreign = self._forged = self._unreadable = self._unproven = 0
        self._foreign_s = self._forged_s = -math.inf
        self._waiting: list[Awaited] = []
        hear = self._on_schedule
        bounded.hear(node, msg.Schedule, names.schedule, hear, qos.SCHEDULE_HEARD, self._refuse, repeated=reader)

    def expect(self, schedule: msg.Schedule, data: bytes) -> None:
        """Register the schedule that is published next, with its serialized form."""
        self._epoch, self._published, self._own_words = schedule.epoch, data, [schedule]
        self._reader.expect(data, schedule)
        servers = {placement.server for placement in schedule.placements}
        for server in self._servers - servers:
            self._followers.pop(server, None)
        self._since_s |= dict.fromkeys(servers - self._servers, clock())
        self._servers = servers

    async def take(self, epoch: int) -> str:
        """Wait until all live servers follow this schedule or a newer one.
        Return the problem when they do not within `PATIENCE_S`; empty: they follow it."""
        begin_s = clock()
        while (problem := self._problem(epoch)) and clock() < begin_s + PATIENCE_S:
            change = Awaited(executor=self._node.executor)
            self._waiting.append(change)
            await change
        return problem

    def diagnosis(self) -> DiagnosticStatus:
        """Return the diagnostics of `scheduler: schedule`."""
        epoch = self._epoch
        level, message = DiagnosticStatus.OK, f"schedule {epoch} is followed"
        has_rival = clock() - self._foreign_s < SILENT_AFTER_S
        if has_rival:
            level, message = DiagnosticStatus.WARN, TWO_SCHEDULERS
        elif problem := self._problem(epoch):
            level, message = DiagnosticStatus.WARN, problem
        values = {
            "schedule_epoch": epoch,
            "scheduler": f"{self._identity:x}",
            "schedules of other schedulers": self._foreign,
            "rival_schedulers": int(has_rival),
            "schedules forged": self._forged,
            "schedules unproven": self._unproven,
            "messages refused": self._unreadable,
        }
        return DiagnosticStatus(
            level=level, name="scheduler: schedule", message=message, hardware_id=HARDWARE, values=key_values(values)
        )

    def _problem(self, epoch: int) -> str:
        """Return why the schedule is not followed, or why that is unknown; empty: every live server follows it."""
        if clock() - self._forged_s < SILENT_AFTER_S:
            return FORGED
        there = {server: one for server, one in self._followers.items() if one.heard_s > clock() - SILENT_SERVER_S}
        if unheard := sorted(
            server for server in self._servers - self._followers.keys() if self._since_s[server] > clock() - SILENT_AFTER_S
        ):
            return f"nothing is heard of {', '.join(unheard)} yet"
        if strayed := sorted(server for server, one in there.items() if one.scheduler != self._identity):
            return f"{', '.join(strayed)} follows another scheduler, {there[strayed[0]].scheduler:x}"
        if late := sorted(server for server, one in there.items() if one.epoch < epoch):
            return f"{', '.join(late)} still follows schedule {there[late[0]].epoch}"
        if ahead := sorted(server for server, one in there.items() if one.epoch > self._epoch):
            return f"{', '.join(ahead)} follows schedule {there[ahead[0]].epoch}, which this scheduler has not made"
        return ""

    def _refuse(self, error: BadMessageError) -> None:
        if error.kind in ("unproven", ScheduleVerdict.STALE.value):
            self._unproven += 1
        else:
            self._unreadable += 1

    def hear_server(self, server: str, message: Any) -> None:
        """Record which schedule a server follows, by its own status; other servers are ignored."""
        if server in self._servers:
            self._followers[server] = _Follower(message.scheduler, message.schedule_epoch, clock())
            self.look()

    def _on_schedule(self, message: Any) -> None:
        if any(message is own for own in self._own_words):
            return
        log = self._node.get_logger()
        if message.scheduler != self._identity:
            self._foreign, self._foreign_s = self._foreign + 1, clock()
            log.warning(f"{TWO_SCHEDULERS}: {message.scheduler:x}", throttle_duration_sec=SILENT_AFTER_S)
        elif message.epoch > self._epoch or (message.epoch == self._epoch and not self._is_published(message)):
            self._forged, self._forged_s = self._forged + 1, clock()
            log.error(f"{FORGED}: {message.epoch}, this one is at {self._epoch}", throttle_duration_sec=SILENT_AFTER_S)
        elif message.epoch == self._epoch:
            self._own_words[1:] = [message]

    def _is_published(self, message: Any) -> bool:
        """Return whether a message has the published placements and routes; one epoch has exactly one set of them."""
        published = deserialize_message(self._published, msg.Schedule) if self._published else msg.Schedule()
        return (message.placements, message.routes) == (published.placements, published.routes)

    def look(self) -> None:
        """Wake the waiting coroutines: called for each server status, and periodically because a server may stay silent."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            change.set_result(None)
