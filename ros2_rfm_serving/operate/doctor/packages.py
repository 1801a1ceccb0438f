"""Origin of each module that this package's executables import: package index requirement and rosdep key."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """Package of a module that this package's nodes import."""

    pip: str
    """Requirement as in pyproject.toml, with the oldest version that works."""
    rosdep: str | None
    """Key, as in package.xml. None: rosdep has none, so that a ROS workspace needs pip for it."""
    extra: str | None = None
    """Extra of pyproject.toml, for single features. None: every installation needs it."""

    @property
    def too_old(self) -> str | None:
        """Installed version, such as '1.10.14', if it is older than required. None: new enough, or unknown."""
        name, _, oldest = self.pip.partition(">=")
        try:
            found = importlib.metadata.version(re.split(r"[\[=]", name)[0])
        except importlib.metadata.PackageNotFoundError:  # ROS installations have no metadata of their Python packages
            return None
        return found if _numbers(found) < _numbers(oldest) else None


def _ros(name: str, version: str) -> Package:
    return Package(f"ros-{name.replace('_', '-')}=={version}", name)


PACKAGES = {
    "action_msgs": _ros("action_msgs", "2.3.*"),
    "ament_index_python": Package("ros-rclpy[fastrtps]==9.1.*", "ament_index_python"),
    "diagnostic_msgs": _ros("diagnostic_msgs", "5.5.*"),
    "geometry_msgs": _ros("geometry_msgs", "5.5.*"),
    "rcl_interfaces": Package("ros-rclpy[fastrtps]==9.1.*", "rcl_interfaces"),
    "lifecycle_msgs": Package("ros-rclpy[fastrtps]==9.1.*", "lifecycle_msgs"),
    "nav_msgs": _ros("nav_msgs", "5.5.*"),
    "rosgraph_msgs": Package("ros-rclpy[fastrtps]==9.1.*", "rosgraph_msgs"),
    "rosidl_parser": Package("ros-rclpy[fastrtps]==9.1.*", "rosidl_parser"),
    "rclpy": Package("ros-rclpy[fastrtps]==9.1.*", "rclpy"),
    "sensor_msgs": _ros("sensor_msgs", "5.5.*"),
    "std_msgs": _ros("std_msgs", "5.5.*"),
    "std_srvs": _ros("std_srvs", "5.5.*"),
    "trajectory_msgs": _ros("trajectory_msgs", "5.5.*"),
    "visualization_msgs": _ros("visualization_msgs", "5.5.*"),
    "numpy": Package("numpy>=1.26", "python3-numpy"),
    "orjson": Package("orjson>=3.10", "python3-orjson"),
    "ortools": Package("ortools>=9.10", None),
    "PIL": Package("pillow>=10", "python3-pil"),
    "pydantic": Package("pydantic>=2.7", "python3-pydantic"),
    "rich": Package("rich>=13", "python3-rich"),
    "msgpack": Package("msgpack>=1.0.8", "python3-msgpack"),
    "simplejpeg": Package("simplejpeg>=1.7", "python3-simplejpeg-pip"),
    "typer": Package("typer>=0.12", "python3-typer"),
    "yaml": Package("pyyaml>=6", "python3-yaml"),
    "foxglove": Package("foxglove-sdk>=0.25", None, "foxglove"),
    "mcap": Package("mcap>=1.2", None, "audit"),
    "rosbags": Package("rosbags>=0.11", None, "audit"),
    "zstandard": Package("zstandard>=0.22", None, "audit"),
    "httpx": Package("httpx>=0.27", "python3-httpx", "openai"),
    "jax": Package("jax>=0.6", None, "jax"),
    "lerobot": Package("lerobot[smolvla,dataset,diffusion]>=0.4.4,<0.7", None, "lerobot"),
    "matplotlib": Package("matplotlib>=3.8", "python3-matplotlib", "plots"),
    "metaworld": Package("metaworld==3.1.*", None, "metaworld"),
    "cryptography": Package("cryptography>=42", "python3-cryptography", "security"),
    "mujoco": Package("mujoco>=3.3.0", "python3-mujoco-pip", "metaworld"),
    "picows": Package("picows>=2.3", None, "gateway"),
    "prometheus_client": Package("prometheus-client>=0.19", "python3-prometheus-client", "metrics"),
    "ray": Package("ray>=2.50", None, "ray"),
    "safetensors": Package("safetensors>=0.4", None, "torch"),
    "starlette": Package("starlette>=0.37", None, "dashboard"),
    "torch": Package("torch>=2.4", "python3-torch", "torch"),
    "transformers": Package("transformers>=4.57", None, "architectures"),
    "zenoh": Package("eclipse-zenoh>=1.9", None, "zenoh"),
    "uvicorn": Package("uvicorn>=0.30", None, "dashboard"),
    "vllm": Package("vllm>=0.33", None, "vllm"),
}
"""Package by imported name."""

_IMPORT_EACH = """
import importlib, json, sys
for module in sys.argv[1:]:
    print(json.dumps([module, "ended the process"]), flush=True)
    try:
        importlib.import_module(module)
        print(json.dumps([module, None]), flush=True)
    except ModuleNotFoundError as error:
        print(json.dumps([module, "not installed" if module.startswith(error.name or "?") else f"needs {error.name}"]), flush=True)
    except Exception as error:
        print(json.dumps([module, f"{type(error).__name__}: {error}"]), flush=True)
"""


def problems(modules: Iterable[str]) -> dict[str, str]:
    """Return root of a module -> problem, for modules that cannot be imported or are too old.
    The imports run in processes of their own, because a broken library may end one."""
    waiting, said = sorted(modules), dict[str, str | None]()
    while waiting:
        command = [sys.executable, "-W", "ignore", "-c", _IMPORT_EACH, *waiting]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        answers = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
        if not answers:
            raise RuntimeError(f"Python does not start: {done.stderr[-300:]}")
        said |= answers
        waiting = [module for module in waiting if module not in said]
    found = {module.partition(".")[0]: problem for module, problem in reversed(said.items()) if problem}
    for root in {module.partition(".")[0] for module in said} - set(found):
        if root in PACKAGES and (version := PACKAGES[root].too_old):
            found[root] = f"{version} is older than {PACKAGES[root].pip}"
    return found


def cure_by_pip(roots: Iterable[str]) -> str:
    """Return one command that installs the packages. ROS' own packages come from a ROS installation as well."""
    wanted = sorted({PACKAGES[root].pip for root in roots if root in PACKAGES})
    return "pip install " + " ".join(f"'{requirement}'" for requirement in wanted) if wanted else ""


def cure_by_rosdep(roots: Iterable[str], old: Iterable[str] = ()) -> str:
    """Return the commands for a colcon workspace: packages of rosdep, and those that it lacks or has too old."""
    known = [PACKAGES[root] for root in sorted(roots) if root in PACKAGES]
    aged = {PACKAGES[root] for root in old if root in PACKAGES}
    keys = sorted({p.rosdep for p in known if p.rosdep and p not in aged})
    others = sorted({p.pip for p in known if not p.rosdep or p in aged})
    parts = ["rosdep install: " + " ".join(keys)] if keys else []
    return "; ".join([*parts, *(["pip install " + " ".join(f"'{pip}'" for pip in others)] if others else [])])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
