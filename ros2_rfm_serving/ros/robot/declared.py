"""Declaration of every parameter of a robot: default, description, range, and when it may change.

`settings.py` reads the parameters; docs/reference/integrate.md explains them.
"""

from __future__ import annotations

import dataclasses
import enum

from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.robot.columns import ALIASES
from ros2_rfm_serving.robot.config import CommandType, Compatibility, ComponentClientConfig, FailSafeConfig, RobotConfig, TaskPolicy
from ros2_rfm_serving.ros.node.parameters import Spec, When, choice
from ros2_rfm_serving.ros.robot.joints import StatePart
from ros2_rfm_serving.ros.robot.sinks import TRAJECTORY_FIELDS, SinkKind
from ros2_rfm_serving.types import MAX_ALPHA, MAX_STAGES, Conditioning, Guidance, HorizonRequest
from ros2_rfm_serving.types.contracts import AUTO


class TickSource(enum.Enum):
    """Source of the control period."""

    STATE = "state"
    """Each complete new state begins a period."""
    TIMER = "timer"
    """A timer begins a period, at `control_rate_hz`, with the newest readings."""


def _default(name: str) -> float:
    """Return the default of a number in `RobotConfig`."""
    return float({field.name: field.default for field in dataclasses.fields(RobotConfig)}[name])  # type: ignore[arg-type]


LARGE = 1e9
TYPE_NAMES = (*(kind.value for kind in CommandType), *ALIASES)
_GUIDANCE, _HORIZON, _POLICY = Guidance(), HorizonRequest(), TaskPolicy()

CONTRACT = {
    "robot": Spec("", "Name of the robot, as in the schedule; empty: the last part of the namespace"),
    "task": Spec("", "Task class of this robot"),
    "instruction": Spec("", "System 1's instruction unless a goal brings its own"),
    "descriptor": Spec("", "SHA-256, hex, of what the descriptor says that this process was started from; empty: not known"),
    "zenoh_router": Spec(
        "", "Of Zenoh, `tcp/host:7447`, by which servers are reached; with a certificate its own; empty: they are on DDS"
    ),
    "action_names": Spec(["delta_x"], "Action columns, in order: checked with the server"),
    "cameras": Spec(["front"], "Camera names, in the model's order: checked with the server"),
    "state_size": Spec(39, "Length of the proprioceptive state", 0, 4096),
    "component_prompts": Spec([""], "component=prompt for each judging component"),
    "calls_per_action": Spec([""], "component=calls per System 1 call, for System 2 and the like"),
    "calls_head_start": Spec(0.0, "Share of the second such call that is owed when an episode begins", 0.0, 1.0),
}

EXECUTION = {
    "control_rate_hz": Spec(20.0, "Control periods, and so commands, per second", 0.01, 10_000.0),
    "tick": choice(TickSource.STATE, "What gives the control period its rhythm: each new state, or a timer"),
    "interpolation": Spec(1, "Commands per step of the policy, on a straight line between steps", 1, 1000),
    "accept_other_rate": Spec(
        False, "Work with a model that was demonstrated at another rate than this robot's steps; else refuse"
    ),
    "execution_horizon": Spec(8, "Actions of a chunk to execute before the next takes over", 1, 10_000),
    "horizon_policy": Spec("", "Who says how much of each chunk is executed: a policy of the server's; empty: execution_horizon"),
    "horizon_min_steps": Spec(_HORIZON.min_steps, "With such a policy: never fewer actions", 1, 10_000),
    "horizon_threshold": Spec(_HORIZON.threshold, "Of `confidence`: how far a last update may exceed the mean", -0.99, LARGE),
    "pipelining.pp_perception": Spec(
        0, "Frames until an observation is in the public context; 0: one request in flight", 0, MAX_STAGES
    ),
    "pipelining.pp_generation": Spec(1, "Frames that the solver steps of a request are spread over", 1, MAX_STAGES),
    "pipelining.alpha": Spec(0.0, "Skew of that spread: stage i has a share of e^(i alpha)", -MAX_ALPHA, MAX_ALPHA),
    "pipelining.fetch_offset": Spec(0, "0: a frame generates on its own context; -1: on the one before", -1, 0),
    "num_steps": Spec(0, "Solver steps of each chunk, where the model lets robots choose; 0: its own number", 0, 1000),
    "synchronous": Spec(False, "Hold while the next chunk is computed"),
    "conditioning": Spec(
        AUTO,
        "How a chunk continues the actions executed meanwhile; auto: the best that the model can do: prefix, guided, none",
        choices=(AUTO, *(way.value for way in Conditioning)),
    ),
    "guidance_schedule": choice(_GUIDANCE.schedule, "How guidance fades out over the prefix"),
    "guidance_max_weight": Spec(_GUIDANCE.max_weight, "Guidance weights are clipped to this", 0.0, LARGE),
    "guidance_execution_horizon": Spec(_GUIDANCE.execution_horizon, "Row at which the prefix has lost all weight", 0, 10_000),
    "guidance_true_jacobian": Spec(_GUIDANCE.true_jacobian, "The vector-Jacobian product in place of the identity"),
    "guidance_zero_padded": Spec(_GUIDANCE.zero_padded, "A short prefix continues with zeros, not with its last action"),
    "blend_steps": Spec(0, "Steps over which commands ease from the last one into a new chunk", 0, 10_000),
    "replace_queue": Spec(True, "A new chunk replaces what is queued; false: it is appended"),
    "compatibility": choice(Compatibility.NEWER, "Whose rules the action queue follows where they differ"),
}

