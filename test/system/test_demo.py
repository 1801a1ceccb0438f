"""`rfm demo` shows the quickstart from any folder, prints where its page is, and ends by itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ros2_rfm_serving.cli import demo
from ros2_rfm_serving.errors import ConfigurationError
from test.conftest import REPOSITORY


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_the_quickstart_with_its_page_and_without_a_clone(ros_domain: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "demo", "--seconds", "2", "--no-browser"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"dashboard: http://127\.0\.0\.1:\d+/", done.stdout) and "3 robots, 2 servers" in done.stdout


def test_what_is_not_installed_is_named_at_once_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "NEEDED", ("json", "no_such_module", "nor_this_one"))
    with pytest.raises(ConfigurationError, match=r"not installed: no_such_module, nor_this_one.*ros2-rfm-serving\[demo\]"):
        demo.demo()
