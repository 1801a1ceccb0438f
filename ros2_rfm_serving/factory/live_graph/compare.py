"""Comparison of a robot's file with a live graph: each difference has key, value and fix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ros2_rfm_serving.factory.live_graph.interface import SINKS_OF, CameraTopic, RobotInterface, StateTopic
from ros2_rfm_serving.factory.live_graph.similar import CAMERA_TYPES, EXCHANGED, described, similar_topics, type_fix
from ros2_rfm_serving.factory.live_graph.snapshot import GraphEndpoint, GraphSnapshot, GraphTopic, Range, TopicSample
from ros2_rfm_serving.factory.yaml_source import did_you_mean

DEGREE = math.pi / 180.0
DEPTH_ENCODINGS = ("16UC1", "32FC1")
SLOW_SHARE = 0.9
"""A rate below this share of the wanted one counts as too low."""
LIMIT_TOLERANCE = 0.05
"""Share of the range of its limits by which a measured position may be outside."""
WATCHED_S = 1.0
"""Time for which a topic must have been subscribed to before it counts as one without messages."""
MOST_RADIANS = 4.0 * math.pi
"""Largest position, without limits, that is not assumed to be in degrees."""


@dataclass(frozen=True, kw_only=True)
class GraphFinding:
    """One difference between a robot's file and the graph."""

    robot: str
    file: str
    key: str
    """Parameter of the robot's file."""
    value: str
    """Value of the parameter in the file, or its default."""
    problem: str
    fix: str
    severity: str = "error"
    """error: the robot does not move, or not as declared; warning: the difference may not be intended."""

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        return f"{where}{self.key} ({self.value}): {self.problem}; {self.fix}"


def compare(robot: RobotInterface, snapshot: GraphSnapshot) -> list[GraphFinding]:
    """Return the differences between the graph and the robot's file, errors first; empty: they agree."""
    comparison = _Comparison(robot, snapshot)
    return sorted(comparison.findings(), key=lambda finding: not finding.is_error)


