"""What a robot keeps since it rarely changes, against what it follows from: after any event the two are the same."""

from __future__ import annotations

import math

from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.robot.client.component_client import ClientState
from ros2_rfm_serving.robot.client.server_clients import ServerClients
from ros2_rfm_serving.robot.motion.chunk_validator import JUDGED_AFTER, ChunkValidator
from ros2_rfm_serving.robot.task import ACTIVE


def check_stored(brain: RobotCore) -> None:
    failsafe, task = brain._failsafe, brain.task
    check_links(brain._clients)
    check_units(brain._motion.validator)
    most_s = failsafe._config.max_offline_s
    assert failsafe.dead_s == (failsafe.offline_since_s + most_s if most_s else math.inf)
    assert task is None or task.active == (task.phase in ACTIVE)


def check_links(links: ServerClients) -> None:
    assert links.closed == tuple(link for link in links.all if link.state is ClientState.CLOSED)
    assert links.mismatch == next((link.mismatch for link in links.all if link.mismatch and link.route), "")
    silent_s = links.servers._silent_at_s.values()
    assert links.servers.check_s <= min(silent_s, default=math.inf), "a silent server would be noticed too late"
    assert links.check_deadlines_s <= min([link.deadline_s for link in links.all] + [links.servers.check_s])
    for link in links.all:
        may_ask = link.state is ClientState.OPEN and len(link._pending.waited) < link.depth
        assert link.ready_s == (link.next_send_s if may_ask else math.inf)


def check_units(gate: ChunkValidator) -> None:
    wrong = gate._chunks >= JUDGED_AFTER and gate._clamped > gate._config.max_clamped * gate._values
    assert bool(gate.units) == wrong
