"""Topics and units of a robot's sensors and commands, from its ROS parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_topic_name import validate_topic_name

from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import Motion, RobotConfig
from ros2_rfm_serving.robot.output import check_stop
from ros2_rfm_serving.ros.node.parameters import Values
from ros2_rfm_serving.ros.robot.cameras import CameraConfig
from ros2_rfm_serving.ros.robot.joints import FORMATS, JOINT_FIELDS, StateConfig, StatePart
from ros2_rfm_serving.ros.robot.sinks import TWIST_AXES, SinkConfig, SinkKind

LONGEST_BRAKING_S = 10.0
"""Maximum braking time at the end of a chunk."""


@dataclass(frozen=True, kw_only=True)
class IoConfig:
    """Topics and formats of a robot's sensors and commands."""

    cameras: tuple[CameraConfig, ...]
    state: StateConfig
    sink: SinkConfig
    jpeg_quality: int
    max_image_size_px: int


def io_config(values: Values, config: RobotConfig) -> IoConfig:
    """Return the configuration. Raises: `ConfigurationError`."""
    state = _state(values, config)
    _check_positions(values, config, state)
    return IoConfig(
        cameras=_cameras(values, config.cameras),
        state=state,
        sink=_sink(values, config),
        jpeg_quality=values.integer("jpeg_quality"),
        max_image_size_px=values.integer("max_image_size_px"),
    )


def _by_arrival(values: Values, cameras: tuple[str, ...]) -> frozenset[str]:
    """Return the names of the sensors whose stamps are not used."""
    known = [*cameras, *(part.value for part in StatePart)]
    named = values.distinct("arrival_time_sensors")
    if unknown := [name for name in named if name not in known]:
        raise values.wrong("arrival_time_sensors", f"no such sensor: {unknown[0]}", did_you_mean(unknown[0], known))
    return frozenset(known if values.flag("use_arrival_time") else named)


def _cameras(values: Values, cameras: tuple[str, ...]) -> tuple[CameraConfig, ...]:
    topics, types, ranges = (values.pairs(name) for name in ("camera_topics", "camera_types", "camera_depth_range_m"))
    for name, given in (("camera_topics", topics), ("camera_types", types), ("camera_depth_range_m", ranges)):
        if unknown := sorted(set(given) - set(cameras)):
            raise values.wrong(name, f"no such camera: {', '.join(unknown)}", f"cameras are {', '.join(cameras) or '(none)'}")
    if wrong := sorted(set(types.values()) - {"image", "compressed"}):
        raise values.wrong("camera_types", f"unknown type {wrong[0]!r}", "one of image, compressed")
    made, by_arrival = [], _by_arrival(values, cameras)
    for camera in cameras:
        raw = types.get(camera, values.text("camera_type")) == "image"
        topic = topics.get(camera, f"camera/{camera}/{'image_raw' if raw else 'image/compressed'}")
        depth = _depth_range(values, ranges[camera]) if camera in ranges else None
        topic = _topic(values, "camera_topics", topic)
        made.append(CameraConfig(name=camera, topic=topic, raw=raw, depth_range_m=depth, by_arrival=camera in by_arrival))
    return tuple(made)


def _depth_range(values: Values, text: str) -> tuple[float, float]:
    name = "camera_depth_range_m"
    near, _, far = text.partition(":")
    near_m, far_m = values.parsed(name, near), values.parsed(name, far)
    if not 0.0 <= near_m < far_m:
        raise values.wrong(name, f"{text!r} is no range", "write it as camera=near:far in m, 0 <= near < far")
    return near_m, far_m


def _state(values: Values, config: RobotConfig) -> StateConfig:
    num_actions, parts, joints = len(config.action_names), values.distinct("state_parts"), values.distinct("joints")
    known = [part.value for part in StatePart]
    if not parts or set(parts) - set(known):
        raise values.wrong("state_parts", "not the parts of a state", f"one or more of {', '.join(known)}")
    fields = values.distinct("joint_fields")
    if not fields or set(fields) - set(JOINT_FIELDS):
        raise values.wrong("joint_fields", "not fields of joint states", f"one or more of {', '.join(JOINT_FIELDS)}")
    fields_of = _fields_of(values, "joint_fields_of", dict.fromkeys(joints, JOINT_FIELDS))
    part_fields = _part_fields(values)
    action_joints = per_action(values, "action_joints", values.distinct, num_actions)
    scale = values.numbered("unit_scale")
    if unknown := sorted(set(scale) - {*joints, *action_joints}):
        raise values.wrong("unit_scale", f"no such joint: {', '.join(unknown)}", "name joints of `joints` or `action_joints`")
    if 0.0 in scale.values():
        raise values.wrong("unit_scale", "a factor of zero", "give what a reading is multiplied with")
    made = StateConfig(
        size=config.state_size,
        parts=tuple(StatePart(part) for part in parts),
        array_topic=_topic(values, "state_topic", values.text("state_topic")),
        array_type=values.text("state_type"),
        joint_topic=_topic(values, "joint_topic", values.text("joint_topic")),
        joints=joints,
        joint_fields=fields,
        joint_fields_of=fields_of,
        unit_scale=scale,
        action_joints=action_joints,
        action_state=_action_state(values, config),
        part_topics=_part_topics(values),
        part_fields=part_fields,
        max_age_s=config.max_observation_age_s,
        by_arrival=_by_arrival(values, config.cameras),
    )
    _check_state_size(values, made)
    return made


