"""Whom a robot asks, when, and with what; and which replies count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ros2_rfm_serving.robot.config import RobotConfig, Sensors
from ros2_rfm_serving.robot.conversation.calls import CoupledCalls
from ros2_rfm_serving.robot.conversation.due import Due
from ros2_rfm_serving.robot.conversation.flight import Answered
from ros2_rfm_serving.robot.conversation.link import Link, LinkState
from ros2_rfm_serving.robot.conversation.links import Links
from ros2_rfm_serving.robot.conversation.requests import action_request, thought_request
from ros2_rfm_serving.robot.motion.motion import Motor
from ros2_rfm_serving.robot.supervision import Supervision
from ros2_rfm_serving.types import (
    MAX_INSTRUCTION_CHARACTERS,
    MONITOR,
    SYSTEM1,
    SYSTEM2,
    Conditioning,
    ObservationRequest,
    Reply,
    RequestId,
    Schedule,
)

Requests = tuple[tuple[str, ObservationRequest], ...]


class Instructions(NamedTuple):
    system1: str
    """The subgoal, or the goal's instruction."""
    goal: str
    """What those who judge or plan are told, before their own prompt."""
    history: Callable[[], str]
    """After it, for System 2 and the monitor (`ExecutionHistory`). Safety judges what it sees."""


class Conversation:
    """All components of one robot. One request in flight for each (Remote-RTC P5): the next one goes out when the last was
    answered, its time is up, or its answer is not wanted any more; a reply counts only if it answers the latest. In a pipelined
    session the same holds for each of as many as its depth."""

    def __init__(self, config: RobotConfig, motor: Motor, supervision: Supervision, refused: Counter[str]) -> None:
        self.links = Links(config)
        self.calls = CoupledCalls(config.calls_per_action, config.calls_head_start)
        self.due = Due(config, motor.queue, self.links, self.calls)
        self.no_request = ""
        """Why nothing could be asked for in the last period; empty: it could."""
        self._config, self._motor, self._queue = config, motor, motor.queue
        self._supervision, self._refused = supervision, refused
        self._episode_start = self._started = True
        """The next request is the first of an episode; the last one was."""

    def reconfigure(self, config: RobotConfig) -> None:
        self._config = config
        self.links.reconfigure(config)
        self.due.reconfigure(config)

    def follow(self, schedule: Schedule, now_s: float, *, newer: bool) -> None:
        self.links.follow(schedule, now_s, newer=newer)
        self.calls.serve(link.component for link in self.links.coupled)
        self._supervision.serve(link.component for link in self.links.all if link.route)

    def begin_episode(self, now_s: float) -> None:
        """What was asked before is not waited for."""
        self._episode_start = True
        self.calls.begin()
        self.no_request = ""
        for link in self.links.all:
            if link.in_flight:
                link.forget()
            if link.next_send_s <= now_s:
                link.restart_pace()

    def forget(self, component: str) -> None:
        """Its answer is not waited for any more, and it may be asked again at once."""
        if link := self.links.get(component):
            if link.in_flight:
                link.forget()
            link.restart_pace()

    def forget_late(self, component: str) -> None:
        """What is later than its SLO is not waited for any more."""
        if link := self.links.get(component):
            link.forget_late()

    def abandon(self, *components: str) -> None:
        """What they were asked is over; no name: all of them. They are asked again in their turn."""
        for link in self.links.all:
            if not components or link.component in components:
                link.abandon()

    def accept(self, reply: Reply, now_s: float) -> Answered | str:
        """What it answers, or the counter under which it is dropped."""
        link = self.links.get(reply.id.component)
        return link.accept(reply, now_s) if link else "unknown_component"

    def ask(self, sensors: Sensors | None, told: Instructions, episode: int, step_ends_s: float, now_s: float) -> Requests:
        """Whoever is due. While the robot is stopped, those that go with actions are asked only if their answer is waited for."""
        self.no_request = ""
        requests = []
        for link in self.links.all:  # one after the other: asking System 1 may make another call due
            if not (link.asked_again or self._is_due(link, step_ends_s, now_s)):
                continue
            if problem := self._sensor_problem(sensors, now_s):
                self.no_request = problem
                break
            assert sensors is not None
            requests.append((link.server, self._request(link, sensors, told, episode, now_s)))
        return tuple(requests)

    def _is_due(self, link: Link, step_ends_s: float, now_s: float) -> bool:
        if link.next_send_s > now_s or link.is_full or link.state is not LinkState.OPEN:
            return False
        if self._supervision.stopped and link.goal_coupled:
            return self._supervision.asks(link.component)
        return self.due.ask_s(link, step_ends_s) <= now_s

    def ask_again(self, request: RequestId) -> bool:
        """The server has let it grow stale and wants a newer observation before it answers. False: it is not waited for."""
        link = self.links.get(request.component)
        return link is not None and link.ask_again(request)

    def next_ask_s(self, step_ends_s: float, *, asking: bool) -> float:
        """The earliest time at which a link has something to do. asking: a task runs, and nothing hinders it from asking."""
        next_s = math.inf
        stopped = self._supervision.stopped
        for link in self.links.all:
            if link.asked_again and asking:
                link_s = -math.inf
            elif link.is_full or link.state is LinkState.OPENING or (not asking and link.state is LinkState.OPEN):
                link_s = link.deadline_s
            elif link.state is not LinkState.OPEN:
                link_s = self.links.open_s(link)
            elif stopped and link.goal_coupled:
                link_s = link.next_send_s if self._supervision.asks(link.component) else math.inf
            else:
                link_s = self.due.ask_s(link, step_ends_s) if link.goal_coupled else link.next_send_s
            next_s = min(next_s, link_s, link.deadline_s)
        return next_s

    def _sensor_problem(self, sensors: Sensors | None, now_s: float) -> str:
        """Why these readings must not be sent; empty: they may."""
        if sensors is None:
            return "no state or no image yet"
        age_s = now_s - min(sensors.state_s, sensors.images_s)
        if age_s > self._config.max_observation_age_s:
            self._refused["old_observation"] += 1
            return f"sensor readings are {age_s:.1f} s old"
        if sensors.skew_s > self._config.max_sensor_skew_s:
            self._refused["sensor_skew"] += 1
            return f"sensor readings are {sensors.skew_s:.2f} s apart"
        return ""

    def _request(self, link: Link, sensors: Sensors, told: Instructions, episode: int, now_s: float) -> ObservationRequest:
        again = link.asked_again is not None
        observed_s, bridged = min(sensors.state_s, sensors.images_s), 0 if self.due.waits else self.due.bridged(link)
        identity = link.sent(episode, now_s, self._queue.mark, observed_s, bridged)
        if link.component != SYSTEM1:
            prompt = self._config.prompts.get(link.component, "")
            history = f" {told.history()}" if link.component in (SYSTEM2, MONITOR) else ""
            return thought_request(identity, f"{told.goal}. {prompt}{history}"[:MAX_INSTRUCTION_CHARACTERS], sensors, now_s)
        if not again:
            self.calls.acted()
            self._started, self._episode_start = self._episode_start, False
        rate_hz = self._config.step_rate_hz
        return action_request(
            identity,
            told.system1,
            sensors,
            self._queue,
            delay_steps=0 if self.due.waits else link.delay_steps(rate_hz),
            conditioning=Conditioning.NONE if self.due.waits else self._config.conditioning,
            guided_rows=self._config.guidance.execution_horizon,
            report=self._motor.report(self.due.rows_left, link.latencies.last_s, now_s),
            episode_start=self._started,
            now_s=now_s,
        )
