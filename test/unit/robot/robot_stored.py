"""What a robot keeps since it rarely changes, against what it follows from: after any event the two are the same."""

from __future__ import annotations

import math

from ros2_rfm_serving.robot import RobotBrain
from ros2_rfm_serving.robot.conversation.link import LinkState
from ros2_rfm_serving.robot.conversation.links import Links
from ros2_rfm_serving.robot.motion.gate import JUDGED_AFTER, ChunkGate
from ros2_rfm_serving.robot.task import ACTIVE


def check_stored(brain: RobotBrain) -> None:
    failsafe, task = brain._failsafe, brain.task
    check_links(brain._links)
    check_units(brain._motor.gate)
    most_s = failsafe._config.max_offline_s
    assert failsafe.dead_s == (failsafe.offline_since_s + most_s if most_s else math.inf)
    assert task is None or task.active == (task.phase in ACTIVE)


def check_links(links: Links) -> None:
    assert links.closed == tuple(link for link in links.all if link.state is LinkState.CLOSED)
    assert links.mismatch == next((link.mismatch for link in links.all if link.mismatch and link.route), "")
    silent_s = links.servers._silent_at_s.values()
    assert links.servers.check_s <= min(silent_s, default=math.inf), "a silent server would be noticed too late"
    assert links.watch_s <= min([link.deadline_s for link in links.all] + [links.servers.check_s])
    for link in links.all:
        may_ask = link.state is LinkState.OPEN and len(link._flight.waited) < link.depth
        assert link.ready_s == (link.next_send_s if may_ask else math.inf)


def check_units(gate: ChunkGate) -> None:
    wrong = gate._chunks >= JUDGED_AFTER and gate._clamped > gate._config.max_clamped * gate._values
    assert bool(gate.units) == wrong
