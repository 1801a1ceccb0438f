"""Where a chunk leads, and where the simulated arm's hand is by its description."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.kinematics import Arm
from ros2_rfm_serving.monitoring.paths import UNKNOWN_RGB, colour, path
from ros2_rfm_serving.worlds.metaworld import metaworld_arm

HERE = np.array([1.0, 2.0, 3.0])
DELTA = ("delta_x", "delta_y", "delta_z", "gripper")
TWO_JOINTS = """<robot name="r">
  <joint name="turn" type="revolute"><parent link="a"/><child link="b"/><origin xyz="0 0 1"/><axis xyz="0 0 2"/></joint>
  <joint name="push" type="prismatic"><parent link="b"/><child link="c"/><origin xyz="1 0 0" rpy="0 0 1.5707963"/></joint>
  <joint name="tool" type="fixed"><parent link="c"/><child link="d"/><origin xyz="0 0 0.5"/></joint>
</robot>"""


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def test_displacements_count_from_where_the_arm_is_when_the_chunk_arrives() -> None:
    steps = rows([1, 0, 0, 9], [1, 0, 0, 9], [0, 2, 0, 9])
    found = path(DELTA, steps, HERE, 1, delta_scale_m=0.1, arm=None)
    assert found is not None and np.allclose(found, [[1.0, 2, 3], [1.1, 2, 3], [1.1, 2.2, 3]])
    found = path(DELTA, steps, HERE, 0, delta_scale_m=0.1, arm=None)
    assert found is not None and np.allclose(found[0], [1.1, 2, 3])
    assert path(DELTA, steps, None, 0, delta_scale_m=0.1, arm=None) is None, "nobody knows where it is"


def test_positions_are_taken_as_they_are_whatever_their_order() -> None:
    found = path(("ee_z", "ee_x", "ee_y"), rows([3, 1, 2]), HERE, 5, delta_scale_m=1.0, arm=None)
    assert found is not None and found.tolist() == [[1, 2, 3]]


def test_joints_lead_through_the_description_and_others_nowhere() -> None:
    arm = Arm(TWO_JOINTS)
    found = path(("push", "turn"), rows([0.0, 0.0], [0.5, 0.0], [0.0, np.pi / 2]), HERE, 0, delta_scale_m=1.0, arm=arm)
    assert found is not None and np.allclose(found, [[1, 0, 1.5], [1, 0.5, 1.5], [0, 1, 1.5]], atol=1e-6)
    assert path(("push", "other"), rows([0, 0]), HERE, 0, delta_scale_m=1.0, arm=arm) is None
    assert path(("linear", "angular"), rows([0, 0]), HERE, 0, delta_scale_m=1.0, arm=None) is None


@pytest.mark.parametrize(
    "text", ["", "<robot>", "<robot/>", '<robot><joint name="j" type="ball"/></robot>', TWO_JOINTS.replace("0 0 1", "0 1")]
)
def test_what_is_no_description_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="robot_description"):
        Arm(text)


def test_the_simulated_arms_description_is_the_simulated_arm(repository: Path) -> None:
    arm = Arm((repository / "config/robots/metaworld_arm.urdf").read_text(), "hand")
    with metaworld_arm("reach") as world:
        world.reset(1)
        for action in ([1, 0, 0, 0], [0, -1, 1, 0], [-1, 1, 0, 1]):
            for _ in range(10):
                world.step(action)
            joints = dict(zip(world.joint_names, map(float, world.joint_positions), strict=True))
            assert np.allclose(arm.position(joints), world.state[:3], atol=1e-3)


def test_colours_go_from_red_to_green() -> None:
    assert colour(0.0) == (1.0, 0.0, 0.1) and colour(1.0) == (0.0, 1.0, 0.1) and colour(float("nan")) == UNKNOWN_RGB
