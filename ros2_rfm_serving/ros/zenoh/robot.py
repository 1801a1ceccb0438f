"""A robot without a ROS node: its decision core, with all safety functions, in a user's program, and servers through a Zenoh
router.

No node and no DDS is started. The program that drives the robot reads its sensors, and calls `tick` once per control period:

    robot = ZenohRobot(settings_of(load_factory(file), "push_1"), router="tcp/plant:7447")
    robot.start("push the puck to the green goal", budget_s=25.0)
    while robot.works:
        drive(robot.tick(read_sensors()))
        robot.serve(until_s)

The argument of `drive` is within the robot's limits; None: nothing may be commanded, and a robot without a command stands still.
"""

from __future__ import annotations

import math
import queue
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rclpy.clock import Clock
from rclpy.logging import get_logger
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.dynamic_robot import dynamic_robot_entry
from ros2_rfm_serving.factory.nodes import merged_parameters, node_list, robot_nodes
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.robot import RobotCore, Sensors, TaskGoal
from ros2_rfm_serving.ros.node.draft import draft
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import Speaker
from ros2_rfm_serving.ros.robot.listening import Listening
from ros2_rfm_serving.ros.robot.servers import HEARD, Servers
from ros2_rfm_serving.ros.robot.sessions import Sessions
from ros2_rfm_serving.ros.robot.settings import RobotSettings, robot_settings
from ros2_rfm_serving.ros.robot.status import Punctuality, status_message
from ros2_rfm_serving.ros.robot.status_watch import StatusWatch
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.ros.zenoh import session
from ros2_rfm_serving.ros.zenoh.ends import ZenohEnds
from ros2_rfm_serving.ros.zenoh.format import Node
from ros2_rfm_serving.ros.zenoh.tally import LOST
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import Reply, TaskOutcome

FAREWELL_S = 0.2
"""Time for the last messages."""


def settings_of(factory: Factory, robot: str, task: str = "") -> RobotSettings:
    """Return a robot's settings as its node would have them.
    task: for a robot that the descriptor need not contain; the factory admits it in addition. Raises: `ConfigurationError`."""
    config = shipped("config")
    nodes = robot_nodes(factory, dynamic_robot_entry(factory, robot, task), config) if task else node_list(factory, config)
    robots = [node for node in nodes if node.executable == "robot_node"]
    node = next((node for node in robots if node.name == robot), None)
    if node is None:
        fix = did_you_mean(robot, [node.name for node in robots])
        raise ConfigurationError(f"no robot is named {robot!r}", file=factory.file, key="robot_fleet", fix=fix)
    return robot_settings(draft(merged_parameters(node)), robot)


