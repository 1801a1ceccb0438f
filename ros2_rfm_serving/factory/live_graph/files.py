"""Files that `rfm connect` writes: a robot's parameters, a factory, and a catalogue with a stand-in where no model was named."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ros2_rfm_serving.factory.live_graph.propose import Proposal, ProposedLine
from ros2_rfm_serving.types import Conditioning, ModelContract, OutputKind

COMMENT_COLUMN = 60
PLAIN = re.compile(r"[A-Za-z_/~][\w/.=+-]*", re.ASCII)
"""Texts that need no quotes: within a list, rcl's YAML allows no colon in an unquoted text."""
READ_OTHERWISE = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"})
"""Texts that rcl or PyYAML read as a truth value, a number or nothing where they have no quotes."""
STAND_IN_S = 2.0
"""Duration of a stand-in's chunk: shorter than the age at which a robot drops an action (`max_action_age_s`)."""
STAND_IN_SHARE = 0.3
"""Share of the largest velocity that a stand-in's motion uses."""
STAND_IN_GPU = "EMULATED"
LARGEST_REACH = 0.3
"""Largest amplitude of a stand-in's motion, in rad or m."""
SECTIONS = (
    (
        "What the model expects: checked with the server when a session opens.",
        ("action_names", "cameras", "state_size", "conditioning"),
    ),
    ("Rhythm.", ("control_rate_hz", "tick")),
    ("Cameras.", ("camera_topics", "camera_types")),
    ("State.", ("state_parts", "joint_topic", "joints", "joint_fields", "action_joints", "state_topics")),
    ("Commands.", ("command_type", "sink", "sink_topic", "sink_joints", "twist_axes", "twist_stamped")),
    ("What a command may be, and what stops the robot.", ()),
)
"""Headings of a robot's file, each with its keys; the last one has all others."""


@dataclass(frozen=True, kw_only=True)
class FactoryEntry:
    """Content of the descriptor for the robot."""

    task: str
    robot_file: str
    model: str
    gpu_type: str
    prompt: str
    slo_ms: float
    is_stand_in: bool


def robot_text(proposal: Proposal, seen: str) -> str:
    """Return the robot's file with a comment on each line. seen: description of where and how long the graph was observed."""
    lines = [
        f"# Parameters of robot_node for {proposal.robot}, written by `rfm connect`: {seen}.",
        "# Each line says where its value comes from. `rfm connect --check` compares this file with the graph;",
        "# docs/reference/integrate.md explains every key.",
        "/**:",
        "  ros__parameters:",
    ]
    named = {key for _, keys in SECTIONS for key in keys}
    for title, keys in SECTIONS:
        found = [line for line in proposal.lines if (line.key in keys if keys else line.key not in named)]
        if found:
            lines += [f"    # --- {title}", *(_written(line) for line in found)]
    return "\n".join(lines) + "\n"


def factory_text(entry: FactoryEntry, proposal: Proposal, contract: ModelContract) -> str:
    """Return a descriptor with one robot and one server, with a comment on each line."""
    rows, period_ms = executed_rows(contract), 1e3 / proposal.control_rate_hz
    mode = "async" if is_asynchronous(contract) else "sync"
    why = "the next chunk is computed while this one is executed" if mode == "async" else "ask, execute all of it, ask again"
    pairs = [
        ("server_cluster:", "one server; more of them, or other GPUs: docs/fleet.md"),
        ("  num_servers: 1", "processes that serve models"),
        (
            f"  gpu_type: {yaml_value(entry.gpu_type)}",
            "as in the latency profiles" + (": no GPU is used" if entry.is_stand_in else ""),
        ),
        ("", ""),
        ("robot_fleet:", ""),
        (f"  - task: {entry.task}", f"its robot is called {entry.task}_1"),
        ("    num_robots: 1", "raise it for more robots of this kind"),
        ("", ""),
        (f"{entry.task}:", ""),
        (f"  robot: {entry.robot_file}", "the robot's own file, beside this one"),
        ("  pipeline:", ""),
        (
            f"    action_period_ms: {rows * period_ms:g}",
            f"{rows} of the {contract.chunk_length} actions of a chunk, at {proposal.control_rate_hz:g} Hz",
        ),
        (f"  execution: {{mode: {mode}}}", why),
        (
            "  task_retry: {max_task_retries: 0, on_max_task_retries: return_to_safe_state}",
            "a failed task ends; none is tried again",
        ),
        (
            "  safety_and_slo_violation: {max_consecutive_slo_violation: 20, on_max_violation: return_to_safe_state}",
            "nobody is called",
        ),
        ("  components:", "no monitor judges the task: it ends when its time is over"),
        ("    system1:", ""),
        (
            f"      model: {yaml_value(entry.model)}",
            "a stand-in: a small motion to and fro; no model runs" if entry.is_stand_in else "of the catalogue",
        ),
        (
            f"      prompt: {json.dumps(entry.prompt, ensure_ascii=False)}",
            "the instruction, unless a task has its own",
        ),
        (f"      slo_ms: {entry.slo_ms:g}", "from request to answer"),
        ("      fallback: stop_and_resend", "of a later answer: stop, and ask again"),
    ]
    head = f"# A factory with the robot {entry.task}_1, written by `rfm connect`. `rfm check` validates it, `rfm up` starts it."
    return "\n".join([head, *(commented(text, comment) for text, comment in pairs)]) + "\n"


