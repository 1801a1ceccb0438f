"""`make operate`: with the real Prometheus. Found on PATH, or in the folder that PROMETHEUS_BIN names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def _tool(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PROMETHEUS_BIN', '')}{os.pathsep}{os.environ['PATH']}")
    assert found, f"no {name}: `make operate` brings it, or set PROMETHEUS_BIN to its folder"
    return str(Path(found).resolve())


@pytest.fixture(scope="session")
def prometheus() -> str:
    return _tool("prometheus")


@pytest.fixture(scope="session")
def promtool() -> str:
    return _tool("promtool")
