"""What a robot may do, by a record of its own: of the requests, replies and commands that went to and fro in a `World`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ros2_rfm_serving.robot.config import CommandType, Motion, TickResult
from ros2_rfm_serving.robot.task import TaskRun
from ros2_rfm_serving.types import ActionChunk, Array, JudgeVerdict, ObservationRequest, Reply, TaskPhase
from test.unit.robot.robot_flight import Flight
from test.unit.robot.robot_world import TAGS, MadeChunk, Sent, World

EPS = 1e-5


@dataclass
class Step:
    """Of the policy, in parts: the tags where it sets out, and where it goes; and whose action that is."""

    start: Array
    target: Array
    made: MadeChunk
    part: int = 1


class Shadow:
    def __init__(self, world: World) -> None:
        self.world, self.brain, self.config = world, world.brain, world.config
        world.arrived = self.arrived
        self.kind, limits = self.config.command_type, self.config.limits
        self.period_s = 1.0 / self.config.control_rate_hz
        self.lower, self.upper = np.array(limits.lower[:2]), np.array(limits.upper[:2])
        self.max_velocity = np.array(limits.max_velocity[:2] or (math.inf,) * 2)
        self.max_acceleration = np.array(limits.max_acceleration[:2] or (1e9,) * 2)
        self.ladder_s = sum(rung.duration_s for rung in self.config.fallback if rung.duration_s < math.inf)
        self.has_pose = any(rung.motion is Motion.SAFE_POSE for rung in self.config.fallback)
        self.actions = 0
        self.ended_later = 0
        """Chunks that were taken whose last steps saw a newer observation than the request's own."""
        self._flight = Flight(world)
        self._taken: dict[MadeChunk, int] = {}
        """Chunks that were taken, and as which."""
        self._oldest = 0
        """That may still be executed, by that number: what came before has had its turn."""
        self._executed: tuple[object, int] = (None, 0)
        self._stopped_s, self._told_s, self._was_stopped = -math.inf, -math.inf, False
        self._episode = 0
        self._model = ""
        zero = np.zeros(len(self.config.action_names), np.float32)
        self._prev = None if self.kind is CommandType.POSITION else zero
        self._zero, self._motion = zero, zero
        """Of the last two commands of actions in a row: what position commands may run on by."""
        self._anew, self._sets_out = True, True
        """The next action, and the one under way, are the first since it stood or was on a rung: no two in a row."""
        self._speeds_xy = [np.zeros(2)]
        """Of the last command, per second: where it set out from may be one of two."""
        self._hands, self._may_stand = True, True
        """People, a stop or a reset have come between: the next action sets out from where the robot is measured to be."""
        self._perhaps_stopped = False
        """A stop that was over before a control period saw it: it may do so."""
        self._reset_by: TaskRun | None = None
        """Whose reset moves the robot."""
        self._base, self._share = zero[TAGS], 0.0
        self._step: Step | None = None
        self._ladder_since_s, self._ladder_brakes_s = math.inf, 0.0
        self._passed, self._pass_ends_s = False, -math.inf
        self._asked_rate_hz, self._asked_s, self._asked_beyond = 0.0, -math.inf, 0.0
        """Requests of System 1 beyond its cap."""

    @property
    def supervised(self) -> bool:
        return "safety" in self.config.policy.fallbacks

    def in_flight(self, component: str) -> Sent | None:
        """One of what is."""
        out = self._flight[component]
        return self.world.rng.choice(out) if out else None

    @property
    def context(self) -> int:
        """Newest observation that a chunk of System 1 ended with."""
        return self._flight.context

    # --- what happens to the robot ---

    def notice_episode(self) -> None:
        """A task, or another attempt at it."""
        if self.brain.episode != self._episode:
            self._episode, self._asked_beyond = self.brain.episode, 0.0
            self.forgets()
            self._stopped_s, self._was_stopped = self.world.now_s, True

    def forgets(self) -> None:
        """What was asked before is answered in vain; safety has to speak again."""
        self._flight.over()
        self._passed = False
        self.may_have_been_moved()

    def may_have_been_moved(self) -> None:
        self._hands, self._stopped_s = True, self.world.now_s
        self._flight.over("system1")

    def task_begins(self) -> None:
        assert self._reset_by is None, "a task on a robot that a reset still moves"
        self.may_have_been_moved()

    def reset_begins(self) -> None:
        """A robot that is to be reset is, by somebody who moves it until `reset_ends`."""
        run = self.brain.task
        if run is not None and self.brain.is_handed_over and self._reset_by is None:
            self._reset_by = run
            self.brain.reset_begins()

    def reset_ends(self, *, ok: bool) -> bool:
        """False: nobody resets the robot."""
        run, self._reset_by = self._reset_by, None
        if run is not None:
            self.world.arm = np.array([self.world.rng.uniform(-0.9, 0.9), self.world.rng.uniform(-0.9, 0.9)], np.float32)
            if self.brain.task is run:  # else of a task that has ended meanwhile
                self.brain.reset_done(ok, "" if ok else "stuck", self.world.now_s)
        return run is not None

    def asked_again(self, sent: Sent) -> None:
        self._asked_beyond -= sent.request.id.component == "system1"
        self._flight.asked_again(sent)

    def told_to_stand(self, command: Array | None) -> None:
        if self._reset_by is not None:
            assert command is None, "a command to a robot that a reset moves"
            return
        if self.kind is CommandType.VELOCITY:
            assert command is not None and not command.any(), "a stop that goes on moving"
        self._anew = True
        self._stand()

    def _stand(self) -> None:
        if self.kind is not CommandType.POSITION:
            self._prev = self._zero
        moves = self.kind is CommandType.POSITION and not self._has_been_silent  # on its way to the last command, which lasts
        self._motion, self._speeds_xy = self._zero, [np.zeros(2), *(self._speeds_xy if moves else [])]
        self._step, self._share, self._may_stand = None, 0.0, True
        self._ladder_since_s, self._ladder_brakes_s = math.inf, 0.0

    # --- the wire ---

    def arrived(self, reply: Reply, sent: Sent, honest: bool, taken: bool) -> None:
        component, now_s = sent.request.id.component, self.world.now_s
        self._perhaps_stopped |= self._flight.look()
        ended_with = reply.ended_with if isinstance(reply, ActionChunk) else None
        seen = self._flight.seen(sent, ended_with)
        answers = sent in self._flight[component] and (reply.id, reply.model_hash) == (sent.request.id, sent.model_hash)
        if answers and not self.world.unasked:
            self._flight.answered(sent, ended_with)  # whether or not it can be used; a second one would be a duplicate
        if not taken:
            return
        assert honest, f"a corrupted reply of {component} was taken"
        assert answers, f"{component}: a reply was taken that does not answer what is in flight"
        assert seen is not None, f"a chunk was taken that cannot have ended with observation {ended_with}"
        assert sent.request.id.episode == self._episode, "a reply of another episode was taken"
        limit_s = max(self.config.link.request_timeout_s, 2.0 * self.world.routes[component][1])
        assert now_s < sent.at_s + limit_s + EPS, f"{component}: an answer was taken after {now_s - sent.at_s:.3f} s"
        assert self._lasts(sent), f"{component}: a reply of a session that is over was taken"
        if component == "system1":
            number = len(self._taken) + 1
            self._taken.update((made, number) for made in self.world.chunks if made is not None and made.reply is reply)
            self._check_row_0(reply, seen)
            self.ended_later += seen is not sent
            self._oldest = number if self.config.replace_queue else self._oldest
        if component == "safety" and isinstance(reply, JudgeVerdict):
            rate_hz, slo_s = self.world.routes["safety"]
            patience_s = slo_s or self.config.link.request_timeout_s
            assert now_s - sent.at_s <= patience_s + EPS or not self.supervised or not slo_s, "a late verdict of safety was taken"
            self._passed = reply.verdict == "safe"
            self._pass_ends_s = max(sent.at_s + 1 / rate_hz, now_s) + patience_s + self.period_s + EPS
        self.notice_episode()

    def _check_row_0(self, reply: Reply, seen: Sent) -> None:
        """It belongs to the step that began with the observation which the last solver steps saw."""
        queue = self.brain._queue
        assert isinstance(reply, ActionChunk)
        if self.config.replace_queue:
            skipped = min(queue.steps_executed - seen.mark, len(reply.chunk_robot))
            assert queue.steps_since_merge == skipped, (
                f"{queue.steps_since_merge} rows were skipped, {skipped} steps executed since its observation"
            )

    def _asked(self, server: str, request: ObservationRequest) -> None:
        now_s, readings, task, identity = self.world.now_s, self.world.readings, self.brain.task, request.id
        assert task is not None and task.active and not self.brain.paused, "a request without need"
        assert task.phase is not TaskPhase.WAITING, "a request while a person is waited for"
        assert readings is not None and identity not in self.world.sent_ids
        observed_s = min(readings.state_s, readings.images_s)
        assert now_s - observed_s <= self.config.max_observation_age_s + EPS, "old readings were sent"
        assert readings.skew_s <= self.config.max_sensor_skew_s, "readings of different times were sent"
        session = self.world.granted.get((server, identity.component, identity.session_epoch))
        assert session is not None, "a request without a session"
        sent = Sent(server, request, now_s, observed_s, session.model_hash, self.world.mark)
        self._flight.goes_out(sent)
        if identity.component == "system1":
            self._check_cap()
        if len(request.prefix_robot):
            for row in request.prefix_robot[:, TAGS]:
                self._check_origin(self._origin(row), stale=True)
        self.world.send(sent)

    def _check_cap(self) -> None:
        """In any span of time, three more at most: the first, one that was late, and a phase that moves by a period either way.
        What is asked anew because its answer was late, or because a plan took time, is beyond it on purpose."""
        rate_hz, slo_s = self.world.routes["system1"]
        if slo_s or self.config.calls_per_action:
            return
        if rate_hz != self._asked_rate_hz:
            self._asked_rate_hz, self._asked_beyond = rate_hz, 0.0
        passed_s, self._asked_s = self.world.now_s - self._asked_s, self.world.now_s
        self._asked_beyond = max(0.0, self._asked_beyond - passed_s * rate_hz) + 1.0
        assert self._asked_beyond <= 4.0 + EPS, f"{self._asked_beyond:.2f} requests beyond {rate_hz:g} per second"

    # --- a control period ---

    def ticked(self, tick: TickResult, *, may_act: bool) -> None:
        brain, now_s, command = self.brain, self.world.now_s, tick.command
        task = brain.task
        if self._was_told_long_ago and self.kind is not CommandType.VELOCITY:  # it stood, whatever its computer was doing
            self._motion, self._step, self._share = self._zero, None, 0.0
        self._perhaps_stopped |= self._flight.look()
        for server, component, epoch in brain.sessions:
            if component == "system1":
                self._model = self.world.granted[server, component, epoch].model_hash
        executing = task is not None and task.phase is TaskPhase.EXECUTING and not brain.paused
        self.notice_episode()
        stopped = task is not None and task.phase in (TaskPhase.STOPPED, TaskPhase.WAITING)
        if stopped and not self._was_stopped:
            self._stopped_s = now_s
        self._was_stopped = stopped
        self._hands |= stopped
        began = task is not None and (task.executed_steps > (self._executed[1] if self._executed[0] is task else 0))
        self._executed = (task, task.executed_steps if task else 0)
        self._notice_late_safety()
        assert executing or not began, f"an action while {task.phase.name if task else 'there is no task'}"
        assert self._reset_by is None or task is self._reset_by, "a robot is free although a reset still moves it"
        handed_over = task is not None and task.phase is TaskPhase.RESETTING
        if command is None:
            self._check_silence(may_act=may_act, executing=executing)
        else:
            assert self._reset_by is None, "a command to a robot that a reset moves"
            stands = handed_over or self._blind
            self._check_limits(command, exempt=stands)
            if not stands:
                self._check_motion(command[:2].astype(np.float64), began=began)
            self._check_meaning(command, began=began, executing=executing)
            self._prev, self._told_s, self._may_stand = command, now_s, stands
            self._hands, self._perhaps_stopped = self._hands and not began, self._perhaps_stopped and not began
        if self._blind and executing and self.world.period:  # between two of them nobody looks
            self.may_have_been_moved()
        self._anew |= handed_over or (self._blind and self.world.period)
        if handed_over:
            self.may_have_been_moved()
        for server, request in tick.requests:
            self._asked(server, request)
        if not may_act:
            self.told_to_stand(brain.stop_command())

    def _lasts(self, sent: Sent) -> bool:
        """Its session is still the one that is open: servers number theirs alike."""
        session = (sent.server, sent.request.id.component, sent.request.id.session_epoch)
        return session in self.brain.sessions and self.world.granted[session].at_s <= sent.at_s

    def _notice_late_safety(self) -> None:
        """One whose session is lost is not waited for: then the last pass ends by its time."""
        out, slo_s = self._flight["safety"], self.world.routes["safety"][1]
        if not out or not slo_s:
            return
        sent = out[0]
        if self._lasts(sent) and self.world.now_s >= sent.at_s + slo_s + EPS:
            self._passed = False

    @property
    def _blind(self) -> bool:
        readings = self.world.readings
        return readings is None or self.world.now_s - readings.state_s > self.config.max_observation_age_s

    @property
    def _has_been_silent(self) -> bool:
        """For long enough that the robot stands: less is the jitter of one that moves."""
        return self.world.now_s - self._told_s > 1.3 * self.period_s

    @property
    def _was_told_long_ago(self) -> bool:
        return self.world.now_s - self._told_s > max(self.config.max_observation_age_s, 2.0 / self.config.step_rate_hz)

    def _check_silence(self, *, may_act: bool, executing: bool) -> None:
        within_step = may_act and executing and not self.config.tick_is_step and self.world.now_s < self._told_s + self.period_s
        if self.kind is CommandType.VELOCITY:
            moves = self._prev is not None and self._prev[:2].any()
            quiet = within_step or not may_act or not self.world.period
            assert not moves or quiet, "nothing is said to a robot that moves on by itself"
        elif within_step or not self._has_been_silent:
            self._may_stand = True  # or the last command is still being executed
        elif self.world.period:
            self._stand()

    def _check_limits(self, command: Array, *, exempt: bool) -> None:
        xy = command[:2].astype(np.float64)
        assert self.world.period, "a command between two control periods"
        assert np.isfinite(command).all() and (xy >= self.lower - EPS).all() and (xy <= self.upper + EPS).all(), "out of limits"
        if exempt:
            assert not command.any(), "a robot that is handed over, or sees nothing, must stand"
        elif self.kind is not CommandType.POSITION:
            assert self._prev is not None
            changes = [xy - self._prev[:2], *([xy] if self._may_stand else [])]
            most = self.max_acceleration * self._elapsed_s() + EPS
            assert any((np.abs(change) <= most).all() for change in changes), "a change beyond its limit"

    def _elapsed_s(self) -> float:
        """What limits may count; a pause is no licence to jump."""
        return min(self.world.now_s - self._told_s, self.period_s)

    def _check_motion(self, xy: Array, *, began: bool) -> None:
        """Per second, from the last command; or from where it is measured to be, which it must be after hands were on it."""
        if self.kind is not CommandType.POSITION:
            return
        readings, starts = self.world.readings, []
        assert readings is not None
        long_ago = self._was_told_long_ago
        moving = any(speed.any() for speed in self._speeds_xy) and not self._has_been_silent
        if self._prev is not None and not (began and self._hands and not moving) and not long_ago:
            starts += [(self._prev[:2], speed, self._elapsed_s()) for speed in self._speeds_xy]
        if (
            (self._may_stand or self._hands or self._perhaps_stopped or long_ago)
            and readings.positions is not None
            and np.isfinite(readings.positions).all()
        ):
            starts.append((np.clip(readings.positions[:2], self.lower, self.upper), np.zeros(2), self._elapsed_s()))
        speeds = []
        for start, speed, time_s in starts:
            now_at = (xy - start) / time_s
            slow = (np.abs(now_at) <= self.max_velocity + EPS / time_s).all()
            smooth = (np.abs(now_at - speed) <= self.max_acceleration * time_s + 2 * EPS / time_s).all()
            speeds += [now_at] if slow and smooth else []
        assert speeds, f"{xy} is too fast or too sudden from {starts}"
        self._speeds_xy = speeds

    # --- what a command is made of ---

    def _check_meaning(self, command: Array, *, began: bool, executing: bool) -> None:
        tags = command[TAGS]
        if began:
            self._sets_out, self._anew = self._anew or self._was_told_long_ago, False
            self._step = self._decode(tags)
            assert self._step is not None, f"an action that no chunk has: {tags}"
            self._check_action(self._step)
            self._check_turn(self._step.made)
        elif executing and self._step is not None and self._step.part < self.config.interpolation:
            step = self._step
            if (part := self._part(tags, step)) and not self._is_over(step):
                step.part = part
                self._check_action(step)
            else:
                self._check_ladder(tags, command)
        else:
            self._check_ladder(tags, command)
            return
        if self._step is not None:
            self._motion = self._zero if self._sets_out or self._prev is None else command - self._prev
            self._base, self._share = tags, 1.0
            self._ladder_since_s, self._ladder_brakes_s = math.inf, 0.0

    def _part(self, tags: Array, step: Step) -> int:
        """Which part of the step that is: the next, or one further where ticks are slow; 0: none."""
        for part in range(step.part + 1, self.config.interpolation + 1):
            way = np.float32(part / self.config.interpolation)
            if _close(tags, step.start + (step.target - step.start) * way, 0.05):
                return part
        return 0

    def _decode(self, tags: Array) -> Step | None:
        """Which action a step goes to, from its first part: it sets out from the last command, and while commands ease into a chunk
        it goes only part of the way."""
        ease = self.config.blend_steps
        ways = [step / (ease + 1) for step in range(ease + 1, 0, -1)]
        starts = [] if self._prev is None else [self._prev[TAGS]]
        for start in [*starts, self._zero[TAGS], tags]:
            for way in ways:
                action = start + (tags - start) * np.float32(self.config.interpolation / way)
                made = self._origin(action)
                if made is not None and round(float(action[0])) not in made.unfit:
                    return Step(start, start + (action - start) * np.float32(way), made)
        return None

    def _origin(self, action: Array) -> MadeChunk | None:
        """The chunk that has this row."""
        slot = int(np.argmax(action[1:]))
        made = self.world.chunks[slot]
        pure = np.zeros_like(action[1:])
        pure[slot] = 1.0
        row = round(float(action[0]))
        fits = _close(action[1:], pure, 0.01) and abs(float(action[0]) - row) < 0.2
        return made if fits and made is not None and row in made.rows else None

    def _check_action(self, step: Step) -> None:
        self.actions += 1
        self._check_origin(step.made)
        if self.supervised:
            assert self._passed, "an action although safety has not passed it"
            assert self.world.now_s <= self._pass_ends_s, "an action by an old pass of safety"

    def _check_turn(self, made: MadeChunk) -> None:
        """Rows of a session that is lost bridge the time until the first chunk of the next, which takes over; or goes behind them,
        where chunks are appended."""
        assert self._taken[made] >= self._oldest, "an action of a chunk that another one has replaced"
        self._oldest = self._taken[made]

    def _is_over(self, step: Step) -> bool:
        """The rest of it must not be executed; the ladder may run on in the same direction."""
        sent = step.made.sent
        is_old = step.made.seen.observed_s < self.world.now_s - self.config.max_action_age_s
        is_old |= sent.at_s < self._stopped_s - EPS
        return is_old or sent.request.id.episode != self.brain.episode or sent.model_hash != self._model

    def _check_origin(self, made: MadeChunk | None, *, stale: bool = False) -> None:
        """stale: of a prefix, which says what would be executed."""
        assert made is not None and made in self._taken, "an action of a chunk that was not taken"
        age_s = self.world.now_s - made.seen.observed_s
        assert stale or age_s <= self.config.max_action_age_s + EPS, f"an action that is {age_s:.3f} s old"
        assert made.sent.request.id.episode == self.brain.episode, "an action of another episode"
        assert made.sent.model_hash == self._model, "an action of another model"
        assert made.sent.at_s >= self._stopped_s - EPS, "an action that was planned before a stop"

    def _check_ladder(self, tags: Array, command: Array) -> None:
        """Less and less of the last motion, or the safe pose, whose tags are zero. Tags have no limits: nothing else keeps them
        from growing until float32 cannot tell actions apart."""
        self._step, self._anew = None, True
        if self._ladder_since_s == math.inf:
            self._ladder_since_s = self.world.now_s
        to_pose = not tags.any() and self.has_pose
        if self.kind is CommandType.POSITION:
            moved = tags - (self._prev[TAGS] if self._prev is not None else tags)
            since_s = self.world.now_s - self._ladder_since_s
            left = max(0.0, 1.0 - since_s / self.ladder_s) if self.ladder_s else 0.0
            rounding = 4.0 * float(np.spacing(np.abs(tags).max()))
            runs_on = _is_share(moved, self._motion[TAGS], left, rounding)
            assert to_pose or runs_on is not None, f"it runs on by {moved}, more than {left:.3f} of {self._motion[TAGS]}"
            return
        share = _is_share(tags, self._base, self._share)
        assert share is not None, f"something else than the ladder is commanded: {tags} after {self._share} of {self._base}"
        self._share = share
        if self.world.now_s - self._ladder_since_s >= self.ladder_s and not self.has_pose:
            most = np.maximum(0.0, self.upper - self._ladder_brakes_s * self.max_acceleration)
            assert not self._ladder_brakes_s or (np.abs(command[:2]) <= most + EPS).all(), "a stop that does not end"
            self._ladder_brakes_s += self._elapsed_s()


def _is_share(values: Array, of: Array, most: float, rounding: float = 0.0) -> float | None:
    """Which share in [0, most] of `of` the values are, each known but for `rounding`; None: none."""
    size = float(of @ of)
    share = float(values @ of) / size if size > 1e-6 else 0.0
    slack = 1e-3 + rounding / math.sqrt(max(size, 1e-6))
    return share if -slack <= share <= most + slack and _close(values, share * of, 0.05) else None


def _close(some: Array, others: Array, most: float) -> bool:
    """Without the cost of `numpy.allclose`, here and there a hundred thousand times."""
    return bool((np.abs(some - others) <= most).all())
