"""A robot that goes on from its snapshot, interpreted or in machine code: what it commands, and its state at the end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ros2_rfm_serving import compiled


def text(value: Any) -> str:
    """What a value consists of; equal ones have the same text in every process."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{text(key)}: {text(one)}' for key, one in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(text, value)))}}}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(text, value))})"
    return f"{value.dtype} {value.tolist()}" if isinstance(value, np.ndarray) else repr(value)


def restored() -> dict[str, Any]:
    from ros2_rfm_serving.robot import RobotCore, events
    from test.unit.robot.robots import world

    made = world(system2=0.3, safety=0.3)
    made.run(3.0)
    core, same, commands = made.brain, True, []
    for _ in range(40):
        made.advance(0.05)
        state = core.snapshot()
        twin, tick = RobotCore.from_state(core.config, state), events.ControlTick(made.sensors())
        same = same and text(twin.snapshot()) == text(state)
        command, again = (each.handle(tick, made.now_s).command for each in (core, twin))
        same = same and text(command) == text(again) and text(twin.snapshot()) == text(core.snapshot())
        commands.append(text(command))
    return {"same": same, "commands": commands, "state": text(core.snapshot())}


if __name__ == "__main__":
    used = compiled.use()
    print(json.dumps({"compiled": used, **restored()}))
