"""Clients of the model servers that robots use. Each server's entities exist once per process, for any number of robots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.ros.following import describe, say
from ros2_rfm_serving.ros.node.faulty import Faults
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import turns_of
from ros2_rfm_serving.ros.origin import Origin
from ros2_rfm_serving.ros.robot.inquiry import Inquiry
from ros2_rfm_serving.ros.robot.proofs import Proofs
from ros2_rfm_serving.ros.robot.status_watch import Hearing, StatusWatch
from ros2_rfm_serving.ros.robot.vouched import HOLD_S
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.ros.wire.schedules import ScheduleReader
from ros2_rfm_serving.types import ObservationRequest, Reply, Schedule, ScheduleVerdict, ServerState

MOST_UNVOUCHED = 8
FAREWELL_S = 0.2
"""Time for the replies to the last calls; then the clients are destroyed."""
HEARD: Sequence[tuple[type, str, Callable[[Any], Reply]]] = (
    (msg.ActionChunk, "rfm/action_chunk", convert.chunk_from),
    (msg.Judgement, "rfm/judgement", convert.verdict_from),
    (msg.Plan, "rfm/plan", convert.plan_from),
)
"""Replies of servers to a robot: message type, topic, and the function that reads it."""
SERVICES = {srv.OpenSession: "open_session", srv.CloseSession: "close_session", srv.ResetEpisode: "reset_episode"}


class ServedRobot(Protocol):
    """A robot of this process, as `Servers` and `Sessions` use it."""

    name: str
    brain: RobotCore

    def refuse(self, error: BadMessageError) -> None:
        """Count a message that cannot be used, and keep the reason."""

    def safely(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function; an exception costs this robot that message and affects no other."""


class _Server(NamedTuple):
    """Entities of one server, and the functions that send through the network."""

    observation: Any
    clients: dict[type, Any]
    """Clients by service type."""
    send: Callable[[Any], Any]
    """Function that sends an observation."""
    calls: dict[type, Callable[[Any], Any]]


