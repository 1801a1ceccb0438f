"""Requests of a robot to its components: when each is sent, with which content; and which replies count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from ros2_rfm_serving.robot.client.calls import CoupledCalls
from ros2_rfm_serving.robot.client.component_client import ComponentClient
from ros2_rfm_serving.robot.client.pending_requests import MatchedReply
from ros2_rfm_serving.robot.client.request_timing import RequestTiming
from ros2_rfm_serving.robot.client.requests import NONE, action_request, thought_request
from ros2_rfm_serving.robot.client.server_clients import ServerClients
from ros2_rfm_serving.robot.config import RobotConfig, Sensors
from ros2_rfm_serving.robot.motion.command_generator import CommandGenerator
from ros2_rfm_serving.robot.task_rules import TaskRules
from ros2_rfm_serving.types import (
    SYSTEM1,
    ObservationRequest,
    Reply,
    RequestId,
    Schedule,
)
from ros2_rfm_serving.types.contracts import agreed_conditioning
from ros2_rfm_serving.types.state import kept

Requests = tuple[tuple[str, ObservationRequest], ...]
Instructions = Callable[[str, float], str]
"""(component, now_s) -> the prompt of its request."""


class RequestScheduler:
    """Clients of all components of one robot. Each has one request in flight (Remote-RTC P5): the next one is sent when the last
    was answered, has timed out, or is not needed any more. A reply counts only if it answers the latest request. A pipelined
    session follows the same rule for each of as many requests as its depth."""

    KEPT: ClassVar = kept(
        "calls",
        "timing",
        connections="clients",
        no_request_reason="no_request",
        is_episode_start="_episode_start",
        was_episode_start="_started",
    )

    def __init__(self, config: RobotConfig, motion: CommandGenerator, task_rules: TaskRules, refused: Counter[str]) -> None:
        self.clients = ServerClients(config)
        self.calls = CoupledCalls(config.calls_per_action, config.calls_head_start)
        self.timing = RequestTiming(config, motion.queue, self.clients, self.calls)
        self.no_request = ""
        """Reason why nothing could be requested in the last period; empty: it could."""
        self._config, self._motion, self._queue = config, motion, motion.queue
        self._task_rules, self._refused = task_rules, refused
        self._episode_start = self._started = True
        """True when the next request is the first of an episode, and when the last one was."""

    def reconfigure(self, config: RobotConfig) -> None:
        self._config = config
        self.clients.reconfigure(config)
        self.timing.reconfigure(config)

    def follow(self, schedule: Schedule, now_s: float, *, newer: bool) -> None:
        self.clients.follow(schedule, now_s, newer=newer)
        self.calls.serve(link.component for link in self.clients.coupled)
        self._task_rules.serve(link.component for link in self.clients.all if link.route)

    def begin_episode(self, now_s: float) -> None:
        """Begin an episode. Former requests are not waited for."""
        self._episode_start = True
        self.calls.begin()
        self.no_request = ""
        for link in self.clients.all:
            if link.pending:
                link.forget()
            if link.next_send_s <= now_s:
                link.restart_pace()

    def forget(self, component: str) -> None:
        """Stop waiting for a component's answer, so that it may be asked again at once."""
        if link := self.clients.get(component):
            if link.pending:
                link.forget()
            link.restart_pace()

    def forget_late(self, component: str) -> None:
        """Stop waiting for answers that are later than their SLO."""
        if link := self.clients.get(component):
            link.forget_late()
            self.clients.expect(link)

    def abandon(self, *components: str) -> None:
        """Drop the requests to these components; without names, to all. They are asked again at their normal pace."""
        for link in self.clients.all:
            if not components or link.component in components:
                link.abandon()

    def accept(self, reply: Reply, now_s: float) -> MatchedReply | str:
        """Return the request that a reply answers, or the counter under which the reply is dropped."""
        link = self.clients.get(reply.id.component)
        if link is None:
            return "unknown_component"
        answered = link.accept(reply, now_s)
        self.clients.expect(link)
        return answered

    def requests(
        self, sensors: Sensors | None, instruction_of: Instructions, episode: int, step_ends_s: float, now_s: float
    ) -> Requests:
        """Return the requests that are due. While the robot is stopped, goal-coupled components are asked only if awaited."""
        self.no_request = ""
        requests: list[tuple[str, ObservationRequest]] = []
        for link in self.clients.all:  # in order, because a request to System 1 may make another call due
            early = link.ready_s > now_s or (link.goal_coupled and self._request_s(link, step_ends_s) > now_s)
            if early and link.refetch_requested is None:
                continue
            if problem := self._sensor_problem(sensors, now_s):
                self.no_request = problem
                break
            assert sensors is not None
            requests.append((link.server, self._request(link, sensors, instruction_of, episode, now_s)))
        return tuple(requests) if requests else ()

    def request_refetch(self, request: RequestId) -> bool:
        """Mark a request whose server wants a newer observation before it answers. Return False when it is not waited for."""
        link = self.clients.get(request.component)
        return link is not None and link.request_refetch(request)

    def next_request_s(self, step_ends_s: float, asking: bool, before_s: float) -> float:
        """Return the earliest time at which a link has something to do, at most `before_s`. asking: requests may be sent."""
        next_s, links = before_s, self.clients
        for link in links.all:
            if (deadline_s := link.deadline_s) < next_s:
                next_s = deadline_s
            if not asking:
                continue
            if link.refetch_requested is not None:
                return -math.inf
            if (ask_s := link.ready_s) < next_s:  # no request is sent before
                if link.goal_coupled:
                    ask_s = self._request_s(link, step_ends_s)
                next_s = ask_s if ask_s < next_s else next_s
        for link in links.closed:
            next_s = min(next_s, links.next_open_s(link))
        return next_s

    def _request_s(self, client: ComponentClient, step_ends_s: float) -> float:
        """Return when a ready, goal-coupled link is to be asked."""
        if self._task_rules.stopped:
            return client.ready_s if self._task_rules.is_requested(client.component) else math.inf
        return self.timing.request_s(client, step_ends_s)

    def _sensor_problem(self, sensors: Sensors | None, now_s: float) -> str:
        """Return why these readings must not be sent; empty: they may."""
        if sensors is None:
            return "no state or no image yet"
        observed_s = sensors.state_s if sensors.state_s < sensors.images_s else sensors.images_s
        age_s = now_s - observed_s
        if age_s > self._config.max_observation_age_s:
            self._refused["old_observation"] += 1
            return f"sensor readings are {age_s:.1f} s old"
        if sensors.skew_s > self._config.max_sensor_skew_s:
            self._refused["sensor_skew"] += 1
            return f"sensor readings are {sensors.skew_s:.2f} s apart"
        return ""

    def _request(
        self, client: ComponentClient, sensors: Sensors, instruction_of: Instructions, episode: int, now_s: float
    ) -> ObservationRequest:
        again, waits = client.refetch_requested is not None, self.timing.waits_for_chunk
        observed_s = sensors.state_s if sensors.state_s < sensors.images_s else sensors.images_s
        bridged = 0 if waits else self.timing.prefix_steps(client)
        identity = client.on_sent(episode, now_s, self._queue.steps_executed, observed_s, bridged)
        self.clients.expect(client)
        instruction = instruction_of(client.component, now_s)
        if client.component != SYSTEM1:
            return thought_request(identity, instruction, sensors, now_s)
        if not again:
            self.calls.on_system1_call()
            self.timing.on_requested(client)
            self._started, self._episode_start = self._episode_start, False
        config = self._config
        return action_request(
            identity,
            instruction,
            sensors,
            self._queue,
            delay_steps=0 if waits else self.timing.delay_steps(client),
            conditioning=NONE if waits or client.contract is None else agreed_conditioning(config.conditioning, client.contract),
            guided_rows=config.guidance.execution_horizon,
            report=self._motion.report(self.timing.rows_left, client.latencies.last_s, now_s),
            episode_start=self._started,
            now_s=now_s,
        )
