"""In which order those who wait in a queue are served, and how long they wait before they ask anew.

Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ros2_rfm_serving.scheduler.prediction.askers import WARM_UP_S, Request
from ros2_rfm_serving.scheduler.prediction.queued import Found

ORDERS = {"balanced": (0.5, 0.3), "best": (1.0, 0.0), "swift": (0.0, 0.3)}
"""Powers of a task's age and of what it had of the engine, by the server's order; any other counts as fifo."""
FIRST_S, LAST_CHANCE = 0.05, 1.2
"""What a task counts as having had before its first answer, and how much more a last chance counts."""
GIVEN_UP_S = 1.0
"""After which a robot asks anew, or twice its SLO; it keeps its place."""


def ranked(waiting: Iterable[Request], order: str, now_s: float, batch_s: float) -> list[Request]:
    """As the server has them (`server/dispatch/best.py`): robots out of actions before those that have some, then those that had
    little of the engine. order: of `ORDERS`. batch_s: that the next batch takes."""
    age, thrift = ORDERS[order]
    this_s, next_s = now_s + batch_s, now_s + 2 * batch_s

    def urgency(request: Request) -> tuple[bool, float, float]:
        robot = request[2]
        due_s = robot.since_s + robot.member.slo_s
        urgent = (now_s - robot.began_s) ** age / (FIRST_S + robot.had_s) ** thrift
        if this_s <= due_s < next_s:
            urgent *= LAST_CHANCE
        return not (robot.starves_s < next_s or due_s < next_s), -urgent, robot.since_s

    return sorted(waiting, key=urgency)


def patient(request: Request, now_s: float, found: Found) -> Request:
    """Who has lost its last chance may starve while others ask at once again, and asks anew now and then: each time it is an answer
    that never came."""
    arrived_s, i, robot = request
    limit_s = max(GIVEN_UP_S, 2 * robot.member.slo_s) if robot.member.slo_s < math.inf else GIVEN_UP_S
    if now_s - arrived_s <= limit_s:
        return request
    if arrived_s > WARM_UP_S:
        found[robot.index].responses.append(limit_s)
    return arrived_s + limit_s, i, robot
