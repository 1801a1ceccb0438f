"""What `rfm export` writes, read by LeRobot."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
import typer
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from lab.training.recorded import demonstrations, opened
from lab.training.train import train
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.export.frames import Camera, Episode, Frame, Shape, Source
from ros2_rfm_serving.audit.export.lerobot import write
from ros2_rfm_serving.cli.export import export
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import EncodedImage, EngineReply
from test.unit.audit import recorded as recorded_bag
from test.unit.audit import story

NAMES = ("x", "y", "gripper")
SHAPE = Shape(action_names=NAMES, state_size=5, cameras=(Camera("front", 24, 32), Camera("side", 24, 32)), rate_hz=20)


CAMERAS = (Camera("front", 96, 96), Camera("side", 96, 96))


def picture(camera: str, level: int, height: int = 24, width: int = 32) -> EncodedImage:
    data = simplejpeg.encode_jpeg(np.full((height, width, 3), level, np.uint8), quality=95)
    return EncodedImage(camera=camera, format="jpeg", data=data)


def frame(step: int, **more: object) -> Frame:
    kind: dict[str, object] = {
        "t_s": 100.0 + step / 20,
        "state": np.full(5, step, np.float32),
        "images": (picture("front", 10 * step), picture("side", 200)),
        "camera_age_s": 0.125,
        "action": np.asarray((step, -step, 0.5), np.float32),
        "instruction": "push it",
        "source": Source(session_epoch=7, episode=2, sequence=step // 2 + 1, row=step % 2, server="server_1", model_hash="ab"),
        "failsafe": "STREAMING",
    }
    return Frame(**(kind | more))  # type: ignore[arg-type]


def test_lerobot_reads_frames_with_their_source_success_and_interventions(tmp_path: Path) -> None:
    held = frame(3, source=None, fallback="hold", failsafe="STALLED", paused=True, instruction="push the puck")
    episodes = [
        Episode(robot="push_1", number=2, task="push", action_names=NAMES, rate_hz=20.0, frames=frames, success=success)
        for frames, success in (([frame(0), frame(1), frame(2), held], True), ([frame(4), frame(5, person=True)], None))
    ]
    assert write(episodes, SHAPE, tmp_path / "set", "fleet") == 6

    data = LeRobotDataset("fleet", root=tmp_path / "set", delta_timestamps={"action": [0.0, 1 / 20]})
    assert (data.meta.total_episodes, len(data), data.fps) == (2, 6, 20)
    assert data.meta.features["action"]["names"] == list(NAMES)
    second = data[1]
    assert second["action"].tolist() == [[1.0, -1.0, 0.5], [2.0, -2.0, 0.5]]
    assert second["observation.state"].tolist() == [1.0] * 5
    assert second["observation.images.front"].shape == (3, 24, 32)
    assert abs(float(second["observation.images.front"].mean()) - 10 / 255) < 0.01
    assert (second["task"], second["source.server"], int(second["source.row"])) == ("push it", "server_1", 1)
    last = data[3]
    assert (float(last["next.reward"]), bool(last["next.done"]), int(last["success"])) == (1.0, True, 1)
    assert (last["fallback"], last["failsafe"], int(last["source.sequence"])) == ("hold", "STALLED", -1)
    assert bool(last["is_intervention"]) and bool(last["intervention.paused"]) and last["task"] == "push the puck"
    assert [int(data[at]["success"]) for at in (0, 4)] == [1, -1]
    assert float(data[5]["next.reward"]) == 0.0 and bool(data[5]["intervention.person"])
    assert not (tmp_path / "set.partial").exists()


@pytest.mark.parametrize("rate_hz", [12.5, 33.3, 2.5, 0.4])
def test_lerobot_reads_a_rate_that_is_no_whole_number_with_its_clock(rate_hz: float, tmp_path: Path) -> None:
    """One action column as well, which LeRobot takes for a number."""
    frames = [frame(step, t_s=100.0 + step / rate_hz, action=np.asarray((step,), np.float32)) for step in range(6)]
    episode = Episode(robot="push_1", number=1, task="push", action_names=("x",), rate_hz=rate_hz, frames=frames)
    write([episode, episode], dataclasses.replace(SHAPE, action_names=("x",), rate_hz=rate_hz), tmp_path / "set", "fleet")
    data = LeRobotDataset("fleet", root=tmp_path / "set", delta_timestamps={"action": [0.0, 1 / rate_hz]})
    assert data.fps == rate_hz and data.meta.total_episodes == 2
    assert [float(data[at]["timestamp"]) for at in (0, 5, 11)] == pytest.approx([0.0, 5 / rate_hz, 5 / rate_hz])
    assert float(data[5]["timestamp"]) == pytest.approx(float(data[5]["time_s"]), rel=1e-5)
    assert data[7]["action"].flatten().tolist() == [1.0, 2.0]


def test_videos_at_a_rate_that_they_cannot_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"12.5 Hz, and videos have whole rates.*leave --videos out"):
        write([], dataclasses.replace(SHAPE, rate_hz=12.5), tmp_path / "set", "fleet", videos=True)
    assert not list(tmp_path.iterdir())


# --- out of a recording ----------------------------------------------------------------------------------------------------


def recording(folder: Path, num_episodes: int = 2, rate_hz: float = 10.0, changed: tuple[int, ...] = ()) -> Path:
    """Short episodes of a robot, of which the second one succeeds; in those that `changed` has only one camera is there."""
    log, images = story.robot(rate_hz=rate_hz), (picture("front", 100), picture("side", 50))
    with BagWriter(folder) as bag:
        for episode in range(1, num_episodes + 1):
            seen = images[: 1 if episode in changed else 2]
            for step in range(6):
                t_s = episode + step / 10
                asked = {"sensors": story.sensors(t_s, t_s, seen), "requests": [story.request(1, episode)]}
                story.tick(log, t_s, [t_s, 0.0], story.row(step, 1, episode), **(asked if step == 0 else {}))
        sent = [("sensor_msgs/msg/CompressedImage", np.frombuffer(one.data, np.uint8)) for one in images]
        messages = [recorded_bag.made(kind, format="jpeg", data=data) for kind, data in sent]
        recorded_bag.write(bag, "/rfm/servers/server_1/observation", "rfm_serving/msg/Observation", 1, images=messages)
        for episode, verdict in ((1, "failed"), (2, "done")):
            header = recorded_bag.made("std_msgs/msg/Header", frame_id="push_1")
            told = {"header": header, "task": "push", "episode": episode, "verdict": verdict}
            recorded_bag.write(bag, "/push_1/rfm/status", "rfm_serving/msg/RobotStatus", int(story.EPOCH_S * 1e9) + episode, **told)
        data = recorded_bag.page(log.page())
        bag.write("/push_1/rfm/audit", "rfm_serving/msg/AuditPage", recorded_bag.definition("rfm_serving/msg/AuditPage"), data, 5)
    return folder


def test_a_recording_becomes_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bag = recording(tmp_path / "shift")
    export(bag, tmp_path / "all")
    assert "12 frames in 2 episodes of push_1: 1 succeeded, 1 failed" in capsys.readouterr().out
    data = LeRobotDataset("all", root=tmp_path / "all")
    assert (data.meta.total_episodes, len(data), data.fps) == (2, 12, 10)
    assert [int(data[at]["success"]) for at in (0, 6)] == [0, 1]
    assert (data[7]["robot"], data[7]["robot_task"], int(data[7]["robot_episode"])) == ("push_1", "push", 2)
    assert int(data[7]["source.row"]) == 1 and abs(float(data[7]["observation.images.side"].mean()) - 50 / 255) < 0.01

    export(bag, tmp_path / "won", only="success")
    assert LeRobotDataset("won", root=tmp_path / "won").meta.total_episodes == 1
    assert "skipped: 1 episodes, without success" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="it is there already"):
        export(bag, tmp_path / "won")
    with pytest.raises(ConfigurationError, match="no episode of a robot"):
        export(bag, tmp_path / "none", robot=["nobody"])


def test_more_than_a_tenth_left_out_is_said_last_and_by_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bag = recording(tmp_path / "shift", 12, changed=(4, 9))
    with pytest.raises(typer.Exit) as ended:
        export(bag, tmp_path / "set")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 of 12 episodes were left out: 2 of another shape")
    assert LeRobotDataset("set", root=tmp_path / "set").meta.total_episodes == 10
    export(recording(tmp_path / "better", 12, changed=(4,)), tmp_path / "other")
    assert "left out" not in capsys.readouterr().out


def test_a_robot_without_a_declared_rate_needs_to_be_told_it(tmp_path: Path) -> None:
    bag = recording(tmp_path / "shift", rate_hz=0.0)
    with pytest.raises(ConfigurationError, match="no episode of a robot"):
        export(bag, tmp_path / "set")
    export(bag, tmp_path / "set", rate_hz=12.5)
    assert LeRobotDataset("set", root=tmp_path / "set").fps == 12.5


# --- what it trains --------------------------------------------------------------------------------------------------------

ARM = Shape(action_names=("delta_x", "delta_y", "delta_z", "gripper"), state_size=39, cameras=CAMERAS, rate_hz=20)


def arm_frame(step: int, state_size: int = 39, **more: object) -> Frame:
    images = tuple(picture(camera.name, 40 * (step // 4), 96, 96) for camera in CAMERAS)
    state = np.linspace(0, 1, 39, dtype=np.float32)[:state_size] + step
    return frame(step, state=state, images=images, action=np.full(4, 0.1 * (step % 7), np.float32), **more)


def recorded(folder: Path, state_size: int = 39) -> Path:
    """Of sixteen periods: in one the ladder speaks, and a second passes before the last two."""
    frames = [arm_frame(step, state_size, **({"source": None, "fallback": "hold"} if step == 9 else {})) for step in range(14)]
    frames += [arm_frame(step, state_size, t_s=102.0 + step / 20) for step in (14, 15)]
    names = ARM.action_names
    shape = dataclasses.replace(ARM, state_size=state_size)
    write([Episode(robot="push_1", number=1, task="push", action_names=names, rate_hz=20.0, frames=frames)], shape, folder, "set")
    return folder


def test_the_shipped_policy_goes_on_with_what_robots_lived_through(tmp_path: Path) -> None:
    train("policy", out=tmp_path / "models", dataset=recorded(tmp_path / "set"), steps=3, seed=0, threads=1)
    network, content_hash = bundle.load(tmp_path / "models" / "metaworld_flow_recorded")
    shipped_network, shipped_hash = bundle.load(shipped("models", "metaworld_flow"))
    assert content_hash != shipped_hash and network.config == shipped_network.config


@pytest.mark.parametrize("start", ["metaworld_images", "metaworld_images_flow"])
def test_a_policy_of_images_goes_on_with_a_fleet_that_knows_nothing_but_itself(start: str, tmp_path: Path) -> None:
    """Whose state is the hand's position and the gripper's opening: where workpiece and goal are is no robot's to know."""
    train("policy", out=tmp_path, dataset=recorded(tmp_path / "set", 4), start=shipped("models", start), steps=2, seed=0, threads=1)
    network, content_hash = bundle.load(tmp_path / f"{start}_recorded")
    before, hash_before = bundle.load(shipped("models", start))
    assert isinstance(network, FlowPolicyNetwork) and isinstance(before, FlowPolicyNetwork) and content_hash != hash_before
    assert before.config.told_columns and network.config == dataclasses.replace(before.config, state_size=4, told_columns=())
    changed = [name for name, weight in network.named_parameters() if not torch.equal(weight, before.state_dict()[name])]
    assert any(name.startswith("image_tokens") for name in changed), "it learns from what was seen"

    engine = load_embedded("recorded", tmp_path / f"{start}_recorded")
    assert engine.contract.state_size == 4
    blank = warmup_request(engine.contract)
    white = {camera: np.full_like(image, 255) for camera, image in blank.images.items()}
    dark, light = engine.infer([blank, dataclasses.replace(blank, images=white)])
    assert isinstance(dark, EngineReply) and isinstance(light, EngineReply)
    assert np.isfinite(dark.chunk_model).all() and not np.allclose(dark.chunk_model, light.chunk_model)