class _Comparison:
    def __init__(self, robot: RobotInterface, snapshot: GraphSnapshot) -> None:
        self._robot, self._snapshot = robot, snapshot
        status = snapshot.topic(robot.status_topic)
        self._own_nodes = {endpoint.node for endpoint in status.publishers}

    def findings(self) -> Iterator[GraphFinding]:
        for camera in self._robot.cameras:
            yield from self._camera(camera)
        yield from self._shared_images()
        for part in self._robot.state:
            yield from self._state(part)
        yield from self._command()

    def _finding(self, key: str, value: object, problem: str, fix: str, *, error: bool = True) -> GraphFinding:
        severity = "error" if error else "warning"
        robot = self._robot
        return GraphFinding(
            robot=robot.name, file=robot.file, key=key, value=str(value), problem=problem, fix=fix, severity=severity
        )

    # --- sensors ---

    def _camera(self, camera: CameraTopic) -> Iterator[GraphFinding]:
        topic = self._snapshot.topic(camera.topic)
        key, value = "camera_topics", f"{camera.name}={camera.topic}"
        if not topic.publishers:
            yield self._unpublished(key, value, camera.topic, camera.type, camera.name)
            return
        if camera.type not in topic.published_types:
            yield self._other_camera_type(camera, topic)
            return
        yield from self._several(key, value, topic, camera.type)
        yield from self._messages(key, value, topic)
        yield from self._stamps(camera.name, topic, by_arrival=camera.by_arrival)
        if topic.sample is None or topic.sample.image is None:
            return
        encoding = topic.sample.image.encoding
        if any(name in encoding for name in DEPTH_ENCODINGS) and not camera.has_depth_range:
            fix = f"add camera_depth_range_m: ['{camera.name}=0.1:1.5'] with the range in m that matters"
            yield self._finding("camera_depth_range_m", "none", f"{camera.topic} sends depth ({encoding})", fix)

    def _shared_images(self) -> Iterator[GraphFinding]:
        """Find topics that supply several cameras of the model."""
        cameras_of: dict[str, list[str]] = {}
        for camera in self._robot.cameras:
            cameras_of.setdefault(camera.topic, []).append(camera.name)
        for topic, names in cameras_of.items():
            if len(names) > 1:
                value, problem = f"{names[-1]}={topic}", f"{' and '.join(names)} have the images of one topic, {topic}"
                yield self._finding("camera_topics", value, problem, "name a topic for each camera", error=False)

    def _other_camera_type(self, camera: CameraTopic, topic: GraphTopic) -> GraphFinding:
        published, nodes = topic.published_types[0], _nodes(topic.publishers)
        problem = f"{camera.topic} is published as {published} by {nodes}"
        if fix := type_fix(published, [camera.type], camera.name):
            return self._finding("camera_types", f"{camera.name}={CAMERA_TYPES[camera.type]}", problem, fix)
        near = self._near(camera.topic, [camera.type], camera.name)
        return self._finding("camera_topics", f"{camera.name}={camera.topic}", problem, f"name {near}")

    def _state(self, part: StateTopic) -> Iterator[GraphFinding]:
        topic = self._snapshot.topic(part.topic)
        if not topic.publishers:
            yield self._unpublished(part.key, part.topic, part.topic, part.type)
            return
        if part.type not in topic.published_types:
            problem = f"{part.topic} is published as {', '.join(topic.published_types)} by {_nodes(topic.publishers)}"
            fixes = filter(None, (type_fix(kind, [part.type]) for kind in topic.published_types))
            fix = next(fixes, "") or f"name {self._near(part.topic, [part.type])}"
            yield self._finding(part.key, part.topic, problem, fix)
            return
        yield from self._messages(part.key, part.topic, topic)
        yield from self._stamps(part.part, topic, by_arrival=part.by_arrival)
        sample = topic.sample
        if sample is None or not sample.num_messages:
            return
        yield from self._rate(part, sample)
        if part.part == "joint_states":
            yield from self._joints(part, sample)
            return
        yield from self._several(part.key, part.topic, topic, part.type)
        if part.size and len(sample.values) != part.size:
            problem = f"{part.topic} has {len(sample.values)} numbers, and the state takes {part.size} of it"
            yield self._finding("state_size", part.size, problem, "correct state_size or state_parts, or name another topic")
        missing = [name for name in part.fields if sample.fields and name not in sample.fields]
        if missing:
            fix = f"leave it out: state_fields: [{part.part}={'+'.join(sample.fields)}]"
            yield self._finding("state_fields", "+".join(part.fields), f"{part.topic} has no {', '.join(missing)}", fix)

    def _rate(self, part: StateTopic, sample: TopicSample) -> Iterator[GraphFinding]:
        wanted_hz = self._robot.control_rate_hz
        if not 0.0 < sample.rate_hz < SLOW_SHARE * wanted_hz:
            return
        problem = f"{part.topic} comes at {sample.rate_hz:.1f} Hz"
        problem += ", and each state begins a control period" if self._robot.ticks_with_state else ""
        fix = f"set control_rate_hz to {sample.rate_hz:.0f} or less, or let the driver publish faster"
        yield self._finding("control_rate_hz", f"{wanted_hz:g}", problem, fix, error=self._robot.ticks_with_state)

    def _joints(self, part: StateTopic, sample: TopicSample) -> Iterator[GraphFinding]:
        missing = [joint for joint in self._robot.joints if joint not in sample.joints]
        for joint in missing:
            key = "action_joints" if joint in self._robot.action_joints else "joints"
            problem = f"joint {joint!r} is not in {part.topic}, which has {', '.join(sorted(sample.joints)) or 'no joints'}"
            yield self._finding(key, joint, problem, did_you_mean(joint, sample.joints))
        for joint, fields in self._robot.joints.items():
            has = sample.joints.get(joint)
            lacking = [name for name in fields if has is not None and name not in has]
            if has is not None and lacking:
                fix = f"leave it out: joint_fields_of: [{joint}={'+'.join(name for name in fields if name in has) or 'position'}]"
                problem = f"joint {joint!r} has no {', '.join(lacking)} in {part.topic} (it has {', '.join(has) or 'nothing'})"
                yield self._finding("joint_fields", "+".join(fields), problem, fix)
        yield from self._positions(part, sample)

    def _positions(self, part: StateTopic, sample: TopicSample) -> Iterator[GraphFinding]:
        """Find joints that are outside of their limits, or whose numbers look like degrees."""
        robot = self._robot
        bounds = dict(zip(robot.action_joints, zip(robot.lower, robot.upper, strict=False), strict=False))
        for joint in robot.joints:
            measured = sample.joints.get(joint, {}).get("position")
            if measured is None:
                continue
            scale = robot.unit_scale.get(joint, 1.0)
            low, high = bounds.get(joint, (-math.inf, math.inf))
            scaled = (measured[0] * scale, measured[1] * scale)
            if self._outside(scaled, low, high):
                yield self._outside_limits(part, joint, scaled, (low, high), has_scale=joint in robot.unit_scale)
            elif scale == 1.0 and not math.isfinite(high - low) and max(map(abs, measured)) > MOST_RADIANS:
                problem = f"joint {joint!r} is at {measured[1]:g} in {part.topic}: degrees?"
                fix = f"if the driver publishes degrees, set unit_scale: [{joint}={DEGREE:.7f}]"
                yield self._finding("unit_scale", "1", problem, fix, error=False)

    def _outside_limits(self, part: StateTopic, joint: str, measured: Range, limits: Range, *, has_scale: bool) -> GraphFinding:
        low, high = limits
        far = measured[0] if measured[0] < low else measured[1]
        problem = f"joint {joint!r} is at {far:g} in {part.topic}, and may be {low:g} to {high:g}"
        degrees = (measured[0] * DEGREE, measured[1] * DEGREE)
        if not has_scale and max(map(abs, measured)) > math.pi and not self._outside(degrees, low, high):
            fix = f"if the driver publishes degrees, set unit_scale: [{joint}={DEGREE:.7f}]"
            return self._finding("unit_scale", "1", f"{problem}: degrees?", fix)
        return self._finding("limits", f"{low:g} to {high:g}", problem, "move the robot back by hand, or correct limits and units")

    @staticmethod
    def _outside(measured: Range, low: float, high: float) -> bool:
        slack = LIMIT_TOLERANCE * (high - low) if math.isfinite(high - low) else 0.0
        return measured[0] < low - slack or measured[1] > high + slack

    def _messages(self, key: str, value: str, topic: GraphTopic) -> Iterator[GraphFinding]:
        """Find a topic without messages, with messages that a robot refuses, or with too few of them."""
        sample = topic.sample
        if sample is None or (not sample.num_messages and sample.seconds < WATCHED_S):
            return
        nodes = _nodes(topic.publishers)
        if not sample.num_messages:
            problem = f"nothing arrived on {topic.name} in {sample.seconds:.1f} s, though {nodes} publishes it"
            yield self._finding(key, value, problem, "start the sensor, or name another topic")
        elif sample.problem:
            yield self._finding(key, value, f"a message of {nodes} would be refused: {sample.problem}", "correct the driver")
        elif 0.0 < sample.rate_hz < 1.0 / self._robot.max_age_s:
            problem = f"{topic.name} comes at {sample.rate_hz:.2g} Hz, and no request is sent with a reading older than that"
            fix = f"let the driver publish faster, or raise max_observation_age_s above {1.0 / sample.rate_hz:.2g}"
            yield self._finding("max_observation_age_s", f"{self._robot.max_age_s:g}", problem, fix)

    def _stamps(self, sensor: str, topic: GraphTopic, *, by_arrival: bool) -> Iterator[GraphFinding]:
        """Find sensors whose stamps lag behind others of theirs; a constant offset between the clocks of sender and robot is
        ignored.

        A simulation has a clock of its own.
        """
        ages_s = topic.sample.stamp_age_s if topic.sample else None
        if by_arrival or ages_s is None or self._snapshot.topic("/clock").publishers:
            return
        spread_s, limit_s = ages_s[1] - ages_s[0], self._robot.max_age_s
        if spread_s > limit_s:
            problem = f"by their stamps, messages on {topic.name} are up to {spread_s:.1f} s older than others when they arrive"
            problem += (
                f", and no reading older than {limit_s:g} s is used: a driver repeats readings or stamps them in whole seconds"
            )
            fix = f"correct its stamps, or set arrival_time_sensors: [{sensor}]"
            yield self._finding("arrival_time_sensors", "none", problem, fix, error=False)

    def _several(self, key: str, value: str, topic: GraphTopic, kind: str) -> Iterator[GraphFinding]:
        nodes = [endpoint.node for endpoint in topic.publishers if endpoint.type == kind]
        if len(nodes) > 1:
            problem = f"{topic.name} has {len(nodes)} publishers ({', '.join(sorted(nodes))}): their readings would be mixed"
            yield self._finding(key, value, problem, "stop one of them, or name a topic of its own")

    def _unpublished(self, key: str, value: str, topic: str, kind: str, camera: str = "") -> GraphFinding:
        fix = f"start the driver, or name {self._near(topic, [kind], camera)}"
        return self._finding(key, value, f"nobody publishes {topic}", fix)

    def _near(self, topic: str, types: list[str], camera: str = "") -> str:
        """Return the most similar topics, each with the setting that makes the robot accept its type."""
        there = {name: one.published_types for name, one in self._snapshot.topics.items() if one.publishers}
        kinds = {*types, *(EXCHANGED.get(kind, kind) for kind in types)}
        near = similar_topics(topic, there, kinds, same_robot=True)
        found = [described(name, there[name], types, camera) for name in near]
        return " or ".join(found) or f"a topic of {' or '.join(types)} (none is published)"

    # --- commands ---

    def _command(self) -> Iterator[GraphFinding]:
        command = self._robot.command
        if not command.types:
            return
        topic = self._snapshot.topic(command.topic)
        takers = [endpoint for endpoint in topic.executors if endpoint.type in command.types]
        others = [endpoint for endpoint in topic.executors if endpoint.type not in command.types]
        if others and not takers:
            yield self._other_command_type(others)
        elif not takers:
            yield self._untaken(topic)
        for endpoint in takers:
            yield from self._taker(endpoint)
        rivals = [one for one in topic.publishers if one.node not in self._own_nodes]
        if rivals:
            problem = f"{_nodes(rivals)} publishes on {command.topic}, too: the robot would get commands of both"
            yield self._finding("sink_topic", command.topic, problem, "stop it before the robot gets a task", error=False)

    def _other_command_type(self, others: list[GraphEndpoint]) -> GraphFinding:
        command, kind = self._robot.command, others[0].type
        sinks = SINKS_OF.get(kind, ())
        fix = f"set sink: {' or '.join(sinks)}" if sinks else "write a `sink: custom` of your own, or name another topic"
        problem = f"{_nodes(others)} subscribes to {command.topic} as {kind}, and commands are {command.types[0]}"
        return self._finding("sink", command.sink, problem, fix)

    def _untaken(self, topic: GraphTopic) -> GraphFinding:
        command = self._robot.command
        there = {name: one.executed_types for name, one in self._snapshot.topics.items() if one.executors}
        near = [f"{name} ({', '.join(there[name])})" for name in similar_topics(command.topic, there, command.types)]
        fix = f"start the controller, or name {' or '.join(near) or f'a topic of {command.types[0]} (nobody subscribes to one)'}"
        watching = f" but {_nodes(topic.subscribers)}, which only watches," if topic.subscribers else ""
        return self._finding(
            "sink_topic", command.topic, f"nobody{watching} subscribes to {command.topic} ({command.types[0]})", fix
        )

    def _taker(self, endpoint: GraphEndpoint) -> Iterator[GraphFinding]:
        command = self._robot.command
        if endpoint.command_mismatch:
            problem = f"{endpoint.node} subscribes with {endpoint.command_mismatch}: it gets no command"
            yield self._finding("sink_topic", command.topic, problem, "let it ask for no more than is offered")
        theirs = self._snapshot.controller_joints.get(endpoint.node, ())
        if theirs and command.joints and set(command.joints) != set(theirs):
            problem = f"{endpoint.node} has the joints {', '.join(theirs)}"
            fix = "name them in sink_joints, in the order of the actions"
            yield self._finding("sink_joints", ", ".join(command.joints), problem, fix)
        if theirs and command.sink == "array" and len(theirs) != command.num_actions:
            problem = f"{endpoint.node} takes {len(theirs)} numbers ({', '.join(theirs)}), and an action has {command.num_actions}"
            yield self._finding("action_names", command.num_actions, problem, "name another controller, or write a `sink: custom`")


def _nodes(endpoints: Iterable[GraphEndpoint]) -> str:
    return ", ".join(sorted({endpoint.node for endpoint in endpoints}))
