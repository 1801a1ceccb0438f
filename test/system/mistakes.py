"""Honest mistakes with a robot of one's own, as docs/mistakes.md lists them: in the robot's file, its driver, or its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CAMERA, JOINTS = "front", ("shoulder", "elbow")


@dataclass(frozen=True, kw_only=True)
class Driver:
    """What the stand-in of a vendor's driver publishes and subscribes to, below the robot's namespace."""

    joint_names: tuple[str, ...] = JOINTS
    positions: tuple[float, ...] = (0.1, 0.2)
    joint_rate_hz: float = 20.0
    camera_topic: str = "camera/front/image/compressed"
    camera: str = "compressed"
    """compressed, raw, or what is wrong with a raw image: bytes, encoding."""
    stamps: str = "none"
    """Of images: none, stuck, whole seconds."""
    camera_rate_hz: float = 5.0
    controller: str = "array"
    """What subscribes to `command`: array, twist, array that asks for transient_local; empty: nothing."""
    follows: bool = True
    """Its joints go where they are commanded to, by displacements."""
    commands_too: bool = False
    """It publishes to `command`."""
    resets: bool = False


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One robot in a factory that works."""

    cause: str
    """That `rfm why` names."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of the robot, beside those of a right one."""
    driver: Driver = field(default_factory=Driver)
    instruction: str = ""
    """Of the task that it is given; empty: none."""
    reset: bool = False


POSITION = {
    "command_type": "position",
    "action_joints": list(JOINTS),
    "limits.max_velocity": [1.0, 1.0],
    "limits.lower": [-3.14, -3.14],
    "limits.upper": [3.14, 3.14],
}
RAW = {"camera_type": "image"}
RAW_TOPIC = "camera/front/image_raw"

LIVE: Mapping[str, Mistake] = {
    "A joint is misspelt": Mistake(cause="refused readings", driver=Driver(joint_names=("shoulder", "elbow_joint"))),
    "The driver publishes no velocities": Mistake(cause="refused readings", parameters={"joint_fields": ["velocity"]}),
    "The topic of the joint states is misspelt": Mistake(cause="dead joint states", parameters={"joint_topic": "joint_state"}),
    "The topic of a camera is misspelt": Mistake(
        cause="dead camera", parameters={"camera_topics": ["front=camera/front/image/compresed"]}
    ),
    "A camera sends raw images, and compressed ones are expected": Mistake(
        cause="refused readings", driver=Driver(camera="raw", camera_topic="camera/front/image/compressed")
    ),
    "A camera sends compressed images, and raw ones are expected": Mistake(cause="dead camera", parameters=RAW),
    "Images have the wrong number of bytes": Mistake(
        cause="refused readings", parameters=RAW, driver=Driver(camera="bytes", camera_topic=RAW_TOPIC)
    ),
    "Images have an encoding that nobody knows": Mistake(
        cause="refused readings", parameters=RAW, driver=Driver(camera="encoding", camera_topic=RAW_TOPIC)
    ),
    "A camera sends its last frame again and again": Mistake(cause="old readings", driver=Driver(stamps="stuck")),
    "Images are stamped in whole seconds": Mistake(cause="old readings", driver=Driver(stamps="whole seconds")),
    "Joints are published in degrees": Mistake(
        cause="unknown start", parameters=POSITION, driver=Driver(positions=(57.3, 20.0)), instruction="move to 0.3"
    ),
    "The model's actions are in degrees": Mistake(cause="unusable actions", parameters=POSITION, instruction="move to 57.3"),
    "The limits are too narrow": Mistake(
        cause="unusable actions",
        parameters=POSITION | {"limits.lower": [-0.3, -0.3], "limits.upper": [0.3, 0.3]},
        instruction="move to 0.5",
    ),
    "The limits are in degrees": Mistake(
        cause="doubtful limits", parameters=POSITION | {"limits.lower": [-180.0, -180.0], "limits.upper": [180.0, 180.0]}
    ),
    "Nobody subscribes to the commands": Mistake(cause="commands not taken", parameters={"sink_topic": "commands"}),
    "The controller takes another type": Mistake(cause="commands not taken", driver=Driver(controller="twist")),
    "The controller asks for another QoS": Mistake(cause="commands not taken", driver=Driver(controller="transient_local")),
    "The controller is not active": Mistake(
        cause="commands without motion", parameters=POSITION, driver=Driver(follows=False), instruction="move to 0.6"
    ),
    "Two programs command the robot": Mistake(cause="two publishers of commands", driver=Driver(commands_too=True)),
    "Nobody offers the reset": Mistake(cause="no reset service", instruction="stay", reset=True),
    "No task was given": Mistake(cause="no task"),
    "Nobody judges the task": Mistake(cause="no monitor", instruction="stay"),
    "The control rate is above the rate of the state": Mistake(
        cause="other state rate", parameters={"accept_other_rate": True}, driver=Driver(joint_rate_hz=8.0)
    ),
    "A camera is much slower than the state": Mistake(
        cause="refused messages",
        parameters={"max_observation_age_s": 5.0, "max_sensor_skew_s": 0.2},
        driver=Driver(camera_rate_hz=0.8),
        instruction="stay",
    ),
    "The action names are in another order": Mistake(cause="refused session", parameters={"action_names": ["elbow", "shoulder"]}),
    "The cameras are not the model's": Mistake(cause="refused session", parameters={"cameras": ["wrist"]}),
    "The size of the state is not the model's": Mistake(
        cause="refused session", parameters={"state_size": 4, "joint_fields": ["position", "effort"]}
    ),
    "The model cannot do the conditioning": Mistake(cause="refused session", parameters={"conditioning": "prefix"}),
    "The rate is not that of the demonstrations": Mistake(cause="refused session", parameters={"control_rate_hz": 50.0}),
    "A robot was left in a dry run": Mistake(cause="tried out", parameters={"dry_run": True}),
}
"""By what docs/mistakes.md calls them."""

SEPARATE_CAUSES = frozenset({"not configured", "not in the schedule", "no simulated clock", "overloaded machine"})
"""Causes of mistakes that processes of their own make."""
