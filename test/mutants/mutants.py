"""The faults: each was once made, or nearly. A text of the source that occurs once, what stands in its place, and the tests
that are to fail."""

from __future__ import annotations

from dataclasses import dataclass

ROBOT, SERVER = ("test/unit/robot",), ("test/unit/server",)
MACHINE = ("test/unit/robot/test_robot_machine.py",)
LADDER = ("test/unit/robot/test_fallback.py", *MACHINE)
"""A machine that draws its stories finds most of what a ladder does wrongly, and not all of it every time."""
COLUMNS = "test/unit/robot/test_columns.py"
PACE, FALLBACK, FAILSAFE = (f"test/unit/robot/test_{name}.py" for name in ("pace", "fallback", "failsafe"))
SCHEDULER = "test/unit/scheduler"
ADMISSION = tuple(f"{SCHEDULER}/test_{name}.py" for name in ("adaptation", "adjustment", "in_force"))
LOSSES = (f"{SCHEDULER}/test_losses.py", f"{SCHEDULER}/test_repair.py")
WATCH = (f"{SCHEDULER}/test_watch.py", f"{SCHEDULER}/test_drifting.py")
PIPELINED = ("test/unit/robot/test_robot_pipelined.py", *MACHINE)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    file: str
    """Below ros2_rfm_serving/."""
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        name="a reply of another session is executed",
        file="robot/client/component_client.py",
        old="if self.state is not OPEN or identity.session_epoch != self.epoch:",
        new="if self.state is not OPEN:",
        tests=ROBOT,
    ),
    Mutant(
        name="any reply of the session counts, whatever was asked",
        file="robot/client/pending_requests.py",
        old="return found if found is not None and (identity is found.id or identity == found.id) else None",
        new="return self.newest",
        tests=ROBOT,
    ),
    Mutant(
        name="a reply of another model is executed",
        file="robot/client/component_client.py",
        old="if self.contract is None or reply.model_hash != self.contract.model_hash:",
        new="if self.contract is None:",
        tests=ROBOT,
    ),
    Mutant(
        name="rows of another model bridge the time until its first chunk",
        file="robot/core.py",
        old="        if model != self._model:\n            self._motion.discard()",
        new="        if self._model is None:\n            self._motion.discard()",
        tests=MACHINE,
    ),
    Mutant(
        name="what a former session gave goes on beside the next one's first chunk",
        file="robot/motion/action_queue.py",
        old="        if not self._replace:\n            return self._append",
        new="        if not self._replace or self.depth:\n            return self._append",
        tests=MACHINE,
    ),
    Mutant(
        name="the ladder runs on with the way to a single action, in parts",
        file="robot/motion/command_generator.py",
        old="return self._shaped(part, now_s, False)",
        new="return self._shaped(part, now_s, True)",
        tests=LADDER,
    ),
    Mutant(
        name="the ladder runs on with the way from a rung to an action",
        file="robot/motion/fallback.py",
        old="self._last, self._will_set_out = self._now, True",
        new="self._last = self._now",
        tests=LADDER,
    ),
    Mutant(
        name="the ladder runs on with the way to an action after a gap",
        file="robot/motion/fallback.py",
        old="self._before, self._will_set_out = None, True",
        new="self._before = None",
        tests=ROBOT,
    ),
    Mutant(
        name="a ramp does not go down",
        file="robot/motion/fallback.py",
        old="return self._slower(self._last, max(0.0, 1.0 - elapsed_s / rung.duration_s))",
        new="return self._slower(self._last, 1.0)",
        tests=MACHINE,
    ),
    Mutant(
        name="a robot is free while a reset still moves it",
        file="robot/task.py",
        old="        if self.is_resetting and outcome is not TaskOutcome.SHUTDOWN:",
        new="        if self.is_resetting and outcome is TaskOutcome.SHUTDOWN:",
        tests=MACHINE,
    ),
    Mutant(
        name="an encoder that jumps is believed",
        file="robot/motion/command_generator.py",
        old="        if not self._is_steady:\n",
        new="        if False:\n",
        tests=("test/unit/robot/test_floor.py",),
    ),
    Mutant(
        name="a late request is never given up",
        file="robot/client/component_client.py",
        old="        self.timeouts += 1\n",
        new="        self.timeouts += 0\n",
        tests=ROBOT,
    ),
    Mutant(
        name="a request waits for an answer, and another one goes out",
        file="robot/client/component_client.py",
        old="self.next_send_s if self.state is OPEN and len(self._pending.waited) < self.depth else",
        new="self.next_send_s if self.state is OPEN else",
        tests=MACHINE,
    ),
    Mutant(
        name="a chunk may say that it ended with any observation",
        file="robot/client/pending_requests.py",
        old="if sequence >= own and sequence >= self._last_observed_sequence else None",
        new="or request",
        tests=PIPELINED,
    ),
    Mutant(
        name="row 0 of a pipelined chunk counts from the request's own observation",
        file="robot/core.py",
        old="        seen = answered.observed_by\n",
        new="        seen = answered.request\n",
        tests=PIPELINED,
    ),
    Mutant(
        name="an older chunk of a pipelined session replaces a newer one",
        file="robot/client/pending_requests.py",
        old="        self.drop(found.request.id.sequence)\n",
        new="        self.remove(found.request.id)\n",
        tests=PIPELINED,
    ),
    Mutant(
        name="an older observation takes the place of a newer one",
        file="server/sessions.py",
        old="request.episode >= session.episode and request.sequence > session.sequence:",
        new="request.episode >= session.episode:",
        tests=SERVER,
    ),
    Mutant(
        name="an observation of a former session is taken in",
        file="server/sessions.py",
        old="return session if session and session.epoch == epoch else None",
        new="return session if session else None",
        tests=SERVER,
    ),
    Mutant(
        name="a prefix longer than the model bridges is fixed",
        file="server/intake.py",
        old="if not 0 <= delay_steps <= envelope:",
        new="if not 0 <= delay_steps:",
        tests=SERVER,
    ),
    Mutant(
        name="a state of NaN reaches the model",
        file="server/intake.py",
        old="if not np.isfinite(values).all():",
        new="if np.isinf(values).all():",
        tests=SERVER,
    ),
    Mutant(
        name="a chunk of NaN leaves the server",
        file="server/engine_runner.py",
        old='(("chunk_model", answer.chunk_model), ("chunk_robot", answer.chunk_robot)):',
        new='(("chunk_model", answer.chunk_model),):',
        tests=SERVER,
    ),
    Mutant(
        name="what began before a reset is answered after it",
        file="server/core.py",
        old="return self.mailboxes.discard((robot, component), before_episode=episode)",
        new="return self.mailboxes.discard((robot, component), before_episode=0)",
        tests=SERVER,
    ),
    Mutant(
        name="at another pace it keeps waiting for the former one",
        file="robot/client/component_client.py",
        old="        self._period_s = period_s\n        self._allow()\n",
        new="        self._period_s = period_s\n",
        tests=(PACE,),
    ),
    Mutant(
        name="another pace lets two requests into one frame",
        file="robot/client/component_client.py",
        old="max(now_s + wait_s / self._period_s * period_s, self._frame_end_s)",
        new="now_s + wait_s / self._period_s * period_s",
        tests=(PACE,),
    ),
    Mutant(
        name="a phase gives way one request late",
        file="robot/client/component_client.py",
        old="        self._first_reply = False\n        self._expect()\n        return answered",
        new="        self._first_reply = False\n        return answered",
        tests=(PACE,),
    ),
    Mutant(
        name="a phase moves without end",
        file="types/desynchronisation.py",
        old="self.total_shift_s = moved_s if -period_s <= moved_s <= period_s else _clamped(period_s, moved_s)",
        new="self.total_shift_s = before_s + _clamped(period_s, move_s)",
        tests=(PACE,),
    ),
    Mutant(
        name="a phase moves by what was before a shorter period",
        file="types/desynchronisation.py",
        old="before_s = _clamped(period_s, before_s)",
        new="pass",
        tests=(PACE,),
    ),
    Mutant(
        name="who may only ask later makes up for nothing before",
        file="types/desynchronisation.py",
        old="self.total_shift_s = _clamped(period_s, min(moved_s, 0.0))",
        new="self.total_shift_s = 0.0",
        tests=(PACE,),
    ),
    Mutant(
        name="a robot gives way until its chunk is at its end",
        file="robot/client/component_client.py",
        old="chunk_slack_s(self.chunk_duration_s, cycle_s, max(latency_s, self.latencies.expected_s()))",
        new="self.chunk_duration_s - cycle_s",
        tests=(PACE,),
    ),
    Mutant(
        name="what is usual never changes",
        file="types/desynchronisation.py",
        old="self.mean_s += (latency_s - self.mean_s) / self.num_replies",
        new="self.mean_s = self.mean_s or latency_s",
        tests=(PACE,),
    ),
    Mutant(
        name="a robot that streams is not judged although it stalls",
        file="robot/core.py",
        old="        if stalled_s >= 0.0 and stalled_s >= self._stalls_after_s():\n            return False\n        return not",
        new="        return not",
        tests=(FAILSAFE,),
    ),
    Mutant(
        name="a robot that streams is not judged although nobody answers",
        file="robot/core.py",
        old="        if now_s - link.unanswered_s >= self.config.failsafe.degraded_after_s:\n            return False\n",
        new="",
        tests=ROBOT,
    ),
    Mutant(
        name="a robot that streams is not judged although it cannot bridge the delay",
        file="robot/core.py",
        old="return not (self._client.timing.too_slow or links.mismatch",
        new="return not (links.mismatch",
        tests=ROBOT,
    ),
    Mutant(
        name="a displacement is repeated after its computer stood still",
        file="robot/motion/fallback.py",
        old="            self._now, self._last = self._made_once(self._now), self._made_once(self._last)\n",
        new="            pass\n",
        tests=(FALLBACK,),
    ),
    Mutant(
        name="a stop opens the gripper",
        file="robot/columns.py",
        old="np.where(self.is_kept, last, np.float32(0.0))",
        new="last * np.float32(0.0)",
        tests=(COLUMNS,),
    ),
    Mutant(
        name="a gripper is eased into a chunk",
        file="robot/motion/command_generator.py",
        old="return np.where(columns.is_binary, action, eased) if columns.has_binary else eased",
        new="return eased",
        tests=(COLUMNS,),
    ),
    Mutant(
        name="a continuous joint turns the long way round",
        file="robot/columns.py",
        old="np.where(where, difference - self._turn * np.round(difference / self._turn), difference)",
        new="difference",
        tests=(COLUMNS,),
    ),
    Mutant(
        name="a ladder goes on with the motion from before its computer stood still",
        file="robot/motion/command_generator.py",
        old="            self.ladder.stood()\n",
        new="            pass\n",
        tests=MACHINE,
    ),
    Mutant(
        name="the rest of a step is executed after its computer stood still",
        file="robot/motion/command_generator.py",
        old=" or self._was_told_long_ago(now_s):\n            self._interpolator.clear()",
        new=":\n            self._interpolator.clear()",
        tests=(FALLBACK,),
    ),
    Mutant(
        name="a horizon beyond the chunk is planned with",
        file="robot/motion/command_generator.py",
        old="max(self.queue.horizon - moved, 1)",
        new="max(horizon - moved, 1)",
        tests=(PACE,),
    ),
    Mutant(
        name="pipelined sessions' rows take the places of others",
        file="server/engine_queues.py",
        old="else self.batch_size + self._promised",
        new="else self.batch_size",
        tests=SERVER,
    ),
    Mutant(
        name="a row has the model's own solver steps, whatever its session asked for",
        file="server/intake.py",
        old="        session.num_steps,\n",
        new="",
        tests=(*SERVER, "test/unit/engines"),
    ),
    Mutant(
        name="a session asks for more solver steps than its model takes",
        file="server/contract.py",
        old="not 1 <= request.num_steps <= contract.max_num_steps:",
        new="not 1 <= request.num_steps:",
        tests=SERVER,
    ),
    Mutant(
        name="a newcomer slows those that run below their floor",
        file="scheduler/admission.py",
        old="return task.closed_loop_hz(latency) >= task.floor_hz * (1 - ROUNDING)",
        new="return True",
        tests=ADMISSION,
    ),
    Mutant(
        name="nobody asks a standby whether it has room for a newcomer, too",
        file="scheduler/admission.py",
        old="yield self._left_hz(seats, extra, standby, (standby, host))",
        new="pass",
        tests=ADMISSION,
    ),
    Mutant(
        name="what a robot asks of one server is looked at one by one",
        file="scheduler/admission.py",
        old="extra[server] = extra.get(server, 0.0) + demand.rate_hz(rate_hz)",
        new="extra[server] = demand.rate_hz(rate_hz)",
        tests=ADMISSION,
    ),
    Mutant(
        name="a newcomer is admitted to next to nothing",
        file="scheduler/admission.py",
        old="self.least_hz = max(owed_hz(task, planned_hz), STANDSTILL * task.max_rate_hz)",
        new="self.least_hz = STANDSTILL * task.max_rate_hz",
        tests=ADMISSION,
    ),
    Mutant(
        name="newcomers are sent to servers that are lost",
        file="scheduler/server_load.py",
        old="return self.lives and not self.placement.standby",
        new="return not self.placement.standby",
        tests=(*ADMISSION, *LOSSES),
    ),
    Mutant(
        name="servers that return have again whom they had, whatever that breaks",
        file="scheduler/failover.py",
        old="again = again if _holds(again, never) else None",
        new="again = again",
        tests=LOSSES,
    ),
    Mutant(
        name="servers that come and go are trusted as soon as others",
        file="scheduler/estimation/health.py",
        old="return min(BACK_AFTER_S * math.exp2(max(self.penalty - 1.0, 0.0)), LONGEST_BACK_S)",
        new="return BACK_AFTER_S",
        tests=WATCH,
    ),
    Mutant(
        name="one lot that weighs millions is believed",
        file="scheduler/estimation/batch_means.py",
        old="most = HEAVIEST * sorted(lot.weight for lot in lots)[len(lots) // 2]",
        new="most = max(lot.weight for lot in lots)",
        tests=WATCH,
    ),
    Mutant(
        name="a server that is slow now and then is as declared each time that it is not",
        file="scheduler/estimation/hysteresis.py",
        old="return 0.0 <= now_s - self.since_s < min",
        new="return 0.0 > min",
        tests=WATCH,
    ),
)
