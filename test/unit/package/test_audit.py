"""`make audit`: what it says of dependencies, and that it says so when nobody could be asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NAMED = ("numpy", "ros-rcl", "typer")


def audited(repository: Path, folder: Path, answer: Any, *options: str) -> subprocess.CompletedProcess[str]:
    """answer: of pip-audit, which asks others and is not here."""
    (folder / "pyproject.toml").write_text(
        f"[project]\ndependencies = {json.dumps(NAMED)}\n[project.optional-dependencies]\ndev = ['mypy']\n"
    )
    (folder / "answer").write_text(answer if isinstance(answer, str) else json.dumps({"dependencies": answer}))
    (folder / "pip-audit").write_text(f"#!/bin/sh\ncat '{folder / 'answer'}'\n")
    (folder / "pip-audit").chmod(0o755)
    command = [sys.executable, repository / "scripts" / "audit.py", folder / "pyproject.toml", folder / "pip-audit", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_all_that_is_brought_is_listed_with_its_licence(repository: Path, tmp_path: Path) -> None:
    ran = audited(repository, tmp_path, [])
    listed = dict(line.split(": ", 1) for line in ran.stdout.splitlines() if "advisories" not in line)
    by_name = {name.split()[0]: licence for name, licence in listed.items()}
    assert "BSD-3-Clause" in by_name["numpy"] and by_name["ros-rcl"] == "Apache License 2.0"
    assert {"ros-rcutils", "rich"} <= by_name.keys(), "what they need themselves"
    assert "mypy" not in by_name, "of development"
    assert ran.returncode == 0 and "asked about 0 of" in ran.stdout and "NOTHING IS KNOWN" in ran.stdout


def test_a_vulnerability_fails(repository: Path, tmp_path: Path) -> None:
    known = {"name": "NumPy", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
    ran = audited(repository, tmp_path, [known, {"name": "typer", "version": "1", "vulns": []}])
    assert ran.returncode == 1 and "VULNERABLE: NumPy 1.0: CVE-1, mended in 1.1" in ran.stdout and "about 2 of" in ran.stdout


@pytest.mark.parametrize("answer", ["no network", [{"name": "numpy", "skip_reason": "not found"}]])
def test_who_could_not_be_asked_is_told_apart_from_who_is_well(repository: Path, tmp_path: Path, answer: Any) -> None:
    ran = audited(repository, tmp_path, answer, "--strict")
    assert ran.returncode == 1 and "asked about 0 of" in ran.stdout


def test_something_without_a_licence_fails(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "site" / "typer-0.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: typer\nVersion: 0.0\nLicense: UNKNOWN\n")
    monkeypatch.setenv("PYTHONPATH", str(about.parent))
    ran = audited(repository, tmp_path, [])
    assert ran.returncode == 1 and "typer 0.0: SAYS NOTHING" in ran.stdout
