"""Check that a robot's commands are received: subscribers of the command topic, their type, their QoS and their parameters.

A command without a receiver causes no error. So the check polls the graph from the robot's activation on, and reports a problem in
the log, in `/diagnostics` and in `rfm why`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from geometry_msgs.msg import TwistStamped
from rcl_interfaces.srv import GetParameters
from rclpy.node import Node
from rclpy.parameter import parameter_value_to_python

from ros2_rfm_serving.factory.live_graph.interface import SINKS_OF
from ros2_rfm_serving.factory.live_graph.similar import similar_topics
from ros2_rfm_serving.ros.node.timers import Turn, turns_of
from ros2_rfm_serving.ros.robot.sinks import (
    OBSERVERS,
    CommandSink,
    SinkConfig,
    SinkKind,
    TopicSink,
    TwistSink,
    full_name,
    subscribers,
    takers,
)
from ros2_rfm_serving.ros.wire.qos_match import mismatch

CHECK_PERIOD_S = 1.0
PATIENT_CHECKS = 2
"""Number of checks after which a topic without subscribers is a problem; until then discovery may be in progress."""
SIMILAR_CHECKS = 5
"""Number of checks after which likely intended topics are searched for again."""
JTC_PARAMETERS = (
    "joints",
    "allow_partial_joints_goal",
    "allow_integration_in_goal_trajectories",
    "allow_nonzero_velocity_at_trajectory_end",
    "open_loop_control",
    "interpolate_from_desired_state",
    "allow_trajectory_replacement",
    "interpolation_method",
    "speed_scaling.state_interface",
)
"""Parameters of a joint_trajectory_controller that matter.

