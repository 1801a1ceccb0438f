"""Publishes the schedule; admits, releases and replans on request. Never on the path of a request.

A robot that comes or goes changes its own routes alone (`Fleet.admit`, `Fleet.release`). Then the whole factory is planned anew in
the background, and that schedule is published only if it gains more than moving models costs.

Who was admitted is kept by the `Roster`, which hears the robots themselves: one that falls silent is released, and a scheduler that
is started again finds those whom its predecessor admitted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.audit.schedulers.book import Book
from ros2_rfm_serving.errors import ConfigurationError, RfmError, ScheduleError
from ros2_rfm_serving.ros.attendance import Attendance
from ros2_rfm_serving.ros.fleet_in_force import FleetInForce
from ros2_rfm_serving.ros.followers import Followers
from ros2_rfm_serving.ros.node.audit import AuditTopic
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics
from ros2_rfm_serving.ros.node.parameters import Spec, Values, When, declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names, run_node, share
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.planner import Planner
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.scheduler import DEFAULT_LEASE_S, POLICIES, Roster
from ros2_rfm_serving.types import Schedule
from ros2_rfm_serving.types.following import REPEAT_PERIOD_S

BACKGROUND_PERIOD_S = 0.5


SPECS = {
    "factory_file": Spec("", "Factory descriptor (YAML); /rfm/replan takes another one"),
    "profiles_folder": Spec("", "Folder of profiles (CSV) and models.yaml; empty: the shipped one"),
    "policy": Spec(
        "best", "Scheduling policy, as in `rfm plan --policy`; from the next plan on", choices=tuple(POLICIES), when=When.ANY
    ),
    "lease_s": Spec(
        DEFAULT_LEASE_S,
        "A robot that was admitted while the factory runs and is not heard for so long is released, s; a declared one never",
        5.0,
        1e9,
        when=When.ANY,
    ),
}


class SchedulerNode(Node):
    def __init__(self) -> None:
        super().__init__("scheduler")
        declared, values = declare(self, SPECS), Values(self, SPECS)
        file, folder = values.text("factory_file"), values.text("profiles_folder")
        if not file:
            raise ConfigurationError("is empty", key="factory_file", fix="name a descriptor: -p factory_file:=/my/factory.yaml")
        Changes(self, declared, self._follow)
        names = fleet_names(self)
        self._publisher = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        self._identity = 1 + secrets.randbelow(2**64 - 1)
        self._followers = Followers(self, names, self._identity)
        self._roster = Roster(self._identity, values.number("lease_s"))
        profiles = Path(folder) if folder else share() / "config" / "profiles"
        self._planner = Planner(profiles, values.text("policy"))
        self._audit = AuditTopic(self, "scheduler", names.audit).open()
        self._book = Book(self._audit.journal, profiles, clock)
        self._fleet = FleetInForce(Path(file), self._planner, self._roster, self._publish, self.get_logger(), self._book)
        self._attendance = Attendance(self, names, self._roster, self._fleet)
        self._diagnostics = Diagnostics(self, lambda: (self._followers.diagnosis, self._attendance.diagnosis))
        self.create_service(srv.AdmitRobot, names.admit_robot, self._admit, qos_profile=qos.CONTROL)
        self.create_service(srv.ReleaseRobot, names.release_robot, self._release, qos_profile=qos.CONTROL)
        self.create_service(srv.Replan, names.replan, self._replan, qos_profile=qos.CONTROL)
        every(self, REPEAT_PERIOD_S, self._repeat)
        every(self, BACKGROUND_PERIOD_S, self._fleet.take_background)

    def _follow(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        def apply() -> None:
            self._planner.policy = changed.get("policy", self._planner.policy)
            self._roster.lease_s = changed.get("lease_s", self._roster.lease_s)

        return apply

    def destroy_node(self) -> None:
        self._planner.end()
        self._audit.close()
        super().destroy_node()

    def _publish(self, schedule: Schedule, factory: str) -> None:
        own = replace(schedule, scheduler=self._identity, released=self._roster.released)
        self._message = convert.schedule_to(own, factory)
        self._followers.expect(self._message)
        self._repeat()
        for placement in schedule.placements:
            self.get_logger().info(
                f"epoch {schedule.epoch}: {placement.server} hosts {placement.model}, batch {placement.batch_size}, "
                + ("standby" if placement.standby else f"predicted p99 {placement.predicted_p99_s * 1e3:.0f} ms")
            )
        self.get_logger().info(f"epoch {schedule.epoch}: {schedule.predicted_actions_hz:.1f} action predictions/s predicted")

    def _repeat(self) -> None:
        """It is latched too, but that tells nobody that its scheduler lives."""
        self._publisher.publish(convert.stamped(self._message, self))
        self._followers.look()

    # --- services: answered when the servers follow, or not ---

    async def _admit(self, request: Any, response: Any) -> Any:
        def admit() -> None:
            convert.check_name("robot", request.robot)
            self._fleet.admit(request.robot, request.task)

        return await self._answer(response, admit, f"admit {request.robot!r} for {request.task!r}")

    async def _release(self, request: Any, response: Any) -> Any:
        return await self._answer(response, lambda: self._fleet.release(request.robot), f"release {request.robot!r}")

    async def _replan(self, request: Any, response: Any) -> Any:
        file = Path(request.factory_file) if request.factory_file else None
        return await self._answer(response, lambda: self._fleet.replan(file), f"replan {file.name if file else ''}".strip())

    async def _answer(self, response: Any, change: Callable[[], None], what: str) -> Any:
        response = await self._answered(response, change)
        answer = f"schedule {response.schedule_epoch}" if response.success else response.error_msg
        self._book.person(what, answer, response.success)
        return response

    async def _answered(self, response: Any, change: Callable[[], None]) -> Any:
        """A schedule that is published is not in force yet: somebody else's may be."""
        asked_s = clock()
        try:
            change()
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        epoch = self._fleet.epoch
        if problem := await self._followers.take(epoch, asked_s):
            return self._refuse(response, ScheduleError.code, f"schedule {epoch} is published, and {problem}")
        response.success, response.schedule_epoch = True, epoch
        return response

    def _refuse(self, response: Any, code: int, problem: str) -> Any:
        self.get_logger().warning(problem)
        response.success, response.error_code, response.error_msg = False, code, problem
        response.schedule_epoch = self._fleet.epoch
        return response


def main() -> None:
    run_node(SchedulerNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
