"""Registry of simulators: the descriptor's `simulator` names one of this package, an entry point, or `package.module:function`."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.task import METAWORLD, SIMULATORS
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.worlds.base import MEMBERS, TAUGHT, Build, SimulatedRobot, Teaching, WorldSpec

WORLDS = {METAWORLD: "ros2_rfm_serving.worlds.metaworld:build"}
EXTRAS = {"metaworld": "metaworld", "mujoco": "metaworld"}
"""Module that may be missing -> extra of this package that has it."""


def build_world(simulator: str, spec: WorldSpec) -> SimulatedRobot:
    """Return a simulated robot. Raises: `ConfigurationError` naming the descriptor's key."""
    robot: object = _found(simulator)(spec)
    return cast(SimulatedRobot, _complete(simulator, robot, MEMBERS))


def teaching_world(simulator: str, spec: WorldSpec) -> Teaching:
    """Return a simulated robot with an expert. Raises: `ConfigurationError`."""
    return cast(Teaching, _complete(simulator, build_world(simulator, spec), TAUGHT))


def _found(simulator: str) -> Build:
    path = WORLDS.get(simulator) or next((e.value for e in entry_points(group=SIMULATORS) if e.name == simulator), simulator)
    module, colon, function = path.partition(":")
    if not colon:
        known = [*WORLDS, *(e.name for e in entry_points(group=SIMULATORS))]
        fix = f"{did_you_mean(simulator, known)}, or `package.module:function`"
        raise ConfigurationError(f"no simulator is named {simulator!r}", key="simulator", fix=fix)
    try:
        build: Build | None = getattr(import_module(module), function, None)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing:
            raise ConfigurationError(f"{simulator!r} cannot be imported: {error}", key="simulator", fix="mend it") from error
        extra = EXTRAS.get(missing)
        fix = f"pip install 'ros2-rfm-serving[{extra}]'" if extra else "install it, or put its folder on PYTHONPATH"
        raise ConfigurationError(f"{simulator!r} needs {missing}, which is missing", key="simulator", fix=fix) from error
    except (SyntaxError, TypeError, ValueError) as error:  # raised by its code, or by names such as `:build`
        raise ConfigurationError(f"{simulator!r} cannot be imported: {error!r}", key="simulator", fix="mend it") from error
    if build is None or not callable(build):
        raise ConfigurationError(f"{simulator!r}: {module} has no {function!r}", key="simulator", fix="name a function of it")
    return build


def _complete(simulator: str, robot: object, members: tuple[str, ...]) -> object:
    if lacks := [member for member in members if not hasattr(robot, member)]:
        problem = f"{simulator!r} gave {type(robot).__name__}, which lacks {', '.join(lacks)}"
        raise ConfigurationError(problem, key="simulator", fix="see SimulatedRobot in ros2_rfm_serving/worlds/base.py")
    return robot
