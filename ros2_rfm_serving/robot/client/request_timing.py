"""Time of the next request: the action queue triggers System 1, its calls trigger coupled components, all others are periodic."""

from __future__ import annotations

import math
import sys
from typing import ClassVar

from ros2_rfm_serving.robot.client.calls import CoupledCalls
from ros2_rfm_serving.robot.client.component_client import ComponentClient
from ros2_rfm_serving.robot.client.latency import steps_of
from ros2_rfm_serving.robot.client.server_clients import ServerClients
from ros2_rfm_serving.robot.config import RobotConfig
from ros2_rfm_serving.robot.motion.action_queue import ActionQueue
from ros2_rfm_serving.types import Conditioning
from ros2_rfm_serving.types.contracts import agreed_conditioning
from ros2_rfm_serving.types.state import kept

PREFIX = Conditioning.PREFIX
ROUNDING = 1e-6
"""Rounding tolerance, in control steps."""


class RequestTiming:
    """One rule both for ticking and for the time of the next tick, so that the two never differ.

    Synchronous robots execute the horizon, then make the calls that System 1's calls have made due, then call System 1 (ROSA
    §3.4.2, eq. 4: a cycle lasts t_act + l_S1 + l_S2 / H). Asynchronous robots overlap all of it.
    """

    KEPT: ClassVar = kept("waits_for_chunk", too_slow_reason="too_slow")

    def __init__(self, config: RobotConfig, queue: ActionQueue, clients: ServerClients, calls: CoupledCalls) -> None:
        self._queue, self._clients, self._calls = queue, clients, calls
        self._synchronous, self._default_horizon_steps, self._rate_hz = (
            config.synchronous,
            config.execution_horizon,
            config.step_rate_hz,
        )
        self._conditioning, self._replaces = config.conditioning, config.replace_queue
        self._buffer_steps = config.failsafe.buffer_time_s * config.step_rate_hz
        self.waits_for_chunk = config.synchronous
        """True when the robot holds while the next chunk is computed: by declaration, or because the model cannot bridge the
        delay."""
        self.too_slow = ""
        """Reason why it waits without being declared to."""

    def reconfigure(self, config: RobotConfig) -> None:
        self._default_horizon_steps = config.execution_horizon
        self._buffer_steps = config.failsafe.buffer_time_s * config.step_rate_hz

    def request_s(self, client: ComponentClient, step_ends_s: float) -> float:
        """Return when a ready, goal-coupled link is to be asked; infinite: not before another event.

        step_ends_s: end of the action that is being executed. Goal-coupled requests are sent between two actions: row 0 of a chunk
        belongs to the step that begins with its observation.
        """
        if client is self._clients.system1:
            frames = client.depth > 1 and not self.waits_for_chunk  # whatever is queued
            if not (frames or self._wants_chunk(client)):
                return math.inf
        elif client.component not in self._calls.due or not self._is_between_calls():
            return math.inf
        return client.ready_s if client.ready_s > step_ends_s else step_ends_s

    def on_requested(self, client: ComponentClient) -> None:
        """Note a request to System 1 for its next chunk: less than a step of its phase shift is left."""
        client.phase_shift_s = max(client.phase_shift_s - self._extra_steps(client) / self._rate_hz, 0.0)

    def may_pop(self) -> bool:
        """Return whether an action may be taken from the queue."""
        queue = self._queue
        return queue.depth > 0 and not (
            self.waits_for_chunk and (queue.horizon or self._default_horizon_steps) <= queue.steps_since_merge
        )

    def on_reply(self, client: ComponentClient, delay_steps: int, executed_steps: int) -> None:
        """Judge whether the model bridges the delay of an answer of System 1 and the expected delay. A robot that waits because of
        the delay stops waiting after an answer in time, whether or not it stood meanwhile."""
        if self._synchronous or client.contract is None:
            return
        counts = executed_steps > self.prefix_steps(client) or self.waits_for_chunk
        self._set_expected_delay(client, max(client.delay_steps(self._rate_hz), delay_steps if counts else 0))

    def on_session_opened(self, client: ComponentClient) -> None:
        """Begin another session of System 1. The delay known from before counts from its first request on: a robot whose model does
        not bridge it waits at once."""
        self.waits_for_chunk, self.too_slow = self._synchronous, ""
        if not self._synchronous and client.contract is not None and len(client.latencies):
            self._set_expected_delay(client, client.delay_steps(self._rate_hz))

    def _set_expected_delay(self, client: ComponentClient, delay_steps: int) -> None:
        bridged = self.prefix_steps(client)
        problem = f"the inference delay, {delay_steps} steps, is more than the {bridged} that the model can bridge"
        self.waits_for_chunk = delay_steps > bridged
        self.too_slow = problem if self.waits_for_chunk else ""

    def prefix_steps(self, client: ComponentClient) -> int:
        """Return the steps that may be executed between a request and its chunk, so that the chunk continues from them."""
        return self._max_delay_steps(client) if self._replaces else sys.maxsize

    def delay_steps(self, client: ComponentClient) -> int:
        """Return the inference delay that a request may declare: the expected one. A robot that appends its chunks continues at the
        end of its queue however long an answer takes, and so declares no more than its model bridges."""
        delay = client.delay_steps(self._rate_hz)
        return delay if self._replaces else min(delay, self._max_delay_steps(client))

    def _max_delay_steps(self, client: ComponentClient) -> int:
        """Return the steps that the session's model bridges with the conditioning that the robot requests."""
        contract = client.contract
        if contract is None:
            return sys.maxsize
        agreed = agreed_conditioning(self._conditioning, contract)
        return contract.max_inference_delay_steps if agreed is PREFIX else contract.chunk_length - 1

    def steps(self, latency_s: float) -> int:
        """Return the steps that are executed in this time."""
        return steps_of(latency_s, self._rate_hz)

    def _wants_chunk(self, client: ComponentClient) -> bool:
        """Return whether the next chunk is to be requested. A robot that waits for its chunk waits for its plan before, even if the
        request must be sent again. An asynchronous robot asks one horizon of steps after its last request, however long the answer
        took, and earlier if the rows would not last or are trusted no further."""
        if self.waits_for_chunk:
            return not self._calls.due and not self.may_pop()
        delay, depth = self.delay_steps(client), self._queue.depth
        return (self._replaces and self._is_horizon_reached(client, delay)) or depth <= delay or depth <= self._buffer_steps

    def _is_horizon_reached(self, client: ComponentClient, delay: int) -> bool:
        """Return whether the horizon is over. A server's horizon is where trust in its chunk ends, and where the next chunk should
        have arrived; a robot with a phase shift executes some steps beyond its own horizon."""
        if self._queue.horizon:
            return self._queue.steps_since_merge >= self._queue.horizon - delay
        return self._queue.steps_since_merge >= self._default_horizon_steps + self._extra_steps(client)

    def _extra_steps(self, client: ComponentClient) -> int:
        """Return the phase shift in whole steps."""
        return int(client.phase_shift_s * self._rate_hz + ROUNDING) if client.phase_shift_s else 0

    def _is_between_calls(self) -> bool:
        system1 = self._clients.system1
        if not self.waits_for_chunk or (system1 is not None and system1.depth > 1):
            return True
        return not self.may_pop() and (system1 is None or system1.pending is None)

    @property
    def rows_left(self) -> int:
        """Return the number of actions that will be executed if no chunk comes."""
        queue = self._queue
        if not self.waits_for_chunk:
            return queue.depth
        left = (queue.horizon or self._default_horizon_steps) - queue.steps_since_merge
        return 0 if left < 0 else left if left < queue.depth else queue.depth
