"""Every check, in the order of the report. They start and change nothing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator

from ros2_rfm_serving import compiled
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.compiling import EXTRA
from ros2_rfm_serving.operate.doctor import packages
from ros2_rfm_serving.operate.doctor.finding import Finding, Verdict
from ros2_rfm_serving.operate.doctor.imports import PACKAGE, imports_of, nodes
from ros2_rfm_serving.operate.doctor.shared_memory import leftovers
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.worlds.rendering import RENDERER_FIX

HOUSE = PACKAGE.name
QUICKSTART = {"embedded models": f"{HOUSE}.engines.bundles"}
"""Imports of its model servers when they load a model -> module."""
FEATURES = {
    "published architectures": f"{HOUSE}.engines.architectures.pi",
    "engine lerobot": f"{HOUSE}.engines.lerobot.engine",
    "engine jax": f"{HOUSE}.engines.jax_policy",
    "engine vllm": f"{HOUSE}.engines.text.vllm",
    "engine openai": f"{HOUSE}.engines.text.openai",
    "engine remote": f"{HOUSE}.engines.remote.engine",
    "rfm up --on ray": f"{HOUSE}.operate.on_ray.supervisor",
    "rfm metrics": f"{HOUSE}.monitoring.metrics.exporter",
    "rfm foxglove": f"{HOUSE}.ros.foxglove_bridge",
    "rfm record": f"{HOUSE}.ros.monitor.recorder",
    "websocket door": f"{HOUSE}.ros.server.websocket_door",
    "zenoh_door_node": f"{HOUSE}.ros.zenoh.door",
}
"""Optional feature -> its module. Nothing here is imported, so that the checks work where much is missing."""


def executables() -> dict[str, str]:
    """Return the executables for users -> their modules."""
    return {"rfm": f"{HOUSE}.cli.main", **{name: f"{HOUSE}.ros.{name}" for name in nodes()}}


def findings() -> Iterator[Finding]:
    yield _python()
    yield _middleware()
    yield _interfaces()
    yield from _imports()
    yield _models()
    yield compiled_finding()
    yield _renderer()
    yield _gpu()
    yield _cores()
    yield leftovers()


def _python() -> Finding:
    verdict = Verdict.OK if sys.version_info >= (3, 10) else Verdict.MISSING
    return Finding(part="Python", verdict=verdict, found=f"{sys.version.split()[0]} in {sys.prefix}", fix="Python 3.10 or newer")


def _middleware() -> Finding:
    part, fix = "middleware", "pip install 'ros-rclpy[fastrtps]==9.1.*'"
    try:
        from rclpy.utilities import get_rmw_implementation_identifier

        found = f"{get_rmw_implementation_identifier()}, ROS 2 {os.environ.get('ROS_DISTRO', 'from PyPI wheels')}"
    except (ImportError, RuntimeError) as error:
        workspace = "source /opt/ros/<distro>/setup.bash; rosdep install: rmw_fastrtps_cpp"
        return Finding(part=part, verdict=Verdict.MISSING, found=str(error), fix=fix, fix_in_workspace=workspace)
    return Finding(part=part, verdict=Verdict.OK, found=found)


def _interfaces() -> Finding:
    """Check the interfaces by loading their generated libraries, which a search for the package would not do."""
    try:
        importlib.import_module("rfm_serving.msg")
    except ImportError as error:
        fix, workspace = "make install", "colcon build, then source install/setup.bash"
        return Finding(part="interfaces", verdict=Verdict.MISSING, found=str(error), fix=fix, fix_in_workspace=workspace)
    return Finding(part="interfaces", verdict=Verdict.OK, found="rfm_serving.msg")


def _imports() -> Iterator[Finding]:
    """Yield a finding per executable, and per feature, with its failing imports."""
    needs = {name: imports_of(module) for name, module in executables().items()}
    needs |= {name: imports_of(module, when_used=True) for name, module in {**QUICKSTART, **FEATURES}.items()}
    wrong = packages.problems(set().union(*needs.values()) - {"rfm_serving"})
    for name, modules in needs.items():
        yield import_finding(name, {module.partition(".")[0] for module in modules}, wrong, optional=name in FEATURES)


def import_finding(name: str, roots: Collection[str], wrong: dict[str, str], *, optional: bool) -> Finding:
    """Return the finding of one executable. roots: its imports. wrong: root -> problem, of all that were tried."""
    mine = {root: wrong[root] for root in sorted(roots) if root in wrong}
    if not mine:
        return Finding(part=name, verdict=Verdict.OK, found=f"all it imports: {len(roots)} packages")
    old = [root for root, problem in mine.items() if "is older than" in problem]
    return Finding(
        part=name,
        verdict=Verdict.OPTIONAL if optional else Verdict.MISSING,
        found="; ".join(f"{root}: {problem}" for root, problem in mine.items()),
        fix=packages.cure_by_pip(mine),
        fix_in_workspace=packages.cure_by_rosdep(mine, old),
    )


def _models() -> Finding:
    try:
        bundles = sorted(folder.name for folder in shipped("models").iterdir() if (folder / "config.json").exists())
    except (ConfigurationError, OSError):
        bundles = []
    verdict = Verdict.OK if bundles else Verdict.MISSING
    found = ", ".join(bundles) or "no model bundle is installed"
    return Finding(part="model bundles", verdict=verdict, found=found, fix="make install, or train them: rfm train")


def compiled_finding() -> Finding:
    kept = compiled.is_own(compiled.folder())
    found = f"{len(compiled.MODULES)} modules, for rfm simulate" if kept else "rfm simulate is interpreted"
    return Finding(
        part="compiled virtual time", verdict=Verdict.OK if kept else Verdict.OPTIONAL, found=found, fix=f"{EXTRA}; rfm compile"
    )


def _renderer() -> Finding:
    """Check the renderer in a process of its own, which a broken GL library may end."""
    code = "from ros2_rfm_serving.worlds.metaworld import MetaworldArm as A; print(A('reach').render()['front'].shape)"
    if importlib.util.find_spec("mujoco") is None:
        install = packages.cure_by_pip(["mujoco"])
        return Finding(part="renderer", verdict=Verdict.OPTIONAL, found="no mujoco to try it with", fix=install)
    try:
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Finding(part="renderer", verdict=Verdict.MISSING, found="rendering one frame took over a minute", fix=RENDERER_FIX)
    if done.returncode or "(96, 96, 3)" not in done.stdout:
        found = (done.stderr.strip().splitlines() or ["no picture"])[-1][:100]
        return Finding(part="renderer", verdict=Verdict.MISSING, found=found, fix=RENDERER_FIX)
    return Finding(part="renderer", verdict=Verdict.OK, found=f"off-screen, {os.environ.get('MUJOCO_GL', 'egl')}")


def _gpu() -> Finding:
    names, program = "", shutil.which("nvidia-smi")
    if program:
        done = subprocess.run([program, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False)
        names = "" if done.returncode else done.stdout.strip().replace("\n", ", ")
    fix = "not needed for the quickstart: its models run on the CPU"
    return Finding(part="GPU", verdict=Verdict.OK if names else Verdict.OPTIONAL, found=names or "none", fix=fix)


def _cores() -> Finding:
    cores = os.cpu_count() or 1
    verdict = Verdict.OK if cores >= 2 else Verdict.OPTIONAL
    return Finding(part="cores", verdict=verdict, found=str(cores), fix="the quickstart keeps real time on two")
