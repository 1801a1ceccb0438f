"""Small things that happen around a robot, one per byte, so that a generated string of bytes is a stormy day.

Most are mild, since a robot that hardly moves keeps any promise. Byte 0 is nothing, which is what failures shrink to. What changes
nothing does not count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ros2_rfm_serving.robot import TaskGoal
from ros2_rfm_serving.types import ActionChunk, Reply, RequestId, TaskOutcome
from test.unit.robot.robot_shadow import Shadow
from test.unit.robot.robot_world import COMPONENTS, HOME, SPARE, World


class Happenings:
    """`happen` returns False where the byte's event could not take place; else it is counted by its name."""

    def __init__(self, world: World, shadow: Shadow, counts: Counter[str]) -> None:
        self._world, self._brain, self._shadow, self._counts = world, world.brain, shadow, counts
        self.length = 1.0
        """Of the next control periods."""
        self._once = 0.0

    def happen(self, code: int) -> bool:
        name, act = TABLE[code]
        took_place = bool(name) and act(self) is not False
        self._counts[name] += took_place
        return took_place

    def takes_periods(self) -> float:
        """How long the next control period lasts."""
        once, self._once = self._once, 0.0
        return once or self.length

    # --- conditions ---

    def answers_take(self, latency_s: float) -> bool:
        return self._becomes("latency_s", latency_s)

    def answers_say(self, unusual_s: float) -> bool:
        return self._becomes("unusual_s", unusual_s)

    def period_lasts(self, periods: float) -> bool:
        before, self.length = self.length, periods
        return periods != before

    def says(self, component: str, word: str) -> bool:
        words = self._world.conditions.words
        before, words[component] = words.get(component), word
        return word != before

    def spoils(self, out_of_limits: float, wrong_kind: float) -> bool:
        rows = self._becomes("out_of_limits", out_of_limits)
        return self._becomes("wrong_kind", wrong_kind) or rows

    def reads(self, kind: str) -> bool:
        return self._becomes("readings", kind)

    def _becomes(self, name: str, value: object) -> bool:
        before = getattr(self._world.conditions, name)
        setattr(self._world.conditions, name, value)
        return value != before

    def stands_still(self, *, pushed: bool = False, reads: str = "") -> None:
        """Its computer, for a moment or a minute; people may move an arm that is told nothing for so long. Then it goes on, with
        such readings."""
        self._once = self._world.rng.choice((12.0, 14.0, 18.0, 30.0, 1200.0))
        if pushed:
            self._world.arm = np.array([self._world.rng.uniform(-1.0, 1.0) for _ in range(2)], np.float32)
        if reads:
            self.reads(reads)

    # --- the wire ---

    def comes_twice(self) -> bool:
        """An answer that was delivered before: of this session, or of a former one."""
        if delivered := self._world.delivered:
            self._world.deliver(*self._world.rng.choice(delivered), True)
        return bool(delivered)

    def is_forged(self, forge: Callable[[RequestId], RequestId], model_hash: str = "") -> bool:
        """An answer to what is in flight that is wrong in one identifier alone."""
        sent = self._shadow.in_flight(self._world.rng.choice(COMPONENTS))
        if sent is None:
            return False
        reply: Reply = self._world.answer(replace(sent))  # no chunk that the record knows
        forged = replace(reply, id=forge(reply.id), model_hash=model_hash or reply.model_hash)
        self._world.deliver(sent, forged, False)
        return True

    def is_asked_again(self) -> bool:
        """A server wants a newer observation."""
        sent = self._shadow.in_flight(self._world.rng.choice(COMPONENTS))
        if sent is not None:
            late = self._brain.refused["late_refetch"]
            self._brain.request_refetch(sent.request.id)
            if self._brain.refused["late_refetch"] == late:
                self._shadow.asked_again(sent)
        return sent is not None

    def ended_elsewhere(self) -> bool:
        """A chunk that says that its last steps saw an observation which they cannot have seen."""
        sent = self._shadow.in_flight("system1")
        if sent is None:
            return False
        reply = self._world.answer(replace(sent))
        if isinstance(reply, ActionChunk):
            first, last = sent.request.id.sequence, max(identity.sequence for identity in self._world.sent_ids)
            older = range(first, self._shadow.context)  # than what was seen before, which is rarer
            ended_with = self._world.rng.choice(older or (first - 1, last + 1, last + 1000))
            self._world.deliver(sent, replace(reply, ended_with=ended_with), False)
        return isinstance(reply, ActionChunk)

    # --- servers ---

    def is_heard(self, server: str) -> bool:
        host = self._world.servers[server]
        if host.up:
            self._brain.on_server_status(server, True, self._world.now_s)
            self._brain.on_server_alive(server, self._world.now_s)
        return host.up

    def is_lost(self, server: str, *, said: bool) -> bool:
        host = self._world.servers[server]
        was_up, host.up = host.up, False
        if said:
            self._brain.on_server_lost(server, self._world.now_s)
        return was_up

    def comes_back(self, server: str) -> bool:
        host = self._world.servers[server]
        if host.up:
            return False
        host.restart(host.model_hash)
        self._brain.on_server_lost(server, self._world.now_s)
        return True

    def serves_another_model(self) -> None:
        """As a newer schedule says; all are ready for it at once, while the robot executes what the last one gave."""
        world = self._world
        model = {"hash": "other", "other": "hash"}[world.servers[HOME].model_hash]
        for name, host in world.servers.items():
            host.restart(model)
            self._brain.on_server_lost(name, world.now_s)
        self._brain.on_schedule(world.schedule(model=model), world.now_s)
        for name in world.servers:
            self._brain.on_server_status(name, True, world.now_s)

    def is_cut_off(self, server: str) -> None:
        """For a moment: its sessions are still there."""
        self._brain.on_server_lost(server, self._world.now_s)

    def is_scheduled(self, *, newer: bool) -> None:
        self._brain.on_schedule(self._world.schedule(newer=newer), self._world.now_s)

    def has_another_cap(self) -> bool:
        """System 1, in the middle of a period."""
        world = self._world
        before_hz, slo_s = world.routes["system1"]
        rate_hz = world.rng.choice((100.0, 20.0, 5.0, 2.0))
        world.routes["system1"] = (rate_hz, slo_s)
        self._brain.on_schedule(world.schedule(), world.now_s)
        return rate_hz != before_hz

    # --- people and tasks ---

    def is_pushed(self) -> bool:
        brain, world = self._brain, self._world
        may = bool(brain.paused or brain.stop_reason or brain.task is None or not brain._motion.ladder.moved)
        if may:
            world.arm = np.array([world.rng.uniform(-1.0, 1.0), world.rng.uniform(-1.0, 1.0)], np.float32)
        return may

    def is_paused(self) -> None:
        self._brain.pause(self._world.now_s)
        self._shadow.forgets()

    def goes_on(self) -> bool:
        problem = self._brain.resume(self._world.now_s)
        if not problem:
            self._shadow.may_have_been_moved()
        return not problem

    def is_aborted(self) -> bool:
        return not self._brain.abort(self._world.now_s)

    def is_canceled(self) -> None:
        self._brain.cancel(TaskOutcome.CANCELED, "", self._world.now_s)
        self._shadow.forgets()

    def begins(self, *, reset: bool) -> bool:
        """A task, where there is none."""
        brain = self._brain
        if brain.task is not None and brain.task.result is None:
            return False
        brain.finish()
        brain.start(TaskGoal(task="t", instruction="go", time_budget_s=30.0, reset=reset), self._world.now_s)
        self._shadow.task_begins()
        return True

    def is_reset(self) -> bool:
        return self._shadow.reset_ends(ok=True)