def is_asynchronous(contract: ModelContract) -> bool:
    """Return whether the next chunk can be computed while the robot moves, and continue that motion."""
    return contract.chunk_length > 1 and bool({Conditioning.PREFIX, Conditioning.GUIDED} & set(contract.conditionings))


def executed_rows(contract: ModelContract) -> int:
    """Return the number of steps of a chunk that are executed before the next one: half of them where chunks overlap, otherwise
    all."""
    return max(1, contract.chunk_length // 2 if is_asynchronous(contract) else contract.chunk_length)


def stand_in_rows(proposal: Proposal) -> int:
    """Return the length of a stand-in's chunk, in steps."""
    return max(4, round(STAND_IN_S * proposal.control_rate_hz))


def stand_in_contract(model: str, proposal: Proposal) -> ModelContract:
    return ModelContract(
        model=model,
        model_hash="",
        output=OutputKind.ACTION_CHUNK,
        action_names=proposal.action_names,
        cameras=proposal.cameras,
        state_size=proposal.state_size,
        chunk_length=stand_in_rows(proposal),
        emulated=True,
    )


def stand_in_catalogue(model: str, proposal: Proposal) -> str:
    """Return a catalogue with a policy that moves the robot to and fro a little, once per chunk."""
    seconds = stand_in_rows(proposal) / proposal.control_rate_hz
    amplitudes = [round(_amplitude(proposal, column, seconds), 4) for column in range(len(proposal.action_names))]
    entry = {
        "engine": "wave",
        "options": {"amplitudes": amplitudes, "positions": list(proposal.positions)},
        "action_names": list(proposal.action_names),
        "cameras": list(proposal.cameras),
        "state_size": proposal.state_size,
        "chunk_length": stand_in_rows(proposal),
        "gpus": {STAND_IN_GPU: {"memory_gb": 1, "load_s": 0, "source": "written by rfm connect; no model runs"}},
    }
    head = "# A stand-in for a model, written by `rfm connect`: each action goes out and back once per chunk. No model runs.\n"
    return head + yaml.safe_dump({"models": {model: entry}}, sort_keys=False, default_flow_style=None)


def _amplitude(proposal: Proposal, column: int, seconds: float) -> float:
    """Return the amplitude of an action: its velocity stays well below the limit, and it does not leave its range.

    A negative amplitude moves down, because there is no space above.
    """
    if not proposal.is_position:
        return STAND_IN_SHARE * float(proposal.value("limits.upper")[column])
    velocity = float(proposal.value("limits.max_velocity")[column])
    reach = min(STAND_IN_SHARE * velocity * seconds / math.pi, LARGEST_REACH)
    measured = proposal.measured[column] if proposal.measured else math.nan
    if math.isnan(measured) or proposal.action_joint(column) in proposal.value("continuous_joints", ()):
        return reach
    up = float(proposal.value("limits.upper")[column]) - measured
    down = measured - float(proposal.value("limits.lower")[column])
    if up >= reach:
        return reach
    return max(up, 0.0) if up > down else -min(reach, max(down, 0.0))  # many arms rest at a limit


def _written(line: ProposedLine) -> str:
    return commented(f"    {line.key}: {yaml_value(line.value)}", line.comment)


def commented(text: str, comment: str) -> str:
    """Return a line of YAML with a comment behind it, or above it where the line is long."""
    if not comment:
        return text
    if len(text) < COMMENT_COLUMN:
        return f"{text:<{COMMENT_COLUMN}}# {comment}"
    indentation = text[: len(text) - len(text.lstrip())]
    return f"{indentation}# {comment}\n{text}"


def yaml_value(value: Any) -> str:
    """Return a value as ROS reads it: floats with a point, texts in quotes where they need them, lists in brackets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(yaml_value(part) for part in value)}]"
    if isinstance(value, str) and (not PLAIN.fullmatch(value) or value.lower() in READ_OTHERWISE):
        return json.dumps(value, ensure_ascii=False)
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()


def _number(value: float) -> str:
    if math.isinf(value):
        return "-.inf" if value < 0 else ".inf"
    text = f"{value:.6g}"
    return text if any(letter in text for letter in ".en") else f"{text}.0"
