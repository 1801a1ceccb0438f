"""A robot as the floor knows it: an arm with physics of its own, people who push it, a driver that may be any driver, clocks that
jump. The brain sees none of it but through the driver; what it makes of that is measured on what is published."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import numpy as np

from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors, TaskGoal
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.output import published
from ros2_rfm_serving.robot.sender_clock import SenderClock
from ros2_rfm_serving.types import Array, EncodedImage, ObservationRequest
from test.unit.fakes import CONTRACT, NAMES, chunk, grant, schedule

LAG_S = 0.03
"""Time constant with which the arm follows a position."""
SLEW = 20.0
"""What its motors can do, per second: more than any declared limit."""
EPS = 1e-4
LENGTH = 12
"""Rows of a chunk."""
NO_IMAGE = (EncodedImage(camera="front", format="jpeg", data=b""),)


class PushedArm:
    """Follows the last position at its own speed, or goes on with the last velocity for ever. A person may move it."""

    def __init__(self, moves_on: bool) -> None:
        self.position = np.zeros(len(NAMES))
        self._moves_on, self._told = moves_on, np.zeros(len(NAMES))

    def pushed(self, to: Array) -> None:
        """By hand, with the brakes off: it stays where it is put."""
        self.position = np.array(to, np.float64)
        self.stop()

    def stop(self) -> None:
        self._told = np.zeros(len(NAMES)) if self._moves_on else self.position.copy()

    def told(self, values: Array) -> None:
        self._told = np.array(values)

    def advance(self, dt_s: float) -> None:
        if self._moves_on:
            self.position = self.position + self._told * dt_s
        else:
            way = (self._told - self.position) * (1.0 - math.exp(-dt_s / LAG_S))
            self.position = self.position + np.clip(way, -SLEW * dt_s, SLEW * dt_s)


@dataclass(kw_only=True)
class Driver:
    """Publishes joint states with stamps of its own clock."""

    rate_hz: float = 20.0
    jitter: float = 0.05
    """Share of a period."""
    mood: str = "good"
    """`good`, `silent`, `repeats` its last frame, `loops` over the last ones, `unstamped`, or `glitch`: an encoder that jumps"""
    clock_s: float = 1e9
    jump: float = 3.0
    """Of a glitch."""
    frames: deque[tuple[Array, float]] = field(default_factory=lambda: deque(maxlen=5))
    """(positions, when they were measured), newest last."""

    def frame(self, arm: PushedArm, now_s: float, rng: random.Random) -> tuple[Array, float, float] | None:
        """(positions, stamp, when they were measured); None: it says nothing."""
        if self.mood == "silent":
            return None
        if self.mood == "repeats" and self.frames:
            positions, at_s = self.frames[-1]
        elif self.mood == "loops" and self.frames:
            positions, at_s = rng.choice(self.frames)
        else:
            positions, at_s = arm.position.copy(), now_s
            self.frames.append((positions, at_s))
        if self.mood == "glitch":
            positions = positions + rng.choice([-self.jump, self.jump])
        return positions, 0.0 if self.mood == "unstamped" else at_s + self.clock_s, at_s


class Published:
    """What left the sink, judged by the declared limits alone: per second, in the units of the wire."""

    def __init__(self, config: RobotConfig, scale: tuple[float, ...]) -> None:
        self._config, self._scale = config, np.abs(np.array(scale or 1.0))
        limits, ones = config.limits, np.ones(len(NAMES))
        self._period_s = 1.0 / config.control_rate_hz
        self._lower, self._upper = (np.array(limits.lower or (-1e9,)) * ones, np.array(limits.upper or (1e9,)) * ones)
        self._max_velocity = np.array(limits.max_velocity or (1e9,)) * ones
        self._max_acceleration = np.array(limits.max_acceleration or (1e9,)) * ones
        self.last: tuple[float, Array, list[Array]] | None = None
        """When, what, and how fast, [values per second]: several where it may have set out from here or from there."""
        self._times_s: deque[float] = deque()
        self.interrupted = True
        """Somebody came between since the last command: the robot may have been moved."""
        self.pushed = True
        """It has been, or another process commands it."""
        self.count = 0
        self.largest_rate_hz = 0.0
        self.largest_speed = 0.0

    def begin(self) -> None:
        """Whoever sent them is another one now."""
        self.last, self.interrupted, self.pushed = None, True, True
        self._times_s.clear()

    def sent(self, values: Array, now_s: float, measured: Array | None, *, stop: bool) -> None:
        """measured: what the driver said last, where the commands are positions."""
        command = values / self._scale
        self.count += 1
        if not stop:
            self._times_s.append(now_s)
        while self._times_s and self._times_s[0] <= now_s - 1.0:
            self._times_s.popleft()
        self.largest_rate_hz = max(self.largest_rate_hz, len(self._times_s))
        assert len(self._times_s) <= self._config.control_rate_hz + 2, f"{len(self._times_s)} commands in a second"
        assert (command >= self._lower - EPS).all() and (command <= self._upper + EPS).all(), f"{command} is out of limits"
        check = self._check_positions if self._config.command_type is CommandType.POSITION else self._check_change
        speeds = check(command, now_s, measured, stop=stop)
        self.last, self.interrupted, self.pushed = (now_s, command, speeds), False, False

    def _elapsed_s(self, now_s: float) -> float:
        """A pause is no licence to jump."""
        return min(now_s - self.last[0], self._period_s) if self.last else self._period_s

    def _check_change(self, command: Array, now_s: float, measured: Array | None, *, stop: bool) -> list[Array]:
        before = self.last[1] if self.last else np.zeros(len(NAMES))
        change = np.abs(command - before)
        within = (change <= self._max_acceleration * self._elapsed_s(now_s) + EPS).all()
        assert within or (stop and not command.any()), f"{before} -> {command} within {self._elapsed_s(now_s):.3f} s"
        return [command]

    def _check_positions(self, command: Array, now_s: float, measured: Array | None, *, stop: bool) -> list[Array]:
        dt_s, zero = self._elapsed_s(now_s), np.zeros(len(NAMES))
        ways = []
        silent = self.last is None or now_s - self.last[0] > 1.3 * self._period_s
        if self.last and (not self.interrupted or (not silent and any(speed.any() for speed in self.last[2]))):
            ways += [(self.last[1], speed, dt_s) for speed in self.last[2]]
        if (silent or self.interrupted) and measured is not None:
            ways += [(np.clip(measured, self._lower, self._upper), zero, dt_s)]
        if (silent or self.interrupted) and self.last and not self.pushed:  # the reading may be old: it stands where it was told to
            ways += [(self.last[1], zero, dt_s)]
        speeds = []
        for start, speed, time_s in ways:
            now_at = (command - start) / time_s
            slow = (np.abs(now_at) <= self._max_velocity + EPS / time_s).all()
            smooth = (np.abs(now_at - speed) <= self._max_acceleration * time_s + 2 * EPS / time_s).all()
            speeds += [now_at] if slow and smooth else []
        assert speeds, f"{command} at {now_s:.3f} s: too fast or too sudden from {ways}, interrupted: {self.interrupted}"
        self.largest_speed = max(self.largest_speed, min(float(np.abs(speed).max()) for speed in speeds))
        return speeds


class Floor:
    """Virtual time. `run` ticks as a live body does; everything else changes what happens meanwhile."""

    def __init__(self, config: RobotConfig, seed: int = 0, *, by_timer: bool = False, scale: tuple[float, ...] = ()) -> None:
        self.config, self.rng, self.now_s = config, random.Random(seed), 0.0
        self.period_s = 1.0 / config.control_rate_hz
        self.arm, self.driver = PushedArm(config.command_type is CommandType.VELOCITY), Driver()
        self.published, self.events = Published(config, scale), Counter[str]()
        self.latency_s, self.target = 0.06, "walk"
        self.safe_word = "safe"
        self._scale, self._by_timer = scale, by_timer
        self._requests: list[tuple[float, ObservationRequest]] = []
        self._state_s = self._timer_s = self._status_s = 0.0
        self._measured: Array | None = None
        self._walk = np.zeros(len(NAMES))
        self.measured_s = -math.inf
        """When the newest reading was really measured."""
        self.furthest = 0.0
        """That a position was commanded from where the arm really was."""
        self._epoch = 0
        self.restart()

    # --- people, and what else happens ---

    def restart(self) -> None:
        """The robot's process, whose controller has a timeout of its own."""
        self.arm.stop()
        self.published.begin()
        self.brain = RobotCore(self.config)
        self.brain.on_schedule(schedule(), self.now_s)
        self._fresh, self._sensors = SenderClock(self.config.max_observation_age_s), None
        self._ticked_s = self.now_s
        self._requests.clear()
        self.touch()

    def touch(self) -> None:
        self.published.interrupted = True

    def pause(self) -> None:
        self.brain.pause(self.now_s)
        self.touch()

    def resume(self) -> None:
        if not self.brain.resume(self.now_s):
            self.touch()

    def push(self, by: float) -> None:
        """Within the arm's own stops, which are a little wider than the limits of commands."""
        edge = np.array(self.config.limits.upper or (10.0,)) + 0.02
        self.arm.pushed(np.clip(self.arm.position + by, -edge, edge))
        self.published.pushed = True
        self.touch()

    def task(self) -> None:
        if self.brain.task is None or self.brain.task.result is not None:
            self.brain.finish()
            self.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=1e6, reset=False), self.now_s)
            self.touch()

    # --- time ---

    def run(self, seconds: float) -> int:
        """Returns the commands that were published."""
        end_s, before = self.now_s + seconds, self.published.count
        while True:
            due_s = min(self._state_s, self._timer_s)
            if due_s > end_s:
                break
            self._advance(due_s)
            if self._state_s <= self._timer_s:
                self._state_s += (1.0 + self.driver.jitter * self.rng.uniform(-1.0, 1.0)) / self.driver.rate_hz
                self._hear()
            else:
                self._timer_s += self.period_s if self._by_timer else 2.0 * self.period_s
                self._on_timer()
        self._advance(end_s)
        return self.published.count - before

    def _advance(self, to_s: float) -> None:
        self.arm.advance(to_s - self.now_s)
        self.now_s = to_s
        if to_s - self._status_s >= 0.5:
            self._status_s = to_s
            self.brain.on_server_status("s1", True, to_s)
        for due_s, request in [entry for entry in self._requests if entry[0] <= to_s]:
            self._requests.remove((due_s, request))
            self.brain.on_reply(chunk(request, self._rows()), to_s)

    def _hear(self) -> None:
        frame = self.driver.frame(self.arm, self.now_s, self.rng)
        if frame is None:
            return
        positions, stamp_s, self.measured_s = frame
        taken_s = self._fresh.taken_s(stamp_s, self.now_s)
        self._measured = positions
        state = np.zeros(CONTRACT.state_size, np.float32)
        self._sensors = Sensors(
            state=state, state_s=taken_s, images=NO_IMAGE, images_s=self.now_s, positions=positions.astype(np.float32)
        )
        if not self._by_timer and self.brain.is_period(self.now_s):
            self._tick()

    def _on_timer(self) -> None:
        if self._by_timer:
            if self.brain.is_period(self.now_s):
                self._tick()
        elif self.now_s - self._ticked_s >= 1.5 * self.period_s:
            self._tick(may_act=False)

    def _tick(self, *, may_act: bool = True) -> None:
        self._ticked_s = self.now_s
        self.events["tick"] += 1
        tick = self.brain.tick(self._sensors, self.now_s, may_act=may_act)
        for server, opening in tick.opens:
            self._epoch += 1
            granted = grant(self._epoch, replace(CONTRACT, chunk_length=LENGTH))
            self.brain.on_session_opened(opening.component, server, granted, self.now_s)
        for _, request in tick.requests:
            self._requests.append((self.now_s + self.latency_s * self.rng.uniform(0.5, 1.5), request))
        if tick.command is not None:
            self.send(tick.command)

    def send(self, command: Array) -> None:
        values = published(command, self._scale, ())
        stop = not values.any()
        self.published.sent(values, self.now_s, self._measured, stop=stop)
        if self.config.command_type is CommandType.POSITION:
            self.furthest = max(self.furthest, float(np.abs(command - self.arm.position).max()))
        self.arm.told(values / np.array(self._scale or 1.0) if self._scale else values)

    def _rows(self) -> Array:
        """A policy: a walk, or one that wants the other end of the world at once, or both in turn."""
        length = LENGTH
        if self.target == "walk":
            steps = np.array([[self.rng.uniform(-0.05, 0.05) for _ in NAMES] for _ in range(length)])
            rows = np.clip(self._walk + np.cumsum(steps, axis=0), -0.95, 0.95)
            self._walk = rows[-1]
        elif self.target == "far":
            rows = np.full((length, len(NAMES)), 0.9)
        else:
            rows = np.array([[self.rng.choice([-0.9, 0.9]) for _ in NAMES] for _ in range(length)])
        return rows.astype(np.float32)
