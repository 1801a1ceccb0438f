"""Topics that a robot uses, as plain data, from its settings."""

from __future__ import annotations

import math

from ros2_rfm_serving.factory.live_graph.interface import SINKS_OF, CameraTopic, CommandTopicSpec, RobotInterface, StateTopic
from ros2_rfm_serving.factory.live_graph.snapshot import TWIST, TWIST_STAMPED
from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import RobotConfig
from ros2_rfm_serving.ros.robot.declared import TickSource
from ros2_rfm_serving.ros.robot.joints import FORMATS, StateConfig, StatePart
from ros2_rfm_serving.ros.robot.settings import RobotSettings
from ros2_rfm_serving.ros.robot.sinks import SinkConfig, SinkKind, graph_name
from ros2_rfm_serving.ros.wire.qos import Names

TOPIC_KEYS = {StatePart.JOINTS: "joint_topic", StatePart.ARRAY: "state_topic"}
"""Parameters that name the topics of a state; others: `state_topics`."""


def robot_interface(settings: RobotSettings, names: Names, file: str = "") -> RobotInterface:
    """Return the topics of one robot. names: names of its factory. file: source of the settings, for messages."""
    config, io = settings.config, settings.io

    def absolute(topic: str) -> str:
        return topic if topic.startswith("/") else names.robot(config.name, topic)

    lower, upper = _position_limits(config)
    return RobotInterface(
        name=config.name,
        file=file,
        status_topic=absolute("rfm/status"),
        control_rate_hz=config.control_rate_hz,
        ticks_with_state=settings.tick is TickSource.STATE,
        cameras=tuple(
            CameraTopic(
                name=camera.name,
                topic=absolute(camera.topic),
                type=graph_name(camera.message_type),
                has_depth_range=camera.depth_range_m is not None,
                by_arrival=camera.by_arrival,
            )
            for camera in io.cameras
        ),
        state=tuple(_state_topic(io.state, part, absolute(topic)) for part, topic in io.state.topics.items()),
        joints=_joints(io.state),
        unit_scale=io.state.unit_scale,
        action_joints=io.state.action_joints,
        lower=lower,
        upper=upper,
        command=_command(io.sink, absolute(io.sink.topic)),
        max_age_s=config.max_observation_age_s,
    )


def _state_topic(state: StateConfig, part: StatePart, topic: str) -> StateTopic:
    return StateTopic(
        part=part.value,
        topic=topic,
        type=graph_name(state.message_type(part)),
        key=TOPIC_KEYS.get(part, "state_topics"),
        size=state.array_size if part is StatePart.ARRAY else 0,
        fields=state.fields_of_part(part) if part in FORMATS else (),
        by_arrival=part.value in state.by_arrival,
    )


def _joints(state: StateConfig) -> dict[str, tuple[str, ...]]:
    found = {joint: state.fields_of(joint) for joint in state.joints} if StatePart.JOINTS in state.parts else {}
    for joint in state.action_joints:
        fields = found.get(joint, ())
        found[joint] = fields if "position" in fields else (*fields, "position")
    return found


def _position_limits(config: RobotConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    columns = ActionColumns.of(config)
    bounded = columns.is_position & ~columns.wraps
    lower = tuple(low if own else -math.inf for low, own in zip(config.limits.lower, bounded, strict=False))
    upper = tuple(high if own else math.inf for high, own in zip(config.limits.upper, bounded, strict=False))
    return lower, upper


def _command(sink: SinkConfig, topic: str) -> CommandTopicSpec:
    types = tuple(kind for kind, sinks in SINKS_OF.items() if sink.kind.value in sinks)
    if sink.kind is SinkKind.TWIST:
        types = (TWIST_STAMPED, TWIST) if sink.stamped else (TWIST, TWIST_STAMPED)
    trajectory = sink.kind in (SinkKind.TRAJECTORY, SinkKind.CHUNK)
    joints = (sink.joints or sink.action_names) if trajectory else ()
    return CommandTopicSpec(topic=topic, types=types, sink=sink.kind.value, num_actions=len(sink.action_names), joints=joints)
