"""Each preset, with a stand-in of its robot: found on the graph, connected, at work, recorded, and decided again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import yaml
from rclpy.parameter import Parameter
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.wave import WaveOptions, wave_chunk
from ros2_rfm_serving.factory.live_graph.presets import Preset, load_preset, preset_names
from ros2_rfm_serving.factory.live_graph.propose import Answers, Proposal, propose
from ros2_rfm_serving.factory.live_graph.snapshot import GraphSnapshot
from ros2_rfm_serving.operate.connecting import Target, compare_file, write_files
from ros2_rfm_serving.ros.monitor.recorder import RecorderNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.tools.graph_snapshot import GraphSnapshotNode
from ros2_rfm_serving.ros.wire import convert, session_messages
from ros2_rfm_serving.shipped import shipped
from test.ros.preset_robot import PresetRobot
from test.ros.robot_rig import FakeServer, Rig
from test.ros.test_robot_node import SUCCESS
from test.unit.fakes import CONTRACT, chunk, schedule
from test.waiting import eventually

PRESETS = shipped("config", "robots", "presets")
TARGET = Target(folder=Path(), model="", gpu_type="", slo_ms=1000.0, prompt="move", profiles=None)


class WaveServer(FakeServer):
    """Answers with a stand-in's chunk; its contract is what the robot asks for."""

    options = WaveOptions(amplitudes=(), positions=())
    length = 40

    def _on_open(self, request: Any, response: Any) -> Any:
        answer = super()._on_open(request, response)
        actions, cameras = tuple(request.action_names), tuple(request.cameras)
        own = replace(CONTRACT, action_names=actions, cameras=cameras, state_size=request.state_size, chunk_length=self.length)
        return session_messages.contract_to(own, answer)

    def _on_observation(self, message: Any) -> None:
        request = convert.observation_from(message)
        values = wave_chunk(np.asarray(request.state), self.options, self.length)
        answer = replace(chunk(request, values), action_names=tuple(self.action_names))
        self._chunks[request.id.robot].publish(convert.reply_to(answer))


class PresetRig(Rig):
    make_server = WaveServer

    def __init__(self, proposal: Proposal, stand_in: PresetRobot, folder: Path) -> None:
        self.node = RobotNode()
        super().__init__(self.node, "arm_1")
        self.server.action_names = proposal.action_names  # type: ignore[attr-defined]
        amplitudes = tuple(0.2 if place >= 0 else 0.1 for place in proposal.positions)
        self.server.options = WaveOptions(amplitudes=amplitudes, positions=proposal.positions)  # type: ignore[attr-defined]
        settings = {"folder": str(folder), "robots": ["arm_1"], "linger_s": 0.0}
        overrides = [Parameter(name, value=value) for name, value in settings.items()]
        self.recorder = RecorderNode(parameter_overrides=overrides, use_global_arguments=False)
        self.nodes.append(self.recorder)
        for node in (self.recorder, *stand_in.nodes):
            self.executor.add_node(node)


def seen(stand_in: PresetRobot) -> GraphSnapshot:
    """Look at the graph of a stand-in until each sensor and each controller has said something."""
    node, spinner = GraphSnapshotNode(), executor()
    for one in (node, *stand_in.nodes):
        spinner.add_node(one)
    controllers = 1 if stand_in.commanded else 0

    def complete() -> bool:
        found = node.snapshot()
        samples = [topic.sample for topic in found.topics.values() if topic.sample]
        return bool(samples) and all(one.num_messages > 20 for one in samples) and len(found.controller_joints) == controllers

    assert eventually(complete, pause=lambda: spinner.spin_once(timeout_sec=0.02)), node.snapshot()
    found = node.snapshot()
    for one in stand_in.nodes:
        spinner.remove_node(one)
    spinner.shutdown()
    node.destroy_node()
    return found


@contextmanager
def graph(*arguments: str) -> Iterator[None]:
    rclpy.init(args=list(arguments))
    try:
        yield
    finally:
        rclpy.try_shutdown()


def connected(preset: Preset, folder: Path) -> Proposal:
    """Write the files of a preset's stand-in, and compare them with the graph that they were written from."""
    with graph():
        stand_in = PresetRobot(preset)
        try:
            snapshot = seen(stand_in)
        finally:
            stand_in.destroy()
    proposal = propose(snapshot, None, preset, Answers(robot="arm"))
    written = write_files(proposal, None, replace(TARGET, folder=folder), "a test")
    assert [str(one) for one in compare_file(written.robot, "arm_1", snapshot, "") if one.is_error] == []
    return proposal


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", preset_names(PRESETS))
def test_a_presets_stand_in_is_connected_moves_is_recorded_and_decided_again(name: str, ros_domain: int, tmp_path: Path) -> None:
    preset = load_preset(PRESETS, name)
    proposal = connected(preset, tmp_path / "out")
    file = tmp_path / "out" / "arm.yaml"
    mine = yaml.safe_load(file.read_text())["/**"]["ros__parameters"]
    assert all(mine[key] == one.value for key, one in preset.parameters.items()), "a value of the preset is not in the file"
    checked = CliRunner().invoke(app, ["check", str(file.parent / "factory.yaml"), "--profiles", str(file.parent / "profiles")])
    assert checked.exit_code == 0, checked.output
    own = ["-p", "robot:autostart:=false", "-p", "robot:robot:=arm_1", "-p", "robot:task:=arm", "-p", "robot:synchronous:=true"]
    with graph("--ros-args", "--params-file", str(file), *own, "-p", "robot:execution_horizon:=40"):
        stand_in = PresetRobot(preset)
        rig = PresetRig(proposal, stand_in, tmp_path / "bag")
        try:
            work(rig, stand_in)
        finally:
            rig.close()
            stand_in.destroy()
    result = CliRunner().invoke(app, ["audit", "verify", str(tmp_path / "bag"), "--json"])
    assert result.exit_code == 0, result.output
    again = CliRunner().invoke(app, ["replay", str(tmp_path / "bag"), "--json"])
    chains = {chain["writer"]: chain for chain in json.loads(again.stdout)["chains"]}
    assert again.exit_code == 0, again.output
    assert chains["robot/arm_1"]["decisions"] > 20


def work(rig: PresetRig, stand_in: PresetRobot) -> None:
    assert rig.node.trigger_configure() == SUCCESS
    assert rig.node.trigger_activate() == SUCCESS
    rig.schedule.publish(convert.schedule_to(schedule("arm_1"), "f"))
    body = rig.node._robots[0]
    rig.wait(lambda: body._audit.journal.on, "a recorder")
    rig.goal("arm_1", time_budget_s=600.0)
    rig.wait(lambda: stand_in.num_commands > 30 and stand_in.motion > 0.05, "a first motion")
    assert not {name for name in body.brain.refused if name not in ("incomplete_state", "old_observation")}
    assert rig.node.trigger_deactivate() == SUCCESS
    assert rig.node.trigger_cleanup() == SUCCESS
    rig.spin(0.5)
    rig.recorder.stop()


def test_a_preset_that_is_misspelt_is_refused_with_the_nearest_name() -> None:
    result = CliRunner().invoke(app, ["connect", "--preset", "frank"])
    assert "did you mean `franka`" in str(result.exception)
