"""Publishes the schedule; admits, releases and replans on request. It is never on the path of an inference request.

`scheduler/schedule_manager.py` decides which robots are served where. This node passes it requests and liveness, and publishes its
decisions. A separate process plans whole factories (`planner.py`), so that everything else continues meanwhile.

The `RobotRegistry` keeps the admitted robots and receives their statuses: a robot that falls silent is released, and a restarted
scheduler finds the robots that its predecessor admitted. Servers still have the predecessor's schedule (`predecessor.py`): where it
holds it stays active, and nothing moves.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.audit.schedulers.book import Book
from ros2_rfm_serving.errors import ConfigurationError, RfmError, ScheduleError, UnprovenError
from ros2_rfm_serving.factory import Factory, load_factory
from ros2_rfm_serving.ros.attendance import Attendance
from ros2_rfm_serving.ros.followers import Followers
from ros2_rfm_serving.ros.node.audit import AuditTopic
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics, key_values
from ros2_rfm_serving.ros.node.doorkeeper import SCHEDULER, Doorkeeper, prover_of_process, sign_ordered
from ros2_rfm_serving.ros.node.orders import Gate
from ros2_rfm_serving.ros.node.parameters import Spec, Values, When, declare
from ros2_rfm_serving.ros.node.patient_service import Awaited, create_patient_service
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names, run_node, share
from ros2_rfm_serving.ros.node.scheduled import ScheduleSpeaker
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.planner import Planner
from ros2_rfm_serving.ros.predecessor import found_in_force
from ros2_rfm_serving.ros.watching import Watching
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.scheduler import (
    DEFAULT_LEASE_S,
    POLICIES,
    FactoryEstimates,
    PlanJob,
    RobotRegistry,
    ScheduleManager,
    SchedulerCommand,
)
from ros2_rfm_serving.scheduler.automatic import decided_as
from ros2_rfm_serving.scheduler.schedule_state import SAID
from ros2_rfm_serving.security.members import askers
from ros2_rfm_serving.types import Schedule
from ros2_rfm_serving.types.schedule_follower import REPEAT_PERIOD_S

PLANNER_PERIOD_S, ACQUAINTED_S = 0.1, 0.25
UNPROVEN_SAID_S = 5.0
ORDERS = {
    srv.AdmitRobot.Request: "rfm/admit_robot",
    srv.ReleaseRobot.Request: "rfm/release_robot",
    srv.Replan.Request: "rfm/replan",
}
"""Request type -> service, named as in the wire table."""


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
    "look_around_s": Spec(
        3.0, "For how long servers are looked for that follow a former scheduler, whose schedule goes on if it holds, s", 0.0, 60.0
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
        names = fleet_names(self, is_robots=False)
        self._publisher = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        self._identity = 1 + secrets.randbelow(2**64 - 1)
        self._processes: list[int] = []
        self._is_awaited = False
        self._prover = prover_of_process()
        self._speaker = ScheduleSpeaker(self._prover)
        self._followers, self._routes = Followers(self, names, self._identity), convert.Routes()
        self._roster = RobotRegistry(self._identity, values.number("lease_s"))
        profiles = Path(folder) if folder else share() / "config" / "profiles"
        self._planner = Planner(profiles, self.get_logger())
        self._audit = AuditTopic(self, "scheduler", names.audit).open()
        self._book = Book(self._audit.journal, profiles, clock, self._identity)
        factory = self._planner.decided(load_factory(Path(file)))
        left = found_in_force(names, factory.servers, values.number("look_around_s"), self.get_logger())
        seen = FactoryEstimates(lost=left.missing)
        order = PlanJob(factory=factory, robots=tuple(factory.robots), policy=values.text("policy"), seen=seen)
        first = self._planner.at_once(order, left.schedule)
        self._fleet = ScheduleManager(first, self._roster, self._publish, self.get_logger(), self._book)
        self._attendance = Attendance(self, names, self._roster, self._fleet, self._identity)
        lookout = self._planner.lookout(self._fleet)
        self._watching = Watching(self, names, self._fleet, lookout, self._identity, self._followers.hear_server, self._hears)
        told = (self._diagnosis, self._attendance.diagnosis, self._watching.diagnosis)
        self._diagnostics = Diagnostics(self, lambda: told)
        self._doorkeeper = Doorkeeper.of_process(SCHEDULER)
        create_patient_service(self, srv.AdmitRobot, names.admit_robot, self._admit, qos_profile=qos.CONTROL)
        create_patient_service(self, srv.ReleaseRobot, names.release_robot, self._release, qos_profile=qos.CONTROL)
        create_patient_service(self, srv.Replan, names.replan, self._replan, qos_profile=qos.CONTROL)
        Gate(self, SCHEDULER, self._doorkeeper, self._attendance.count_unproven).shut()
        every(self, REPEAT_PERIOD_S, self._repeat)
        every(self, ACQUAINTED_S, self._tell_servers)
        every(self, PLANNER_PERIOD_S, lambda: self._planner.look(self._fleet))

    def _follow(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        def apply() -> None:
            self._fleet.policy = changed.get("policy", self._fleet.policy)
            self._roster.lease_s = changed.get("lease_s", self._roster.lease_s)

        return apply

    def _diagnosis(self) -> DiagnosticStatus:
        made = self._followers.diagnosis()
        made.values = [*made.values, *key_values({**self._planner.values(self._fleet.factory), **self._audit.values()})]
        return made

    def stop(self) -> None:
        """Answer every request that waits for a plan."""
        self._fleet.end()

    def destroy_node(self) -> None:
        self._planner.end()
        self._audit.close()
        super().destroy_node()

    def _publish(self, schedule: Schedule, factory: Factory) -> None:
        own = replace(schedule, scheduler=self._identity, released=self._roster.released)
        self._message = convert.schedule_to(own, factory.name, self._routes)
        self._message.descriptor = factory.fingerprint
        self._say()
        self._repeat()
        for placement in schedule.placements:
            self.get_logger().info(
                f"epoch {schedule.epoch}: {placement.server} hosts {placement.model}, batch {placement.batch_size}, "
                + ("standby" if placement.standby else f"predicted p99 {placement.predicted_p99_s * 1e3:.0f} ms")
            )
        self.get_logger().info(f"epoch {schedule.epoch}: {schedule.predicted_actions_hz:.1f} action predictions/s predicted")

    def _hears(self, processes: list[int]) -> None:
        """Publish which server processes the scheduler now receives; called when they have changed."""
        self._processes = processes
        self._say()
        self._is_awaited = True

    def _say(self) -> None:
        """Sign the schedule message anew, for all repetitions from now on."""
        self._message.hears = self._processes
        self._followers.expect(self._message, self._speaker.put(self._message))

    def _tell_servers(self) -> None:
        """Publish at once when servers wait to learn that the scheduler receives them; one message serves all that start."""
        if self._is_awaited:
            self._is_awaited = False
            self._repeat()

    def _repeat(self) -> None:
        """Publish the schedule again. It is latched too, but only repetition shows that the scheduler is alive."""
        self._publisher.publish(self._speaker.word(self.get_clock().now().to_msg()))
        self._followers.look()

    # --- services: answered when the servers follow, or not ---

    async def _admit(self, request: Any, response: Any) -> Any:
        def admit() -> SchedulerCommand:
            convert.check_name("robot", request.robot)
            return self._fleet.admit(request.robot, request.task)

        return await self._answer(request, response, admit, f"admit {request.robot[:SAID]!r} for {request.task[:SAID]!r}")

    async def _release(self, request: Any, response: Any) -> Any:
        release = lambda: self._fleet.release(request.robot)  # noqa: E731
        return await self._answer(request, response, release, f"release {request.robot[:SAID]!r}")

    async def _replan(self, request: Any, response: Any) -> Any:
        given = request.factory_file

        def replan() -> SchedulerCommand:
            declared = load_factory(Path(given or self._fleet.factory.file))
            return self._fleet.replan(decided_as(declared, self._fleet.factory), declared_anew=bool(given))

        return await self._answer(request, response, replan, f"replan {Path(given).name}".strip())

    async def _answer(self, request: Any, response: Any, ask: Callable[[], SchedulerCommand], what: str) -> Any:
        try:
            self._check(request)
        except UnprovenError as error:
            self._unproven(response, error, what)
            if error.is_copy:  # the original request has its reply, or will get it
                return response
        else:
            response = await self._answered(response, ask)
            answer = f"schedule {response.schedule_epoch}" if response.success else ""
            answer = ": ".join(filter(None, (answer, response.error_msg)))
            self._book.person(what, answer, response.success)
        sign_ordered(self._prover, request, response)
        return response

    def _check(self, request: Any) -> None:
        """Raise `UnprovenError` unless the request is from a process that may order this."""
        if self._doorkeeper is not None:
            who = self._doorkeeper.check(request, clock()).who.name
            if who not in askers(ORDERS[type(request)]):
                raise UnprovenError(f"{who} may not order that; {', '.join(sorted(askers(ORDERS[type(request)])))} may")

    def _unproven(self, response: Any, error: UnprovenError, what: str) -> None:
        self._attendance.count_unproven()
        if error.is_stale and self._doorkeeper:  # the challenge that every first request gets
            response.challenge = self._doorkeeper.challenge(clock())
        else:
            self.get_logger().warning(f"{what[:200]}: {error}", throttle_duration_sec=UNPROVEN_SAID_S)
        self._refused(response, error.code, str(error))

    async def _answered(self, response: Any, ask: Callable[[], SchedulerCommand]) -> Any:
        """Fulfil a request and wait until the schedule is active: once published, another scheduler's may still be followed."""
        try:
            epoch = await self._decided(order := ask())
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        if problem := await self._followers.take(epoch):
            return self._refuse(response, ScheduleError.code, f"schedule {epoch} is published, and {problem}")
        response.success, response.schedule_epoch, response.error_msg = True, epoch, order.note
        return response

    async def _decided(self, order: SchedulerCommand) -> int:
        """Return the epoch that fulfils the order. Raises: `RfmError`."""
        if order.answer is None:
            decided = Awaited(executor=self.executor)
            order.watchers.append(lambda: decided.set_result(None))
            await decided
        if isinstance(order.answer, RfmError):
            raise order.answer
        assert order.answer is not None
        return order.answer

    def _refuse(self, response: Any, code: int, problem: str) -> Any:
        self.get_logger().warning(problem)
        return self._refused(response, code, problem)

    def _refused(self, response: Any, code: int, problem: str) -> Any:
        response.success, response.error_code, response.error_msg = False, code, problem
        response.schedule_epoch = self._fleet.epoch
        return response


def main() -> None:
    run_node(SchedulerNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
