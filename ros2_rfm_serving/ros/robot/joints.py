"""The proprioceptive state that a model expects, from what the robot publishes: joints by name, arrays, or both."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.robot.freshness import Freshness
from ros2_rfm_serving.types import Array, empty

MAX_SOURCES = 64
"""Publishers of joint states that are told apart; more are messages that name other joints every time."""
JOINT_FIELDS = ("position", "velocity", "effort")


class StatePart(enum.Enum):
    JOINTS = "joint_states"
    """`sensor_msgs/JointState`, by name."""
    ARRAY = "array"
    """`std_msgs/Float32MultiArray` or `Float64MultiArray`, as it comes."""


@dataclass(frozen=True, kw_only=True)
class StateConfig:
    size: int
    """S, of all parts together."""
    parts: tuple[StatePart, ...] = (StatePart.ARRAY,)
    """Concatenated in this order."""
    array_topic: str = "state"
    array_type: str = "float32"
    joint_topic: str = "joint_states"
    joints: tuple[str, ...] = ()
    """The model's joints in the model's order."""
    joint_fields: tuple[str, ...] = ("position",)
    """Of each: all joints' first field, then all joints' second one."""
    unit_scale: Mapping[str, float] = field(default_factory=dict)
    """joint -> what its positions and velocities are multiplied with, such as 0.0174533 for degrees; others: 1."""
    action_joints: tuple[str, ...] = ()
    """[A] joints that the actions move, for the measured position of each; empty: see `action_state`."""
    action_state: tuple[int, ...] = ()
    """[A] where in the state the measured position of each action is; both empty: not known."""
    max_age_s: float = 0.5
    """Parts, and joints from several messages, are one state only if received within this time."""

    @property
    def array_size(self) -> int:
        return self.size - len(self.joints) * len(self.joint_fields) if StatePart.JOINTS in self.parts else self.size

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


class StateReader:
    """Puts the newest readings of one robot together. A message that cannot be used is counted in `refused` and dropped.

    One thread. `take_*` return True when every part of the state is newer than at the last True: the rhythm of a robot that
    ticks with its state.
    """

    def __init__(self, config: StateConfig, refused: Counter[str]) -> None:
        self._config, self._refused = config, refused
        self._joints = JointReader(config) if config.needs_joints else None
        self._sources: dict[tuple[str, ...], Freshness] = {}
        self.forget()

    def forget(self) -> None:
        """What was measured before a reset says nothing about the robot after it."""
        self.state: Array | None = None
        self.state_s = -math.inf
        """When the oldest part of `state` was measured: by its stamp, or else received."""
        self._parts: dict[StatePart, tuple[Array, float]] = {}
        self._renewed: set[StatePart] = set()
        if self._joints:
            self._joints.forget()

    @property
    def positions(self) -> Array | None:
        """[A] measured, in the units of the actions; None: not known, or not of the same time as the state."""
        if self._config.action_state and self.state is not None:
            return self.state[list(self._config.action_state)]
        if self._joints and self._config.action_joints and self._joints.age_s(self.state_s) <= self._config.max_age_s:
            return self._joints.values("position", self._config.action_joints)
        return None

    def take_array(self, message: Any, now_s: float) -> bool:
        values = np.array(message.data, np.float64)
        if len(values) != self._config.array_size or not _representable(values):
            self._refused["bad_state"] += 1
            return False
        return self._renew(StatePart.ARRAY, values.astype(np.float32), now_s)

    def take_joints(self, message: Any, now_s: float) -> bool:
        assert self._joints is not None, "this robot's state has no joints"
        try:
            complete = self._joints.take(message, self._taken_s(message, now_s), now_s)
        except BadMessageError as error:
            self._refused[error.kind] += 1
            return False
        if not complete or StatePart.JOINTS not in self._config.parts:
            return False
        values = [self._joints.values(name, self._config.joints) for name in self._config.joint_fields]
        return self._renew(StatePart.JOINTS, np.concatenate(values), now_s - self._joints.age_s(now_s))

    def _taken_s(self, message: Any, now_s: float) -> float:
        """When it was measured. Each of several publishers, known by the joints that it names, has stamps of its own."""
        stamp = message.header.stamp
        source = self._sources.setdefault(tuple(message.name), Freshness(self._config.max_age_s))
        if len(self._sources) > MAX_SOURCES:
            self._sources.clear()
        return source.taken_s(stamp.sec + 1e-9 * stamp.nanosec, now_s)

    def _renew(self, part: StatePart, values: Array, received_s: float) -> bool:
        self._parts[part] = (values, received_s)
        self._renewed.add(part)
        parts = [self._parts.get(wanted, (empty(0), -math.inf)) for wanted in self._config.parts]
        oldest_s = min(at_s for _, at_s in parts)
        if received_s - oldest_s > self._config.max_age_s:
            self._refused["incomplete_state"] += 1
            return False
        if len(self._renewed) < len(parts):
            return False
        self.state, self.state_s = np.concatenate([values for values, _ in parts]), oldest_s
        self._renewed.clear()
        return True


class JointReader:
    """The newest values of the joints that matter, from messages with any joints in any order."""

    def __init__(self, config: StateConfig) -> None:
        self._names = tuple(dict.fromkeys((*config.joints, *config.action_joints)))
        self._column = {name: column for column, name in enumerate(self._names)}
        self._fields = [
            name for name in JOINT_FIELDS if name in config.joint_fields or (name == "position" and config.action_joints)
        ]
        self._scale = np.array([config.unit_scale.get(name, 1.0) for name in self._names])
        self._max_age_s = config.max_age_s
        self._seen: tuple[list[str], list[int], list[int]] = ([], [], [])
        self.forget()

    def forget(self) -> None:
        self._values = {name: np.full(len(self._names), np.nan) for name in JOINT_FIELDS}
        self._received_s = np.full(len(self._names), -np.inf)
        self._renewed: set[int] = set()

    def age_s(self, now_s: float) -> float:
        """Of the oldest joint's reading."""
        return now_s - float(self._received_s.min())

    def values(self, name: str, joints: tuple[str, ...]) -> Array:
        """[joints] of one field, in the model's units."""
        return self._values[name][[self._column[joint] for joint in joints]].astype(np.float32)

    def take(self, message: Any, taken_s: float, now_s: float) -> bool:
        """True when every joint has been renewed, within the time allowed, since the last True. taken_s: when it was measured.
        Raises: `BadMessageError`."""
        sources, columns = self._where(message.name)
        taken = {name: self._read(message, name, sources, columns) for name in self._fields} if columns else {}
        for name, values in taken.items():
            self._values[name][columns] = values
        self._received_s[columns] = taken_s
        self._renewed.update(columns)
        if self.age_s(now_s) > self._max_age_s:
            raise BadMessageError("incomplete_state", "some joints were not heard of for too long, or never")
        if len(self._renewed) < len(self._names):
            return False
        self._renewed.clear()
        return True

    def _where(self, names: list[str]) -> tuple[list[int], list[int]]:
        """Where in a message the joints that matter are, and which these are; looked up anew only when the names change."""
        if names != self._seen[0]:
            if len(set(names)) != len(names):
                raise BadMessageError("bad_state", "a joint is named twice")
            sources = [source for source, name in enumerate(names) if name in self._column]
            self._seen = (list(names), sources, [self._column[names[source]] for source in sources])
        return self._seen[1:]

    def _read(self, message: Any, name: str, sources: list[int], columns: list[int]) -> npt.NDArray[np.float64]:
        values = np.array(getattr(message, name), np.float64)
        if not len(values):
            raise BadMessageError("missing_field", f"the joint states have no {name}")
        if len(values) != len(message.name):
            raise BadMessageError("bad_state", f"{len(values)} values of {name} for {len(message.name)} joints")
        scaled: npt.NDArray[np.float64] = values[sources] * (1.0 if name == "effort" else self._scale[columns])
        if not _representable(scaled):
            raise BadMessageError("bad_state", f"a {name} is no finite number")
        return scaled


def _representable(values: npt.NDArray[np.float64]) -> bool:
    return bool((np.abs(values) <= np.finfo(np.float32).max).all())