def test_a_policy_that_is_told_positions_needs_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="its state has 4 values, the policy's 39"):
        train("policy", out=tmp_path / "models", dataset=recorded(tmp_path / "set", 4), steps=1, seed=0, threads=1)
    with pytest.raises(ConfigurationError, match="its state has 3 values, the policy's 39, which reads the first 4"):
        images = shipped("models", "metaworld_images")
        train("policy", out=tmp_path, dataset=recorded(tmp_path / "three", 3), start=images, steps=1, seed=0, threads=1)


def test_an_episode_is_cut_where_the_ladder_spoke_or_nothing_was_commanded(tmp_path: Path) -> None:
    found = demonstrations(opened(recorded(tmp_path / "set")), ("front", "side"))
    assert found.texts == ("push it",)
    assert found.demonstrations.episode.tolist() == [0] * 9 + [1] * 4 + [2] * 2
    assert found.demonstrations.frame.tolist() == [0] * 4 + [1] * 4 + [2] + [3] * 2 + [4] * 2 + [5] * 2
    assert abs(int(found.demonstrations.images[1, 0].mean()) - 40) <= 1


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    write(
        [Episode(robot="a", number=1, task="t", action_names=NAMES, rate_hz=20.0, frames=[frame(0)])], SHAPE, tmp_path / "set", "s"
    )
    with pytest.raises(ConfigurationError) as refused:
        train("policy", out=tmp_path / "models", dataset=tmp_path / "set", steps=1, seed=0, threads=1)
    assert "its actions are x, y, gripper, the policy's delta_x, delta_y, delta_z, gripper" in str(refused.value)
    assert "its state has 5 values, the policy's 39" in str(refused.value)
    assert "camera front has 32x24 px, the policy's 96x96" in str(refused.value)
    with pytest.raises(ConfigurationError, match="no LeRobotDataset"):
        train("policy", out=tmp_path / "models", dataset=tmp_path, steps=1, seed=0, threads=1)
