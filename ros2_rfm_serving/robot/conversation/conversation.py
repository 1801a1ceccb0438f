"""Requests of a robot to its components: when each is sent, with which content; and which replies count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from ros2_rfm_serving.robot.config import RobotConfig, Sensors
from ros2_rfm_serving.robot.conversation.calls import CoupledCalls
from ros2_rfm_serving.robot.conversation.due import Due
from ros2_rfm_serving.robot.conversation.flight import Answered
from ros2_rfm_serving.robot.conversation.link import Link
from ros2_rfm_serving.robot.conversation.links import Links
from ros2_rfm_serving.robot.conversation.requests import NONE, action_request, thought_request
from ros2_rfm_serving.robot.motion.motion import Motor
from ros2_rfm_serving.robot.supervision import Supervision
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
Told = Callable[[str, float], str]
"""(component, now_s) -> the prompt of its request."""


class Conversation:
    """Clients of all components of one robot. Each has one request in flight (Remote-RTC P5): the next one is sent when the last
    was answered, has timed out, or is not needed any more. A reply counts only if it answers the latest request. A pipelined
    session follows the same rule for each of as many requests as its depth."""

    KEPT: ClassVar = kept(
        "calls",
        "due",
        connections="links",
        no_request_reason="no_request",
        is_episode_start="_episode_start",
        was_episode_start="_started",
    )

    def __init__(self, config: RobotConfig, motor: Motor, supervision: Supervision, refused: Counter[str]) -> None:
        self.links = Links(config)
        self.calls = CoupledCalls(config.calls_per_action, config.calls_head_start)
        self.due = Due(config, motor.queue, self.links, self.calls)
        self.no_request = ""
        """Reason why nothing could be requested in the last period; empty: it could."""
        self._config, self._motor, self._queue = config, motor, motor.queue
        self._supervision, self._refused = supervision, refused
        self._episode_start = self._started = True
        """True when the next request is the first of an episode, and when the last one was."""

    def reconfigure(self, config: RobotConfig) -> None:
        self._config = config
        self.links.reconfigure(config)
        self.due.reconfigure(config)

    def follow(self, schedule: Schedule, now_s: float, *, newer: bool) -> None:
        self.links.follow(schedule, now_s, newer=newer)
        self.calls.serve(link.component for link in self.links.coupled)
        self._supervision.serve(link.component for link in self.links.all if link.route)

    def begin_episode(self, now_s: float) -> None:
        """Begin an episode. Former requests are not waited for."""
        self._episode_start = True
        self.calls.begin()
        self.no_request = ""
        for link in self.links.all:
            if link.in_flight:
                link.forget()
            if link.next_send_s <= now_s:
                link.restart_pace()

    def forget(self, component: str) -> None:
        """Stop waiting for a component's answer, so that it may be asked again at once."""
        if link := self.links.get(component):
            if link.in_flight:
                link.forget()
            link.restart_pace()

    def forget_late(self, component: str) -> None:
        """Stop waiting for answers that are later than their SLO."""
        if link := self.links.get(component):
            link.forget_late()
            self.links.expect(link)

    def abandon(self, *components: str) -> None:
        """Drop the requests to these components; without names, to all. They are asked again at their normal pace."""
        for link in self.links.all:
            if not components or link.component in components:
                link.abandon()

    def accept(self, reply: Reply, now_s: float) -> Answered | str:
        """Return the request that a reply answers, or the counter under which the reply is dropped."""
        link = self.links.get(reply.id.component)
        if link is None:
            return "unknown_component"
        answered = link.accept(reply, now_s)
        self.links.expect(link)
        return answered

    def ask(self, sensors: Sensors | None, told: Told, episode: int, step_ends_s: float, now_s: float) -> Requests:
        """Return the requests that are due. While the robot is stopped, goal-coupled components are asked only if awaited."""
        self.no_request = ""
        requests: list[tuple[str, ObservationRequest]] = []
        for link in self.links.all:  # in order, because a request to System 1 may make another call due
            early = link.ready_s > now_s or (link.goal_coupled and self._ask_s(link, step_ends_s) > now_s)
            if early and link.asked_again is None:
                continue
            if problem := self._sensor_problem(sensors, now_s):
                self.no_request = problem
                break
            assert sensors is not None
            requests.append((link.server, self._request(link, sensors, told, episode, now_s)))
        return tuple(requests) if requests else ()

    def ask_again(self, request: RequestId) -> bool:
        """Mark a request whose server wants a newer observation before it answers. Return False when it is not waited for."""
        link = self.links.get(request.component)
        return link is not None and link.ask_again(request)

    def next_ask_s(self, step_ends_s: float, asking: bool, before_s: float) -> float:
        """Return the earliest time at which a link has something to do, at most `before_s`. asking: requests may be sent."""
        next_s, links = before_s, self.links
        for link in links.all:
            if (deadline_s := link.deadline_s) < next_s:
                next_s = deadline_s
            if not asking:
                continue
            if link.asked_again is not None:
                return -math.inf
            if (ask_s := link.ready_s) < next_s:  # no request is sent before
                if link.goal_coupled:
                    ask_s = self._ask_s(link, step_ends_s)
                next_s = ask_s if ask_s < next_s else next_s
        for link in links.closed:
            next_s = min(next_s, links.open_s(link))
        return next_s

    def _ask_s(self, link: Link, step_ends_s: float) -> float:
        """Return when a ready, goal-coupled link is to be asked."""
        if self._supervision.stopped:
            return link.ready_s if self._supervision.asks(link.component) else math.inf
        return self.due.ask_s(link, step_ends_s)

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

    def _request(self, link: Link, sensors: Sensors, told: Told, episode: int, now_s: float) -> ObservationRequest:
        again, waits = link.asked_again is not None, self.due.waits
        observed_s = sensors.state_s if sensors.state_s < sensors.images_s else sensors.images_s
        bridged = 0 if waits else self.due.bridged(link)
        identity = link.sent(episode, now_s, self._queue.mark, observed_s, bridged)
        self.links.expect(link)
        instruction = told(link.component, now_s)
        if link.component != SYSTEM1:
            return thought_request(identity, instruction, sensors, now_s)
        if not again:
            self.calls.acted()
            self.due.asked(link)
            self._started, self._episode_start = self._episode_start, False
        config = self._config
        return action_request(
            identity,
            instruction,
            sensors,
            self._queue,
            delay_steps=0 if waits else self.due.delay_steps(link),
            conditioning=NONE if waits or link.contract is None else agreed_conditioning(config.conditioning, link.contract),
            guided_rows=config.guidance.execution_horizon,
            report=self._motor.report(self.due.rows_left, link.latencies.last_s, now_s),
            episode_start=self._started,
            now_s=now_s,
        )
