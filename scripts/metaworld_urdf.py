"""Writes config/robots/metaworld_arm.urdf: the simulated arm's joints as MuJoCo has them, its links as plain cylinders.

python scripts/metaworld_urdf.py > config/robots/metaworld_arm.urdf
"""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

import mujoco
import numpy as np

from ros2_rfm_serving.worlds.metaworld import MetaworldArm

ROOT, RADIUS_M = "base", 0.04
LINKS = ("right_arm_base_link", *(f"right_l{i}" for i in range(7)), "right_hand", "hand", "rightclaw", "leftclaw")
KINDS = {int(mujoco.mjtJoint.mjJNT_HINGE): "revolute", int(mujoco.mjtJoint.mjJNT_SLIDE): "prismatic"}


def numbers(values: np.ndarray) -> str:
    return quoteattr(" ".join(f"{value:.6g}" for value in np.where(np.abs(values) < 1e-9, 0.0, values)))


def rpy(quaternion: np.ndarray) -> np.ndarray:
    """Roll, pitch, yaw, as URDF has them: about the fixed axes."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion / np.linalg.norm(quaternion))
    m = matrix.reshape(3, 3)
    if abs(m[2, 0]) > 1.0 - 1e-9:  # gimbal lock: all of the rest in the roll
        return np.array([np.arctan2(-m[2, 0] * m[0, 1], m[1, 1]), -np.sign(m[2, 0]) * np.pi / 2, 0.0])
    return np.array([np.arctan2(m[2, 1], m[2, 2]), -np.arcsin(m[2, 0]), np.arctan2(m[1, 0], m[0, 0])])


def along(vector: np.ndarray) -> np.ndarray:
    """Roll, pitch, yaw that turn the z axis to the vector."""
    x, y, z = vector / np.linalg.norm(vector)
    return np.array([0.0, np.arccos(np.clip(z, -1, 1)), np.arctan2(y, x)])


def link(name: str, towards: list[np.ndarray]) -> list[str]:
    lines = [f"  <link name={quoteattr(name)}>"]
    for end in towards:
        length = float(np.linalg.norm(end))
        if length > 0.02:
            radius = RADIUS_M if length > 0.06 else RADIUS_M / 3
            lines += [
                f"    <visual><origin xyz={numbers(end / 2)} rpy={numbers(along(end))}/>",
                f'      <geometry><cylinder radius="{radius:.4g}" length="{length:.4g}"/></geometry></visual>',
            ]
    return [*lines, "  </link>"]


def joint(model: mujoco.MjModel, name: str) -> list[str]:
    body = model.body(name)
    parent = model.body(int(body.parentid[0])).name
    own = int(body.jntadr[0]) if body.jntnum[0] else -1
    kind = KINDS[int(model.jnt_type[own])] if own >= 0 else "fixed"
    joint_name = model.joint(own).name if own >= 0 else f"{name}_fixed"
    lines = [
        f"  <joint name={quoteattr(joint_name)} type={quoteattr(kind)}>",
        f"    <parent link={quoteattr(parent)}/><child link={quoteattr(name)}/>",
        f"    <origin xyz={numbers(body.pos)} rpy={numbers(rpy(body.quat))}/>",
    ]
    if own >= 0:
        low, high = model.jnt_range[own]
        assert not model.jnt_pos[own].any()
        lines += [
            f"    <axis xyz={numbers(model.jnt_axis[own])}/>",
            f'    <limit lower="{low:.4g}" upper="{high:.4g}" effort="100" velocity="10"/>',
        ]
    return [*lines, "  </joint>"]


def main() -> None:
    model = MetaworldArm("reach")._env.model
    children = {
        name: [model.body(o).pos for o in LINKS if model.body(int(model.body(o).parentid[0])).name == name]
        for name in (ROOT, *LINKS)
    }
    lines = ['<?xml version="1.0"?>', "<!-- By scripts/metaworld_urdf.py. -->", '<robot name="metaworld_arm">']
    for name in (ROOT, *LINKS):
        lines += link(name, children[name])
    for name in LINKS:
        lines += joint(model, name)
    print("\n".join([*lines, "</robot>"]))


if __name__ == "__main__":
    main()
