"""`scripts/requirements.py`: what is installed is what pyproject.toml, and what it names, ask for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

METADATA = """\
Metadata-Version: 2.1
Name: framework
Version: 1.0
Requires-Dist: torch<2.11
Requires-Dist: cameras>=3
Requires-Dist: numbers<2; python_version >= "3.10"
Requires-Dist: windows-only; sys_platform == "win32"
Provides-Extra: text
Requires-Dist: words<5,>=4; extra == "text"
Provides-Extra: speech
Requires-Dist: framework[text]; extra == "speech"
Requires-Dist: voices; extra == "speech"
Provides-Extra: arms
Requires-Dist: motors; extra == "arms"
"""


def printed(repository: Path, *arguments: str, path: Path | None = None) -> list[str]:
    command = [sys.executable, str(repository / "scripts" / "requirements.py"), *arguments]
    environment = {"PYTHONPATH": str(path or "")}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split("\n")[:-1]


def test_of_a_distribution_with_extras_made_of_extras_and_without_what_is_named(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "framework-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    asked = printed(repository, "--of", "framework[speech]", "torch", "cameras", path=tmp_path)
    assert asked == ["numbers<2", "voices", "words<5,>=4"]


def test_of_this_project(repository: Path) -> None:
    own, more = printed(repository, "pyproject.toml"), printed(repository, "pyproject.toml", "jax", "build")
    assert more[: len(own)] == own and any(line.startswith("jax") for line in more)
    assert any(line.startswith("scikit-build-core") for line in more) and not any(line.startswith("jax") for line in own)