COMMANDS = {
    "command_type": Spec(
        CommandType.DELTA.value, "What the numbers of an action mean, and so what stops the robot", choices=TYPE_NAMES
    ),
    "command_types": Spec([""], "action=type where one differs from command_type, or a type per action; `joint_*=velocity` works"),
    "continuous_joints": Spec([""], "Joints that go round without end: action or joint names, or name=turn where it is not 2 pi"),
    "limits.lower": Spec([], "Per action; an action below it is refused whole"),
    "limits.upper": Spec([], "Per action; an action above it is refused whole"),
    "limits.tolerance": Spec(0.0, "Beyond its limit by no more than this, a value is clamped", 0.0, LARGE),
    "limits.max_velocity": Spec([], "Per action and second, of position commands"),
    "limits.max_acceleration": Spec([], "Per action and second squared of positions; per second of velocities and displacements"),
    "limits.max_jerk": Spec([], "Per action and second cubed of positions; costs a lag of max_acceleration / max_jerk seconds"),
    "fallback": Spec(["hold"], "Without an action: motions, each `motion` or `motion:seconds`; the last one lasts"),
    "safe_pose": Spec([], "Per action, in the units of the measured positions; empty: none"),
    "safe_pose_gain": Spec(1.0, "Velocity or displacement per unit of the way to the safe pose, before the limits", 0.0, LARGE),
    "sink": choice(SinkKind.ARRAY, "Where commands go"),
    "sink_topic": Spec("command", "Absolute, or below the robot's namespace"),
    "sink_class": Spec("", "Of a custom sink: package.module:Class"),
    "sink_joints": Spec([""], "Of a trajectory: a joint per action; empty: the actions' names"),
    "trajectory_field": Spec("", "What a trajectory's numbers are; empty: by the command type", choices=("", *TRAJECTORY_FIELDS)),
    "trajectory_time_s": Spec(0.0, "time_from_start of a trajectory's point; 0: one control period", 0.0, 60.0),
    "trajectory_horizon_s": Spec(
        0.5, "Of a chunk: motion that is sent ahead; a robot whose process dies stands this and a braking later", 0.01, 10.0
    ),
    "trajectory_velocities": Spec(
        True, "Of a chunk: points have velocities beside positions; false: positions and times alone, for positions_upsampling"
    ),
    "controller_rate_hz": Spec(100.0, "Of a chunk: update rate of the controller that takes it", 1.0, 100_000.0),
    "twist_axes": Spec([""], "Of a twist: action=axis for each action, such as v=linear.x"),
    "twist_stamped": Spec(False, "TwistStamped in place of Twist, until a subscriber is known that takes one of them alone"),
    "twist_frame": Spec("", "frame_id of a stamped twist"),
    "twist_stamp": Spec(
        "clock", "Of a stamped twist: the node's ROS time, or zero, for its receiver's own", choices=("clock", "zero")
    ),
    "command_scale": Spec([], "Per action: published is scale * action + offset; empty: 1"),
    "command_offset": Spec([], "Per action; empty: 0"),
    "dry_run": Spec(False, "Command nothing, and report in /diagnostics what would have been commanded; resets are left out"),
    "speed_scale": Spec(1.0, "Share of the declared speed: of velocities, displacements and limits of positions", 0.01, 1.0),
}

