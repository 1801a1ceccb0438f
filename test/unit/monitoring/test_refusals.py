"""Every counter of refusal in the code is a cause, with what it means and what mends it; no entry is of a counter that is gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from ros2_rfm_serving.monitoring.counters import COUNTERS, ROBOT, SERVER, ZENOH_DOOR, Table
from ros2_rfm_serving.monitoring.explanations import explanation
from ros2_rfm_serving.monitoring.findings.causes import CAUSES
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.ros.server.websocket_connection import COUNTED
from ros2_rfm_serving.ros.zenoh.tally import LOST
from ros2_rfm_serving.types.schedule_follower import ScheduleVerdict

PACKAGE = Path(__file__).resolve().parents[3] / "ros2_rfm_serving"
COUNTING = ("count", "count_fault", "mishap", "on_fault", "_on_fault", "refuse", "Refusal", "BadMessageError")
"""Functions and classes whose first argument is the name of a counter."""
RETURNED = {
    "robot/core.py": ("_accept_reply", "_accept_chunk"),
    "robot/client/component_client.py": ("accept",),
    "robot/client/request_scheduler.py": ("accept",),
    "robot/client/server_clients.py": ("_opened",),
    "robot/motion/command_generator.py": ("enqueue", "_unfit_start"),
    "robot/motion/shaping.py": ("problem",),
    "server/sessions.py": ("collect",),
}
"""Functions that return the name of a counter, or lists of it."""
CONSTANTS = {
    "ros/node/said.py": ("UNPROVEN", "STALE"),
    "server/core.py": ("SESSION_ENDED", "STALE_EPISODE", "DRAINING"),
    "ros/zenoh/tally.py": ("LOST",),
}
ELSEWHERE = {
    "robot": set[str](),
    "server": {"wrong_context"},  # chunks are read by robots
    "door": {"to_robots", "from_robots", "calls", "unanswered_calls", "failed", "lost_behind_the_door"},  # figures, no refusals
}
"""Names in the files below that are not counters of refusal there."""
TABLES: Mapping[str, tuple[str, ...]] = {
    "robot": ("robot/", "ros/robot/", "ros/wire/convert.py", "ros/wire/session_messages.py", "ros/wire/bounded.py"),
    "server": (
        "server/",
        "ros/server/",
        "dispatch/",
        "wire.py",
        "ros/wire/convert.py",
        "ros/wire/session_messages.py",
        "ros/wire/bounded.py",
        "engines/architectures/recropping.py",
    ),
    "door": ("ros/zenoh/", "ros/wire/cdr.py", "ros/wire/bounded.py"),
}
KNOWN: Mapping[str, Table] = {"robot": ROBOT, "server": SERVER, "door": ZENOH_DOOR}


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts that stand in an expression, but not those of its formatted parts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)
    elif isinstance(node, ast.Tuple):
        for part in node.elts:
            yield from texts(part)


def constants(node: ast.Assign) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of `A = "a"` and of `A, B = "a", "b"`."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from ((getattr(one, "id", ""), text) for text in texts(part))
    else:
        yield from ((getattr(target, "id", ""), text) for text in texts(value))


def is_counter(text: str) -> bool:
    return text.isidentifier() and text.islower()


def counted_in(file: Path) -> set[str]:
    """Return the names of counters in a file."""
    name = str(file.relative_to(PACKAGE))
    tree, found = ast.parse(file.read_text()), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found |= set(texts(node.args[0])) if called in COUNTING else set()
        elif isinstance(node, ast.Subscript):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            found |= set(texts(node.slice)) if owner in ("refused", "_refused") else set()
        elif isinstance(node, ast.FunctionDef) and node.name in RETURNED.get(name, ()):
            for part in ast.walk(node):
                if isinstance(part, ast.Return) and part.value is not None:
                    found |= set(texts(part.value))
                elif isinstance(part, ast.Call) and getattr(part.func, "attr", "") == "append":
                    found |= {text for one in part.args for text in texts(one)}
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            found |= {text for constant, text in constants(node) if constant in CONSTANTS.get(name, ())}
    return {text for text in found if is_counter(text)}


def counted(rooms: tuple[str, ...]) -> set[str]:
    found = [sorted((PACKAGE / room).rglob("*.py")) if room.endswith("/") else [PACKAGE / room] for room in rooms]
    files = [file for of_room in found for file in of_room]
    return {kind for file in files for kind in counted_in(file)}


@pytest.mark.parametrize("who", TABLES)
def test_every_counter_of_the_code_is_a_cause(who: str) -> None:
    found = counted(TABLES[who]) | {ScheduleVerdict.STALE.value, ScheduleVerdict.RIVAL.value}
    if who == "robot":
        found |= {
            LOST,
            *(f"gate_{field.name}" for field in fields(ChunkValidatorConfig) if isinstance(field.default, ChunkValidatorMode)),
        }
    if who == "server":
        found |= {*COUNTED.values()}
    assert len(found) > 10
    missing = found - set(KNOWN[who]) - ELSEWHERE[who]
    assert not missing, f"write what they mean, and what mends them, to monitoring/counters.py: {sorted(missing)}"


def test_no_entry_is_of_a_counter_that_is_gone() -> None:
    found = counted(("robot/", "ros/", "server/", "dispatch/", "wire.py", "engines/architectures/recropping.py"))
    gates = {f"gate_{field.name}" for field in fields(ChunkValidatorConfig)}
    found |= {ScheduleVerdict.STALE.value, ScheduleVerdict.RIVAL.value, *COUNTED.values(), "gateway_error", *gates}
    assert {kind for table in KNOWN.values() for kind in table} <= found


def test_every_counter_has_words_and_those_named_elsewhere_a_cause_that_there_is() -> None:
    causes = {cause.name for cause in CAUSES}
    for table in KNOWN.values():
        for kind, counter in table.items():
            assert counter.meaning and counter.fix and counter.fewest >= 1, kind
            assert set(counter.causes) <= causes, kind


def test_the_page_explains_a_counter_as_rfm_why_does_wherever_it_is_counted() -> None:
    for kind in COUNTERS:
        told = {(table[kind].meaning, table[kind].fix) for table in KNOWN.values() if kind in table}
        assert told == {tuple(explanation(kind))}, kind
