"""Recordings of robots in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from ros2_rfm_serving.audit.chain import Chain, Page, records
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.replay import Replayed, brains, replay
from ros2_rfm_serving.audit.robots.recorded import RecordedBrain
from ros2_rfm_serving.audit.robots.replay import RobotReplay
from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot import RobotConfig
from test.unit.robot.robot_world import World
from test.unit.robot.robots import FAILING, begin

MAKERS = {"robot": brains(RobotReplay)}


class Recorder:
    """Somebody who listens to one robot from the start, and keeps its pages."""

    def __init__(self, writer: str = "robot/r1") -> None:
        self.pages: list[Page] = []
        runs = itertools.count(1)
        self.journal = Journal(writer, "robot", send=self.pages.append, stamp_s=lambda: 1e9, draw=lambda: next(runs))

    def make(self, config: RobotConfig) -> RecordedBrain:
        brain = RecordedBrain(config, self.journal)
        self.listen(0.0)
        return brain

    def listen(self, now_s: float) -> None:
        self.journal.listeners(1, now_s - 10.0)
        self.journal.tend(now_s)


def recorded_world(config: RobotConfig = FAILING, **slos_s: float) -> tuple[World, Recorder]:
    """With a task from the start, recorded from the start, as `robots.world` is otherwise."""
    recorder = Recorder()
    routes = {name: (100.0 if name == "system1" else 4.0, slo_s) for name, slo_s in {"system1": 0.0, **slos_s}.items()}
    made = World(config, FaultPlan(), 0, routes, recorder.make)
    made.brain.on_schedule(made.schedule(), made.now_s)
    begin(made)
    return made, recorder


def run(world: World, recorder: Recorder, seconds: float) -> None:
    for _ in range(round(4 * seconds)):
        world.run(0.25)
        recorder.journal.tend(world.now_s)


def replayed(pages: Iterable[Page]) -> Replayed:
    """Of one chain."""
    return list(replay(pages, MAKERS))[-1]


def all_records(pages: Iterable[Page]) -> list[dict[str, Any]]:
    return [record for page in pages for record in records(page)]


def rewritten(pages: Iterable[Page], change: Callable[[list[dict[str, Any]]], None]) -> list[Page]:
    """One page of what the records say after `change`, with new hashes."""
    found = all_records(pages)
    change(found)
    chain = Chain("robot/r1", 1)
    for record in found:
        chain.note(record["kind"], record["t"], {k: v for k, v in record.items() if k not in ("n", "t", "kind", "hash")})
    page = chain.page()
    assert page is not None
    return [page]


def from_snapshot(pages: list[Page], number: int) -> list[Page]:
    """What is left when the records before the one with this number are gone."""
    lines = [line for page in pages for line in page.lines]
    first = orjson.loads(lines[0])["n"]
    return [Page(writer="robot/r1", run=1, first=number, previous="0" * 32, lines=tuple(lines[number - first :]))]
