"""Proposal of a robot's file for a live graph: unambiguous values are adopted, ambiguous ones are asked for."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.live_graph.description import JointLimits, all_limits
from ros2_rfm_serving.factory.live_graph.interface import SINKS_OF
from ros2_rfm_serving.factory.live_graph.presets import Preset
from ros2_rfm_serving.factory.live_graph.snapshot import (
    COMPRESSED_IMAGE,
    FLOAT64_ARRAY,
    IMAGE,
    JOINT_STATE,
    ODOMETRY,
    TRAJECTORY,
    TWIST,
    TWIST_STAMPED,
    GraphSnapshot,
    GraphTopic,
)
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.types import Conditioning, ModelContract

COMMAND_TYPES = (TRAJECTORY, FLOAT64_ARRAY, TWIST, TWIST_STAMPED)
KINDS = ("position", "velocity", "effort")
ODOMETRY_SIZE = 13
JOINT_FIELD_SETS = ("position", "position+velocity", "position+velocity+effort")
DEFAULT_RATE_HZ = 20.0
CAUTIOUS = {"position": (0.5, 2.0), "sliding": (0.05, 0.5), "linear": (0.2, 0.5), "angular": (0.5, 2.0), "velocity": (0.3, 2.0)}
"""Largest velocity and acceleration where no source has one, in rad/s or m/s and per second."""
FALLBACKS = {"position": ["ramp_down:0.5", "hold"], "velocity": ["ramp_down:0.3", "zero"]}
AXES = {1: ("linear.x",), 2: ("linear.x", "angular.z"), 3: ("linear.x", "linear.y", "angular.z")}
"""Axes of a twist by the number of actions."""


class UndecidedError(ConfigurationError):
    """A choice that an option has to make, since several answers are possible."""

    def __init__(self, option: str, problem: str, choices: Sequence[str], example: str) -> None:
        """Describe the choice. option: name without dashes. example: a possible value."""
        self.option, self.choices, self.example = option, tuple(choices), example
        there = f" (there: {', '.join(choices)})" if choices else ""
        super().__init__(f"{problem}{there}", key=f"--{option}", fix=f"give --{option} {example}")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers of the user; empty: any that fits."""

    robot: str = "robot"
    command: str = ""
    command_type: str = ""
    joints: tuple[str, ...] = ()
    """Joint of each action, in the model's order."""
    joint_topic: str = ""
    state: tuple[str, ...] = ()
    """Parts such as `joint_states:position+velocity` and `odometry`."""
    odometry: str = ""
    cameras: Mapping[str, str] = field(default_factory=dict)
    """Model's name -> topic."""
    twist_axes: tuple[str, ...] = ()
    rate_hz: float = 0.0
    max_velocity: tuple[float, ...] = ()
    """One value for all actions, or one per action."""


@dataclass(frozen=True, kw_only=True)
class ProposedLine:
    """A parameter of the robot's file, with the reason for its value."""

    key: str
    value: Any
    comment: str


@dataclass(frozen=True, kw_only=True)
class Proposal:
    robot: str
    lines: tuple[ProposedLine, ...]
    action_names: tuple[str, ...]
    positions: tuple[int, ...]
    """[A] index in the state of each action's measured position; -1: it has none."""
    state_size: int
    cameras: tuple[str, ...]
    control_rate_hz: float
    is_position: bool
    measured: tuple[float, ...] = ()
    """[A] newest measured position of each action, rad or m; nan: it has none; empty: no action has one."""

    def value(self, key: str, default: Any = None) -> Any:
        return next((line.value for line in self.lines if line.key == key), default)

    def action_joint(self, column: int) -> str:
        """Return the joint that measures an action; empty: none does."""
        joints = self.value("action_joints", ())
        return str(joints[column]) if joints else ""


def propose(snapshot: GraphSnapshot, contract: ModelContract | None, preset: Preset | None, answers: Answers) -> Proposal:
    """Return the parameters of a robot for this graph. contract: of the model; None: the robot's own joints are the actions.

    Raises: `UndecidedError` where an option has to decide, `ConfigurationError` where the graph lacks something the robot needs.
    """
    return _Proposer(snapshot, contract, preset, answers).proposal()


