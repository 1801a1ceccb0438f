"""A second `rfm up` of the same part of a factory, on one machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate import only_one as module
from ros2_rfm_serving.operate.only_one import only_one

PART = ("42", "", "", "gpu_a")
HOLD = """
import sys
from pathlib import Path
from ros2_rfm_serving.operate.only_one import only_one
with only_one(("42", "", "", "gpu_a"), Path("logs/first"), Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout and first.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError) as refused, only_one(PART, Path("logs/second"), tmp_path):
            pass
        told = str(refused.value)
        assert told.startswith("--host: rfm up --host gpu_a runs on this machine already, in ROS domain 42: ")
        assert re.search(rf"process {first.pid}, logs in /.*/logs/first; end that one first", told), told
        first.kill()
        first.wait()
        with only_one(PART, Path("logs"), tmp_path):  # the kernel has let go of it
            pass


@pytest.mark.parametrize(
    "other", [("43", "", "", "gpu_a"), ("42", "hall", "", "gpu_a"), ("42", "", "p", "gpu_a"), ("42", "", "", "gpu_b")]
)
def test_what_does_not_meet_is_not_in_the_way(other: tuple[str, ...], tmp_path: Path) -> None:
    with only_one(PART, Path("logs"), tmp_path), only_one(other, Path("logs"), tmp_path):
        pass


def test_hosts_that_are_emulated_on_one_machine_are_not_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with only_one(PART, Path("logs"), tmp_path):
        monkeypatch.setattr(module, "NETWORK", tmp_path)  # another inode
        with only_one(PART, Path("logs"), tmp_path):
            pass


def test_one_that_has_just_begun_or_a_place_that_cannot_be_written_ends_nothing_wrongly(tmp_path: Path) -> None:
    with only_one(PART, Path("logs"), tmp_path):
        (file,) = tmp_path.iterdir()
        os.truncate(file, 0)
        with pytest.raises(ConfigurationError, match="has not said yet"), only_one(PART, Path("logs"), tmp_path):
            pass
    with only_one(PART, Path("logs"), tmp_path / "missing"), only_one(PART, Path("logs"), tmp_path / "missing"):
        pass
