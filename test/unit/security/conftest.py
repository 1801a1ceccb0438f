"""A factory's security, written once; tests that change it take a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.security.authority import utc_now
from ros2_rfm_serving.security.folder import Folder
from ros2_rfm_serving.security.issuing import start
from ros2_rfm_serving.security.members import Member, members_of
from ros2_rfm_serving.security.record import Record

DOMAIN = 7


@pytest.fixture(scope="session")
def members(repository: Path) -> dict[str, Member]:
    config = repository / "config"
    return members_of(load_factory(config / "factory_hosts.yaml"), config, ("gpu-1.plant",))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, members: dict[str, Member]) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("security"))
    record = Record(factory="hosts", domain=DOMAIN, members={})
    start(folder, record, members, ["pick_place_1", "tablet"], utc_now(), 365.0)
    return folder


@pytest.fixture
def folder(written: Folder, tmp_path: Path) -> Folder:
    return Folder(shutil.copytree(written.root, tmp_path / "security", symlinks=True))