Each is requested alone: an rclcpp node that lacks one of several replies with nothing at all (`parameter_service.cpp`).
`open_loop_control` existed until 4.x; new are `interpolate_from_desired_state` (since 4.22.0), speed scaling (5.3.0), and
`allow_trajectory_replacement` (6.8.0)."""


class CommandTopic:
    """Monitor of a command topic. `problem` says why no controller receives the commands; empty: one does, or that is unknown
    yet. `rivals` names other publishers of commands on this topic; empty: there are none."""

    def __init__(self, node: Node, robot: str, topic: str, sink: CommandSink, config: SinkConfig, period_s: float) -> None:
        """Create the monitor. topic: absolute. period_s: control period."""
        self.problem = self.rivals = ""
        self._node, self._robot, self._topic, self._sink, self._config = node, robot, topic, sink, config
        self._period_s = period_s
        self._num_checks = 0
        self._timer: Turn | None = None
        self._clients: dict[str, Any] = {}
        """Node -> client of its parameters, for each node that accepts trajectories."""
        self._asked: dict[str, int] = {}
        """Node -> number of the check at which its parameters were last requested."""
        self._findings: dict[str, str] = {}
        """Node -> problem of its parameters."""

    def begin(self) -> None:
        """Start polling when the robot becomes active."""
        self._num_checks = 0
        self._asked.clear()
        if isinstance(self._sink, TopicSink):
            self._timer = turns_of(self._node).every(CHECK_PERIOD_S, self._check)

    def end(self) -> None:
        self.problem = self.rivals = ""
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        self.end()
        for name in list(self._clients):
            self._forget(name)

    def _check(self) -> None:
        assert isinstance(self._sink, TopicSink)
        self._num_checks += 1
        found = subscribers(self._node, self._topic)
        taken = takers(found)
        self._sink.adapt(taken)
        self.rivals = self._others_that_publish()
        if self._config.kind in (SinkKind.TRAJECTORY, SinkKind.CHUNK):
            self._ask_all(taken.get(self._sink.type_name, ()))
        if not (problem := self._graph_problem(found, taken)):
            self._report(self._parameter_problem(taken))
        elif not self.problem.startswith(problem) or self._num_checks % SIMILAR_CHECKS == 0:
            self._report(f"{problem}{self._similar()}")

    def _report(self, problem: str) -> None:
        if problem == self.problem:
            return
        log, self.problem = self._node.get_logger(), problem
        if problem:
            log.warning(f"{self._robot}: {problem}")
        else:
            log.info(f"{self._robot}: commands on {self._topic} are taken")

    # --- the graph ---

    def _graph_problem(self, found: Mapping[str, Sequence[str]], taken: Mapping[str, Sequence[str]]) -> str:
        """Return the problem of the topic's subscribers; empty: none. found: also the nodes that only observe."""
        assert isinstance(self._sink, TopicSink)
        kind = self._sink.type_name
        others = {name: nodes for name, nodes in taken.items() if name != kind}
        if not taken:
            watchers = sorted(set().union(*found.values()))
            nobody = f"nobody but {', '.join(watchers)}, which watches," if watchers else "nobody"
            return f"{nobody} subscribes to {self._topic} ({kind})" if self._num_checks >= PATIENT_CHECKS else ""
        if not others:
            return self._qos_problem()
        (other, nodes), *_ = others.items()
        sinks = " or ".join(f"`sink: {sink}`" for sink in SINKS_OF.get(other, ()))
        fix = f"{sinks} sends that" if sinks else "a `sink: custom` of your own could send that"
        fix = "give it another topic" if kind in taken else fix
        return f"{', '.join(nodes)} subscribes to {self._topic} as {other}, and commands are {kind}: {fix}"

    def _others_that_publish(self) -> str:
        own = self._node.get_fully_qualified_name()
        publishers = [full_name(one) for one in self._node.get_publishers_info_by_topic(self._topic)]
        num_own = publishers.count(own)
        others = sorted({name for name in publishers if name != own} | ({own} if num_own > 1 else set()))
        return f"{', '.join(others)} publishes to {self._topic}, too" if others else ""

    def _qos_problem(self) -> str:
        """Return which subscribers receive nothing because their QoS requests more than commands offer; empty: none."""
        own = self._node.get_fully_qualified_name()
        offered = [one for one in self._node.get_publishers_info_by_topic(self._topic) if full_name(one) == own]
        if not offered:
            return ""
        for endpoint in self._node.get_subscriptions_info_by_topic(self._topic):
            found = mismatch(offered[0].qos_profile, endpoint.qos_profile)
            if found and not OBSERVERS.search(full_name(endpoint)):
                problem = f"{full_name(endpoint)} subscribes to {self._topic} with {found}"
                return f"{problem}: it gets no command; let it ask for no more than is offered"
        return ""

    def _similar(self) -> str:
        """Return likely intended topics: with subscribers of the same type, and with a similar name."""
        assert isinstance(self._sink, TopicSink)
        kind, own = self._sink.type_name, f"{self._node.get_fully_qualified_name()}/"
        there = {
            topic: types
            for topic, types in self._node.get_topic_names_and_types()
            if topic != self._topic and not topic.startswith(own) and self._node.count_subscribers(topic)
        }
        found = [f"{topic} takes {', '.join(there[topic])}" for topic in similar_topics(self._topic, there, [kind])]
        return f". Did you mean another topic? {'; '.join(found)}" if found else ""

    # --- parameters of a joint_trajectory_controller ---

    def _ask_all(self, names: Sequence[str]) -> None:
        """Request the parameters of each node, and again while they are a problem.
        Certificates grant robots no such service, so with them nothing is requested."""
        for gone in self._clients.keys() - set(names):
            self._forget(gone)
        if os.environ.get("ROS_SECURITY_ENABLE", "").lower() == "true":
            return
        for name in names:
            if name not in self._clients:
                self._clients[name] = self._node.create_client(GetParameters, f"{name}/get_parameters")
            asked = self._asked.get(name)
            due = asked is None or (self._findings.get(name) and self._num_checks - asked >= SIMILAR_CHECKS)
            if due and self._clients[name].service_is_ready():
                self._ask(name)

    def _ask(self, name: str) -> None:
        self._asked[name], client = self._num_checks, self._clients[name]
        found: dict[str, Any] = {}
        missing = set(JTC_PARAMETERS)

        def read(parameter: str, future: Any) -> None:
            answer = None if future.cancelled() or future.exception() else future.result()
            if answer is not None and answer.values:
                found[parameter] = parameter_value_to_python(answer.values[0])
            missing.discard(parameter)
            if not missing and self._clients.get(name) is client:
                self._findings[name] = self._refusal(name, found)

        for parameter in JTC_PARAMETERS:
            client.call_async(GetParameters.Request(names=[parameter])).add_done_callback(partial(read, parameter))

    def _forget(self, name: str) -> None:
        """Forget a node that is gone: another node of its name may have other parameters."""
        self._node.destroy_client(self._clients.pop(name))
        self._asked.pop(name, None)
        self._findings.pop(name, None)

    def _parameter_problem(self, taken: Mapping[str, Sequence[str]]) -> str:
        nodes = taken.get(getattr(self._sink, "type_name", ""), ())
        return "; ".join(filter(None, [self._clock_problem(), *(self._findings.get(name, "") for name in nodes)]))

    def _clock_problem(self) -> str:
        """Return the problem of stamps of commands: by a clock that is ahead of its own, a controller never times out."""
        stamped = isinstance(self._sink, TwistSink) and self._sink.message is TwistStamped and not self._config.zero_stamp
        if not stamped or self._node.get_parameter("use_sim_time").value or not self._node.count_publishers("/clock"):
            return ""
        fix = "set use_sim_time to true, or twist_stamp to zero"
        return f"commands have stamps of the wall clock, while /clock is published: by that no command is ever too old: {fix}"

    def _refusal(self, name: str, found: Mapping[str, Any]) -> str:
        """Return what a joint_trajectory_controller with these parameters refuses; empty: nothing (ros2_controllers 94e74de)."""
        config, wrong = self._config, []
        if not isinstance(found.get("joints"), (list, tuple)):
            return ""  # another kind of node
        sent, theirs = set(config.joints or config.action_names), set(found["joints"])
        if sent - theirs or (theirs - sent and not found.get("allow_partial_joints_goal")):
            wrong.append(f"its joints are {', '.join(sorted(theirs))}, and commands have {', '.join(sorted(sent))} (sink_joints)")
        if config.kind is SinkKind.TRAJECTORY and config.trajectory_field == "velocities":
            for needed in ("allow_integration_in_goal_trajectories", "allow_nonzero_velocity_at_trajectory_end"):
                if not found.get(needed):
                    wrong.append(f"it refuses velocities alone: set its {needed} to true")
        wrong += self._motion_problems(found)
        return f"{name}: {'; '.join(wrong)}" if wrong else ""

    def _motion_problems(self, found: Mapping[str, Any]) -> list[str]:
        """Return the problems that its parameters cause for trajectories that replace one another."""
        config, wrong = self._config, []
        is_chunk = config.kind is SinkKind.CHUNK
        slow = config.kind is SinkKind.TRAJECTORY and config.time_from_start_s > self._period_s
        joined = any(map(found.get, ("allow_trajectory_replacement", "interpolate_from_desired_state", "open_loop_control")))
        if not joined and (is_chunk or (slow and config.trajectory_field == "positions")):
            known = [name for name in ("interpolate_from_desired_state", "open_loop_control") if found.get(name) is not None]
            fix = f"set its {known[0] if known else 'allow_trajectory_replacement'} to true"
            fix += "" if is_chunk else ", or trajectory_time_s to 0"
            effect = "an arm that lags is set back at each of them" if is_chunk else "an arm that lags creeps"
            wrong.append(f"it sets out from the measured position with each trajectory, so that {effect}: {fix}")
        if is_chunk and found.get("interpolation_method") == "none":
            wrong.append("it jumps from point to point: set its interpolation_method to splines")
        if is_chunk and found.get("speed_scaling.state_interface"):
            problem = "its speed is scaled, and a chunk that replaces a slowed one catches up faster than the limits"
            wrong.append(f"{problem}: use `sink: trajectory`, or leave its speed_scaling.state_interface empty")
        return wrong
