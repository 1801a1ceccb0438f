"""Proprioceptive state that a model expects, from the robot's topics: joints by name, arrays, odometry and the like."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.yaml_source import nearest
from ros2_rfm_serving.robot.simulated_time import SimulatedTime
from ros2_rfm_serving.ros.robot.part_fields import IMU, LARGEST, ODOMETRY, POSE, WRENCH, PartFormat
from ros2_rfm_serving.ros.robot.reading_times import ReadingTimes
from ros2_rfm_serving.types import Array

MAX_NAMES = 256
"""Maximum number of joint names that are kept for suggestions."""
SHOWN_NAMES = 8
"""Maximum number of joint names that a message lists."""
JOINT_FIELDS = ("position", "velocity", "effort")
Places = npt.NDArray[np.intp]


class StatePart(enum.Enum):
    JOINTS = "joint_states"
    """`sensor_msgs/JointState`, by name."""
    ARRAY = "array"
    """`std_msgs/Float32MultiArray` or `Float64MultiArray`, unchanged."""
    ODOMETRY = "odometry"
    """`nav_msgs/Odometry`."""
    IMU = "imu"
    """`sensor_msgs/Imu`."""
    WRENCH = "wrench"
    """`geometry_msgs/WrenchStamped`."""
    POSE = "pose"
    """`geometry_msgs/PoseStamped`."""


FORMATS: Mapping[StatePart, PartFormat] = {
    StatePart.ODOMETRY: ODOMETRY,
    StatePart.IMU: IMU,
    StatePart.WRENCH: WRENCH,
    StatePart.POSE: POSE,
}


@dataclass(frozen=True, kw_only=True)
class StateConfig:
    size: int
    """S: size of all parts together."""
    parts: tuple[StatePart, ...] = (StatePart.ARRAY,)
    """Parts that are concatenated in this order."""
    array_topic: str = "state"
    array_type: str = "float32"
    joint_topic: str = "joint_states"
    joints: tuple[str, ...] = ()
    """The model's joints in the model's order."""
    joint_fields: tuple[str, ...] = ("position",)
    """Fields of each joint: all joints' first field, then all joints' second one."""
    joint_fields_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Joint -> its fields, where they differ from `joint_fields`."""
    unit_scale: Mapping[str, float] = field(default_factory=dict)
    """Joint -> factor of its positions and velocities, such as 0.0174533 for degrees; others: 1."""
    action_joints: tuple[str, ...] = ()
    """[A] joints that the actions move, for the measured position of each; empty: see `action_state`."""
    action_state: tuple[int, ...] = ()
    """[A] index of each action's measured position in the state; both empty: unknown."""
    part_topics: Mapping[StatePart, str] = field(default_factory=dict)
    """Topics of odometry, IMU, wrench and pose that differ from the defaults."""
    part_fields: Mapping[StatePart, tuple[str, ...]] = field(default_factory=dict)
    """Fields of these parts; others: all fields."""
    max_age_s: float = 0.5
    """Maximum age difference of the parts of one state, and of joints from several messages."""
    by_arrival: frozenset[str] = frozenset()
    """Parts whose arrival counts as their time, whatever their stamps."""

    @property
    def columns(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(field, joints that have it) of the joints' part, in the order of the state."""
        others = [name for name in JOINT_FIELDS if name not in self.joint_fields]
        order = (*self.joint_fields, *others)
        found = ((name, tuple(joint for joint in self.joints if name in self.fields_of(joint))) for name in order)
        return tuple((name, joints) for name, joints in found if joints)

    def fields_of(self, joint: str) -> tuple[str, ...]:
        return self.joint_fields_of.get(joint, self.joint_fields)

    def fields_of_part(self, part: StatePart) -> tuple[str, ...]:
        """Return the fields of odometry and the like, in the order of the message."""
        wanted = self.part_fields.get(part, tuple(FORMATS[part].fields))
        return tuple(name for name in FORMATS[part].fields if name in wanted)

    @property
    def num_joint_values(self) -> int:
        return sum(len(joints) for _, joints in self.columns)

    @property
    def array_size(self) -> int:
        joints = self.num_joint_values if StatePart.JOINTS in self.parts else 0
        messages = sum(FORMATS[part].size(self.fields_of_part(part)) for part in self.parts if part in FORMATS)
        return self.size - joints - messages

    def message_type(self, part: StatePart) -> type:
        if part is StatePart.JOINTS:
            return JointState  # type: ignore[no-any-return]
        return self.array_message if part is StatePart.ARRAY else FORMATS[part].type

    @property
    def array_message(self) -> type:
        message_type: type = Float64MultiArray if self.array_type == "float64" else Float32MultiArray
        return message_type

    @property
    def needs_joints(self) -> bool:
        return StatePart.JOINTS in self.parts or bool(self.action_joints)

    @property
    def needs_array(self) -> bool:
        return StatePart.ARRAY in self.parts

    @property
    def topics(self) -> dict[StatePart, str]:
        """Topics of all parts that are subscribed to."""
        found = {StatePart.ARRAY: self.array_topic} if self.needs_array else {}
        if self.needs_joints:
            found[StatePart.JOINTS] = self.joint_topic
        return found | {part: self.part_topics.get(part, FORMATS[part].topic) for part in self.parts if part in FORMATS}


class StateReader:
    """Assembly of the newest readings of one robot into its state. An unusable message is counted in `refused` and dropped.

    It is for one thread. `take_*` return True when every part of the state is newer than at the last True, which begins a period of
    a robot that ticks with its state."""

    def __init__(
        self,
        config: StateConfig,
        refused: Counter[str],
        *,
        simulated: SimulatedTime | None = None,
        full_name: Callable[[str], str] = lambda topic: topic if topic.startswith("/") else f"/{topic}",
    ) -> None:
        """Create the reader. full_name: maps a topic to its full name, for messages."""
        self._config, self._refused = config, refused
        self.topics = {part: full_name(topic) for part, topic in config.topics.items()}
        self._joints = JointReader(config, self.topics[StatePart.JOINTS]) if config.needs_joints else None
        self.times = {
            part: ReadingTimes(part.value, config.max_age_s, by_arrival=part.value in config.by_arrival, simulated=simulated)
            for part in self.topics
        }
        self.problem = ""
        """Reason for which the state is incomplete; empty: it is complete."""
        self.last_problem, self.is_incomplete = "", False
        """Reason of the last refusal, and whether it was missing parts."""
        self._problems: dict[StatePart, str] = {}
        self.forget()

    def forget(self) -> None:
        """Forget measurements from before a reset, which say nothing about the robot after it."""
        self.state: Array | None = None
        self.state_s = -math.inf
        """Time at which the oldest part of `state` was measured, by its stamp, or else received."""
        self._parts: dict[StatePart, tuple[Array, float]] = {}
        self._renewed: set[StatePart] = set()
        if self._joints:
            self._joints.forget()

    @property
    def positions(self) -> Array | None:
        """[A] measured positions, in units of the actions; None: unknown, or not of the same time as the state."""
        if self._config.action_state and self.state is not None:
            return self.state[list(self._config.action_state)]
        if self._joints and self._config.action_joints and self._joints.age_s(self.state_s) <= self._config.max_age_s:
            return self._joints.values("position", self._config.action_joints)
        return None

    def take_array(self, message: Any, now_s: float) -> bool:
        taken_s = self.times[StatePart.ARRAY].taken_s(message, now_s)
        try:
            values = self._array(message)
        except BadMessageError as error:
            return self._refuse(error, StatePart.ARRAY)
        return self._renew(StatePart.ARRAY, values, taken_s, now_s)

    def _array(self, message: Any) -> Array:
        """Return the numbers of an array message. Raises: `BadMessageError`."""
        values, wanted, topic = np.array(message.data, np.float64), self._config.array_size, self.topics[StatePart.ARRAY]
        if len(values) != wanted:
            raise BadMessageError("bad_state", f"{topic} has {len(values)} numbers, and {wanted} are expected of it")
        wrong = np.flatnonzero(~(np.abs(values) <= LARGEST))
        if len(wrong):
            raise BadMessageError("bad_state", f"number {wrong[0]} (from 0) is {values[wrong[0]]} in {topic}")
        return values.astype(np.float32)

    def take_part(self, part: StatePart, message: Any, now_s: float) -> bool:
        """Process a message of odometry and the like."""
        taken_s = self.times[part].taken_s(message, now_s)
        try:
            values = FORMATS[part].values(message, self._config.fields_of_part(part), self.topics[part])
        except BadMessageError as error:
            return self._refuse(error, part)
        return self._renew(part, values.astype(np.float32), taken_s, now_s)

    def take_joints(self, message: Any, now_s: float) -> bool:
        """Process joint states. Each of several publishers, recognised by its joint names, has a clock of its own."""
        assert self._joints is not None, "this robot's state has no joints"
        taken_s = self.times[StatePart.JOINTS].taken_s(message, now_s, tuple(message.name))
        try:
            complete = self._joints.take(message, taken_s, now_s)
        except BadMessageError as error:
            return self._refuse(error, StatePart.JOINTS)
        if not complete or StatePart.JOINTS not in self._config.parts:
            return False
        values = [self._joints.values(name, joints) for name, joints in self._config.columns]
        return self._renew(StatePart.JOINTS, np.concatenate(values), now_s - self._joints.age_s(now_s), now_s)

    def _refuse(self, error: BadMessageError, part: StatePart | None = None) -> bool:
        """Record a refusal. part: part that has this problem by itself."""
        self._refused[error.kind] += 1
        self.problem = self.last_problem = str(error)
        self.is_incomplete = error.kind == "incomplete_state"
        if part is not None:
            self._problems[part] = str(error)
        return False

    def _renew(self, part: StatePart, values: Array, taken_s: float, now_s: float) -> bool:
        self._parts[part] = (values, taken_s)
        self._renewed.add(part)
        self._problems.pop(part, None)
        ages_s = {wanted: self._parts.get(wanted, (values, -math.inf))[1] for wanted in self._config.parts}
        oldest = min(ages_s, key=lambda wanted: ages_s[wanted])
        if taken_s - ages_s[oldest] > self._config.max_age_s:
            return self._refuse(self._too_old(oldest, now_s))
        if len(self._renewed) < len(self._config.parts):
            return False
        self.state = np.concatenate([self._parts[wanted][0] for wanted in self._config.parts])
        self.state_s, self.problem = ages_s[oldest], ""
        self._renewed.clear()
        return True

    def _too_old(self, part: StatePart, now_s: float) -> BadMessageError:
        found, topic = self._parts.get(part), self.topics[part]
        if part in self._problems:
            problem = self._problems[part]
        elif found is None:
            problem = f"nothing came on {topic}"
        else:
            arrived_s = now_s - self.times[part].arrived_s
            problem = f"the newest reading of {topic} is {now_s - found[1]:.1f} s old; it came {arrived_s:.1f} s ago"
        return BadMessageError("incomplete_state", problem)


class JointReader:
    """Newest values of the relevant joints, from messages with any joints in any order."""

    def __init__(self, config: StateConfig, topic: str) -> None:
        self._names = tuple(dict.fromkeys((*config.joints, *config.action_joints)))
        self._column = {name: column for column, name in enumerate(self._names)}
        wanted = {name: set(config.fields_of(name)) if name in config.joints else set() for name in self._names}
        for name in config.action_joints:
            wanted[name].add("position")
        self._needs = {
            name: np.array([name in wanted[joint] for joint in self._names], bool)
            for name in JOINT_FIELDS
            if any(name in fields for fields in wanted.values())
        }
        """Field -> [joints] whether it is needed."""
        self._scale = np.array([config.unit_scale.get(name, 1.0) for name in self._names])
        self._max_age_s, self._topic = config.max_age_s, topic
        self._named: list[str] = []
        self._columns: Places = np.empty(0, np.intp)
        """Columns of the relevant joints in messages with these names."""
        self._where: dict[str, tuple[Places, Places]] = {}
        """Field -> (indices in such a message, columns of the joints)."""
        self._problems: dict[int, str] = {}
        """Column of a joint -> reason for which the newest message with it was refused."""
        self._others: dict[str, None] = {}
        """Names of other joints, to suggest one for a missing joint."""
        self.forget()

    def forget(self) -> None:
        self._values = {name: np.full(len(self._names), np.nan) for name in JOINT_FIELDS}
        self._received_s = np.full(len(self._names), -np.inf)
        """[joints] time at which each was measured."""
        self._arrived_s = np.full(len(self._names), -np.inf)
        self._renewed: set[int] = set()

    def age_s(self, now_s: float) -> float:
        """Return the age of the oldest joint's reading, s."""
        return now_s - float(self._received_s.min())

    def values(self, name: str, joints: tuple[str, ...]) -> Array:
        """Return one field of these joints, in the model's units."""
        return self._values[name][[self._column[joint] for joint in joints]].astype(np.float32)

    def take(self, message: Any, taken_s: float, now_s: float) -> bool:
        """Process a message; return True when every joint was renewed within the allowed time since the last True.
        taken_s: time of measurement. Raises: `BadMessageError`."""
        if message.name != self._named:
            self._find(list(message.name))
        columns = self._columns.tolist()
        try:
            taken = [(name, places, self._read(message, name, *places)) for name, places in self._where.items()]
        except BadMessageError as error:
            self._problems |= dict.fromkeys(columns, str(error))
            raise
        for column in columns if self._problems else ():
            self._problems.pop(column, None)
        for name, (_, where), values in taken:
            self._values[name][where] = values
        self._received_s[self._columns], self._arrived_s[self._columns] = taken_s, now_s
        self._renewed.update(columns)
        if self.age_s(now_s) > self._max_age_s:
            raise BadMessageError("incomplete_state", self._missing(now_s))
        if len(self._renewed) < len(self._names):
            return False
        self._renewed.clear()
        return True

    def _find(self, names: list[str]) -> None:
        """Find the relevant joints in messages with these names. Raises: `BadMessageError`."""
        if len(set(names)) != len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise BadMessageError("bad_state", f"joint {twice!r} is named twice in {self._topic}")
        sources = np.array([source for source, name in enumerate(names) if name in self._column], np.intp)
        columns = np.array([self._column[names[source]] for source in sources], np.intp)
        self._named, self._columns = names, columns
        needed = {name: needs[columns] for name, needs in self._needs.items()}
        self._where = {name: (sources[needs], columns[needs]) for name, needs in needed.items() if needs.any()}
        if len(self._others) < MAX_NAMES:
            self._others |= dict.fromkeys(name for name in names if name not in self._column)

    def _read(self, message: Any, name: str, sources: Places, columns: Places) -> npt.NDArray[np.float64]:
        """Return the values of one field. Raises: `BadMessageError`, which names joint and field."""
        values = np.array(getattr(message, name), np.float64)
        if not len(values):
            raise BadMessageError("missing_field", self._without(message, name, self._names[columns.min()]))
        if len(values) != len(message.name):
            problem = f"{len(values)} values of {name} for {len(message.name)} joints in {self._topic}"
            raise BadMessageError("bad_state", problem)
        scaled: npt.NDArray[np.float64] = values[sources] * (1.0 if name == "effort" else self._scale[columns])
        if not (np.abs(scaled) <= LARGEST).all():
            wrong = int(np.flatnonzero(~(np.abs(scaled) <= LARGEST))[0])
            joint, value = self._names[columns[wrong]], values[sources[wrong]]
            raise BadMessageError("bad_state", f"the {name} of joint {joint!r} is {value} in {self._topic}")
        return scaled

    def _without(self, message: Any, name: str, joint: str) -> str:
        has = [other for other in JOINT_FIELDS if len(getattr(message, other))]
        found = "no values" if not has else f"{has[0]} alone" if len(has) == 1 else " and ".join(has)
        return f"joint {joint!r} has no {name} in {self._topic} (it has {found})"

    def _missing(self, now_s: float) -> str:
        """Return why the state of the joints is incomplete, by the joint that has been without a reading for the longest time."""
        column = int(self._received_s.argmin())
        joint, received_s = self._names[column], float(self._received_s[column])
        if column in self._problems:
            return self._problems[column]
        arrived_s = float(self._arrived_s[column])
        if now_s - self._max_age_s > arrived_s > -math.inf:
            return f"joint {joint!r} came last in {self._topic} {now_s - arrived_s:.1f} s ago, and others come"
        if received_s > -math.inf:
            return f"joint {joint!r} in {self._topic} was measured {now_s - received_s:.1f} s ago, by its stamp"
        near = nearest(joint, self._others)
        meant = f" (did you mean `{near}`?)" if near else ""
        return f"joint {joint!r} is not in {self._topic}, {self._which_has()}{meant}"

    def _which_has(self) -> str:
        """Return the first names of joints that the topic has."""
        found = [name for name, at_s in zip(self._names, self._arrived_s, strict=True) if at_s > -math.inf]
        names = [*self._others, *found]
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        return f"which has {', '.join(names[:SHOWN_NAMES])}{more}" if names else "which has no joints"