class ZenohRobot:
    """Robot on Zenoh, for one thread. It reads the monotonic clock."""

    def __init__(
        self, settings: RobotSettings, *, router: str = "", zenoh_config: str = "", domain: int = 0, namespace: str = ""
    ) -> None:
        """Connect. router: such as `tls/plant:7447`; it has no effect where `zenoh_config`, or the configuration beside the
        process' own certificate, says how to connect. domain, namespace: of the factory. Raises: `ConfigurationError`."""
        self.settings, self.name = settings, settings.config.name
        self.brain = RobotCore(settings.config)
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        names, log = qos.Names(namespace), get_logger(self.name)
        config = session.configuration(zenoh_config or session.own_file(), router)
        node = Node(domain, "", 0, f"{names.root}/{self.name}", "robot")
        self.ends = ZenohEnds(config, node, self._waiting.put, log, self._lost)
        ground: Any = _Ground(log)
        self._ground = ground
        self._servers = Servers(ground, self.ends, names, [self], ground, StatusWatch(self.ends), ground)
        self._sessions = Sessions(ground, self._servers, self)
        for kind, leaf, read in HEARD:
            take = partial(self.safely, self._on_reply, read)
            name, prove = names.robot(self.name, leaf), self._servers.proofs.check
            bounded.hear(self.ends, kind, name, take, qos.REPLY, self.refuse, prove=prove)
        bounded.hear(self.ends, msg.RequestId, names.robot(self.name, "rfm/refetch"), self._on_refetch, qos.REFETCH, self.refuse)
        self._status = self.ends.create_publisher(msg.RobotStatus, names.robot(self.name, "rfm/status"), qos.ROBOT_STATUS)
        self._punctuality = Punctuality(1.0 / settings.config.control_rate_hz, on_grid=True)
        self._speaker = Speaker(self.name)
        self._listening = Listening(self.brain)
        self._told: object = None
        self._told_s = -math.inf

    def start(self, instruction: str = "", *, budget_s: float = 0.0) -> None:
        """Start a task. instruction: by default as configured. Raises: `AssertionError` while another one is in progress."""
        assert not self.works, "a task is under way"
        budget_s = budget_s or self.settings.config.default_budget_s
        goal = TaskGoal(
            task=self.settings.task, instruction=instruction or self.settings.instruction, time_budget_s=budget_s, reset=False
        )
        self.brain.start(goal, clock())

    @property
    def works(self) -> bool:
        """True while a task has begun and has no result yet."""
        return self.brain.task is not None and self.brain.task.result is None

    def tick(self, sensors: Sensors | None) -> Any:
        """Run one control period and return the command [A], or None. sensors: None when there are no readings."""
        self.serve(0.0)
        now_s = clock()
        self._punctuality.ticked(now_s)
        tick = self.brain.tick(sensors, now_s)
        for server, request in tick.requests:
            self._servers.send(server, request)
        for server, opening in tick.opens:
            self._sessions.open(server, opening)
        for reset in tick.resets:
            self._sessions.reset(reset)
        self._tell(now_s)
        self._punctuality.durations.add(clock() - now_s)
        return tick.command

    def serve(self, until_s: float) -> None:
        """Process arrivals until a time of the monotonic clock. A chunk that arrives before `tick` counts in it."""
        self._listening.now_s()
        while True:
            self._ground.ring(clock())
            try:
                callback = self._waiting.get(timeout=max(0.0, until_s - clock()))
            except queue.Empty:
                return
            callback()
            if clock() >= until_s:  # even when more has arrived
                return

    def close(self) -> None:
        """End the task, and close the sessions."""
        if self.works:
            self.brain.cancel(TaskOutcome.SHUTDOWN, "the robot is gone", clock())
        self._sessions.close_all()
        self.serve(clock() + FAREWELL_S)
        self.ends.close()

    # --- as `Servers` sees it ---

    def safely(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception:
            self._ground.get_logger().error(f"a callback failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0)

    def _on_reply(self, read: Callable[[Any], Reply], message: Any) -> None:
        try:
            self.brain.on_reply(read(message), clock())
        except BadMessageError as error:
            self.refuse(error)

    def _on_refetch(self, message: Any) -> None:
        self.brain.request_refetch(convert.id_from(message))

    def refuse(self, error: BadMessageError) -> None:
        self.brain.refused[error.kind] += 1

    def _lost(self, topic: str, number: int) -> None:
        self.brain.refused[LOST] += number

    def _tell(self, now_s: float) -> None:
        """Publish the status twice a second, and at once when it changes."""
        told = self.brain.state, self.brain.task.phase if self.brain.task else None
        if told == self._told and now_s - self._told_s < qos.STATUS_PERIOD_S:
            return
        self._told, self._told_s = told, now_s
        status = status_message(self.brain, self.settings.task, self._punctuality, now_s)
        self._status.publish(self._speaker.numbered(convert.stamped(status, self._ground)))


@dataclass(eq=False)
class _Timer:
    period_s: float
    callback: Callable[[], object]
    next_s: float


class _Ground:
    """Stand-in for the parts of a node, its fault injection and its descriptor that the server clients need."""

    def __init__(self, log: Any) -> None:
        self._log, self._clock = log, Clock()
        self._timers: list[_Timer] = []

    def get_logger(self) -> Any:
        return self._log

    def get_clock(self) -> Clock:
        return self._clock

    def create_timer(self, period_s: float, callback: Callable[[], object], clock: object = None) -> _Timer:
        self._timers.append(_Timer(period_s, callback, 0.0))
        return self._timers[-1]

    def destroy_timer(self, timer: _Timer) -> None:
        self._timers.remove(timer)

    def ring(self, now_s: float) -> None:
        """Call the timers that are due."""
        for timer in [timer for timer in self._timers if now_s >= timer.next_s]:
            timer.next_s = now_s + timer.period_s
            timer.callback()

    def passing(self, on: Callable[[Any], Any], direction: object, *, reliable: bool = False) -> Callable[[Any], Any]:
        return on

    def calling(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return call

    def hear(self, schedule: Any) -> None:
        """Ignore the schedule: there is no descriptor to compare."""
