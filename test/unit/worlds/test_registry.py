"""Worlds of other packages: found, checked, declared, and taught from, as ours is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.training import policies
from lab.training.workshop import Workshop
from ros2_rfm_serving.engines.bundles import load_bundle
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, load_factory, parse_factory
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.worlds.base import WorldSpec
from ros2_rfm_serving.worlds.registry import build_world, teaching_world
from ros2_rfm_serving.worlds.rollout import run_episodes
from test.line_world import Trolley

LINE = "test.line_world:build"
FACTORY = """\
server_cluster: {num_servers: 1, gpu_type: CPU}
robot_fleet: [{task: reach, num_robots: 2}]
reach:
  pipeline: {action_period_ms: 400}
  components: {system1: {model: line/reach, prompt: go, slo_ms: 400}}
  robot: trolley.yaml
  world: {simulator: "test.line_world:build", task: reach, control_rate_hz: 10, seed: 5}
"""


@pytest.mark.parametrize(
    ("simulator", "says"),
    [
        ("metawrold", "did you mean `metaworld`"),
        ("no_such_module:build", "no_such_module, which is missing"),
        ("test.line_world:nothing", "has no 'nothing'"),
        ("test.line_world:half", "lacks action_names, cameras"),
        ("test.line_world:TOP_SPEED", "has no 'TOP_SPEED'"),
        (":build", "cannot be imported: ValueError"),
    ],
)
def test_what_is_no_world_is_refused_and_says_why(simulator: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=r"simulator") as error:
        build_world(simulator, WorldSpec(task="reach"))
    assert says in str(error.value)


def test_ours_is_one_of_them() -> None:
    arm = teaching_world("metaworld", WorldSpec(task="reach", image_size_px=32))
    try:
        images = arm.render()
        assert tuple(images) == tuple(arm.cameras) and {i.shape for i in images.values()} == {(32, 32, 3)}
        held = arm.idle(np.array([0.5, -0.5, 1.0, 0.75], np.float32), 1)
        assert held.tolist() == [0, 0, 0, 0.75], "it stays where it is, and keeps its grip"
    finally:
        arm.close()
    with pytest.raises(ConfigurationError, match="did you mean `reach`"):
        build_world("metaworld", WorldSpec(task="reech"))


def test_a_factory_of_another_world_has_its_nodes_and_metaworlds_are_as_they_were(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "trolley.yaml").write_text(
        "/**: {ros__parameters: {action_names: [speed], state_size: 6, control_rate_hz: 10.0}}\n"
    )
    (tmp_path / "factory.yaml").write_text(FACTORY)
    nodes = {node.name: node for node in node_list(load_factory(tmp_path / "factory.yaml"), repository / "config")}
    world = nodes["reach_2_world"]
    assert world.executable == "simulated_robot_node" and world.simulated
    assert world.parameters == {
        "robot": "reach_2",
        "simulator": LINE,
        "task": "reach",
        "seed": 10_005,
        "control_rate_hz": 10.0,
        "camera_rate_hz": 5.0,
        "image_size_px": 96,
        "action_names": ["speed"],
    }
    ours = {
        node.name: node for node in node_list(load_factory(repository / "config/factory_quickstart.yaml"), repository / "config")
    }
    assert ours["push_1_world"].executable == "metaworld_robot_node" and "simulator" not in ours["push_1_world"].parameters
    assert ours["push_1_world"].parameters["action_names"] == ["delta_x", "delta_y", "delta_z", "gripper"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("test.line_world:build", "metawrold", "did you mean `metaworld`"),
        ("seed: 5", "interface: foreign", "only Meta-World's arms"),
        ("  robot: trolley.yaml\n", "", "metaworld_arm.yaml does not describe a robot of"),
        ('"test.line_world:build"', '""', "simulator"),
    ],
)
def test_a_descriptor_that_cannot_work_is_refused(old: str, new: str, says: str) -> None:
    assert old in FACTORY
    with pytest.raises(ConfigurationError) as error:
        parse_factory(FACTORY.replace(old, new))
    assert says in str(error.value)


def test_a_policy_learns_from_another_worlds_expert_and_its_bundle_is_found_beside_its_catalogue(tmp_path: Path) -> None:
    policies.simulated(Workshop(tmp_path, 0, 1, 3, 0, 0), LINE, "reach", 2, compiled=False)
    (tmp_path / "models.yaml").write_text("models: {line/reach: {engine: bundle, bundle: reach_flow}}\n")
    folder = Path(Catalogue.load(tmp_path / "models.yaml")["line/reach"].bundle)
    engine = load_bundle("line/reach", folder)
    try:
        contract = engine.contract
        assert (contract.action_names, contract.cameras, contract.state_size) == (("speed",), ("above",), 6)
        assert contract.max_inference_delay_steps == 12, "it has learned to continue prefixes"
        (episode,) = run_episodes(Trolley("reach", 96), engine, "go to the mark", [1000], max_steps=30)
        assert 0 < episode.steps <= 30, "it drives"
    finally:
        engine.close()


def test_a_renderer_that_cannot_be_loaded_is_named_with_its_fix() -> None:
    code = "from ros2_rfm_serving.worlds.registry import build_world as b, WorldSpec as S; b('metaworld', S(task='reach'))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = {**os.environ, "MUJOCO_GL": "none_of_these"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode and "nothing can be drawn off screen: " in done.stderr, done.stderr
    assert "MUJOCO_GL" in done.stderr and "libegl1" in done.stderr, done.stderr