class _Proposer:
    def __init__(self, snapshot: GraphSnapshot, contract: ModelContract | None, preset: Preset | None, answers: Answers) -> None:
        self._snapshot, self._contract, self._preset, self._answers = snapshot, contract, preset, answers
        self._limits: dict[str, JointLimits] = {}
        self._lines: list[ProposedLine] = []
        self._command_name = ""

    def proposal(self) -> Proposal:
        command = self._command_topic()
        self._command_name = command.name
        descriptions = self._snapshot.robot_descriptions
        nearest_last = sorted(descriptions.items(), key=lambda item: (_shared_namespace(item[0], command.name), item[0]))
        self._limits = all_limits(nearest_last)
        kind = next(kind for kind in COMMAND_TYPES if kind in {endpoint.type for endpoint in command.executors})
        is_twist = kind in (TWIST, TWIST_STAMPED)
        joints = () if is_twist else self._joints(command)
        actions = self._actions(joints)
        state = self._state(joints, is_twist)
        cameras = self._cameras()
        rate_hz = self._control_rate_hz(state)
        command_type = self._commands(command, kind, actions, joints)
        self._motion(command_type, actions, joints)
        size = self._contract.state_size if self._contract else self._state_size
        places = [self._joint_order.index(joint) if joint in self._joint_order else -1 for joint in joints]
        self._lines.insert(0, ProposedLine(key="state_size", value=size, comment=self._model("length of the state")))
        self._lines.insert(
            0, ProposedLine(key="cameras", value=list(cameras) or [""], comment=self._model("names of the cameras, in its order"))
        )
        self._lines.insert(
            0, ProposedLine(key="action_names", value=list(actions), comment=self._model("columns of an action, in its order"))
        )
        return Proposal(
            robot=self._answers.robot,
            lines=tuple(line for line in self._lines if line.value not in ([], None)),
            action_names=actions,
            positions=tuple(places) if command_type == "position" else (-1,) * len(actions),
            state_size=size,
            cameras=cameras,
            control_rate_hz=rate_hz,
            is_position=command_type == "position",
            measured=self._measured(joints) if command_type == "position" else (),
        )

    def _measured(self, joints: tuple[str, ...]) -> tuple[float, ...]:
        topic = self._joint_topic(joints)
        found = topic.sample.joints if topic is not None and topic.sample is not None else {}
        return tuple(found.get(joint, {}).get("position", (math.nan, math.nan))[1] for joint in joints)

    def _add(self, key: str, value: Any, comment: str) -> None:
        self._lines.append(ProposedLine(key=key, value=value, comment=comment))

    def _model(self, what: str) -> str:
        return f"{what}: of {self._contract.model}" if self._contract else f"{what}: chosen here, no model was named"

    def _preset_value(self, key: str, default: Any = None) -> Any:
        return self._preset.value(key, default) if self._preset else default

    # --- commands ---

    def _command_topic(self) -> GraphTopic:
        topics = [one for one in self._snapshot.executed_as(*COMMAND_TYPES) if "/rfm/" not in one.name]
        names = [topic.name for topic in topics]
        if not names:
            fix = f"start the robot's controllers in ROS domain {self._snapshot.domain}, or give --domain"
            raise ConfigurationError("nobody subscribes to commands (a trajectory, an array or a twist)", fix=fix)
        wanted = self._answers.command
        if wanted and wanted not in names:
            raise ConfigurationError(f"nobody subscribes to {wanted}", key="--command", fix=did_you_mean(wanted, names))
        preset = self._preset_value("sink_topic", "")
        if wanted or preset in names:
            return self._snapshot.topic(wanted or preset)
        if self._preset:
            prefixed = [name for name in names if name.endswith(preset)]
            if len(prefixed) == 1:
                return self._snapshot.topic(prefixed[0])
        fitting = [topic for topic in topics if self._contract and len(self._controlled(topic)) == len(self._contract.action_names)]
        for candidates in (fitting, topics):
            if len(candidates) == 1:
                return candidates[0]
        raise UndecidedError("command", "several topics take commands", names, names[0])

    def _controlled(self, topic: GraphTopic) -> tuple[str, ...]:
        """Return the joints of the controller behind a topic; empty: not known."""
        return next((found for one in topic.executors if (found := self._snapshot.controller_joints.get(one.node))), ())

    def _joints(self, command: GraphTopic) -> tuple[str, ...]:
        """Return the joint of each action."""
        known = sorted({joint for topic in self._snapshot.published_as(JOINT_STATE) for joint in _joints_of(topic)})
        found = self._answers.joints or self._controlled(command) or self._prefixed(tuple(self._preset_value("joints", ())), known)
        names = self._contract.action_names if self._contract else ()
        if not found and names and set(names) <= set(known):
            return names
        if not found:
            raise UndecidedError(
                "joints", "the controller does not say which joints it moves", known, ",".join(known[:3]) or "j1,j2"
            )
        if not names or self._answers.joints:
            self._check_count(found, names)
            return found
        if set(names) == set(found):  # the model's order
            return names
        self._check_count(found, names)
        return found

    def _prefixed(self, joints: tuple[str, ...], known: Sequence[str]) -> tuple[str, ...]:
        """Return a preset's joints with the prefix that the graph has. Raises: `UndecidedError` where it has several."""
        if not joints:
            return ()
        prefixes = {one.removesuffix(joints[0]) for one in known if one.endswith(joints[0])}
        fitting = sorted(prefix for prefix in prefixes if {f"{prefix}{joint}" for joint in joints} <= set(known))
        words = re.split("[/_]", self._command_name)
        named = [prefix for prefix in fitting if prefix and set(re.split("[/_]", prefix.strip("/_"))) <= set(words)]
        fitting = named or fitting
        if len(fitting) > 1:
            choices = [",".join(f"{prefix}{joint}" for joint in joints) for prefix in fitting]
            raise UndecidedError("joints", f"{self._command_name} may move the joints of several robots", choices, choices[0])
        return tuple(f"{fitting[0]}{joint}" for joint in joints) if fitting else joints

    def _check_count(self, joints: Sequence[str], names: Sequence[str]) -> None:
        if names and len(joints) != len(names):
            problem = f"{', '.join(joints)} are {len(joints)} joints, and the model has {len(names)} actions ({', '.join(names)})"
            raise UndecidedError("joints", problem, joints, ",".join(joints))

    def _actions(self, joints: tuple[str, ...]) -> tuple[str, ...]:
        if self._contract:
            return self._contract.action_names
        return tuple(self._preset_value("action_names", ())) or joints or ("linear_x", "angular_z")

    def _commands(self, command: GraphTopic, kind: str, actions: tuple[str, ...], joints: tuple[str, ...]) -> str:
        nodes = ", ".join(sorted({endpoint.node for endpoint in command.executors}))
        sink = SINKS_OF[kind][0]
        command_type = self._command_type(command, kind)
        for key, value, why in (
            ("command_type", command_type, f"what {nodes} makes of a number"),
            ("sink", sink, f"{nodes} subscribes to {kind}"),
        ):
            self._add(key, value, self._source(key, why) if self._preset_value(key) == value else why)
        self._add("sink_topic", command.name, f"{nodes} subscribes to it")
        if kind == TRAJECTORY:
            self._add(
                "sink_joints",
                list(joints),
                f"joint of each action; {nodes} has {', '.join(self._controlled(command)) or 'not said'}",
            )
        if kind in (TWIST, TWIST_STAMPED):
            self._add("twist_axes", self._axes(actions), "axis of each action")
            self._add("twist_stamped", kind == TWIST_STAMPED, "while no subscriber is known; else the robot follows its type")
        return command_type

    def _command_type(self, command: GraphTopic, kind: str) -> str:
        if self._answers.command_type:
            if self._answers.command_type not in KINDS[:2]:
                fix = "position or velocity; other robots are written by hand (docs/integrate.md)"
                raise ConfigurationError(f"is {self._answers.command_type!r}", key="--command-type", fix=fix)
            return self._answers.command_type
        if kind in (TWIST, TWIST_STAMPED):
            return "velocity"
        if kind == TRAJECTORY:
            return "position"
        named = [one for one in KINDS if one in command.name or any(one in endpoint.node for endpoint in command.executors)]
        if len(named) == 1 and named[0] != "effort":
            return named[0]
        raise UndecidedError("command-type", f"{command.name} does not say what its numbers are", KINDS[:2], "position")

    def _axes(self, actions: tuple[str, ...]) -> list[str]:
        given = self._answers.twist_axes or tuple(self._preset_value("twist_axes", ()))
        if given and {entry.partition("=")[0] for entry in given} == set(actions):
            return list(given)
        if len(actions) not in AXES:
            example = ",".join(f"{action}=linear.x" for action in actions)
            raise UndecidedError("twist-axes", f"{len(actions)} actions for a twist", actions, example)
        return [f"{action}={axis}" for action, axis in zip(actions, AXES[len(actions)], strict=True)]

    # --- the state ---

    def _state(self, joints: tuple[str, ...], is_twist: bool) -> list[GraphTopic]:
        """Write the parts of the state, and return their topics."""
        parts = [part.partition(":") for part in self._answers.state] or self._parts(joints, is_twist)
        self._joint_order: tuple[str, ...] = ()
        self._state_size = 0
        topics = []
        names = [name for name, _, _ in parts]
        unknown = [name for name in names if name not in ("joint_states", "odometry")]
        if unknown:
            fix = "joint_states[:position+velocity] and odometry; other parts are written by hand (docs/integrate.md)"
            raise ConfigurationError(f"{unknown[0]!r} cannot be connected", key="--state", fix=fix)
        self._add("state_parts", names, "parts of the state, in this order")
        for name, _, fields in parts:
            topics.append(self._odometry() if name == "odometry" else self._joint_states(joints, fields or "position"))
        if self._contract and self._state_size != self._contract.state_size:
            raise self._undecided_state(f"{' and '.join(names)} give {self._state_size} numbers")
        return topics

    def _parts(self, joints: tuple[str, ...], is_twist: bool) -> list[tuple[str, str, str]]:
        """Return the parts whose sizes add up to the model's state."""
        size = self._contract.state_size if self._contract else 0
        if not size:
            return [("odometry", "", "")] if is_twist else [("joint_states", "", "position")]
        joint_count = len(self._state_joints(joints, size))
        found = [
            parts
            for odometry in (False, True)
            for fields in ("", *(JOINT_FIELD_SETS if joint_count else ()))
            if (parts := [("joint_states", ":", fields)] * bool(fields) + [("odometry", "", "")] * odometry)
            and joint_count * (fields.count("+") + bool(fields)) + ODOMETRY_SIZE * odometry == size
        ]
        if len(found) == 1 or (found and not is_twist):
            return found[0]
        raise self._undecided_state(f"no usual state of {joint_count} joints and odometry has that size")

    def _undecided_state(self, problem: str) -> UndecidedError:
        size = self._contract.state_size if self._contract else 0
        choices = ["joint_states:position", "joint_states:position+velocity", "odometry"]
        return UndecidedError(
            "state", f"the model's state has {size} numbers, and {problem}", choices, "joint_states:position,odometry"
        )

    def _state_joints(self, joints: tuple[str, ...], size: int) -> tuple[str, ...]:
        """Return the joints of the state: those of the actions, or all of their topic where the model's state needs them."""
        topic = self._joint_topic(joints)
        names = tuple(_joints_of(topic)) if topic else ()
        if joints and size and size % len(joints) and names and not size % len(names):
            return names
        return joints or names

    def _joint_states(self, joints: tuple[str, ...], fields: str) -> GraphTopic:
        size = self._contract.state_size if self._contract else 0
        order = self._joint_order = self._state_joints(joints, size if not self._answers.state else 0)
        topic = self._joint_topic(order)
        if topic is None:
            fix = "start joint_state_broadcaster, or give --state odometry"
            raise ConfigurationError(f"no joint states with {', '.join(order) or 'any joint'} are published", fix=fix)
        rate = _rate(topic)
        self._add("joint_topic", topic.name, f"{_publishers(topic)} publishes it{rate}")
        self._add("joints", list(order), "joints of the state: the order has to be the model's")
        names = fields.split("+")
        self._add("joint_fields", names, "of each joint")
        if joints:
            self._add("action_joints", list(joints), "joint that measures each action: limits begin there")
        self._state_size += len(order) * len(names)
        return topic

    def _joint_topic(self, joints: Sequence[str]) -> GraphTopic | None:
        topics = [one for one in self._snapshot.published_as(JOINT_STATE) if set(joints) <= set(_joints_of(one))]
        names = [topic.name for topic in topics]
        wanted = self._answers.joint_topic
        if wanted:
            if wanted not in names:
                problem = f"{wanted} has no joint states with {', '.join(joints)}"
                raise ConfigurationError(problem, key="--joint-topic", fix=did_you_mean(wanted, names))
            return self._snapshot.topic(wanted)
        preset = self._preset_value("joint_topic", "")
        if preset in names:
            return self._snapshot.topic(preset)
        near = self._in_its_namespace(names)
        if len(near) > 1:
            raise UndecidedError("joint-topic", "several topics have these joints", names, near[0])
        return self._snapshot.topic(near[0]) if near else None

    def _in_its_namespace(self, topics: Sequence[str]) -> list[str]:
        """Return the topics that share most of their namespace with the command topic, as those of one robot do."""
        shared = [_shared_namespace(topic, self._command_name) for topic in topics]
        return [topic for topic, parts in zip(topics, shared, strict=True) if parts == max(shared)]

    def _odometry(self) -> GraphTopic:
        topics = self._snapshot.published_as(ODOMETRY)
        names = [topic.name for topic in topics]
        preset = next((entry.partition("=")[2] for entry in self._preset_value("state_topics", ())), "")
        wanted = self._answers.odometry or (preset if preset in names else "")
        if not names:
            raise ConfigurationError("no odometry is published", fix="start the base's driver, or give --state joint_states")
        if wanted and wanted not in names:
            raise ConfigurationError(f"{wanted} has no odometry", key="--odometry", fix=did_you_mean(wanted, names))
        near = self._in_its_namespace(names)
        if not wanted and len(near) > 1:
            raise UndecidedError("odometry", "several topics have odometry", names, near[0])
        topic = self._snapshot.topic(wanted or near[0])
        self._add("state_topics", [f"odometry={topic.name}"], f"{_publishers(topic)} publishes it{_rate(topic)}")
        self._state_size += ODOMETRY_SIZE
        return topic

    # --- cameras and rhythm ---

    def _cameras(self) -> tuple[str, ...]:
        names = self._contract.cameras if self._contract else tuple(self._answers.cameras)
        unknown = [name for name in self._answers.cameras if name not in names]
        if unknown:
            fix = did_you_mean(unknown[0], names)
            raise ConfigurationError(f"the model has no camera {unknown[0]!r}", key="--camera", fix=fix)
        topics = {name: self._camera(name, names) for name in names}
        if not topics:
            return names
        raw = {name for name, topic in topics.items() if COMPRESSED_IMAGE not in topic.published_types}
        self._add("camera_topics", [f"{name}={topic.name}" for name, topic in topics.items()], "topic of each camera")
        types = [f"{name}={'image' if name in raw else 'compressed'}" for name in topics]
        seen = "; ".join(f"{name}: {_sample_text(topic)}" for name, topic in topics.items())
        self._add("camera_types", types, f"as they are published. {seen}")
        return names

    def _camera(self, name: str, names: Sequence[str]) -> GraphTopic:
        there = [topic for topic in self._snapshot.published_as(IMAGE, COMPRESSED_IMAGE) if not _is_depth(topic)]
        if given := self._answers.cameras.get(name):
            known = [topic.name for topic in self._snapshot.published_as(IMAGE, COMPRESSED_IMAGE)]
            if given not in known:
                raise ConfigurationError(
                    f"{name}: nobody publishes images on {given}", key="--camera", fix=did_you_mean(given, known)
                )
            return self._snapshot.topic(given)
        there = _best_of_each(there)
        matching = [topic for topic in there if name in topic.name]
        for candidates in (matching, there if len(names) == 1 else []):
            if len(candidates) == 1:
                return candidates[0]
        choices = [topic.name for topic in there]
        raise UndecidedError(
            "camera", f"which topic is the model's camera {name!r}?", choices, f"{name}={(choices or ['/TOPIC'])[0]}"
        )

    def _control_rate_hz(self, state: Sequence[GraphTopic]) -> float:
        measured = [topic.sample.rate_hz for topic in state if topic.sample and topic.sample.rate_hz]
        model_hz = self._contract.control_rate_hz if self._contract else 0.0
        slowest = min(measured, default=math.inf)
        rate_hz = self._answers.rate_hz or model_hz or min(DEFAULT_RATE_HZ, max(1.0, float(math.floor(slowest * 1.05))))
        why = "asked for" if self._answers.rate_hz else "rate of the demonstrations" if model_hz else "chosen here"
        if slowest < 0.9 * rate_hz:
            why += f"; the state comes at {slowest:.1f} Hz alone, so that several commands follow one reading"
        self._add("control_rate_hz", float(rate_hz), f"commands per second: {why}")
        self._add("tick", "timer", "a control period by the clock, with the newest readings")
        self._add("conditioning", self._conditioning(), self._model("how a chunk continues the motion under way"))
        return float(rate_hz)

    def _conditioning(self) -> str:
        able = self._contract.conditionings if self._contract else (Conditioning.NONE,)
        return next((one.value for one in (Conditioning.PREFIX, Conditioning.GUIDED) if one in able), Conditioning.NONE.value)

    # --- limits and fallbacks ---

    def _motion(self, command_type: str, actions: tuple[str, ...], joints: tuple[str, ...]) -> None:
        if command_type == "position":
            self._position_limits(joints)
        else:
            self._velocity_limits(actions)
        self._add(
            "limits.tolerance", 0.05, "a command beyond its limit by less is clamped; one further out is refused, with its chunk"
        )
        self._add("fallback", FALLBACKS[command_type], "without an action: slow down, then stand")

    def _position_limits(self, joints: tuple[str, ...]) -> None:
        known = [self._limits.get(joint) for joint in joints]
        continuous = [joint for joint, one in zip(joints, known, strict=True) if one and one.is_continuous]
        continuous = continuous or [joint for joint in joints if joint in self._preset_value("continuous_joints", ())]
        if continuous:
            self._add(
                "continuous_joints",
                continuous,
                self._source("continuous_joints", "they turn without end, by the robot's description"),
            )
        for name in ("lower", "upper"):
            self._add(f"limits.{name}", *self._range_limit(name, joints, known))
        self._rates(joints, known)

    def _range_limit(self, name: str, joints: tuple[str, ...], known: Sequence[JointLimits | None]) -> tuple[list[float], str]:
        """Return the lower or the upper limits of positions, with their source. name: lower or upper."""
        if (values := self._of_preset(f"limits.{name}", joints)) is not None:
            return values, self._source(f"limits.{name}", "")
        sign = -1.0 if name == "lower" else 1.0
        values = [sign * math.pi if one and one.is_continuous else getattr(one or JointLimits(), name) for one in known]
        unknown = [joint for joint, value in zip(joints, values, strict=True) if math.isinf(value)]
        if not unknown:
            return values, "rad, or m of a sliding joint, by the robot's description"
        of = "" if len(unknown) == len(joints) else f" of {', '.join(unknown)}"
        return values, f"rad; NOT KNOWN{of}: no description of the robot says it. Replace .inf by what the robot may do"

    def _rates(self, joints: Sequence[str], known: Sequence[JointLimits | None]) -> None:
        cautious = [CAUTIOUS["sliding" if one and one.is_sliding else "position"] for one in known]
        fastest = [min(most, one.velocity if one else math.inf) for (most, _), one in zip(cautious, known, strict=True)]
        asked, own = self._requested_velocities(len(joints)), self._of_preset("limits.max_velocity", joints)
        comment = "rad/s, or m/s of a sliding joint; cautious, chosen here: raise it when the robot moves as it should"
        comment = "asked for" if asked else self._source("limits.max_velocity", comment) if own else comment
        self._add("limits.max_velocity", asked or own or fastest, comment)
        acceleration = self._of_preset("limits.max_acceleration", joints)
        comment = self._source("limits.max_acceleration", "") if acceleration else "per second; cautious, chosen here"
        self._add("limits.max_acceleration", acceleration or [most for _, most in cautious], comment)

    def _velocity_limits(self, actions: tuple[str, ...]) -> None:
        axes = self._lines_value("twist_axes")
        kinds = [entry.partition("=")[2].partition(".")[0] for entry in axes] if axes else ["velocity"] * len(actions)
        cautious = [CAUTIOUS[kind] for kind in kinds]
        asked = self._requested_velocities(len(actions))
        is_presets = self._preset_value("command_type") == "velocity"  # limits of positions do not apply to velocities
        lower, upper = (self._of_preset(key, actions) if is_presets else None for key in ("limits.lower", "limits.upper"))
        comment = self._source("limits.upper", "m/s and rad/s") if upper else "m/s and rad/s; cautious, chosen here"
        comment = "asked for" if asked else comment
        self._add("limits.lower", [-most for most in asked] if asked else lower or [-most for most, _ in cautious], comment)
        self._add("limits.upper", asked or upper or [most for most, _ in cautious], comment)
        acceleration = self._of_preset("limits.max_acceleration", actions) if is_presets else None
        comment = self._source("limits.max_acceleration", "") if acceleration else "per second; cautious, chosen here"
        self._add("limits.max_acceleration", acceleration or [most for _, most in cautious], comment)

    def _requested_velocities(self, count: int) -> list[float]:
        asked = self._answers.max_velocity
        if len(asked) not in (0, 1, count):
            fix = f"give one for all, or {count} with commas"
            raise ConfigurationError(f"{len(asked)} velocities for {count} actions", key="--max-velocity", fix=fix)
        return list(asked) * count if len(asked) == 1 else list(asked)

    def _of_preset(self, key: str, names: Sequence[str]) -> list[float] | None:
        """Return the preset's value of each joint or action, found by its index in the preset's order; None: it has none."""
        values = self._preset_value(key)
        own = self._preset_value("joints") or self._preset_value("action_names") or []
        if values is None or len(own) != len(names):
            return None
        places = [next((place for place, one in enumerate(own) if name.endswith(one)), -1) for name in names]
        if min(places) < 0:
            if self._preset_value("joints"):
                return None  # joints of another robot
            places = list(range(len(own)))
        return [float(values[place]) for place in places]

    def _source(self, key: str, otherwise: str) -> str:
        return (self._preset.comment(key) if self._preset else "") or otherwise

    def _lines_value(self, key: str) -> Any:
        return next((line.value for line in self._lines if line.key == key), None)