_GATE = {
    "jump": "A chunk's first row, from the last command: off, warn (count it) or refuse (drop the chunk)",
    "max_jump": "Per action, in its units",
    "velocity": "Between a chunk's rows: off, warn or refuse",
    "max_velocity": "Per action and second; of displacements: per step",
    "acceleration": "Between a chunk's rows: off, warn or refuse",
    "max_acceleration": "Per action and second squared",
    "jerk": "Between a chunk's rows: off, warn or refuse",
    "max_jerk": "Per action and second cubed",
    "workspace": "Rows outside of gate.workspace_lower and gate.workspace_upper: off, warn or refuse",
    "workspace_lower": "Per action",
    "workspace_upper": "Per action",
    "clamped": "Too many of the first hundred chunks' values are beyond the limits, so the units are wrong: off, warn or refuse",
    "max_clamped": "Share of those values",
    "statistics": "Values too far from the actions that the model was trained on: off, warn or refuse",
    "action_mean": "Per action; empty: what the model says of its training data",
    "action_std": "Per action; empty: what the model says of its training data",
    "max_deviations": "Standard deviations from the mean",
}


def _gate() -> dict[str, Spec]:
    """Return one parameter per field, with the field's own default."""
    specs: dict[str, Spec] = {}
    for field in dataclasses.fields(ChunkValidatorConfig):
        default, description = field.default, _GATE[field.name]
        if isinstance(default, ChunkValidatorMode):
            specs[f"gate.{field.name}"] = choice(default, description)
        elif isinstance(default, float):
            specs[f"gate.{field.name}"] = Spec(default, description, 0.0, LARGE)
        else:
            specs[f"gate.{field.name}"] = Spec([], description)
    return specs


GATE = _gate()

SENSORS = {
    "camera_topics": Spec([""], "camera=topic; otherwise camera/<name>/image/compressed or camera/<name>/image_raw"),
    "camera_type": Spec("compressed", "Messages of the cameras", choices=("compressed", "image")),
    "camera_types": Spec([""], "camera=compressed or camera=image, where they differ"),
    "camera_depth_range_m": Spec([""], "camera=near:far of cameras with depth: black to white"),
    "jpeg_quality": Spec(90, "Of images that have to be encoded", 1, 100),
    "max_image_size_px": Spec(640, "Larger images are made smaller, by their longer side", 16, 2048),
    "state_parts": Spec(
        [StatePart.ARRAY.value], "Parts of the state, concatenated: array, joint_states, odometry, imu, wrench, pose"
    ),
    "state_topics": Spec([""], "part=topic for odometry, imu, wrench and pose; otherwise odom, imu/data, wrench, pose"),
    "state_fields": Spec([""], "part=field+field for odometry, imu, wrench and pose; otherwise all fields of the message"),
    "state_topic": Spec("state", "Of the array: absolute, or below the robot's namespace"),
    "state_type": Spec("float32", "Of the array: Float32MultiArray or Float64MultiArray", choices=("float32", "float64")),
    "joint_topic": Spec("joint_states", "Absolute, or below the robot's namespace"),
    "joints": Spec([""], "Joints of the state in the model's order"),
    "joint_fields": Spec(["position"], "Of each joint: position, velocity, effort"),
    "joint_fields_of": Spec([""], "joint=field+field where they differ, such as gripper=position"),
    "unit_scale": Spec([""], "joint=factor for its positions and velocities, such as 0.0174533 for degrees"),
    "action_joints": Spec([""], "A joint per action: its measured position; empty: not known"),
    "action_state": Spec([], "Per action: where in the state its measured position is"),
    "use_arrival_time": Spec(False, "Readings of all sensors were taken when they arrive, whatever their stamps"),
    "arrival_time_sensors": Spec([""], "The same for some: names of cameras, and parts of the state"),
    "max_observation_age_s": Spec(0.5, "No request goes out with older readings", 0.001, LARGE),
    "max_sensor_skew_s": Spec(
        _default("max_sensor_skew_s"), "No request goes out with readings further apart; .inf: not checked", 0.0
    ),
}

