"""Search for the topic that is meant by an unused name, and for the parameter that accepts the type of its messages.

A running robot, `rfm check --live` and `rfm connect` share this rule.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from ros2_rfm_serving.factory.live_graph.snapshot import COMPRESSED_IMAGE, FLOAT32_ARRAY, FLOAT64_ARRAY, IMAGE, JOINT_STATE

NUM_SIMILAR, SIMILAR = 3, 0.75
"""Number of topics that are proposed, and the least similarity of the name of one that has another type."""
EXCHANGED = {IMAGE: COMPRESSED_IMAGE, COMPRESSED_IMAGE: IMAGE, FLOAT32_ARRAY: FLOAT64_ARRAY, FLOAT64_ARRAY: FLOAT32_ARRAY}
"""Types of messages between which one parameter of a robot switches."""
CAMERA_TYPES = {IMAGE: "image", COMPRESSED_IMAGE: "compressed"}
"""Values of the parameters `camera_type` and `camera_types`."""
STATE_TYPES = {FLOAT32_ARRAY: "float32", FLOAT64_ARRAY: "float64"}
"""Values of the parameter `state_type`."""


def similar_topics(
    topic: str, types_of: Mapping[str, Sequence[str]], wanted: Collection[str], *, same_robot: bool = False
) -> list[str]:
    """Return the topics that are most likely meant, the likeliest first; one of a wanted type is among them where there is any.

    A topic of a wanted type may have any name, one of another type only a name that is nearly the same. types_of: topics of the
    graph with their types. wanted: types of messages. same_robot: restrict the result to topics below the first part of the wanted
    name, which is mostly its robot's, where there are any.
    """
    there = {name: types for name, types in sorted(types_of.items()) if name != topic}
    typed = [name for name, types in there.items() if set(wanted) & set(types)]
    others = difflib.get_close_matches(topic, there.keys() - set(typed), NUM_SIMILAR, SIMILAR)
    first = topic[: topic.index("/", 1) + 1] if topic.count("/") > 1 else "/"
    if same_robot and any(name.startswith(first) for name in (*typed, *others)):
        typed, others = ([name for name in names if name.startswith(first)] for names in (typed, others))
    near = difflib.get_close_matches(topic, [*typed, *others], NUM_SIMILAR, 0.0)
    if typed and not set(typed) & set(near):
        near[-1:] = difflib.get_close_matches(topic, typed, 1, 0.0)
    return near


def described(topic: str, types: Sequence[str], wanted: Sequence[str], camera: str = "") -> str:
    """Return a topic with its type, and the setting that makes a robot accept that type where it is none of the wanted ones."""
    kind = next((one for one in types if one in wanted), types[0])
    fix = type_fix(kind, wanted, camera)
    return f"{topic} ({kind}{': ' if fix else ''}{fix})"


def type_fix(kind: str, wanted: Sequence[str], camera: str = "") -> str:
    """Return the setting that makes a robot accept this type in place of the wanted ones; empty: none does, or none is needed.

    camera: name of the camera that the topic belongs to, where that is known.
    """
    if kind in wanted:
        return ""
    if kind in CAMERA_TYPES and set(wanted) & set(CAMERA_TYPES):
        value = CAMERA_TYPES[kind]
        return (
            f"set camera_types: [{camera}={value}]" if camera else f"set `camera_type: {value}`, or `camera_types` for one camera"
        )
    if kind in STATE_TYPES:
        if set(wanted) & set(STATE_TYPES):
            return f"set `state_type: {STATE_TYPES[kind]}`"
        return f"set `state_parts: [array]`, `state_topic` and `state_type: {STATE_TYPES[kind]}`" if JOINT_STATE in wanted else ""
    is_joints = kind == JOINT_STATE and not set(wanted) & set(CAMERA_TYPES)
    return "set `state_parts: [joint_states]` and `joint_topic`" if is_joints else ""
