"""Folders of processes that were killed go when another one starts; those of processes that run stay."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ros2_rfm_serving.operate.held_folder import HeldFolder

HOLD = """
import sys
from ros2_rfm_serving.operate.held_folder import HeldFolder
folder = HeldFolder("held_")
(folder.path / "server_1.yaml").write_text("x")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_goes_with_its_process_and_after_a_kill_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "held_file").write_text("not a folder")
    (tmp_path / "held_link").symlink_to(tmp_path / "other")
    other = subprocess.Popen([sys.executable, "-c", HOLD], cwd=repository, stdin=-1, stdout=-1, text=True)
    assert other.stdout
    theirs = Path(other.stdout.readline().strip())
    mine = HeldFolder("held_")
    assert theirs.is_dir() and mine.path.is_dir(), "somebody holds it"
    other.kill()
    other.communicate()
    assert theirs.is_dir(), "a killed process removes nothing"
    HeldFolder("held_").cleanup()
    assert not theirs.exists() and mine.path.is_dir()
    mine.cleanup()
    forgotten = HeldFolder("held_").path
    gc.collect()
    assert not forgotten.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held_file", "held_link", "other"]