class Servers:
    """Distributor of schedule and server status to this process' robots, and of their observations and calls to the servers."""

    def __init__(
        self,
        node: Node,
        ends: Any,
        names: qos.Names,
        robots: Sequence[ServedRobot],
        faults: Faults,
        watch: StatusWatch,
        origin: Origin,
    ) -> None:
        """Subscribe to the schedule.
        ends: transport adapter, the node itself or its Zenoh counterpart. robots: a view that may change at any time."""
        self.faults, self.ends, self.proofs = faults, ends, Proofs()
        self._node, self._names, self._robots, self._watch, self._origin = node, names, robots, watch, origin
        self._servers: dict[str, _Server] = {}
        self._users: dict[str, list[ServedRobot]] = defaultdict(list)
        """Server -> robots with a route to it."""
        self._read = ScheduleReader()
        on_schedule = faults.passing(self._on_schedule, Direction.DOWN, reliable=True)
        self._schedule = bounded.hear(
            ends,
            msg.Schedule,
            names.schedule,
            on_schedule,
            qos.SCHEDULE_HEARD,
            self._refuse,
            repeated=True,
            prove=self.proofs.check_schedule,
        )
        self._unvouched: dict[int, Any] = {}
        """Scheduler -> its last schedule, for schedulers for which no server has vouched yet; few, as servers follow few."""
        self._asserted = set[str]()
        """Servers that the middleware has reported to be alive."""
        self._inquiry = Inquiry(self.proofs, self.call)

    def __contains__(self, server: str) -> bool:
        return server in self._servers

    def send(self, server: str, request: ObservationRequest) -> None:
        self._servers[server].send(convert.stamped(convert.observation_to(request), self._node))

    def call(self, server: str, service: type, request: Any) -> Any:
        """Return the future of the reply; None: the service is not available (yet)."""
        if not self._servers[server].clients[service].service_is_ready():
            return None
        return self._servers[server].calls[service](request)

    def destroy(self) -> None:
        """Destroy all entities; the clients remain a moment for the last replies."""
        self.ends.destroy_subscription(self._schedule)
        self._watch.silence()
        for server in self._servers.values():
            self.ends.destroy_publisher(server.observation)
        clients = [client for server in self._servers.values() for client in server.clients.values()]
        self._servers.clear()
        self._users.clear()
        self._unvouched.clear()
        turns_of(self._node).once(FAREWELL_S, lambda: [self.ends.destroy_client(client) for client in clients])

    def _refuse(self, error: BadMessageError) -> None:
        """Count a refused message on every robot of this process."""
        for robot in self._robots:
            robot.refuse(error)

    # --- the schedule ---

    def _on_schedule(self, message: Any) -> None:
        self._unvouched.pop(message.scheduler, None)
        if not self.proofs.takes(message, clock()):
            self._hold_back(message)
            return
        try:
            schedule = self._read(message)
        except BadMessageError as error:
            self._refuse(error)
            self._node.get_logger().warning(f"refused a schedule: {error}")
            return
        now_s = clock()
        for robot in self._robots:
            robot.safely(self._follow, robot, schedule, now_s)
        if any(robot.brain.schedule_follower.schedule is schedule for robot in self._robots):
            self._origin.hear(message)

    def _hold_back(self, message: Any) -> None:
        """Keep a schedule until a server vouches for its scheduler, such as one that it assigns to robots of this process."""
        for robot in self._robots:
            robot.brain.refused["untimely_schedule"] += 1
        if not self._unvouched:
            turns_of(self._node).once(HOLD_S, self._look_again)
        if len(self._unvouched) < MOST_UNVOUCHED:
            self._unvouched[message.scheduler] = message
        mine = {robot.name for robot in self._robots}
        routes = [route for route in message.routes if route.robot in mine]
        for server in filter(None, {server for route in routes for server in (route.server, route.standby)}):
            self._reach(server)

    def _look_again(self) -> None:
        """Check the held schedules again: a schedule need not be repeated to count."""
        now_s = clock()
        if waiting := next((message for message in self._unvouched.values() if self.proofs.takes(message, now_s)), None):
            self._on_schedule(waiting)

    def _follow(self, robot: ServedRobot, schedule: Schedule, now_s: float) -> None:
        following = robot.brain.schedule_follower
        before = describe(following.schedule)
        heard = robot.brain.on_schedule(schedule, now_s)
        if heard is not ScheduleVerdict.REPEATED:
            say(self._node, robot.name, heard, schedule, before)
        if not heard.is_accepted:
            return
        routes = schedule.routes_of(robot.name).values()
        for server in {server for route in routes for server in (route.server, route.standby) if server}:
            users = self._reach(server)
            if robot not in users:
                users.append(robot)

    def _reach(self, server: str) -> list[ServedRobot]:
        """Connect to a server if necessary, and return the robots with a route to it."""
        if server not in self._servers:
            self._servers[server] = self._connect(server)
        return self._users[server]

    def _connect(self, server: str) -> _Server:
        """Create all entities of a server ahead of need, because discovery takes time."""
        ends, name = self.ends, self._names.server
        on_status = self.faults.passing(self._on_status, Direction.DOWN, reliable=True)
        prove = partial(self.proofs.check_status, server)
        hearing = Hearing(on_status, lambda event: self._on_liveliness(server, event), self._refuse, prove)
        self._watch.hear(name(server, "status"), hearing)
        publisher = ends.create_publisher(msg.Observation, name(server, "observation"), qos.OBSERVATION_SENT)
        clients = {
            service: ends.create_client(service, name(server, leaf), qos_profile=qos.CONTROL) for service, leaf in SERVICES.items()
        }
        return _Server(
            observation=publisher,
            clients=clients,
            send=self.faults.passing(lambda message: publisher.publish(self.proofs.sealed(server, message)), Direction.UP),
            calls={service: self.faults.calling(client.call_async) for service, client in clients.items()},
        )

    # --- statuses of servers ---

    def _on_status(self, message: Any) -> None:
        server, now_s = message.header.frame_id, clock()
        if server not in self._users:
            return
        if self._robots:
            self._inquiry.hear(server, message, self._robots[0].name, now_s)
        word = self.proofs.hear(server, message, now_s)
        if not word.counts:
            return
        if word.vouches and (waiting := self._unvouched.get(message.scheduler)):
            self._on_schedule(waiting)
        for robot in self._users.get(server, ()):
            if message.state == ServerState.LOADING:
                robot.safely(robot.brain.on_server_loading, server, now_s)
            else:
                robot.safely(robot.brain.on_server_status, server, message.state == ServerState.READY, now_s)

    def _on_liveliness(self, server: str, event: Any) -> None:
        """Report that a server is alive or lost, by the middleware.

        Liveliness is not signed. With certificates it counts once per server, which then has time to load and to publish its
        status. Otherwise a process that asserts it repeatedly would make starting robots wait for a server that has gone, and not
        use its standby."""
        if event.alive_count > 0:
            if self.proofs.verifier is not None and server in self._asserted:
                return
            self._asserted.add(server)
        for robot in self._users[server]:
            if event.alive_count > 0:
                robot.safely(robot.brain.on_server_alive, server, clock())
            elif event.alive_count_change < 0:
                robot.safely(robot.brain.on_server_lost, server, clock(), f"{server} is not alive")
