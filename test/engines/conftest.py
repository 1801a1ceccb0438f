"""LeRobot's policies, tiny and random, made once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from test.conftest import repository, ros_domain  # noqa: F401
from test.engines import operators  # noqa: F401  before anything of LeRobot's

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from test.engines import tiny_lerobot as tiny
    from test.engines.lerobot_rig import KINDS

    return {kind: tiny.save(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="session")
def engines(checkpoints: dict[str, Path]) -> dict[str, LeRobotEngine]:
    from test.engines.lerobot_rig import built

    return {kind: built(kind, folder) for kind, folder in checkpoints.items()}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of published architectures, made again from their recordings: `source`, and imported: `bundle`."""
    from test.engines.parity import common

    made = {name: tmp_path_factory.mktemp(name) for name in common.RECORDED}
    for name, folder in made.items():
        recording = common.read(name)
        common.imported(recording, common.checkpoint(recording, folder / "source"), folder / "bundle")
    return made
