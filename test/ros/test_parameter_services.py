"""What `ros2 param set` and `describe` do to each node at work, through the parameter services themselves."""

from __future__ import annotations

import array
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters, SetParametersAtomically
from rclpy.action import ActionServer
from rclpy.node import Node
from rclpy.parameter import Parameter, parameter_value_to_python
from rfm_serving import action, msg, srv
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Trigger

from ros2_rfm_serving.factory.nodes import parameter_file
from ros2_rfm_serving.ros.foreman_node import ForemanNode
from ros2_rfm_serving.ros.metaworld_robot_node import MetaworldRobotNode
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.robots_node import RobotsNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire import convert, qos
from test.ros.robot_rig import Rig
from test.unit.fakes import JPEG, schedule

ROBOT: dict[str, Any] = {
    "state_size": 3,
    "cameras": ["front"],
    "action_names": ["x", "y"],
    "control_rate_hz": 50,  # an integer will do
    "action_state": [0, 1],
    "limits": {"tolerance": 10, "upper": [100.0, 100.0]},
}
FACTORY = """
server_cluster: {num_servers: 2, gpu_type: EMULATED}
robot_fleet:
  - {task: arm, num_robots: 2}
arm:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: emulated/arm-policy, prompt: stay, slo_ms: 300}
"""
OWN = {"use_sim_time", "start_type_description_service"}
"""Parameters of rclpy's."""
NODES: dict[str, tuple[type[Node], dict[str, Any]]] = {
    "robot": (RobotNode, {"robot": "r1", **ROBOT}),
    "robots": (RobotsNode, {"robots": ["r1", "r2"], "r2": {"default_budget_s": 7.0}, **ROBOT}),
    "model_server": (
        ModelServerNode,
        {"server": "s1", "model": "emulated/arm-policy", "gpu_type": "EMULATED", "batch_size": 2, "max_sessions": 4},
    ),
    "scheduler": (SchedulerNode, {}),
    "metaworld_robot": (MetaworldRobotNode, {"robot": "r1", "image_size_px": 32}),
    "foreman": (ForemanNode, {"robots": ["r1"], "pause_s": 0.1}),
}


class Services:
    """A node under test on one executor with a client of its parameters, as ros2cli is one."""

    def __init__(self, name: str) -> None:
        self.node, self.peer = NODES[name][0](), Node("parameter_client")
        self.nodes = [self.node, self.peer]
        self.executor = self._spinning()
        path = self.node.get_fully_qualified_name()
        self._clients = {
            kind: self.peer.create_client(kind, f"{path}/{leaf}")
            for kind, leaf in (
                (SetParameters, "set_parameters"),
                (SetParametersAtomically, "set_parameters_atomically"),
                (DescribeParameters, "describe_parameters"),
                (GetParameters, "get_parameters"),
                (ListParameters, "list_parameters"),
            )
        }

    def _spinning(self) -> Any:
        made = executor()
        for node in self.nodes:
            made.add_node(node)
        return made

    def close(self) -> None:
        self.executor.shutdown()
        getattr(self.node, "stop", lambda: None)()
        for node in self.nodes:
            node.destroy_node()

    def wait(self, until: Callable[[], Any], what: str = "", seconds: float = 120.0) -> Any:
        end_s = time.monotonic() + seconds
        while not (found := until()):
            assert time.monotonic() < end_s, f"waited in vain for {what}"
            self.executor.spin_once(timeout_sec=0.02)
        return found

    def hear(self, kind: type, topic: str, profile: Any) -> list[Any]:
        heard: list[Any] = []
        self.nodes[-1].create_subscription(kind, topic, heard.append, profile)
        return heard

    def call(self, kind: type, name: str, **fields: Any) -> Any:
        client = self.peer.create_client(kind, name)
        self.wait(client.service_is_ready, name)
        future = client.call_async(kind.Request(**fields))  # type: ignore[attr-defined]
        return self.wait(lambda: future.done() and future.result(), name)

    def _ask(self, kind: Any, **fields: Any) -> Any:
        client = self._clients[kind]
        self.wait(client.service_is_ready, str(kind))
        future = client.call_async(kind.Request(**fields))
        return self.wait(lambda: future.done() and future.result(), f"an answer of {kind.__name__}")

    def set(self, name: str, value: Any) -> SetParametersResult:
        return self._ask(SetParameters, parameters=[message(name, value)]).results[0]

    def set_together(self, **values: Any) -> SetParametersResult:
        parameters = [message(name.replace("__", "."), value) for name, value in values.items()]
        return self._ask(SetParametersAtomically, parameters=parameters).result

    def get(self, name: str) -> Any:
        (value,) = self._ask(GetParameters, names=[name]).values
        found = parameter_value_to_python(value)
        return list(found) if isinstance(found, array.array) else found

    def describe(self, *names: str) -> list[ParameterDescriptor]:
        return list(self._ask(DescribeParameters, names=list(names)).descriptors)

    def names(self) -> list[str]:
        found = self._ask(ListParameters, depth=ListParameters.Request.DEPTH_RECURSIVE).result.names
        return [name for name in found if name not in OWN and not name.startswith("qos_overrides.")]


