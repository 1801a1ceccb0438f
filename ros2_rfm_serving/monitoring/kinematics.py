"""Forward kinematics of the end effector from a robot's description (URDF) and joints; for display, not for control."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError

Matrix = npt.NDArray[np.float64]
TURNING, SLIDING, FIXED = ("revolute", "continuous"), ("prismatic",), ("fixed",)


@dataclass(frozen=True)
class Joint:
    name: str
    kind: str
    parent: str
    child: str
    origin: Matrix
    """[4, 4]"""
    axis: Matrix
    """[3] of unit length"""

    def at(self, position: float) -> Matrix:
        """Return the transform [4, 4] from the parent to the child at a joint position (rad or m)."""
        moved = np.eye(4)
        if self.kind in TURNING:
            moved[:3, :3] = _turn(self.axis, position)
        elif self.kind in SLIDING:
            moved[:3, 3] = self.axis * position
        return self.origin @ moved


class Arm:
    """Chain of joints from the root of a description to one of its links."""

    def __init__(self, description: str, tip: str = "") -> None:
        """Read a description. tip: link whose position is computed; empty: the last one of the longest chain.
        Raises: `ConfigurationError` if the description is no URDF, or no joint leads to the tip."""
        self.joints = _joints(description)
        by_child = {joint.child: joint for joint in self.joints}
        chains = {child: _chain(child, by_child) for child in by_child}
        if not chains or (tip and tip not in chains):
            fix = f"name one of {', '.join(sorted(chains)) or 'its links'}"
            raise ConfigurationError(f"no joint leads to the link {tip!r}", key="robot_description", fix=fix)
        self.chain = chains[tip] if tip else max(chains.values(), key=len)
        self.moving = [joint.name for joint in self.chain if joint.kind not in FIXED]

    def position(self, joints: Mapping[str, float]) -> Matrix:
        """Return the position [3] of the tip in the root's frame, m; joints that are missing are at 0."""
        pose = np.eye(4)
        for joint in self.chain:
            pose = pose @ joint.at(joints.get(joint.name, 0.0))
        return pose[:3, 3]


def _joints(description: str) -> list[Joint]:
    try:
        root = ET.fromstring(description)
        return [_joint(element) for element in root.findall("joint")]
    except (ET.ParseError, ValueError, AttributeError, KeyError) as error:
        raise ConfigurationError(f"is no URDF: {error}", key="robot_description", fix="check it with `check_urdf`") from None


def _joint(element: ET.Element) -> Joint:
    origin, pose = element.find("origin"), np.eye(4)
    if origin is not None:
        pose[:3, 3] = _vector(origin.get("xyz", "0 0 0"))
        roll, pitch, yaw = _vector(origin.get("rpy", "0 0 0"))
        pose[:3, :3] = _turn(np.array([0.0, 0, 1]), yaw) @ _turn(np.array([0.0, 1, 0]), pitch) @ _turn(np.array([1.0, 0, 0]), roll)
    axis = element.find("axis")
    along = _vector(axis.get("xyz", "1 0 0")) if axis is not None else np.array([1.0, 0.0, 0.0])
    parent, child = (element.find(end).attrib["link"] for end in ("parent", "child"))  # type: ignore[union-attr]
    kind = element.attrib["type"]
    if kind not in (*TURNING, *SLIDING, *FIXED):
        raise ValueError(f"joint {element.get('name')!r} is {kind}")
    return Joint(element.attrib["name"], kind, parent, child, pose, along / np.linalg.norm(along))


def _vector(text: str) -> Matrix:
    found = np.array([float(part) for part in text.split()])
    if found.shape != (3,):
        raise ValueError(f"{text!r} is not three numbers")
    return found


def _chain(child: str, by_child: Mapping[str, Joint]) -> list[Joint]:
    chain: list[Joint] = []
    while child in by_child and len(chain) <= len(by_child):
        chain.append(by_child[child])
        child = by_child[child].parent
    return chain[::-1]


def _turn(axis: Matrix, angle: float) -> Matrix:
    """Return the rotation matrix [3, 3] (Rodrigues' formula)."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    turned: Matrix = np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
    return turned