def answered(answers: Answers, option: str, text: str) -> Answers:
    """Return the answers with the value that a user typed for an option. Raises: `ConfigurationError`."""
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    if option == "camera":
        name, equals, topic = text.partition("=")
        if not equals:
            raise ConfigurationError(f"{text!r} is no camera", key="--camera", fix="write name=/topic")
        return replace(answers, cameras={**answers.cameras, name.strip(): topic.strip()})
    if option in ("joints", "state", "twist-axes"):
        return replace(answers, **{option.replace("-", "_"): values})  # type: ignore[arg-type]
    return replace(answers, **{option.replace("-", "_"): text.strip()})  # type: ignore[arg-type]


def _shared_namespace(topic: str, other: str) -> int:
    """Return the number of leading namespace parts that two topics share."""
    pairs = zip(topic.split("/")[1:-1], other.split("/")[1:-1], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _joints_of(topic: GraphTopic) -> list[str]:
    return list(topic.sample.joints) if topic.sample else []


def _publishers(topic: GraphTopic) -> str:
    return ", ".join(sorted({endpoint.node for endpoint in topic.publishers}))


def _rate(topic: GraphTopic) -> str:
    rate_hz = topic.sample.rate_hz if topic.sample else 0.0
    return f" at {rate_hz:.0f} Hz" if rate_hz else ""


def _sample_text(topic: GraphTopic) -> str:
    image = topic.sample.image if topic.sample else None
    return f"{image.encoding} {image.width_px} x {image.height_px}{_rate(topic)}" if image else "nothing arrived"


def _is_depth(topic: GraphTopic) -> bool:
    image = topic.sample.image if topic.sample else None
    encoding = image.encoding if image else ""
    return "compressedDepth" in topic.name or any(name in encoding for name in ("16UC1", "32FC1", "compressedDepth"))


def _best_of_each(topics: Iterable[GraphTopic]) -> list[GraphTopic]:
    """Return one topic per camera: its compressed images where there are both, because raw ones are lost more easily."""
    found = {topic.name: topic for topic in topics}
    covered = {name.removesuffix("/compressed") for name in found if name.endswith("/compressed")}
    return [topic for name, topic in found.items() if name not in covered]