def _fields_of(values: Values, name: str, known: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Parse a list of `key=field+field`. known: fields that each key may have."""
    found = {}
    for key, text in values.pairs(name).items():
        if key not in known:
            raise values.wrong(name, f"unknown: {key}", did_you_mean(key, known))
        fields = tuple(field.strip() for field in text.split("+"))
        if wrong := [field for field in fields if field not in known[key]]:
            raise values.wrong(name, f"{key} has no field {wrong[0]!r}", f"one or more of {', '.join(known[key])}, joined by +")
        if len(set(fields)) != len(fields):
            raise values.wrong(name, f"a field of {key} is in it twice", "name each once")
        found[key] = fields
    return found


def _part_fields(values: Values) -> dict[StatePart, tuple[str, ...]]:
    known = {part.value: tuple(form.fields) for part, form in FORMATS.items()}
    return {StatePart(part): fields for part, fields in _fields_of(values, "state_fields", known).items()}


def _part_topics(values: Values) -> dict[StatePart, str]:
    topics, known = values.pairs("state_topics"), [part.value for part in FORMATS]
    if unknown := [name for name in topics if name not in known]:
        fix = "the array has state_topic, the joints have joint_topic; " + did_you_mean(unknown[0], known)
        raise values.wrong("state_topics", f"no such part: {unknown[0]}", fix)
    return {StatePart(part): _topic(values, "state_topics", topic) for part, topic in topics.items()}


def _check_state_size(values: Values, state: StateConfig) -> None:
    if StatePart.JOINTS in state.parts and not state.joints:
        raise values.wrong("joints", "the state has joints, and none are named", "name them in the model's order")
    if (state.array_size > 0) is not (StatePart.ARRAY in state.parts) or state.array_size < 0:
        fix = "set it to what the parts have together, or add a part to state_parts"
        raise values.wrong("state_size", f"{_sizes(state)} are {state.size - state.array_size} of {state.size} numbers", fix)


def _sizes(state: StateConfig) -> str:
    """Return a description of the size of each part but the array."""
    sizes = [f"{FORMATS[part].size(state.fields_of_part(part))} numbers of {part.value}" for part in state.parts if part in FORMATS]
    if state.joint_fields_of:
        sizes.append(f"{state.num_joint_values} numbers of {len(state.joints)} joints")
    elif StatePart.JOINTS in state.parts or not sizes:
        sizes.append(f"{len(state.joints)} joints x {len(state.joint_fields)} fields")
    return " and ".join(sizes)


def _action_state(values: Values, config: RobotConfig) -> tuple[int, ...]:
    indices = per_action(values, "action_state", values.numbers, len(config.action_names))
    if any(index != int(index) or not 0 <= index < config.state_size for index in indices):
        raise values.wrong("action_state", "not places in the state", f"give integers from 0 to {config.state_size - 1}")
    if indices and values.texts("action_joints"):
        raise values.wrong("action_state", "positions come from the state or from action_joints, not from both", "leave one out")
    return tuple(int(index) for index in indices)


def _sink(values: Values, config: RobotConfig) -> SinkConfig:
    num_actions, kind, columns = len(config.action_names), values.choice("sink", SinkKind), ActionColumns.of(config)
    if kind is SinkKind.CUSTOM and not values.text("sink_class"):
        raise values.wrong("sink_class", "a custom sink needs its class", "give it as package.module:Class")
    sink = SinkConfig(
        action_names=config.action_names,
        kind=kind,
        topic=_topic(values, "sink_topic", values.text("sink_topic")),
        scale=per_action(values, "command_scale", values.numbers, num_actions),
        offset=per_action(values, "command_offset", values.numbers, num_actions),
        joints=per_action(values, "sink_joints", values.distinct, num_actions),
        trajectory_field=_trajectory_field(values, kind, columns),
        time_from_start_s=values.number("trajectory_time_s"),
        twist_axes=_twist_axes(values, config.action_names) if kind is SinkKind.TWIST else (),
        with_velocities=values.flag("trajectory_velocities"),
        stamped=values.flag("twist_stamped"),
        zero_stamp=values.text("twist_stamp") == "zero",
        frame_id=values.text("twist_frame"),
        custom_class=values.text("sink_class"),
        turns=columns.turns,
        command_types=columns.types,
    )
    what = {
        SinkKind.TWIST: "a twist",
        SinkKind.TRAJECTORY: f"a trajectory of {sink.trajectory_field}",
        SinkKind.CHUNK: "a chunk",
    }.get(kind, "")
    check_stop(columns, sink.meaning, sink.offset, what, zeroes=_zeroes(config))
    if kind is SinkKind.CHUNK:
        _check_braking(values, config)
    return sink


def _zeroes(config: RobotConfig) -> bool:
    """Return whether a rung of the fallback ladder commands displacements of zero."""
    return any(rung.motion in (Motion.ZERO, Motion.RAMP_DOWN) for rung in config.fallback)


def _check_braking(values: Values, config: RobotConfig) -> None:
    """Raise `ConfigurationError` when limits are missing by which a chunk comes to rest."""
    velocities, accelerations = config.limits.max_velocity, config.limits.max_acceleration
    for name, limit in (("limits.max_velocity", velocities), ("limits.max_acceleration", accelerations)):
        if not limit:
            fix = "give one per action; .inf for one that may stop at once"
            raise values.wrong(name, "a chunk ends with braking to a stand, which takes a limit", fix)
    for action, velocity, acceleration in zip(config.action_names, velocities, accelerations, strict=True):
        if math.isfinite(acceleration) and velocity / acceleration > LONGEST_BRAKING_S:
            problem = f"{action} would take {velocity / acceleration:g} s to brake from {velocity:g}"
            fix = f"at most {LONGEST_BRAKING_S:g} s: raise it, or lower limits.max_velocity"
            raise values.wrong("limits.max_acceleration", problem, fix)


def _trajectory_field(values: Values, kind: SinkKind, columns: ActionColumns) -> str:
    own = "velocities" if columns.is_zeroed.any() else "positions"
    field = values.text("trajectory_field") or own
    if kind is SinkKind.TRAJECTORY and field not in ("positions", "velocities"):
        problem = f"no {field} stop a robot: zero leaves it its velocity, or lets it fall"
        raise values.wrong("trajectory_field", problem, "positions or velocities; or a sink of your own that knows how to stop it")
    return field


def _twist_axes(values: Values, actions: tuple[str, ...]) -> tuple[str, ...]:
    axes = values.pairs("twist_axes")
    if set(axes) != set(actions) or len(set(axes.values())) != len(axes) or set(axes.values()) - set(TWIST_AXES):
        fix = f"write action=axis for each of {', '.join(actions)}; axes, each once: {', '.join(TWIST_AXES)}"
        raise values.wrong("twist_axes", "not an axis for every action", fix)
    return tuple(axes[action] for action in actions)


def per_action(
    values: Values, name: str, read: Callable[[str], tuple[Any, ...]], num_actions: int, *, may_be_nan: bool = False
) -> tuple[Any, ...]:
    """Return one value per action, or none at all."""
    found = read(name)
    if found and len(found) != num_actions:
        raise values.wrong(name, f"{len(found)} for {num_actions} actions", "give one per action, in their order")
    if any(isinstance(value, float) and not (math.isfinite(value) or (may_be_nan and math.isnan(value))) for value in found):
        raise values.wrong(name, "not finite", "give finite numbers")
    return found


def _topic(values: Values, name: str, topic: str) -> str:
    try:
        validate_topic_name(topic)
    except InvalidTopicNameException as error:
        problem = str(error).splitlines()[0]
        raise values.wrong(name, problem, "letters, digits, underscores and slashes; absolute with a slash first") from error
    return topic


def _check_positions(values: Values, config: RobotConfig, state: StateConfig) -> None:
    """Check that measured positions are known where a motion begins at them."""
    if state.action_joints or state.action_state:
        return
    fix = "name the joint of each action in action_joints, or its place in the state in action_state"
    if any(rung.motion is Motion.SAFE_POSE for rung in config.fallback):
        raise values.wrong("fallback", "the way to a safe pose begins at measured positions, which are not known", fix)
    positions = ActionColumns.of(config).is_position
    for name in ("max_velocity", "max_acceleration"):
        if any(math.isfinite(most) and moves for most, moves in zip(getattr(config.limits, name), positions, strict=False)):
            raise values.wrong(f"limits.{name}", "counts from measured positions, which are not known", fix)
