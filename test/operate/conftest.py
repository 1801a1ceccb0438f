"""`make operate`: with the real Prometheus and a real Chromium. Found on PATH, or in the folders that PROMETHEUS_BIN and
CHROMIUM_BIN name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def _tool(name: str, folder: str = "PROMETHEUS_BIN") -> str:
    found = shutil.which(name, path=f"{os.environ.get(folder, '')}{os.pathsep}{os.environ['PATH']}")
    assert found, f"no {name}: `make operate` brings it, or set {folder} to its folder"
    return str(Path(found).resolve())


@pytest.fixture(scope="session")
def prometheus() -> str:
    return _tool("prometheus")


@pytest.fixture(scope="session")
def promtool() -> str:
    return _tool("promtool")


@pytest.fixture(scope="session")
def chromium() -> str:
    return _tool("chromium", "CHROMIUM_BIN")
