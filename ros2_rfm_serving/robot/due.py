"""When a component is to be asked: System 1 by the action queue, coupled ones by System 1's calls, all others periodically."""

from __future__ import annotations

import math

from ros2_rfm_serving.robot.action_queue import ActionQueue
from ros2_rfm_serving.robot.calls import CoupledCalls
from ros2_rfm_serving.robot.config import RobotConfig
from ros2_rfm_serving.robot.link import Link
from ros2_rfm_serving.robot.links import Links
from ros2_rfm_serving.types import SYSTEM1


class Due:
    """One rule for ticking and for saying when to tick next, so that the two never differ.

    Synchronous robots execute the horizon, then call what System 1's calls have made due, then System 1 (ROSA §3.4.2, eq. 4: a
    cycle lasts t_act + l_S1 + l_S2 / H). The others overlap all of it.
    """

    def __init__(self, config: RobotConfig, queue: ActionQueue, links: Links, calls: CoupledCalls) -> None:
        self._config, self._queue, self._links, self._calls = config, queue, links, calls

    def ask_s(self, link: Link, step_ends_s: float) -> float:
        """From when on the component is to be asked; infinite: not before something else happens.

        `step_ends_s`: until then an action is being executed. What goes with actions is asked between two of them: row 0 of a
        chunk belongs to the step that begins with its observation.
        """
        free_s = link.free_s()
        if free_s == math.inf:
            return math.inf
        if link.component == SYSTEM1:
            return max(free_s, step_ends_s) if self._wants_chunk(link) else math.inf
        if link.component not in self._calls:
            return free_s  # the route's rate paces it
        if self._calls.owed(link.component) and self._is_between_calls():
            return max(free_s, step_ends_s)
        return math.inf

    def may_pop(self) -> bool:
        """An action is there to be executed."""
        return len(self._queue) > 0 and not (self._config.synchronous and self._horizon_is_over())

    def _wants_chunk(self, link: Link) -> bool:
        if self._config.synchronous:
            return self._horizon_is_over() and not self._waits_for_plan()
        lead = link.delay_steps(self._config.control_rate_hz)
        return len(self._queue) <= lead or self._queue.executed_of_chunk >= self._config.execution_horizon - lead

    def _is_between_calls(self) -> bool:
        if not self._config.synchronous:
            return True
        system1 = self._links.system1
        return self._horizon_is_over() and (system1 is None or system1.in_flight is None)

    def _horizon_is_over(self) -> bool:
        return not len(self._queue) or self._queue.executed_of_chunk >= self._config.execution_horizon

    def _waits_for_plan(self) -> bool:
        """Until the answer is there, even if the request must be sent again."""
        return bool(self._calls) and any(
            link.route is not None and link.component in self._calls and self._calls.owed(link.component) for link in self._links
        )
