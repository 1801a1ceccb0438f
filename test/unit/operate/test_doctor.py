"""What the doctor finds, and what it advises."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from ros2_rfm_serving.cli.doctor import verdict_of
from ros2_rfm_serving.operate.doctor import packages
from ros2_rfm_serving.operate.doctor.checks import import_finding
from ros2_rfm_serving.operate.doctor.finding import Finding, Verdict
from ros2_rfm_serving.operate.doctor.packages import Package
from ros2_rfm_serving.operate.doctor.shared_memory import left_behind, leftovers


def test_a_module_that_is_missing_broken_or_fatal_is_found_and_the_others_are_still_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_fatal.py").write_text("import os; os.abort()")
    (tmp_path / "b_broken.py").write_text("raise OSError('libfoo.so: no such file')")
    (tmp_path / "c_needy.py").write_text("import no_such_module")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = packages.problems({"a_fatal", "b_broken", "c_needy", "no.such", "numpy"})
    assert said == {
        "a_fatal": "ended the process",
        "b_broken": "OSError: libfoo.so: no such file",
        "c_needy": "needs no_such_module",
        "no": "not installed",
    }


def test_a_package_that_is_too_old_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.PACKAGES, "pydantic", Package("pydantic>=1000", "python3-pydantic"))
    (said,) = packages.problems({"pydantic"}).items()
    assert said[0] == "pydantic" and said[1].endswith("is older than pydantic>=1000")


def test_advice_is_given_for_pip_and_for_a_ros_workspace() -> None:
    wrong = {
        "ortools": "not installed",
        "simplejpeg": "not installed",
        "pydantic": "1.10.14 is older than pydantic>=2.7",
        "jax": "-",
    }
    finding = import_finding("scheduler_node", {"ortools", "simplejpeg", "pydantic", "numpy"}, wrong, optional=False)
    assert finding.verdict is Verdict.MISSING and "ortools: not installed" in finding.found and "jax" not in finding.found
    assert finding.fix == "pip install 'ortools>=9.10' 'pydantic>=2.7' 'simplejpeg>=1.7'"
    assert finding.fix_in_workspace == "rosdep install: python3-simplejpeg-pip; pip install 'ortools>=9.10' 'pydantic>=2.7'"
    assert import_finding("engine jax", {"jax"}, wrong, optional=True).verdict is Verdict.OPTIONAL
    assert import_finding("robot_node", {"numpy"}, wrong, optional=False).verdict is Verdict.OK


def test_segments_that_killed_processes_left_are_noted_with_what_removes_them(tmp_path: Path) -> None:
    shm, proc = tmp_path / "shm", tmp_path / "proc"
    for folder in (shm, proc / "77"):
        folder.mkdir(parents=True)
    for name in ("0123456789abcdef", "fedcba9876543210", "00000000000000aa", "port7411", "port7413"):
        (shm / f"fastdds_{name}").write_bytes(b"x")
    for name in ("fastdds_0123456789abcdef_el", "fastdds_fedcba9876543210_el", "fastdds_port7411_el", "unrelated"):
        (shm / name).touch()
    (shm / "fastdds_port7415").touch()  # its process died between making and sizing it
    (shm / "sem.fastdds_port7417_mutex").touch()  # or before that
    (proc / "77" / "maps").write_text("7f00-7f01 rw-s 00000000 00:18 5    /dev/shm/fastdds_port7413\n")
    with (shm / "fastdds_0123456789abcdef_el").open("rb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        dead, half_made = left_behind(shm, proc)
    assert dead == {"fastdds_fedcba9876543210", "fastdds_00000000000000aa", "fastdds_port7411"}
    assert half_made == {"fastdds_port7415", "fastdds_port7417"}
    finding = leftovers(shm, proc)
    assert finding.verdict is Verdict.NOTE and "4 segments" in finding.found and "fastdds shm clean" in finding.fix
    subprocess.run(["bash", "-c", finding.fix.partition("; ")[2]], check=True)
    assert left_behind(shm, proc)[1] == set() and (shm / "fastdds_port7411").exists()
    assert leftovers(tmp_path / "none", proc).verdict is Verdict.OK


def _finding(part: str, verdict: Verdict) -> Finding:
    return Finding(part=part, verdict=verdict, found="")


def test_the_verdict_comes_first_and_names_what_is_missing() -> None:
    ready = [_finding("Python", Verdict.OK), _finding("engine jax", Verdict.OPTIONAL)]
    assert verdict_of(ready) == "This machine is ready to run a factory. 1 optional part is absent: engine jax."
    broken = [*ready, _finding("middleware", Verdict.MISSING), _finding("shared memory", Verdict.NOTE)]
    verdict = "This machine is not ready: middleware. The first rows say what to do. To look at: shared memory."
    assert verdict_of(broken).startswith(verdict)
