"""Changes of a case in their written form, such as `dispatch=fifo` and `static:8`; each turns a case into another case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ros2_rfm_serving.audit.whatif.case import Case, RobotCase, ServerCase
from ros2_rfm_serving.dispatch import CONTINUOUS, Dispatcher
from ros2_rfm_serving.dispatch import policy as dispatch_policy
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.server.horizon import check
from ros2_rfm_serving.types import HorizonRequest

Read = Callable[[str], Any]


class Setting(NamedTuple):
    takes: str
    """Description of its values."""
    read: Read
    """Parser. Raises: `ValueError`, or `ConfigurationError` that lists the known values."""
    apply: Callable[[Case, Any], Case]


def with_settings(case: Case, text: str) -> Case:
    """Return the case with changed settings. `text`: `dispatch=fifo,batching=wait`. Raises: `ConfigurationError` with
    known names."""
    seen: set[str] = set()
    for part in text.split(","):
        name, given, value = (word.strip() for word in part.partition("="))
        if not given or not value or name in seen:
            problem = f"{name!r} is set twice" if name in seen else f"cannot be read: {part!r}"
            raise ConfigurationError(problem, key="--with", fix=f"write NAME=VALUE,...; {known()}")
        if name not in SETTINGS:
            raise ConfigurationError(f"nothing is named {name!r}", key="--with", fix=f"{did_you_mean(name, SETTINGS)}; {known()}")
        seen.add(name)
        case = SETTINGS[name].apply(case, _read(name, value))
    return case


def known() -> str:
    """Return the names of settings with descriptions of their values."""
    return "; ".join(f"{name}: {setting.takes}" for name, setting in SETTINGS.items())


def _read(name: str, value: str) -> Any:
    setting = SETTINGS[name]
    try:
        return setting.read(value)
    except ValueError:
        raise ConfigurationError(f"{name} is {value!r}", key="--with", fix=f"give {setting.takes}") from None
    except ConfigurationError as error:
        raise ConfigurationError(error.problem, key=f"--with {name}", fix=error.fix) from None


def with_horizon(case: Case, text: str) -> Case:
    """Return the case with another execution horizon. `text`: `static:8`, or `confidence:0.4` or `confidence:0.4:2` with threshold
    and fewest steps; other policies have the latter form.

    Raises: `ConfigurationError` when the text is invalid, or the recording does not support the policy.
    """
    policy, _, rest = text.partition(":")
    try:
        horizon = _static(int(rest)) if policy == "static" else _estimated(policy, rest)
    except ValueError:
        raise _unreadable(text) from None
    problem = check(horizon)
    if problem:
        raise ConfigurationError(problem, key="--horizon", fix=_unreadable(text).fix)
    return _with_horizon(case, horizon)


def _static(steps: int) -> HorizonRequest:
    return HorizonRequest(policy="static", steps=steps, min_steps=1)


def _estimated(policy: str, rest: str) -> HorizonRequest:
    threshold, _, fewest = rest.partition(":")
    return HorizonRequest(
        policy=policy,
        threshold=float(threshold) if threshold else HorizonRequest().threshold,
        min_steps=int(fewest) if fewest else 1,
    )


def _unreadable(text: str) -> ConfigurationError:
    fix = "write static:8 (steps), or confidence:0.4:2 (threshold, fewest steps)"
    return ConfigurationError(f"cannot be read: {text!r}", key="--horizon", fix=fix)


def _with_horizon(case: Case, horizon: HorizonRequest) -> Case:
    longest = min((s.contract.chunk_length for s in case.servers.values() if s.contract.chunk_length), default=0)
    if horizon.policy == "static" and horizon.steps > longest:
        fix = f"give 1 to {longest}"
        raise ConfigurationError(f"{horizon.steps} steps, and the recorded chunks have {longest} rows", key="--horizon", fix=fix)
    if horizon.policy != "static" and not any(server.confidences for server in case.servers.values()):
        problem = "the recording does not say how sure the models were of their actions"
        fix = "give static:N, or record with a model that tells its solver's steps (an emulated one does not)"
        raise ConfigurationError(problem, key="--horizon", fix=fix)
    if horizon.policy != "static":
        return each_robot(case, lambda config: replace(config, horizon=horizon))
    own = HorizonRequest(steps=horizon.steps)
    return each_robot(case, lambda config: replace(config, horizon=own, execution_horizon=horizon.steps))


# --- setters ---------------------------------------------------------------------------------------------------------------


def each_server(case: Case, change: Callable[[ServerCase], ServerCase]) -> Case:
    return replace(case, servers={name: change(server) for name, server in case.servers.items()})


def each_robot(case: Case, change: Callable[[RobotConfig], RobotConfig]) -> Case:
    return replace(case, robots={name: configured(robot, change) for name, robot in case.robots.items()})


def configured(robot: RobotCase, change: Callable[[RobotConfig], RobotConfig]) -> RobotCase:
    """Return the robot with a change of its configuration, and of all later ones."""
    later = tuple((at_s, change(config)) for at_s, config in robot.later)
    return replace(robot, config=change(robot.config), later=later)


def _of_servers(name: str) -> Callable[[Case, Any], Case]:
    """Return a setter of a field of the servers' configuration."""
    return lambda case, value: each_server(case, lambda server: replace(server, config=replace(server.config, **{name: value})))


