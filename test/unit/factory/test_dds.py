"""The Fast DDS profile that fits the cameras of a factory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.dds import HELD, SEGMENT_BYTES, dds_profile, message_bytes
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list
from ros2_rfm_serving.operate import running
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE


def robot(**parameters: Any) -> list[NodeSpec]:
    return [NodeSpec(name="r1", executable="robot_node", namespace="r1", parameters=parameters)]


def test_small_images_fit_what_a_process_has_and_large_ones_get_more() -> None:
    assert dds_profile([]).file == dds_profile(robot(max_image_size_px=224, cameras=["a", "b"])).file == "any_vendor.xml"
    assert dds_profile(robot(cameras=["a", "b"])).file == "large_images.xml"
    assert dds_profile(robot(max_image_size_px=320)).file == "any_vendor.xml"
    assert dds_profile(robot(max_image_size_px=320, jpeg_quality=95)).file == "any_vendor.xml"
    assert dds_profile(robot(max_image_size_px=320, cameras=["a", "b"], jpeg_quality=95)).file == "large_images.xml"
    assert dds_profile(robot(max_image_size_px=320, camera_type="image")).file == "large_images.xml"
    assert dds_profile(robot(max_image_size_px=320, camera_types=["front=image"])).file == "large_images.xml"


def test_the_bound_is_that_of_the_segment() -> None:
    fits = int((SEGMENT_BYTES / HELD / 0.5) ** 0.5)
    assert HELD * message_bytes(fits, {"cameras": ["a"]}) <= SEGMENT_BYTES < HELD * message_bytes(fits + 1, {"cameras": ["a"]})


def test_a_simulated_robot_s_images_are_those_of_its_world(repository: Path) -> None:
    factory = load_factory(repository / "config" / "factory_quickstart.yaml")
    nodes = node_list(factory, repository / "config")
    assert dds_profile(nodes).file == "any_vendor.xml"
    assert dds_profile([node for node in nodes if not node.simulated]).file == "large_images.xml"


def test_rfm_up_chooses_it_and_says_so_unless_the_user_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PROFILES_FILE, "")  # so that it is put back as it was, whoever sets it
    monkeypatch.delenv(PROFILES_FILE)
    monkeypatch.setattr(running, "console", running.Console(width=200))
    running.choose_profile(robot(cameras=["a", "b"]))
    assert Path(running.os.environ[PROFILES_FILE]).name == "large_images.xml" and "large_images.xml" in capsys.readouterr().out
    for name, value in ((PROFILES_FILE, "mine.xml"), ("RMW_IMPLEMENTATION", "rmw_cyclonedds_cpp")):
        monkeypatch.delenv(PROFILES_FILE)
        monkeypatch.setenv(name, value)
        running.choose_profile(robot(cameras=["a", "b"]))
        assert running.os.environ.get(PROFILES_FILE) in ("mine.xml", None) and not capsys.readouterr().out
        monkeypatch.setenv(PROFILES_FILE, "")
