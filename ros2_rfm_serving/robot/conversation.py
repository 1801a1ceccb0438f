"""Whom a robot asks, when, and with what; and which replies count."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from ros2_rfm_serving.robot.action_queue import ActionQueue
from ros2_rfm_serving.robot.calls import CoupledCalls
from ros2_rfm_serving.robot.config import RobotConfig, Sensors
from ros2_rfm_serving.robot.due import Due
from ros2_rfm_serving.robot.link import InFlight, Link, LinkState
from ros2_rfm_serving.robot.links import Links
from ros2_rfm_serving.robot.requests import action_request, thought_request
from ros2_rfm_serving.robot.supervision import Supervision
from ros2_rfm_serving.types import SYSTEM1, Conditioning, ObservationRequest, Reply, Schedule

Requests = tuple[tuple[str, ObservationRequest], ...]


class Instructions(NamedTuple):
    system1: str
    """The subgoal, or the goal's instruction."""
    goal: str
    """What those who judge or plan are told, before their own prompt."""


class Conversation:
    """All components of one robot. One request in flight for each; a reply counts only if it answers the latest."""

    def __init__(self, config: RobotConfig, queue: ActionQueue, supervision: Supervision, refused: Counter[str]) -> None:
        self.links = Links(config)
        self.calls = CoupledCalls(config.calls_per_action, config.calls_head_start)
        self.due = Due(config, queue, self.links, self.calls)
        self.no_request = ""
        """Why nothing could be asked for in the last period; empty: it could."""
        self._config, self._queue, self._supervision, self._refused = config, queue, supervision, refused
        self._episode_start = True

    def follow(self, schedule: Schedule, *, newer: bool) -> None:
        self.links.follow(schedule, newer=newer)
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

    def abandon(self, *components: str) -> None:
        """What they were asked is over; no name: all of them. They are asked again in their turn."""
        for link in self.links.all:
            if not components or link.component in components:
                link.abandon()

    def accept(self, reply: Reply, now_s: float) -> InFlight | str:
        """What it answers, or the counter under which it is dropped."""
        link = self.links.get(reply.id.component)
        return link.accept(reply, now_s) if link else "unknown_component"

    def ask(self, sensors: Sensors | None, told: Instructions, episode: int, step_ends_s: float, now_s: float) -> Requests:
        """Whoever is due. While the robot is stopped, those that go with actions are asked only if their answer is waited for."""
        self.no_request = ""
        requests = []
        stopped = self._supervision.stopped
        for link in self.links.all:  # one after the other: asking System 1 may make another call due
            if link.next_send_s > now_s or link.in_flight or link.state is not LinkState.OPEN:
                continue
            if stopped and link.goal_coupled:
                if not self._supervision.asks(link.component):
                    continue
            elif self.due.ask_s(link, step_ends_s) > now_s:
                continue
            if problem := self._sensor_problem(sensors, now_s):
                self.no_request = problem
                break
            assert sensors is not None
            requests.append((link.server, self._request(link, sensors, told, episode, now_s)))
        return tuple(requests)

    def next_ask_s(self, step_ends_s: float, *, asking: bool) -> float:
        """The earliest time at which a link has something to do. asking: a task runs, and nothing hinders it from asking."""
        next_s = math.inf
        stopped = self._supervision.stopped
        for link in self.links.all:
            if link.deadline_s < math.inf:
                link_s = link.deadline_s
            elif link.state is not LinkState.OPEN:
                link_s = self.links.open_s(link)
            elif not asking:
                continue
            elif stopped and link.goal_coupled:
                link_s = link.next_send_s if self._supervision.asks(link.component) else math.inf
            else:
                link_s = self.due.ask_s(link, step_ends_s) if link.goal_coupled else link.next_send_s
            next_s = link_s if link_s < next_s else next_s  # a hot loop: no call
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
        identity = link.sent(episode, now_s, self._queue.mark, min(sensors.state_s, sensors.images_s))
        if link.component != SYSTEM1:
            prompt = self._config.prompts.get(link.component, "")
            return thought_request(identity, f"{told.goal}. {prompt}", sensors, now_s)
        self.calls.acted()
        start, self._episode_start = self._episode_start, False
        rate_hz = self._config.step_rate_hz
        return action_request(
            identity,
            told.system1,
            sensors,
            self._queue,
            delay_steps=0 if self.due.waits else link.delay_steps(rate_hz),
            conditioning=Conditioning.NONE if self.due.waits else self._config.conditioning,
            guided_rows=self._config.guidance.execution_horizon,
            step_rate_hz=rate_hz,
            last_wait_s=link.latencies.last_s,
            episode_start=start,
            now_s=now_s,
        )