def _of_placements(name: str) -> Callable[[Case, Any], Case]:
    """Return a setter of a field of the schedule's placements, and of the servers' configuration."""

    def change(server: ServerCase, value: Any) -> ServerCase:
        changes = {name: value}
        return replace(server, placement=replace(server.placement, **changes), config=replace(server.config, **changes))

    return lambda case, value: each_server(case, lambda server: change(server, value))


def _of_robots(name: str) -> Callable[[Case, Any], Case]:
    return lambda case, value: each_robot(case, lambda config: replace(config, **{name: value}))


def _of_links(name: str) -> Callable[[Case, Any], Case]:
    def change(config: RobotConfig, value: Any) -> RobotConfig:
        return replace(config, link=replace(config.link, **{name: value}))

    return lambda case, value: each_robot(case, lambda config: change(config, value))


def _faster(case: Case, factor: float) -> Case:
    def change(server: ServerCase) -> ServerCase:
        batches = tuple(batch._replace(seconds=batch.seconds / factor) for batch in server.batches)
        return replace(server, batches=batches, config=replace(server.config, profile_s=()))

    return each_server(case, change)


# --- parsers ---------------------------------------------------------------------------------------------------------------


def _whole(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 65_535:
        raise ValueError(text)
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def _or_never(text: str) -> float:
    return math.inf if text == "0" else _positive(text)


def _dispatch(text: str) -> str:
    dispatch_policy(text)
    return text


def _batching(text: str) -> str:
    Dispatcher(dispatch_policy("fifo"), text)
    if text == CONTINUOUS:  # the engine's times of single steps were not recorded
        raise ValueError(text)
    return text


def _mode(text: str) -> bool:
    if text not in ("sync", "async"):
        raise ValueError(text)
    return text == "sync"


SETTINGS: Mapping[str, Setting] = {
    "dispatch": Setting("a dispatch policy", _dispatch, _of_servers("dispatch")),
    "batching": Setting("fixed, saturation or wait", _batching, _of_servers("batching")),
    "batch_size": Setting("rows, at most", _whole, _of_placements("batch_size")),
    "max_sessions": Setting("of each server", _whole, _of_placements("max_sessions")),
    "refetch_after_s": Setting("seconds, 0: never", _or_never, _of_servers("refetch_after_s")),
    "speed": Setting("how many times faster its GPUs were", _positive, _faster),
    "mode": Setting("sync or async", _mode, _of_robots("synchronous")),
    "max_action_age_s": Setting("seconds", _positive, _of_robots("max_action_age_s")),
    "request_timeout_s": Setting("seconds", _positive, _of_links("request_timeout_s")),
}
