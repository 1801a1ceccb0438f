"""Node of the gateway: the robots and servers that it bridges, and its diagnostics."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from typing import Any

import zenoh
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.monitor.discovery import look
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics, key_values
from ros2_rfm_serving.ros.node.own_name import OwnName, claim, say_lost
from ros2_rfm_serving.ros.node.parameters import Spec, Values, declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.zenoh import format, passing, session
from ros2_rfm_serving.ros.zenoh.calls import Calls
from ros2_rfm_serving.ros.zenoh.carriers import CarriedRobot, CarriedServer, Ways
from ros2_rfm_serving.ros.zenoh.inbox import Inbox
from ros2_rfm_serving.ros.zenoh.inward import Inward
from ros2_rfm_serving.ros.zenoh.presence import Presence
from ros2_rfm_serving.ros.zenoh.tally import Tally

NAME = "zenoh_door"
LOOK_PERIOD_S, SLOW_LOOK_PERIOD_S = 0.05, 1.0
SAID_PERIOD_S = 5.0
RECENT_S = 30.0
"""Time for which a refusal or a loss is reported as a warning."""
HARMLESS = frozenset({"from_robots", "to_robots_carried", "to_robots_unheard", "calls", "out_of_turn"})


class ZenohDoorNode(Node):
    def __init__(self, specs: Mapping[str, Spec], **options: Any) -> None:
        """Create the gateway, which forwards from `begin` on, after `claim`. Raises: `ConfigurationError`."""
        super().__init__(NAME, enable_rosout=False, **options)
        declare(self, specs)
        values = Values(self, specs)
        self._names = fleet_names(self, is_robots=False)
        self._config = session.configuration(values.text("zenoh_config") or session.own_file(), values.text("router"))
        self._max_bytes = int(values.number("max_observation_mb") * 1e6)
        domain = values.integer("zenoh_domain")
        self._domain = self.context.get_domain_id() if domain < 0 else domain
        self._tally, self._inbox = Tally(), Inbox()
        self._presence = Presence(self._names, values.distinct("robots"), self._refuse)
        self._inward = Inward(self._names, self._tally, self._refuse, self._presence.check)
        self._calls = Calls(self._names, self._tally, self._refuse, self._check_asking, values.number("call_timeout_s"))
        self._ways: Ways | None = None
        """Bridges' shared state; None: no router has answered yet."""
        self._servers: dict[str, CarriedServer] = {}
        self._robots: dict[str, CarriedRobot] = {}
        self._taken: set[str] = set()
        """Robots on Zenoh whose name a robot on DDS has."""
        self._schedule: Any = None
        self._bad, self._bad_s, self._slow_look_s = 0, -RECENT_S, -SLOW_LOOK_PERIOD_S
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._live, name="zenoh", daemon=True)
        self._own: list[OwnName] = []
        self._diagnostics = Diagnostics(self, lambda: [self._status, *[name.diagnosis for name in self._own]])

    def claim(self) -> None:
        """Claim the gateway's name, because two gateways would forward everything twice.
        Raises: `ConfigurationError` when the factory has one already."""
        self._own = claim(self, "door", [(NAME, f"{self._names.root}/rfm/{NAME}/name")])
        for name in self._own:
            name.report = self._diagnostics.publish

    def begin(self) -> None:
        self._thread.start()
        every(self, LOOK_PERIOD_S, self._look)

    def stop(self) -> None:
        self._ending.set()
        self._inbox.end()
        if self._ways is not None:
            self._ways.session.close()
        say_lost(self, self._own)

    # --- on the thread of Zenoh's arrivals ---

    def _live(self) -> None:
        opened = self._open()
        if opened is None:
            return
        root = f"{self._domain}{self._names.root}"
        opened.hear(f"{root}/rfm/servers/*/observation/*/*", self._inward.take)
        for own in ("rfm/servers/*/observation", "rfm/status"):
            opened.hear(f"{root}/*/{own}/*/*", self._inward.take, whose=passing.whose)
        opened.watch(self._presence.take)
        self._ways = Ways(self, self._names, self._domain, opened, self._tally, self._max_bytes)
        self._inbox.serve(self._failed)

    def _open(self) -> session.Session | None:
        """Connect to a router, waiting for one if necessary. None: the process ends."""
        node = format.Node(self._domain, "", 0, self.get_namespace(), self.get_name())
        while not self._ending.is_set():
            try:
                return session.Session(self._config, node, self._inbox)
            except zenoh.ZError as error:
                self.get_logger().warning(f"no Zenoh router yet: {session.problem(error)}", throttle_duration_sec=SAID_PERIOD_S)
                self._ending.wait(session.AGAIN_S)
        return None

    def _failed(self) -> None:
        self._tally.count("failed")
        self.get_logger().error(f"a message cost itself:\n{traceback.format_exc()}", throttle_duration_sec=SAID_PERIOD_S)

    def _refuse(self, error: BadMessageError) -> None:
        self._tally.count(f"refused_{error.kind}")
        self.get_logger().warning(f"refused ({error.kind}): {error}", throttle_duration_sec=SAID_PERIOD_S)

    def _check_asking(self, robot: str) -> None:
        if robot:
            self._presence.check(robot)

    # --- on the executor's ---

    def _look(self) -> None:
        if (ways := self._ways) is None:
            return
        now_s = clock()
        self._calls.give_up(now_s)
        if now_s - self._slow_look_s >= SLOW_LOOK_PERIOD_S:
            self._slow_look_s = now_s
            self._taken.clear()
            self._look_for_factory(ways)
        self._look_for_robots(ways)

    def _look_for_robots(self, ways: Ways) -> None:
        there = self._presence.robots()
        for robot in self._robots.keys() - there:
            self._robots.pop(robot).close()
            self.get_logger().info(f"{robot} has left")
        for robot in [robot for robot, carried in self._robots.items() if carried.is_elsewhere]:
            self._robots.pop(robot).close()
            self._leave(robot)
        for robot in sorted(there - self._robots.keys() - self._taken):
            self._come(ways, robot)

    def _come(self, ways: Ways, robot: str) -> None:
        if any(self.count_publishers(self._names.robot(robot, leaf)) for leaf in ("rfm/status", "rfm/name")):
            self._leave(robot)
            return
        self._robots[robot] = CarriedRobot(ways, robot, self._inward)
        self.get_logger().info(f"{robot} has come")

    def _leave(self, robot: str) -> None:
        """Leave the name to the robot on DDS."""
        self._taken.add(robot)
        self._refuse(BadMessageError("name_taken", f"a process on DDS is robot {robot!r} already"))

    def _look_for_factory(self, ways: Ways) -> None:
        if self._schedule is None:
            publish, _ = ways.publish(self._names.schedule, passing.SCHEDULE)
            self._schedule = ways.hear(self._names.schedule, passing.SCHEDULE, publish)
        for server in sorted(look(self, self._names).servers - self._servers.keys()):
            self._servers[server] = CarriedServer(ways, server, self._inward, self._calls)

    def _status(self) -> DiagnosticStatus:
        """Return the diagnostics of `zenoh_door: door`."""
        ways, counts, now_s = self._ways, {**self._tally.taken(), **self._inbox.overrun}, clock()
        bad = sum(times for what, times in counts.items() if what not in HARMLESS)
        if bad > self._bad:
            self._bad, self._bad_s = bad, now_s
        level, message = DiagnosticStatus.OK, "carrying"
        if now_s - self._bad_s < RECENT_S:
            level, message = DiagnosticStatus.WARN, f"{bad} messages and requests were not carried"
        if ways is None or not ways.session.connected:
            level, message = DiagnosticStatus.ERROR, "no Zenoh router is connected"
        values = {
            "robots": len(self._robots),
            "servers": sum(server.offered for server in self._servers.values()),
            **dict(sorted(counts.items())),
        }
        return DiagnosticStatus(level=level, name=f"{NAME}: door", message=message, hardware_id=NAME, values=key_values(values))
