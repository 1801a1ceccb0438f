"""Lifecycle of robots on the graph, and the process of one robot; `robots_node.py` runs many in one process."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.exceptions import ParameterException
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics, Part
from ros2_rfm_serving.ros.node.faulty import Faults
from ros2_rfm_serving.ros.node.hang_watch import progress
from ros2_rfm_serving.ros.node.orders import Gate
from ros2_rfm_serving.ros.node.own_name import OwnName, claim, nameless, say_lost
from ros2_rfm_serving.ros.node.parameters import NOTHING, Spec, unknown
from ros2_rfm_serving.ros.node.runtime import fleet_names, logged, run_node
from ros2_rfm_serving.ros.node.timers import every, turns_of
from ros2_rfm_serving.ros.node.unconfigured import Unconfigured
from ros2_rfm_serving.ros.origin import Origin
from ros2_rfm_serving.ros.robot.body import RobotBody
from ros2_rfm_serving.ros.robot.declared import SPECS
from ros2_rfm_serving.ros.robot.servers import FAREWELL_S, Servers
from ros2_rfm_serving.ros.robot.settings import RobotSettings, declare_autostart, declare_robot, robot_settings
from ros2_rfm_serving.ros.robot.status_watch import StatusWatch
from ros2_rfm_serving.ros.wire.session_messages import check_name
from ros2_rfm_serving.ros.zenoh.joining import diagnosis_of, ends_of
from ros2_rfm_serving.ros.zenoh.tally import LOST

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


class RobotHost(LifecycleNode):
    """Node for robots that share a process, an executor thread and a lifecycle; subclasses choose the robots (`_settings`).

    configure checks the parameters and creates all ROS entities; activate accepts tasks; deactivate stops at once; cleanup and
    shutdown close the sessions and free everything."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._robots: list[RobotBody] = []
        self._unconfigured = Unconfigured(self)
        self._shut()
        self._names = fleet_names(self)
        self._ends: Any = self
        """Transport adapter by which servers are reached."""
        self._servers: Servers | None = None
        self._diagnostics: Diagnostics | None = None
        self._own_names: list[OwnName] = []
        self._faults: Faults | None = None
        self._origin = Origin(self)
        self._watch = StatusWatch(self)
        self._specs: dict[str, Spec] = {}
        with contextlib.suppress(ConfigurationError):  # configure reports it
            self._specs.update(self._declare())
        Changes(self, self._specs, self._accept, configured=lambda: bool(self._robots))
        if declare_autostart(self):
            self._start_timer = every(self, 0.01, self._start_once)

    def _settings(self, changed: Mapping[str, Any] = NOTHING) -> list[RobotSettings]:
        """Return the settings of each robot by the parameters, or as they would be with `changed`. Raises: `ConfigurationError`."""
        raise NotImplementedError

    def _title(self) -> str:
        """Return the name of this node for messages, whether or not its parameters can be used."""
        return str(self.get_name())

    def _shut(self) -> None:
        """Close ROS' own services to unauthorised requests where there are certificates, whether or not these can be used."""

        def count() -> None:
            for robot in self._robots:
                robot.brain.refused["unproven"] += 1

        Gate(self, self.get_name(), None, count).shut()

    # --- parameters ---

    def _declare(self) -> dict[str, Spec]:
        """Declare the parameters and return them by full name. Raises: `ConfigurationError`."""
        return declare_robot(self)

    def _checked(self, changed: Mapping[str, Any]) -> list[RobotSettings]:
        """Return the settings after checking that robots could be created from them. Raises: `ConfigurationError`."""
        settings = self._settings(changed)
        for one in settings:
            RobotCore(one.config)
        return settings

    def _accept(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        """Return a function that changes all robots or none.
        A node whose present parameters are invalid may be corrected one parameter after the other."""
        try:
            settings = self._checked(changed)
        except ConfigurationError:
            if self._robots or self._can_be_configured():
                raise
            settings = []
        prepared = [robot.prepared(one) for robot, one in zip(self._robots, settings, strict=False)]

        def apply() -> None:
            for change in prepared:
                change()

        return apply

    def _can_be_configured(self) -> bool:
        try:
            self._checked(NOTHING)
        except ConfigurationError:
            return False
        return True

    # --- lifecycle ---

    @logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._unconfigured.clear()
        try:
            self._make()
        except (RfmError, ParameterException, ValueError) as error:
            self.get_logger().error(f"cannot be configured: {error}")
            self._free("it could not be configured")
            self._unconfigured.report(self._title(), str(error))
            return FAILURE
        return SUCCESS

    @logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        for robot in self._robots:
            robot.activate()
        return SUCCESS

    @logged
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        for robot in self._robots:
            robot.deactivate("the robot was deactivated")
        return SUCCESS

    @logged
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._free("the robot was cleaned up")
        return SUCCESS

    @logged
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._free("the robot was shut down")
        return SUCCESS

    @logged
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._free("the robot node failed")
        return SUCCESS

    def stop(self) -> None:
        """Close everything before the process ends: clients of running tasks are informed, and servers free the sessions.

        Farewells that are delayed would be lost with the process: on a busy machine their time would come while the executor still
        has replies to handle."""
        names = self._own_names
        self._free("the robot node was stopped")
        say_lost(self, names)
        turns_of(self).end()

    def _start_once(self) -> None:
        self.destroy_timer(self._start_timer)
        if self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def _make(self) -> None:
        self._specs.update(self._declare())
        settings = self._settings()
        for one in settings:
            check_name("robot", one.config.name)
        for name, near in unknown(self).items():
            self.get_logger().warning(f"no parameter is named {name}" + (f" (did you mean {near}?)" if near else ""))
        for one in settings:
            for warning in one.warnings:
                self.get_logger().warning(f"{one.config.name}: {warning}")
        self._own_names = claim(
            self, "robot", [(one.config.name, self._names.robot(one.config.name, "rfm/name")) for one in settings]
        )
        self._faults = self._faults or Faults(self)
        self._ends = ends_of(self, self._lost)
        if self._ends is not self:  # otherwise a gateway on this network would take the robot for another one
            for own in self._own_names:
                own.settle()
        watch = self._watch if self._ends is self else StatusWatch(self._ends)
        self._servers = Servers(self, self._ends, self._names, self._robots, self._faults, watch, self._origin)
        self._diagnostics = Diagnostics(self, self._diagnoses)
        for own in self._own_names:
            own.report = self._diagnostics.publish
        for one in settings:
            self._robots.append(RobotBody(self, one, self._names, self._servers, self._diagnostics.publish))

    def _diagnoses(self) -> list[Part]:
        own = [functools.partial(self._origin.diagnosis, robot.name) for robot in self._robots[:1]]
        robots = [functools.partial(_diagnosis, robot) for robot in self._robots]
        zenoh = [functools.partial(diagnosis_of, robot.name, self._ends) for robot in self._robots[:1] if self._ends is not self]
        return [*(name.diagnosis for name in self._own_names), *robots, *own, *zenoh]

    def _lost(self, topic: str, number: int) -> None:
        for robot in self._robots:
            if topic.startswith(self._names.robot(robot.name, "")):
                robot.brain.refused[LOST] += number

    def _free(self, reason: str) -> None:
        """Stop every robot first, then close their sessions."""
        for robot in self._robots:
            progress()
            robot.deactivate(reason)
        for robot in self._robots:
            progress()
            robot.destroy()
        progress()
        self._unconfigured.clear()
        self._robots.clear()
        for shared in (self._servers, self._diagnostics, *self._own_names):
            if shared is not None:
                shared.destroy()
        self._servers = self._diagnostics = None
        self._own_names = []
        if self._ends is not self:
            turns_of(self).once(2.0 * FAREWELL_S, self._ends.close)
        self._ends = self
        # rclpy's action servers are reference cycles and stay on the graph until they are collected.
        turns_of(self).once(2.0 * FAREWELL_S, gc.collect)


class RobotNode(RobotHost):
    """Process of one robot. Its name is the parameter `robot`, or the last part of the namespace."""

    def __init__(self) -> None:
        super().__init__("robot")

    def _title(self) -> str:
        given = self.get_parameter("robot").value if self.has_parameter("robot") else ""
        return str(given or self.get_namespace().rsplit("/", 1)[-1] or self.get_name())

    def _settings(self, changed: Mapping[str, Any] = NOTHING) -> list[RobotSettings]:
        settings = robot_settings(self, self.get_namespace().rsplit("/", 1)[-1], changed=changed)
        if not settings.config.name:
            raise nameless("robot")
        return [settings]


def _diagnosis(robot: RobotBody) -> DiagnosticStatus | None:
    found: list[DiagnosticStatus] = []
    robot.safely(lambda: found.append(robot.diagnosis()))
    return found[0] if found else None


def main() -> None:
    run_node(RobotNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
