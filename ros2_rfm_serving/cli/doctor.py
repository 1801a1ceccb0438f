"""`rfm doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import typer
from rich.console import Console
from rich.table import Table

OK, MISSING, OPTIONAL = "[green]ok[/green]", "[red]missing[/red]", "[yellow]not here[/yellow]"
Finding = tuple[str, str, str]
"""(verdict, what was found, how to get it)"""


def doctor() -> None:
    """Says what is missing on this machine and how to get it.

    Example:  rfm doctor

    Exit code: 0, or 1 when something that the quickstart needs is missing.
    """
    checks: dict[str, Callable[[], Finding]] = {
        "Python": _python,
        "ROS 2": _ros,
        "middleware": _rmw,
        "interfaces": _interfaces,
        "PyTorch": _torch,
        "embedded models": _models,
        "simulator": _simulator,
        "renderer": _renderer,
        "GPU": _gpu,
        "cores": _cores,
    }
    table = Table("part", "", "found", "what to do")
    failed = False
    for name, check in checks.items():
        verdict, found, cure = check()
        failed |= verdict is MISSING
        table.add_row(name, verdict, found, cure if verdict is not OK else "")
    Console().print(table)
    if failed:
        raise typer.Exit(1)


def _python() -> Finding:
    version = sys.version.split()[0]
    return (OK if sys.version_info >= (3, 10) else MISSING), f"{version} in {sys.prefix}", "Python 3.10 or newer"


def _ros() -> Finding:
    if importlib.util.find_spec("rclpy") is None:
        return MISSING, "no rclpy", "source a ROS 2 installation, or: pip install 'ros2-rfm-serving[torch,metaworld]'"
    distro = os.environ.get("ROS_DISTRO", "from PyPI wheels")
    return OK, f"rclpy, {distro}", ""


def _rmw() -> Finding:
    try:
        from rclpy.utilities import get_rmw_implementation_identifier

        return OK, str(get_rmw_implementation_identifier()), ""
    except (ImportError, RuntimeError) as error:
        return MISSING, str(error), "install rmw_fastrtps_cpp"


def _interfaces() -> Finding:
    try:
        importlib.import_module("rfm_serving.msg")
    except ImportError as error:
        return MISSING, str(error), "make install (or colcon build, then source install/setup.bash)"
    return OK, "rfm_serving.msg", ""


def _torch() -> Finding:
    cure = "pip install torch safetensors"
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("safetensors") is None:
        return MISSING, "no torch or no safetensors", cure
    import torch

    return OK, f"torch {torch.__version__}", cure


def _models() -> Finding:
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.ros.runtime import share

    try:
        folders = sorted(folder for folder in (share() / "models").iterdir() if (folder / "config.json").exists())
    except (SystemExit, OSError):
        folders = []
    if not folders:
        return MISSING, "no model bundle is installed", "make install, or train them: rfm train"
    return OK, ", ".join(f"{f.name} {bundle.content_hash(f)[:8]}" for f in folders), ""


def _simulator() -> Finding:
    found = all(importlib.util.find_spec(name) for name in ("metaworld", "mujoco"))
    return (OK if found else MISSING), "metaworld, mujoco" if found else "no metaworld or no mujoco", "pip install metaworld"


def _renderer() -> Finding:
    """In a process of its own: a broken GL library may end it."""
    code = "from ros2_rfm_serving.worlds.metaworld import MetaworldArm as A; print(A('reach').render()['front'].shape)"
    cure = "apt-get install libegl1 libgl1 libgles2 libgl1-mesa-dri libegl-mesa0 libglx-mesa0 (or set MUJOCO_GL=osmesa)"
    try:
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return MISSING, "rendering one frame took over a minute", cure
    if done.returncode or "(96, 96, 3)" not in done.stdout:
        return MISSING, (done.stderr.strip().splitlines() or ["no picture"])[-1][:100], cure
    return OK, f"off-screen, {os.environ.get('MUJOCO_GL', 'egl')}", cure


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return OPTIONAL, "no nvidia-smi", "not needed for the quickstart: its models run on the CPU"
    done = subprocess.run([program, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    names = done.stdout.strip().replace("\n", ", ")
    return (OK if names else OPTIONAL), names or "none", "not needed for the quickstart"


def _cores() -> Finding:
    cores = os.cpu_count() or 1
    return (OK if cores >= 2 else OPTIONAL), str(cores), "the quickstart keeps real time on two"
