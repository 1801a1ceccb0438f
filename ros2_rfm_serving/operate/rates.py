"""Check, by files alone, that robots execute the steps of their policy at the rate at which they were demonstrated."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry, Factory
from ros2_rfm_serving.factory.nodes import params_file
from ros2_rfm_serving.factory.robot_file import RobotFile
from ros2_rfm_serving.factory.task import CONTROL_RATE_HZ, TaskEntry
from ros2_rfm_serving.operate.known_contracts import known_contract, read_json
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import SYSTEM1
from ros2_rfm_serving.types.rate_mismatch import rate_mismatch_fix, rate_mismatch_text

ACCEPT = "accept_other_rate"


def check_rates(factory: Factory, catalogue: Catalogue) -> None:
    """Check the control rate of every task. Raises: `ConfigurationError` for a task whose policy was demonstrated at another
    rate, unless the task, or its robots' file, accepts that. A model without a known rate fits any robot."""
    for entry in factory.robot_fleet:
        task = factory.tasks[entry.task]
        model = task.components[SYSTEM1].model
        if model in catalogue.models:
            _check(factory, entry.task, model, demonstrated_hz(catalogue.models[model]))


def demonstrated_hz(entry: CatalogueEntry) -> float:
    """Return the rate of a model's demonstrations, by its options, its bundle or its data set; 0: unknown."""
    if rate_hz := _number(entry.options.get("control_rate_hz")):
        return rate_hz
    if entry.bundle:
        contract = known_contract("", entry)
        return _number(contract.control_rate_hz) if contract else 0.0
    dataset = entry.options.get("dataset")
    return _number(read_json(Path(str(dataset)) / "meta" / "info.json").get("fps")) if dataset else 0.0


def _check(factory: Factory, name: str, model: str, model_hz: float) -> None:
    task = factory.tasks[name]
    file = params_file(factory, name, shipped("config"))
    own = RobotFile.read(file)
    rate_hz = _control_rate_hz(task, own)
    problem = rate_mismatch_text(rate_hz / own.number("interpolation", 1), model_hz)
    if not problem or task.execution.accept_other_rate or own.parameters.get(ACCEPT) is True:
        return
    fix = rate_mismatch_fix(rate_hz, model_hz, interpolates=_interpolates(own), accept=f"{name}.execution.{ACCEPT}")
    times = rate_hz / own.number("interpolation", 1) / model_hz
    problem = f"{model}: {problem}: every motion would be {times:.3g} times as fast ({file.name})"
    key = f"{name}.world.control_rate_hz" if task.world else "control_rate_hz"
    raise ConfigurationError(problem, file=factory.file if task.world else str(file), key=key, fix=fix)


def _interpolates(own: RobotFile) -> bool:
    """Return whether no column is a displacement, by `command_type` and its exceptions in `command_types`."""
    default, given = own.parameters.get("command_type", "delta"), own.parameters.get("command_types") or []
    written = [str(entry).rpartition("=") for entry in given] if isinstance(given, list) else []
    patterns = [pattern for pattern, equals, _ in written if equals]
    actions = own.parameters.get("action_names") or []
    kinds = {kind for _, _, kind in written}
    if not written or (patterns and not all(any(fnmatchcase(str(name), one) for one in patterns) for name in actions)):
        kinds.add(default)
    return "delta" not in kinds


def _control_rate_hz(task: TaskEntry, own: RobotFile) -> float:
    return task.world.control_rate_hz if task.world else own.number("control_rate_hz", CONTROL_RATE_HZ)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf") else 0.0
