"""Publishes the schedule; admits, releases and replans on request. Never on the path of a request.

A robot that comes or goes changes its own routes alone (`Fleet.admit`, `Fleet.release`). Then the whole factory is planned anew in
the background, and that schedule is published only if it gains more than moving models costs.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import ConfigurationError, RfmError, ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, Robot, load_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros.followers import Followers
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics
from ros2_rfm_serving.ros.node.parameters import Spec, Values, When, declare
from ros2_rfm_serving.ros.node.runtime import fleet_names, run_node, share
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.scheduler import POLICIES, Fleet, start_fleet
from ros2_rfm_serving.types import Schedule
from ros2_rfm_serving.types.following import REPEAT_PERIOD_S

BACKGROUND_PERIOD_S = 0.5


SPECS = {
    "factory_file": Spec("", "Factory descriptor (YAML); /rfm/replan takes another one"),
    "profiles_folder": Spec("", "Folder of profiles (CSV) and models.yaml; empty: the shipped one"),
    "policy": Spec(
        "best", "Scheduling policy, as in `rfm plan --policy`; from the next plan on", choices=tuple(POLICIES), when=When.ANY
    ),
}


class SchedulerNode(Node):
    def __init__(self) -> None:
        super().__init__("scheduler")
        declared, values = declare(self, SPECS), Values(self, SPECS)
        self._file, folder = Path(values.text("factory_file")), values.text("profiles_folder")
        if not values.text("factory_file"):
            raise ConfigurationError("is empty", key="factory_file", fix="name a descriptor: -p factory_file:=/my/factory.yaml")
        self._policy = values.text("policy")
        Changes(self, declared, self._follow)
        profiles = Path(folder) if folder else share() / "config" / "profiles"
        self._profile, self._catalogue = load_profiles(profiles), Catalogue.load(profiles / "models.yaml")
        self._factory = load_factory(self._file)
        names = fleet_names(self)
        self._publisher = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        self.create_service(srv.AdmitRobot, names.admit_robot, self._admit)
        self.create_service(srv.ReleaseRobot, names.release_robot, self._release)
        self.create_service(srv.Replan, names.replan, self._replan)
        self._identity = 1 + secrets.randbelow(2**64 - 1)
        self._followers = Followers(self, names, self._identity)
        self._fleet = self._planned(self._factory, self._factory.robots, 1, None)
        self._publish(self._fleet)
        self._diagnostics = Diagnostics(self, lambda: (self._followers.diagnosis,))
        self._solver = ThreadPoolExecutor(max_workers=1, thread_name_prefix="solver")
        self._background: Future[Fleet] | None = None
        every(self, REPEAT_PERIOD_S, self._repeat)
        every(self, BACKGROUND_PERIOD_S, self._take_background)

    def _follow(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        return functools.partial(setattr, self, "_policy", changed["policy"])  # the only one that is not read-only

    def destroy_node(self) -> None:
        self._solver.shutdown(wait=False, cancel_futures=True)
        super().destroy_node()

    def _planned(self, factory: Factory, robots: list[Robot], epoch: int, previous: Schedule | None) -> Fleet:
        """Raises: `RfmError`; then the schedule in force stays in force."""
        return start_fleet(
            factory,
            robots,
            self._profile,
            self._catalogue,
            epoch=epoch,
            previous=previous,
            policy=self._policy,
            clock=time.monotonic,
        )

    def _publish(self, fleet: Fleet) -> None:
        schedule, self._fleet = fleet.schedule, fleet
        self._message = convert.schedule_to(replace(schedule, scheduler=self._identity), self._factory.name)
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
        try:
            convert.check_name("robot", request.robot)
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        if request.task not in self._factory.tasks:
            return self._refuse(response, 100, f"no task {request.task!r}; there are: {', '.join(self._factory.tasks)}")
        robots = list(self._fleet.robots)
        if any(robot.name == request.robot for robot in robots):
            return self._refuse(response, 100, f"robot {request.robot!r} is admitted already")
        robot = Robot(name=request.robot, task=request.task, index=sum(r.task == request.task for r in robots))
        try:
            fleet = self._fleet.admit(robot)
        except ScheduleError as error:
            self.get_logger().info(f"{robot.name!r} does not fit the placement ({error}): planning the whole factory anew")
            return await self._globally(response, self._factory, [*robots, robot])
        return await self._locally(response, fleet, f"admitted {robot.name!r}; no other route changes")

    async def _release(self, request: Any, response: Any) -> Any:
        try:
            fleet = self._fleet.release(request.robot)
        except ScheduleError as error:
            return self._refuse(response, 100, str(error))
        return await self._locally(response, fleet, f"released {request.robot!r}; no other route changes")

    async def _replan(self, request: Any, response: Any) -> Any:
        """With another descriptor come its robots; without one, those of now stay."""
        try:
            factory = load_factory(Path(request.factory_file) if request.factory_file else self._file)
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        present = [robot for robot in self._fleet.robots if robot.task in factory.tasks]
        return await self._globally(response, factory, factory.robots if request.factory_file else present)

    async def _locally(self, response: Any, fleet: Fleet, what: str) -> Any:
        self.get_logger().info(what)
        self._publish(fleet)
        if fleet.robots:
            robots, epoch, previous = list(fleet.robots), fleet.schedule.epoch + 1, fleet.schedule
            self._background = self._solver.submit(self._planned, self._factory, robots, epoch, previous)
        return await self._answer(response)

    async def _globally(self, response: Any, factory: Factory, robots: list[Robot]) -> Any:
        previous = self._fleet.schedule
        try:
            fleet = self._planned(factory, robots, previous.epoch + 1, previous)
        except RfmError as error:
            return self._refuse(response, error.code, str(error))
        self._factory, self._background = factory, None
        self._publish(fleet)
        return await self._answer(response)

    def _take_background(self) -> None:
        """Goes over to the schedule planned in the background if it is still of this fleet, and worth it."""
        if self._background is None or not self._background.done():
            return
        future, self._background = self._background, None
        try:
            fleet = future.result()
        except RfmError as error:
            self.get_logger().warning(f"the factory could not be planned anew: {error}")
            return
        if fleet.schedule.epoch != self._fleet.schedule.epoch + 1:
            return
        migration = self._fleet.migration_to(fleet.schedule)
        verdict = "published" if migration.worth_it else "not worth it"
        self.get_logger().info(
            f"another schedule would gain {migration.gained_actions:.0f} actions and lose {migration.lost_actions:.0f} "
            f"({len(migration.moved_servers)} servers and {len(migration.moved_robots)} robots move): {verdict}"
        )
        if migration.worth_it:
            self._publish(fleet)

    async def _answer(self, response: Any) -> Any:
        """A schedule that is published is not in force yet: somebody else's may be."""
        epoch = self._fleet.schedule.epoch
        if problem := await self._followers.take(epoch):
            return self._refuse(response, ScheduleError.code, f"schedule {epoch} is published, and {problem}")
        response.success, response.schedule_epoch = True, epoch
        return response

    def _refuse(self, response: Any, code: int, problem: str) -> Any:
        self.get_logger().warning(problem)
        response.success, response.error_code, response.error_msg = False, code, problem
        response.schedule_epoch = self._fleet.schedule.epoch
        return response


def main() -> None:
    run_node(SchedulerNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
