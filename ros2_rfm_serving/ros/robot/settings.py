"""Settings of a robot from its ROS parameters. Everything is checked here, at configure, and not later."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.robot.columns import ActionColumns, suggestions
from ros2_rfm_serving.robot.config import (
    CommandType,
    Compatibility,
    ComponentClientConfig,
    FailSafeConfig,
    Motion,
    RobotConfig,
    Rung,
    TaskPolicy,
)
from ros2_rfm_serving.robot.proving import slowed
from ros2_rfm_serving.ros.node.parameters import NOTHING, Spec, Values, declare
from ros2_rfm_serving.ros.node.runtime import parameter
from ros2_rfm_serving.ros.robot.columns import action_columns, check_velocities, read_limits
from ros2_rfm_serving.ros.robot.declared import SPECS, TickSource
from ros2_rfm_serving.ros.robot.io import IoConfig, io_config, per_action
from ros2_rfm_serving.ros.robot.sinks import SinkKind
from ros2_rfm_serving.types import (
    MAX_INSTRUCTION_CHARACTERS,
    Conditioning,
    Fallback,
    Guidance,
    HorizonRequest,
    PipelineConfig,
    PrefixSchedule,
)
from ros2_rfm_serving.types.contracts import AUTO


@dataclass(frozen=True, kw_only=True)
class RobotSettings:
    """All settings of one robot."""

    config: RobotConfig
    io: IoConfig
    tick: TickSource
    task: str
    instruction: str
    dry_run: bool = False
    """Command nothing, and report the commands that would have been sent."""
    speed_scale: float = 1.0
    """Share of the declared speed; `config.limits` are reduced to it already."""
    warnings: tuple[str, ...] = ()
    """Warnings about valid settings that may be unintended."""


def robot_settings(node: Node, name: str, *, one_of_many: bool = False, changed: Mapping[str, Any] = NOTHING) -> RobotSettings:
    """Declare the parameters of a robot, where necessary, and return its settings, as they would be with `changed`.

    name: name of the robot, unless the parameter `robot` has another. one_of_many: this is its name, and `<name>.<parameter>`
    overrides `<parameter>`. Raises: `ConfigurationError`, which names the parameter, its value and the fix."""
    declare_robot(node, name if one_of_many else "")
    values = Values(node, SPECS, name if one_of_many else "", changed)
    config = _robot_config(values, name if one_of_many else values.text("robot") or name)
    return RobotSettings(
        config=config,
        io=io_config(values, config),
        tick=values.choice("tick", TickSource),
        task=values.text("task"),
        instruction=_instruction(values),
        dry_run=values.flag("dry_run"),
        speed_scale=values.number("speed_scale"),
        warnings=tuple(suggestions(ActionColumns.of(config), config.limits)),
    )


def _instruction(values: Values) -> str:
    """Return the instruction. Raises: `ConfigurationError` for one that no server would accept."""
    text = values.text("instruction")
    if len(text) > MAX_INSTRUCTION_CHARACTERS:
        problem, fix = f"{len(text)} characters are too long", f"write at most {MAX_INSTRUCTION_CHARACTERS}"
        raise ConfigurationError(problem, key="instruction", fix=fix)
    return text


def declare_robot(node: Node, robot: str = "") -> dict[str, Spec]:
    """Declare the parameters that all robots of a node share, and those of `robot` itself. Raises: `ConfigurationError`."""
    return declare(node, SPECS) | (declare(node, SPECS, robot) if robot else {})


def declare_autostart(node: Node) -> bool:
    return parameter(node, "autostart", True, "Configure and activate by itself")


# --- the brain's ----------------------------------------------------------------------------------------------------------


def _robot_config(values: Values, name: str) -> RobotConfig:
    actions = values.distinct("action_names")
    if not actions:
        raise values.wrong("action_names", "a robot without actions", "name the action columns in the model's order")
    columns = action_columns(values, actions)
    groups: dict[str, Any] = _execution(values, columns) | _commands(values, columns) | _safety(values) | _tasks(values)
    return RobotConfig(
        name=name,
        action_names=actions,
        cameras=values.distinct("cameras"),
        state_size=values.integer("state_size"),
        prompts=values.pairs("component_prompts"),
        calls_per_action=values.numbered("calls_per_action"),
        calls_head_start=values.number("calls_head_start"),
        **groups,
    )


def _execution(values: Values, columns: ActionColumns) -> dict[str, Any]:
    if values.integer("interpolation") > 1 and columns.has_delta:
        where = f" ({columns.named({CommandType.DELTA})})" if columns.mixed else ""
        problem = f"there is nothing between two displacements{where}"
        raise values.wrong("interpolation", problem, "set it to 1, or command positions")
    return {
        "control_rate_hz": values.number("control_rate_hz"),
        "interpolation": values.integer("interpolation"),
        "accept_other_rate": values.flag("accept_other_rate"),
        "execution_horizon": values.integer("execution_horizon"),
        "horizon": HorizonRequest(
            policy=values.text("horizon_policy"),
            steps=values.integer("execution_horizon"),
            min_steps=values.integer("horizon_min_steps"),
            threshold=values.number("horizon_threshold"),
        ),
        "pipelining": _pipelining(values),
        "num_steps": values.integer("num_steps"),
        "synchronous": values.flag("synchronous"),
        "conditioning": None if values.text("conditioning") == AUTO else values.choice("conditioning", Conditioning),
        "guidance": Guidance(
            schedule=values.choice("guidance_schedule", PrefixSchedule),
            max_weight=values.number("guidance_max_weight"),
            execution_horizon=values.integer("guidance_execution_horizon"),
            true_jacobian=values.flag("guidance_true_jacobian"),
            zero_padded=values.flag("guidance_zero_padded"),
        ),
        "blend_steps": values.integer("blend_steps"),
        "replace_queue": values.flag("replace_queue"),
        "compatibility": values.choice("compatibility", Compatibility),
    }


def _pipelining(values: Values) -> PipelineConfig | None:
    """Return the pipelining. Raises: `ConfigurationError` for a robot that cannot have several requests in flight."""
    if not values.integer("pipelining.pp_perception"):
        return None
    for name, wrong, fix in (("synchronous", True, "set it to false"), ("replace_queue", False, "set it to true")):
        if values.flag(name) is wrong:
            raise values.wrong(name, "the chunks of a pipelined session replace one another while the robot moves on", fix)
    return PipelineConfig(
        pp_perception=values.integer("pipelining.pp_perception"),
        pp_generation=values.integer("pipelining.pp_generation"),
        alpha=values.number("pipelining.alpha"),
        fetch_offset=values.integer("pipelining.fetch_offset"),
    )


def _commands(values: Values, columns: ActionColumns) -> dict[str, Any]:
    num_actions, limits = len(columns), read_limits(values)
    check_velocities(values, columns, limits)
    is_chunk = values.choice("sink", SinkKind) is SinkKind.CHUNK
    return {
        "trajectory_horizon_s": values.number("trajectory_horizon_s") if is_chunk else 0.0,
        "controller_rate_hz": values.number("controller_rate_hz"),
        "command_type": columns.kind,
        "command_types": columns.types if columns.mixed else (),
        "turns": columns.turns if columns.has_turns else (),
        "limits": slowed(limits, columns, values.number("speed_scale")),
        "gate": _gate(values, num_actions),
        "fallback": tuple(_rung(values, rung) for rung in values.texts("fallback")),
        "safe_pose": per_action(values, "safe_pose", values.numbers, num_actions, may_be_nan=columns.mixed),
        "safe_pose_gain": values.number("safe_pose_gain"),
    }


def _gate(values: Values, num_actions: int) -> ChunkValidatorConfig:
    """Read one parameter per field, of the type of its default."""
    read: dict[type, Callable[[str], Any]] = {
        ChunkValidatorMode: lambda name: values.choice(name, ChunkValidatorMode),
        float: values.number,
        tuple: values.numbers,
    }
    fields = dataclasses.fields(ChunkValidatorConfig)
    gate = ChunkValidatorConfig(**{field.name: read[type(field.default)](f"gate.{field.name}") for field in fields})
    gate.check(num_actions)
    return gate


def _rung(values: Values, text: str) -> Rung:
    """Parse `motion` or `motion:seconds`."""
    motion, colon, seconds = text.partition(":")
    if motion not in [known.value for known in Motion]:
        raise values.wrong("fallback", f"unknown motion {motion!r}", f"one of {', '.join(known.value for known in Motion)}")
    duration_s = values.parsed("fallback", seconds) if colon else math.inf
    if duration_s <= 0.0:
        raise values.wrong("fallback", f"{text!r} lasts no time", "give seconds above zero, as in repeat_last:0.2")
    return Rung(Motion(motion), duration_s)


def _safety(values: Values) -> dict[str, Any]:
    return {
        "max_action_age_s": values.number("max_action_age_s"),
        "max_observation_age_s": values.number("max_observation_age_s"),
        "max_sensor_skew_s": values.number("max_sensor_skew_s"),
        "server_timeout_s": values.number("server_timeout_s"),
        "failsafe": FailSafeConfig(**_fields(values, "failsafe", FailSafeConfig())),
        "link": ComponentClientConfig(**_fields(values, "link", ComponentClientConfig())),
    }


def _fields(values: Values, prefix: str, default: FailSafeConfig | ComponentClientConfig) -> dict[str, Any]:
    """Read one parameter per field, of the type of its default."""
    read = {bool: values.flag, int: values.integer, float: values.number}
    return {field.name: read[type(getattr(default, field.name))](f"{prefix}.{field.name}") for field in dataclasses.fields(default)}


def _tasks(values: Values) -> dict[str, Any]:
    known = [fallback.value for fallback in Fallback]
    fallbacks = values.pairs("component_fallbacks")
    for component, fallback in fallbacks.items():
        if fallback not in known:
            raise values.wrong("component_fallbacks", f"{component} has no fallback {fallback!r}", f"one of {', '.join(known)}")
    return {
        "verdict_votes": values.integer("verdict_votes"),
        "default_budget_s": values.number("default_budget_s"),
        "policy": TaskPolicy(
            fallbacks={component: Fallback(fallback) for component, fallback in fallbacks.items()},
            safe_words=frozenset(values.texts("safe_words")),
            max_task_retries=values.integer("max_task_retries"),
            on_max_task_retries=values.choice("on_max_task_retries", Fallback),
            max_consecutive_safety_replan=values.integer("max_consecutive_safety_replan"),
            max_consecutive_slo_violation=values.integer("max_consecutive_slo_violation"),
            on_max_violation=values.choice("on_max_violation", Fallback),
        ),
    }


__all__ = ["IoConfig", "RobotSettings", "TickSource", "declare_robot", "robot_settings"]