_FAILSAFE = {
    "buffer_time_s": "A chunk is asked for while the queued actions last for this; 0: the expected delay decides",
    "degraded_after_s": "Without a chunk while requests fail",
    "max_offline_s": "Without a session while a task runs, then DEAD; 0: never",
}
_LINK = {
    "request_timeout_s": "A request without an answer is given up",
    "open_timeout_s": "A session that does not open is given up",
    "max_timeouts": "Requests in a row without an answer, then the session is opened anew",
    "initial_backoff_s": "Before a session is asked for again, the first time",
    "max_backoff_s": "And at most",
    "seed": "Of how these retries are spread; each robot and component has numbers of its own",
    "counts_first_latency": "A session's first inference counts as latency though it may include a warm-up",
    "longest_latency": "The latency to expect is the longest ever; false: see link.window_maximum",
    "window_maximum": "The latency to expect is the longest of the last 100; false: their median",
}


def _fields(prefix: str, config: FailSafeConfig | ComponentClientConfig, descriptions: dict[str, str]) -> dict[str, Spec]:
    """Return one parameter per field, with the field's own default; zero is allowed where it has a meaning."""
    specs = {}
    for field in dataclasses.fields(config):
        default, description = getattr(config, field.name), descriptions.get(field.name, "")
        bounds = () if type(default) is bool else (0.0 if "0: " in description else 1 if type(default) is int else 0.001, LARGE)
        specs[f"{prefix}.{field.name}"] = Spec(default, description, *bounds)
    return specs


SAFETY = {
    "max_action_age_s": Spec(3.0, "No action from an older observation is executed", 0.001, LARGE),
    "server_timeout_s": Spec(
        _default("server_timeout_s"), "Without a status message, then the server counts as lost", 0.001, LARGE
    ),
    **_fields("failsafe", FailSafeConfig(), _FAILSAFE),
    **_fields("link", ComponentClientConfig(), _LINK),
}

TASKS = {
    "verdict_votes": Spec(2, "Equal verdicts in a row that end a task", 1, 1000),
    "default_budget_s": Spec(25.0, "Time for a task unless the goal says otherwise", 0.001, LARGE),
    "component_fallbacks": Spec([""], "component=fallback, for late answers and objections (ROSA §3.3)"),
    "safe_words": Spec(sorted(_POLICY.safe_words), "Verdicts of safety that are no objection"),
    "max_task_retries": Spec(_POLICY.max_task_retries, "Of a failed task, each after a reset", 0, 1000),
    "on_max_task_retries": choice(_POLICY.on_max_task_retries, "When they are used up"),
    "max_consecutive_safety_replan": Spec(_POLICY.max_consecutive_safety_replan, "Objections of safety in a row", 1, 100_000),
    "max_consecutive_slo_violation": Spec(
        _POLICY.max_consecutive_slo_violation, "Late answers of a component in a row", 1, 100_000
    ),
    "on_max_violation": choice(_POLICY.on_max_violation, "When there are that many of either"),
}

LIVE = {
    *("instruction", "component_prompts", "execution_horizon", "blend_steps"),
    *(name for name in COMMANDS if name.startswith(("limits.", "safe_pose")) or name in ("fallback", "speed_scale")),
    *GATE,
    *("jpeg_quality", "max_image_size_px", "max_sensor_skew_s"),
    *(SAFETY.keys() - {"link.counts_first_latency", "link.longest_latency"}),
    *(TASKS.keys() - {"component_fallbacks", "safe_words"}),
}
"""Parameters that may change while the robot works, between two control periods.
All others are agreed with a server when a session opens, define the robot's ROS entities, or determine a run from its beginning."""


def _timed(name: str, spec: Spec) -> Spec:
    return spec._replace(when=When.ANY if name in LIVE else When.UNCONFIGURED)


SPECS = {
    name: _timed(name, spec) for name, spec in {**CONTRACT, **EXECUTION, **COMMANDS, **GATE, **SENSORS, **SAFETY, **TASKS}.items()
}
