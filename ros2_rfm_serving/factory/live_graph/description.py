"""Limits of joints in a robot's description (URDF)."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class JointLimits:
    """Limits in radians, or metres for a sliding joint; infinite: the description has none."""

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    """Velocity limit per second."""
    is_continuous: bool = False
    is_sliding: bool = False
    topic: str = ""
    """Topic on which the description was published."""


def joint_limits(description: str, topic: str = "") -> dict[str, JointLimits]:
    """Return the limits of each moving joint; empty where the text is no URDF."""
    try:
        root = ET.fromstring(description)
    except ET.ParseError:
        return {}
    found = {}
    for element in root.findall("joint"):
        limit, kind = element.find("limit"), element.get("type", "")
        if kind not in ("revolute", "prismatic", "continuous") or (limit is None and kind != "continuous"):
            continue
        given = {name: _number(limit.get(name)) for name in ("lower", "upper", "velocity")} if limit is not None else {}
        lower, upper, velocity = given.get("lower"), given.get("upper"), given.get("velocity")
        has_range = kind != "continuous" and (lower or 0.0) < (upper or 0.0)  # a missing attribute means 0
        found[element.get("name", "")] = JointLimits(
            lower=lower or 0.0 if has_range else -math.inf,
            upper=upper or 0.0 if has_range else math.inf,
            velocity=velocity if velocity is not None and velocity > 0.0 else math.inf,
            is_continuous=kind == "continuous",
            is_sliding=kind == "prismatic",
            topic=topic,
        )
    return found


def all_limits(descriptions: Iterable[tuple[str, str]]) -> dict[str, JointLimits]:
    """Return the limits of the joints of several descriptions. descriptions: (topic, URDF)."""
    found: dict[str, JointLimits] = {}
    for topic, text in descriptions:
        found |= joint_limits(text, topic)
    return found


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None
