"""Whether somebody takes a robot's commands: the subscribers of its command topic, their type, and their parameters.

A command that nobody takes is silence without an error. So the graph is asked from the robot's activation on, and what is wrong
stands in the log, in `/diagnostics` and in `rfm why`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from geometry_msgs.msg import TwistStamped
from rcl_interfaces.srv import GetParameters
from rclpy.node import Node
from rclpy.parameter import parameter_value_to_python

from ros2_rfm_serving.ros.node.timers import Turn, turns_of
from ros2_rfm_serving.ros.robot.sinks import CommandSink, SinkConfig, SinkKind, TopicSink, TwistSink, subscribers

CHECK_PERIOD_S = 1.0
PATIENT_CHECKS = 2
"""Checks after which an empty topic is a problem: until then discovery may be under way."""
SIMILAR_CHECKS = 5
"""Checks after which topics that may be meant are searched for again."""
NUM_SIMILAR = 3
SINKS_OF = {
    "std_msgs/msg/Float64MultiArray": ("array",),
    "trajectory_msgs/msg/JointTrajectory": ("trajectory", "chunk"),
    "geometry_msgs/msg/Twist": ("twist",),
    "geometry_msgs/msg/TwistStamped": ("twist",),
}
"""Values of the parameter `sink`, by the type of messages."""
JTC_PARAMETERS = (
    "joints",
    "allow_partial_joints_goal",
    "allow_integration_in_goal_trajectories",
    "allow_nonzero_velocity_at_trajectory_end",
    "interpolate_from_desired_state",
)
"""Of a joint_trajectory_controller, since ros2_controllers 2.0; another node has none of them, and answers with nothing."""
JTC_REPLACEMENT = ("allow_trajectory_replacement",)
"""Of one since 6.8.0."""


class CommandTopic:
    """`problem` says why commands reach nobody who takes them; empty: they do, or it is not known yet."""

    def __init__(self, node: Node, robot: str, topic: str, sink: CommandSink, config: SinkConfig, period_s: float) -> None:
        """topic: absolute. period_s: of control."""
        self.problem = ""
        self._node, self._robot, self._topic, self._sink, self._config = node, robot, topic, sink, config
        self._period_s = period_s
        self._num_checks = 0
        self._timer: Turn | None = None
        self._clients: dict[str, Any] = {}
        """Of the parameters of each node that takes trajectories."""
        self._findings: dict[str, str] = {}
        """What is wrong with the parameters of a node, by its name."""

    def begin(self) -> None:
        """The robot is active."""
        self._num_checks = 0
        if isinstance(self._sink, TopicSink):
            self._timer = turns_of(self._node).every(CHECK_PERIOD_S, self._check)

    def end(self) -> None:
        self.problem = ""
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        self.end()
        for client in self._clients.values():
            self._node.destroy_client(client)
        self._clients.clear()

    def _check(self) -> None:
        assert isinstance(self._sink, TopicSink)
        self._num_checks += 1
        taken = subscribers(self._node, self._topic)
        self._sink.adapt(taken)
        if self._config.kind in (SinkKind.TRAJECTORY, SinkKind.CHUNK):
            for name in taken.get(self._sink.type_name, ()):
                self._ask(name)
        if not (problem := self._graph_problem(taken)):
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

    def _graph_problem(self, taken: Mapping[str, Sequence[str]]) -> str:
        """Return what is wrong with the subscribers of the topic."""
        assert isinstance(self._sink, TopicSink)
        kind = self._sink.type_name
        others = {name: nodes for name, nodes in taken.items() if name != kind}
        if not taken:
            return f"nobody subscribes to {self._topic} ({kind})" if self._num_checks >= PATIENT_CHECKS else ""
        if kind in taken:
            return ""
        (other, nodes), *_ = others.items()
        sinks = " or ".join(f"`sink: {sink}`" for sink in SINKS_OF.get(other, ()))
        fix = f"{sinks} sends that" if sinks else "a `sink: custom` of your own could send that"
        return f"{', '.join(nodes)} subscribes to {self._topic} as {other}, and commands are {kind}: {fix}"

    def _similar(self) -> str:
        """Return topics that may be meant: with subscribers of the same type, and with a similar name."""
        assert isinstance(self._sink, TopicSink)
        kind, own = self._sink.type_name, f"{self._node.get_fully_qualified_name()}/"
        there = {
            topic: types
            for topic, types in self._node.get_topic_names_and_types()
            if topic != self._topic and not topic.startswith(own) and self._node.count_subscribers(topic)
        }
        alike = sorted(topic for topic, types in there.items() if kind in types)
        near = difflib.get_close_matches(self._topic, alike, NUM_SIMILAR, 0.0)
        found = [f"{topic} takes {kind}" for topic in near]
        named = difflib.get_close_matches(self._topic, set(there) - set(alike), NUM_SIMILAR, 0.75)
        found += [f"{topic} takes {', '.join(there[topic])}" for topic in named]
        return f". Did you mean another topic? {'; '.join(found)}" if found else ""

    # --- parameters of a joint_trajectory_controller ---

    def _ask(self, name: str) -> None:
        """Ask a node for its parameters. Certificates grant robots no such service."""
        if name in self._clients or os.environ.get("ROS_SECURITY_ENABLE", "").lower() == "true":
            return
        client = self._clients[name] = self._node.create_client(GetParameters, f"{name}/get_parameters")
        found: dict[str, Any] = {}

        def read(names: tuple[str, ...], future: Any) -> None:
            answer = future.result() if not future.exception() else None
            values = answer.values if answer is not None and len(answer.values) == len(names) else ()
            found.update(zip(names, map(parameter_value_to_python, values), strict=False))
            if names == JTC_REPLACEMENT:
                self._findings[name] = self._refusal(name, found)

        for names in (JTC_PARAMETERS, JTC_REPLACEMENT):
            asked = client.call_async(GetParameters.Request(names=list(names)))
            asked.add_done_callback(lambda future, names=names: read(names, future))

    def _parameter_problem(self, taken: Mapping[str, Sequence[str]]) -> str:
        nodes = taken.get(getattr(self._sink, "type_name", ""), ())
        return "; ".join(filter(None, [self._clock_problem(), *(self._findings.get(name, "") for name in nodes)]))

    def _clock_problem(self) -> str:
        """Return what is wrong with the stamps of commands: by a clock that is ahead of its own, a controller never times out."""
        stamped = isinstance(self._sink, TwistSink) and self._sink.message is TwistStamped and not self._config.zero_stamp
        if not stamped or self._node.get_parameter("use_sim_time").value or not self._node.count_publishers("/clock"):
            return ""
        fix = "set use_sim_time to true, or twist_stamp to zero"
        return f"commands have stamps of the wall clock, while /clock is published: by that no command is ever too old: {fix}"

    def _refusal(self, name: str, found: Mapping[str, Any]) -> str:
        """Return what a joint_trajectory_controller with these parameters does not take (read at ros2_controllers 94e74de)."""
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
        slow = config.kind is SinkKind.TRAJECTORY and config.time_from_start_s > self._period_s
        joined = found.get("allow_trajectory_replacement") or found.get("interpolate_from_desired_state")
        if slow and config.trajectory_field == "positions" and not joined:
            fix = "set its interpolate_from_desired_state to true, or trajectory_time_s to 0"
            wrong.append(f"it sets out from the measured position with each command, so that an arm that lags creeps: {fix}")
        return f"{name}: {'; '.join(wrong)}" if wrong else ""
