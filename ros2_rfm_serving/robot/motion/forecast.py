"""Forecast of a robot's commands if no new input came, computed by the same code on a copy."""

from __future__ import annotations

from ros2_rfm_serving.robot.motion.command_generator import CommandGenerator
from ros2_rfm_serving.types import Array


def commands_ahead(
    motion: CommandGenerator, num: int, rows: int, positions: Array | None, period_s: float, now_s: float, *, to_pose: bool | None
) -> tuple[list[Array], bool]:
    """Return at most `num` commands, [A] each, of the periods after this one, and whether they end by themselves before that.

    rows: actions of the queue that may be executed. positions: [A] measured now. to_pose: the robot is on its fallback ladder,
    towards its safe pose or not; None: it executes actions, and the ladder after the last one is not included.
    """
    future, begins_with = motion.forked(), motion.queue.depth
    commands: list[Array] = []
    for period in range(1, num + 1):
        at_s = now_s + period * period_s
        if to_pose is not None:
            command = future.fall_back(positions, at_s, to_pose=to_pose)
        elif not future.is_between_steps(at_s):
            command = future.go_on(at_s)
        else:
            future.drop_stale(at_s)
            has_row = future.queue.depth > 0 and begins_with - future.queue.depth < rows
            command = future.step(positions, at_s) if has_row else None
        if command is None:
            return commands, True
        commands.append(command)
    return commands, False