EVENTS: tuple[tuple[str, int, Callable[[Happenings], bool | None]], ...] = (
    ("answers at once", 10, lambda on: on.answers_take(0.0)),
    ("quick answers", 10, lambda on: on.answers_take(0.03)),
    ("answers of a period", 10, lambda on: on.answers_take(0.06)),
    ("answers of two periods", 10, lambda on: on.answers_take(0.1)),
    ("slow answers", 2, lambda on: on.answers_take(0.5)),
    ("nobody else asks", 4, lambda on: on.answers_say(0.0)),
    ("a crowd asks", 5, lambda on: on.answers_say(0.07)),
    ("all others are a crowd", 4, lambda on: on.answers_say(-0.04)),
    ("a server tells nonsense", 1, lambda on: on.answers_say(on._world.rng.choice([math.nan, math.inf, 1e30, -1e30]))),
    ("a period of its length", 12, lambda on: on.period_lasts(1.0)),
    ("a period that is too early", 8, lambda on: on.period_lasts(0.4)),
    ("an early period", 10, lambda on: on.period_lasts(0.7)),
    ("a period a little late", 10, lambda on: on.period_lasts(1.1)),
    ("a late period", 9, lambda on: on.period_lasts(1.6)),
    ("a gap", 1, lambda on: on.period_lasts(6.0)),
    ("its computer stands still", 2, Happenings.stands_still),
    ("it stands still and is pushed", 2, lambda on: on.stands_still(pushed=True)),
    ("it stands still and hears no joints", 1, lambda on: on.stands_still(reads="nan")),
    ("safety passes", 10, lambda on: on.says("safety", "safe")),
    ("safety objects", 1, lambda on: on.says("safety", "Unsafe")),
    ("the task goes on", 5, lambda on: on.says("monitor", "ongoing")),
    ("the task fails", 1, lambda on: on.says("monitor", "failed")),
    ("the task is done", 1, lambda on: on.says("monitor", "done")),
    ("good rows", 4, lambda on: on.spoils(0.0, 0.0)),
    ("bad rows", 2, lambda on: on.spoils(0.1, 0.0)),
    ("wrong answers", 1, lambda on: on.spoils(0.0, 0.1)),
    ("good readings", 12, lambda on: on.reads("fresh")),
    ("no readings", 1, lambda on: on.reads("none")),
    ("old readings", 1, lambda on: on.reads("old")),
    ("skewed readings", 1, lambda on: on.reads("skewed")),
    ("readings of NaN", 1, lambda on: on.reads("nan")),
    ("an answer twice", 10, Happenings.comes_twice),
    ("an answer that ended elsewhere", 4, Happenings.ended_elsewhere),
    ("an answer of another session", 4, lambda on: on.is_forged(lambda i: replace(i, session_epoch=i.session_epoch + 1))),
    ("an answer of another episode", 4, lambda on: on.is_forged(lambda i: replace(i, episode=max(0, i.episode - 1)))),
    ("an answer to no request", 4, lambda on: on.is_forged(lambda i: replace(i, sequence=i.sequence + 1000))),
    ("an answer of another model", 4, lambda on: on.is_forged(lambda i: i, "forged")),
    ("asked again", 6, Happenings.is_asked_again),
    ("home is heard", 6, lambda on: on.is_heard(HOME)),
    ("spare is heard", 4, lambda on: on.is_heard(SPARE)),
    ("home is lost", 1, lambda on: on.is_lost(HOME, said=True)),
    ("home is silent", 1, lambda on: on.is_lost(HOME, said=False)),
    ("spare is lost", 1, lambda on: on.is_lost(SPARE, said=True)),
    ("home is cut off", 1, lambda on: on.is_cut_off(HOME)),
    ("home is back", 6, lambda on: on.comes_back(HOME)),
    ("spare is back", 4, lambda on: on.comes_back(SPARE)),
    ("the schedule again", 6, lambda on: on.is_scheduled(newer=False)),
    ("another model", 2, Happenings.serves_another_model),
    ("another cap", 3, Happenings.has_another_cap),
    ("a newer schedule", 2, lambda on: on.is_scheduled(newer=True)),
    ("a push", 4, Happenings.is_pushed),
    ("a pause", 1, Happenings.is_paused),
    ("a resume", 6, Happenings.goes_on),
    ("an abort", 1, Happenings.is_aborted),
    ("a cancel", 1, Happenings.is_canceled),
    ("a task", 10, lambda on: on.begins(reset=False)),
    ("a task with a reset", 1, lambda on: on.begins(reset=True)),
    ("a reset is over", 6, Happenings.is_reset),
)
TABLE: tuple[tuple[str, Callable[[Happenings], bool | None]], ...] = (
    ("", lambda _: False),
    *((name, act) for name, weight, act in EVENTS for _ in range(weight)),
)
assert len(TABLE) == 256, f"a byte chooses one of {len(TABLE)}"
