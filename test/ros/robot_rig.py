"""A robot's surroundings in one process: a server that answers at once, a client of its tasks, ears for what it publishes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg, srv
from std_msgs.msg import Float32MultiArray, Float64MultiArray
from std_srvs.srv import Trigger

from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import convert, qos, session_messages
from test.unit.fakes import CONTRACT, chunk, rows
from test.waiting import eventually, watch

ATTEMPTS, ANSWER_S = 4, 30.0
"""Of sending a goal, and how long its answer is awaited."""


class FakeServer(Node):
    """Grants every session, acknowledges every episode, answers every observation with one chunk; remembers what it was told."""

    def __init__(self, name: str = "s1") -> None:
        super().__init__(f"fake_{name}")
        self.opened: dict[str, int] = {}
        """Robot -> epoch of its newest session."""
        self.closed: list[tuple[str, int]] = []
        self.resets: list[tuple[str, int]] = []
        self.observations: list[Any] = []
        self._name, self._epoch = name, 10
        self._chunks: dict[str, Any] = {}
        names = qos.Names()
        self._status = self.create_publisher(msg.ServerStatus, names.server(name, "status"), qos.SERVER_STATUS)
        self.create_subscription(msg.Observation, names.server(name, "observation"), self._on_observation, qos.OBSERVATION_RECEIVED)
        self.create_service(srv.OpenSession, names.server(name, "open_session"), self._on_open)
        self.create_service(srv.CloseSession, names.server(name, "close_session"), self._on_close)
        self.create_service(srv.ResetEpisode, names.server(name, "reset_episode"), self._on_reset)
        self.create_timer(0.2, self._tell)

    def _tell(self) -> None:
        status = msg.ServerStatus(state=msg.ServerStatus.READY)
        status.header.frame_id = self._name
        self._status.publish(status)

    def _on_open(self, request: Any, response: Any) -> Any:
        self._epoch += 1
        self.opened[request.robot] = response.session_epoch = self._epoch
        topic = qos.Names().robot(request.robot, "rfm/action_chunk")
        self._chunks.setdefault(request.robot, self.create_publisher(msg.ActionChunk, topic, qos.REPLY))
        response.success = True
        return session_messages.contract_to(CONTRACT, response)

    def _on_close(self, request: Any, response: Any) -> Any:
        self.closed.append((request.robot, request.session_epoch))
        response.success = True
        return response

    def _on_reset(self, request: Any, response: Any) -> Any:
        self.resets.append((request.robot, request.episode))
        response.success = True
        return response

    def _on_observation(self, message: Any) -> None:
        self.observations.append(message)
        request = convert.observation_from(message)
        answer = convert.reply_to(chunk(request, rows(1.0)))
        self._chunks[request.id.robot].publish(answer)


class RobotClient:
    """What a test has of one robot."""

    def __init__(self, node: Node, robot: str) -> None:
        self.status: Any = None
        self.commands: list[np.ndarray] = []
        self.feedback: list[Any] = []
        self._node = node
        names = qos.Names()
        node.create_subscription(msg.RobotStatus, names.robot(robot, "rfm/status"), self._on_status, qos.ROBOT_STATUS)
        node.create_subscription(Float64MultiArray, names.robot(robot, "command"), self._on_command, qos.COMMAND)
        self.state = node.create_publisher(Float32MultiArray, names.robot(robot, "state"), qos.SENSOR)
        self.task = ActionClient(node, action.ExecuteTask, names.robot(robot, "execute_task"))
        self.services = {
            leaf: node.create_client(Trigger, names.robot(robot, f"rfm/{leaf}")) for leaf in ("pause", "resume", "abort")
        }

    def sense(self, size: int = 3) -> None:
        self.state.publish(Float32MultiArray(data=[0.0] * size))

    def send_goal(self, **goal: Any) -> Any:
        return self.task.send_goal_async(action.ExecuteTask.Goal(**goal), lambda m: self.feedback.append(m.feedback))

    def _on_status(self, message: Any) -> None:
        self.status = message

    def _on_command(self, message: Any) -> None:
        self.commands.append(np.asarray(message.data))


class Rig:
    """One executor for the node under test, a peer, and a server."""

    make_server: Callable[[], FakeServer] = FakeServer

    def __init__(self, tested: Node, *robots: str) -> None:
        self.tested, self.peer, self.server = tested, Node("peer"), self.make_server()
        self.nodes = [tested, self.peer, self.server]
        self.executor = executor()
        for node in self.nodes:
            self.executor.add_node(node)
        self.diagnostics: dict[str, Any] = {}
        """By the status' name: the newest."""
        self.levels: dict[str, list[bytes]] = defaultdict(list)
        self.robots = {robot: RobotClient(self.peer, robot) for robot in robots}
        self.peer.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.schedule = self.peer.create_publisher(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)

    def close(self) -> None:
        self.executor.shutdown()  # else it keeps publishers alive, which the next test would hear
        for robot in self.robots.values():
            robot.task.destroy()  # which the node does not, and which would keep its participant on the graph
        for node in self.nodes:
            node.destroy_node()

    def wait(self, until: Callable[[], Any], what: str = "", seconds: float = 120.0) -> Any:
        found = eventually(until, seconds, self._turn)
        statuses = {
            name: robot.status and (robot.status.state, robot.status.phase, robot.status.reason)
            for name, robot in self.robots.items()
        }
        assert found, f"waited in vain for {what}; statuses (state, phase, reason): {statuses}"
        return found

    def spin(self, seconds: float) -> None:
        watch(seconds, self._turn)

    def _turn(self) -> None:
        self.executor.spin_once(timeout_sec=0.02)

    def call(self, service: Any) -> Any:
        self.wait(service.service_is_ready, service.srv_name)
        future = service.call_async(Trigger.Request())
        return self.wait(lambda: future.done() and future.result(), service.srv_name)

    def goal(self, robot: str, **goal: Any) -> Any:
        """Return the handle of an accepted goal. A goal is sent again when no answer comes: on a busy machine rmw_fastrtps drops an
        answer whose client it has not discovered within 100 ms, and rclpy the goal with it (ros2/rmw_fastrtps#842)."""
        client = self.robots[robot]
        self.wait(client.task.server_is_ready, "the action")
        for _ in range(ATTEMPTS):
            sending = client.send_goal(**goal)
            if handle := eventually(lambda sending=sending: sending.done() and sending.result(), ANSWER_S, self._turn):
                break
        else:
            self.wait(lambda: False, "the goal's answer", seconds=1.0)
        assert handle.accepted
        return handle

    def result(self, handle: Any) -> Any:
        future = handle.get_result_async()
        return self.wait(lambda: future.done() and future.result(), "the result").result

    def values(self, robot: str) -> dict[str, str]:
        """Of its diagnostics."""
        status = self.diagnostics.get(f"{robot}: robot")
        return {value.key: value.value for value in status.values} if status else {}

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            self.diagnostics[status.name] = status
            self.levels[status.name].append(status.level)