def message(name: str, value: Any) -> Any:
    if value == []:
        return Parameter(name, Parameter.Type.BOOL_ARRAY, []).to_parameter_msg()  # as `ros2 param set` sends it
    return Parameter(name, value=value).to_parameter_msg()


@pytest.fixture
def make(ros_domain: int, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(name: str, rig: Callable[[str], Any] = Services, **changes: Any) -> Any:
        factory = tmp_path / "factory.yaml"
        factory.write_text(FACTORY)
        given = NODES[name][1] | ({"factory_file": str(factory)} if name == "scheduler" else {}) | changes
        file = tmp_path / "parameters.yaml"
        file.write_text(parameter_file(given))
        rclpy.init(args=["--ros-args", "--params-file", str(file)])
        made.append(rig(name))
        return made[0]

    try:
        yield make
    finally:
        for rig in made:
            rig.close()
        rclpy.try_shutdown()


def at_work(rig: Services) -> None:
    """Until it is configured."""
    if isinstance(rig.node, ModelServerNode):
        heard = rig.hear(msg.ServerStatus, "/rfm/servers/s1/status", qos.SERVER_STATUS)
        rig.wait(lambda: heard and heard[-1].state == msg.ServerStatus.READY, "a server that serves")
    if isinstance(rig.node, RobotNode | RobotsNode):
        rig.wait(lambda: rig.node._robots, "robots")


@pytest.mark.parametrize("name", NODES)
def test_every_parameter_has_a_type_a_meaning_and_says_when_it_may_change(make: Callable[..., Services], name: str) -> None:
    rig = make(name)
    at_work(rig)
    described = rig.describe(*rig.names())
    assert len(described) >= 4
    for one in described:
        assert one.type and not one.dynamic_typing, one
        assert one.description and "change" in one.additional_constraints, one
        assert one.read_only is ("restart" in one.additional_constraints), one


MEND = "deactivate"
REFUSED: list[tuple[str, str, Any, str]] = [
    ("robot", "execution_horizon", "abc", "type"),
    ("robot", "instruction", "x" * 100_000, "characters are too long"),
    ("server", "hung_after_s", 1e-9, "healthy process"),
    ("robot", "execution_horizon", 0, "range"),
    ("robot", "execution_horizon", True, "type"),
    ("robot", "command_type", "foo", "unknown"),
    ("robot", "command_type", "velocity", MEND),
    ("robot", "action_names", ["a", "b"], MEND),
    ("robot", "control_rate_hz", math.nan, "range"),
    ("robot", "max_sensor_skew_s", math.nan, "range"),
    ("robot", "limits.upper", [1.0], "1 values for 2 actions"),
    ("robot", "limits.upper", [1.0, math.nan], "not a number"),
    ("robot", "limits.max_acceleration", [1.0, 0.0], "above zero"),
    ("robot", "fallback", [], "is empty"),
    ("robot", "fallback", ["repeat_last"], "stops nothing"),
    ("robot", "fallback", ["safe_pose"], "safe_pose"),
    ("robot", "component_prompts", ["no equals sign"], "key=value"),
    ("robot", "execution_horizont", 3, "declared"),
    ("robot", "fleet_namespace", "other", "read-only"),
    ("robots", "robots", ["r1"], MEND),
    ("robots", "r2.default_budget_s", 0.0, "range"),
    ("robots", "r3.default_budget_s", 1.0, "declared"),
    ("robots", "limits.upper", [1.0, 2.0, 3.0], "3 values for 2 actions"),
    ("model_server", "dispatch", "foo", "no dispatch policy is named 'foo'"),
    ("model_server", "batching", "foo", "unknown"),
    ("model_server", "model", "x", MEND),
    ("model_server", "batch_size", 0, "range"),
    ("model_server", "max_sessions", 0, "measured"),
    ("model_server", "refetch_after_s", math.nan, "range"),
    ("model_server", "server", "s2", "read-only"),
    ("scheduler", "policy", "foo", "unknown"),
    ("scheduler", "factory_file", "x", "read-only"),
    ("metaworld_robot", "camera_rate_hz", 0.0, "range"),
    ("metaworld_robot", "seed", "x", "type"),
    ("metaworld_robot", "task", "push", "read-only"),
    ("foreman", "pause_s", 0.0, "range"),
    ("foreman", "episodes", -1, "range"),
    ("foreman", "robots", ["r9"], "read-only"),
]


@pytest.mark.parametrize("name", NODES)
def test_what_cannot_be_is_refused_with_the_reason_and_changes_nothing(make: Callable[..., Services], name: str) -> None:
    rig = make(name)
    at_work(rig)
    before = {known: rig.get(known) for known in rig.names()}
    settings = [body.settings for body in getattr(rig.node, "_robots", [])]
    for _, parameter, value, why in (row for row in REFUSED if row[0] == name):
        answer = rig.set(parameter, value)
        assert not answer.successful and why in answer.reason, (parameter, value, answer)
    assert {known: rig.get(known) for known in rig.names()} == before
    assert [body.settings for body in getattr(rig.node, "_robots", [])] == settings


class AtWork(Services):
    """The robot `r1` with a server that answers."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.image = self.rig.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", qos.SENSOR)
        self.frame = CompressedImage(format="jpeg")
        convert.put(self.frame, "data", array.array("B", JPEG))
        self.rig.peer.create_timer(0.02, self._sense)

    def _spinning(self) -> Any:
        self.rig = Rig(self.node, "r1")
        self.rig.executor.add_node(self.peer)
        self.nodes = [*self.rig.nodes, self.peer]
        return self.rig.executor

    def _sense(self) -> None:
        self.image.publish(self.frame)
        self.rig.robots["r1"].sense()

    def work(self) -> None:
        self.rig.schedule.publish(convert.schedule_to(schedule(), "f"))
        self.rig.goal("r1", time_budget_s=600.0)

    def largest(self) -> float:
        """Of the commands of about a second."""
        commands = self.rig.robots["r1"].commands
        commands.clear()
        self.wait(lambda: len(commands) > 50, "commands")
        return float(np.max(commands[10:]))


def test_limits_of_a_robot_at_work_change_between_two_commands(make: Callable[..., AtWork]) -> None:
    rig = make("robot", AtWork, **{"gate.clamped": "off"})  # which refuses a model that wants to be beyond the limits all the time
    rig.work()
    assert rig.largest() > 2.0
    assert rig.set("limits.upper", [2, 2]).successful  # an integer will do, as in a file
    assert rig.largest() == 2.0
    assert not rig.set_together(limits__upper=[5.0, 5.0], limits__lower=[6.0, 0.0], blend_steps=3).successful
    assert rig.get("limits.upper") == [2.0, 2.0] and rig.get("blend_steps") == 0
    assert rig.largest() == 2.0
    assert rig.set_together(limits__upper=[1.5, 1.5], limits__lower=[-1.0, -1.0], blend_steps=1).successful
    assert rig.largest() == 1.5 and rig.node._robots[0].brain.config.blend_steps == 1


def test_another_instruction_counts_from_the_next_goal_on(make: Callable[..., AtWork]) -> None:
    rig = make("robot", AtWork, instruction="lift")
    rig.work()
    rig.wait(lambda: rig.rig.server.observations, "a request")
    assert rig.set("instruction", "put it down").successful
    rig.rig.call(rig.rig.robots["r1"].services["abort"])
    rig.rig.goal("r1", time_budget_s=600.0)
    rig.wait(lambda: rig.rig.server.observations[-1].instruction == "put it down", "the other instruction")


def test_a_robot_that_cannot_be_configured_is_mended_step_by_step(make: Callable[..., Services]) -> None:
    rig = make("robot", fallback=["zero"], command_type="position", safe_pose=[1.0], autostart=False)
    assert rig.set("command_type", "delt").reason
    assert rig.set("safe_pose", [0.0, 0.0]).successful
    assert rig.set("command_type", "delta").successful
    assert rig.set("command_type", "position").reason  # it was right, and would not be
    assert rig.get("command_type") == "delta"
    rig.node.trigger_configure()
    at_work(rig)


def test_a_parameter_of_many_robots_changes_for_all_but_those_with_one_of_their_own(make: Callable[..., Services]) -> None:
    rig = make("robots")
    at_work(rig)
    assert rig.set_together(default_budget_s=3.0, verdict_votes=4).successful
    assert [body.brain.config.default_budget_s for body in rig.node._robots] == [3.0, 7.0]
    assert rig.set("r2.default_budget_s", 5).successful
    assert [body.brain.config.default_budget_s for body in rig.node._robots] == [3.0, 5.0]
    assert [body.brain.config.verdict_votes for body in rig.node._robots] == [4, 4]


def test_a_server_takes_other_rules_and_sizes_while_it_serves(make: Callable[..., Services]) -> None:
    rig = make("model_server")
    at_work(rig)
    heard = rig.hear(msg.ServerStatus, "/rfm/servers/s1/status", qos.SERVER_STATUS)
    assert rig.set_together(dispatch="deadline", batching="wait", max_sessions=3, batch_size=1).successful
    rig.wait(
        lambda: heard and (heard[-1].dispatch, heard[-1].max_sessions, heard[-1].batch_size) == ("deadline", 3, 1), "what was set"
    )
    assert heard[-1].state == msg.ServerStatus.READY
    assert not rig.set_together(dispatch="fifo", batching="foo").successful
    heard.clear()
    rig.wait(lambda: len(heard) > 1, "its status")
    assert heard[-1].dispatch == "deadline"
    server = rig.node._work.server
    assert server is not None
    assert rig.set("max_request_rate_hz", 2).successful and server.config.sessions.max_request_rate_hz == 2.0
    assert rig.set("refetch_after_s", 0.2).successful and server.config.refetch_after_s == 0.2


def test_a_server_that_was_cleaned_up_takes_another_model(make: Callable[..., Services]) -> None:
    rig = make("model_server", model="", autostart=False)
    assert rig.set("model", "emulated/arm-policy").successful
    rig.node.trigger_configure()
    heard = rig.hear(msg.ServerStatus, "/rfm/servers/s1/status", qos.SERVER_STATUS)
    rig.wait(lambda: heard and "arm-policy" in heard[-1].model, "the model")
    assert not rig.set("model", "rfm/metaworld-flow").successful
    rig.node.trigger_cleanup()
    assert rig.set("model", "rfm/metaworld-flow").successful


def test_another_policy_plans_the_next_schedule(make: Callable[..., Services]) -> None:
    rig = make("scheduler")
    latched = rig.hear(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)
    rig.wait(lambda: latched and latched[-1].policy == "best", "a schedule")
    assert rig.set("policy", "rosa").successful
    assert rig.call(srv.Replan, "/rfm/replan").success
    rig.wait(lambda: latched[-1].policy == "rosa", "another one")


def test_another_seed_begins_with_the_next_episode(make: Callable[..., Services]) -> None:
    rig = make("metaworld_robot")
    assert rig.call(Trigger, "/r1/reset").message == "episode 1, seed 0"
    assert rig.set("seed", 100).successful
    assert rig.call(Trigger, "/r1/reset").message == "episode 2, seed 101"


def test_a_foreman_gives_the_next_task_another_budget(make: Callable[..., Services]) -> None:
    rig = make("foreman")
    budgets: list[float] = []

    def work(goal: Any) -> Any:
        budgets.append(goal.request.time_budget_s)
        goal.succeed()
        return action.ExecuteTask.Result(error_code=0)

    server = ActionServer(rig.peer, action.ExecuteTask, "/r1/execute_task", work)
    rig.wait(lambda: budgets, "a task")
    assert rig.set_together(time_budget_s=9, pause_s=0.05).successful
    rig.wait(lambda: budgets[-1] == 9.0, "the budget")
    server.destroy()
