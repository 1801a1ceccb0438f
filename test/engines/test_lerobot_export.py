"""What `rfm export` writes, read by LeRobot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import simplejpeg
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from ros2_rfm_serving.audit.export.frames import Camera, Episode, Frame, Shape, Source
from ros2_rfm_serving.audit.export.lerobot import write
from ros2_rfm_serving.types import EncodedImage

NAMES = ("x", "y", "gripper")
SHAPE = Shape(action_names=NAMES, state_size=5, cameras=(Camera("front", 24, 32), Camera("side", 24, 32)), rate_hz=20)


def picture(camera: str, level: int) -> EncodedImage:
    data = simplejpeg.encode_jpeg(np.full((24, 32, 3), level, np.uint8), quality=95)
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
