"""A server decides once more what it decided, from any snapshot on; and what it would not have decided is found."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import operator
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from lab.benchmarks.dispatch.world import CLOUD, EDGE, World, draw_tasks
from ros2_rfm_serving.audit.servers import journal
from ros2_rfm_serving.audit.servers.witness import Witness
from ros2_rfm_serving.dispatch import DISPATCH_POLICIES, DispatchPolicy, EngineView, WaitingRequest
from ros2_rfm_serving.dispatch.batching import BATCHINGS, CONTINUOUS
from ros2_rfm_serving.dispatch.fifo import FifoPolicy
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ModelServer, ServerConfig, ServerCore
from ros2_rfm_serving.server.horizon import HORIZON_POLICIES
from ros2_rfm_serving.types import (
    MONITOR,
    SYSTEM2,
    EngineReply,
    HorizonRequest,
    InferenceRequest,
    ObservationRequest,
    OutputKind,
    empty,
)
from test.fuzz.targets import server as fuzz
from test.fuzz.targets.server import OPERATIONS, Foreign, Program, Run
from test.unit.audit.servers import Kept, again
from test.unit.fakes import CONTRACT, JPEG, FakeEngine, observation, rows, session_request
from test.unit.server.rows_machine import Machine
from test.unit.server.test_pipelined import Rig

BUSY = [Run.open, Run.submit, Run.submit, Run.submit, Run.begin, Run.begin, Run.complete]


TEXTS = tuple(text.encode(errors="replace").decode() for text in fuzz.TEXTS)
"""As they travel, in UTF-8: the wire's readers see to it."""


def named(record: Mapping[str, Any]) -> str:
    """The name of the event of a record; empty: it has none."""
    return str(record.get("event", {}).get("~", ""))


def of_a_program(seed: int, operations: int = 150) -> list[dict[str, Any]]:
    """Any policy, batching and tiers; sessions that come and go, engines that fail, requests of any kind."""
    rng = random.Random(seed)
    run = Run(Program(rng.randbytes(8 * operations)))
    kept = Kept(run.server, run.clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz, "TEXTS", TEXTS)
        for number in range(operations):
            with contextlib.suppress(RfmError):
                rng.choice([*OPERATIONS, *BUSY])(run)
            if number % 17 == 0:
                kept.snapshot()
    return kept.records()


def of_pipelined_sessions() -> list[dict[str, Any]]:
    rig = Rig()
    kept = Kept(rig.server, rig.clock)
    epoch, other = rig.open(), rig.open("r2", None)
    for sequence in range(1, 12):
        rig.frame(epoch, sequence, episode=1 + sequence // 6)
        rig.frame(other, sequence, "r2")
        if sequence % 4 == 0:
            kept.snapshot()
    return kept.records()


def test_pipelined_sessions_are_decided_again() -> None:
    records = of_pipelined_sessions()
    replies = [one for one in records if one["kind"] == "reply"]
    assert sum(one["result"]["ended_with"] is not None for one in replies) > 4
    assert sum(one["result"]["ended_with"] is None for one in replies) > 8
    for first in [i for i, one in enumerate(records) if one["kind"] == "snapshot"]:
        result = again([records[0], *records[max(first, 1) :]])
        assert result.difference is None and not result.refused, (result.at, result.difference, result.notes)


@cache
def of_a_world(policy: str, batching: str, clouds: int = 1, in_flight: int = 1) -> list[dict[str, Any]]:
    """Robots in a closed loop, an edge and a cloud."""
    config = ServerConfig(name="s", dispatch=policy, batching=batching, batch_size=4, refetch_after_s=0.1)
    world = World(config, (EDGE, *[CLOUD] * clouds), round_trip_s=0.05, batches_in_flight=in_flight)
    kept = Kept(world.server, lambda: world._now_s)
    for number in range(8):
        world._at(float(number), kept.snapshot)
    tasks = draw_tasks(3, 12, ahead=0.5)
    world.run([tasks[i::6] for i in range(6)], [0.1 * i for i in range(6)])
    return kept.records()


@pytest.mark.parametrize("seed", range(16))
def test_any_program_is_decided_again(seed: int) -> None:
    """From each snapshot on, and at the next one it holds the same."""
    result = again(of_a_program(seed))
    assert result.difference is None and not result.refused, result
    assert result.decisions > 50 and result.snapshots > 5


@pytest.mark.parametrize("batching", [name for name in BATCHINGS if name != CONTINUOUS])
@pytest.mark.parametrize("policy", DISPATCH_POLICIES)
def test_every_policy_decides_again(policy: str, batching: str) -> None:
    result = again(of_a_world(policy, batching))
    assert result.difference is None and not result.refused and result.decisions > 300, result


def test_several_batches_in_flight_are_decided_again() -> None:
    records = of_a_world("wait_ratio", "saturation", in_flight=3)
    middle = [i for i, one in enumerate(records) if one["kind"] == "snapshot"][3]
    for first in (1, middle):
        result = again([records[0], *records[first:]])
        assert result.difference is None and not result.refused, result


def of_rows(seed: int, operations: int = 400, *, joins: bool = True) -> list[dict[str, Any]]:
    """Rows that join, leave, are overtaken and lost; a server that goes over to batches and back."""
    machine = Machine(seed, joins=joins)
    kept = Kept(machine.server, lambda: machine.now_s)
    for number in range(operations):
        machine.happen()
        if number % 37 == 0:
            kept.snapshot()
    return kept.records()


@pytest.mark.parametrize("seed", range(6))
def test_who_joined_went_on_and_left_is_decided_again(seed: int) -> None:
    kept = of_rows(seed)
    turns = [record["result"] for record in kept if named(record) == "SolverStepPolled"]
    assert sum(bool(turn["advance"]) for turn in turns) > 20 and any(turn["leave"] for turn in turns)
    result = again(kept)
    assert result.difference is None and not result.refused and result.decisions > 150, result


@pytest.mark.parametrize("seed", range(2))
def test_what_ran_as_a_whole_is_decided_again(seed: int) -> None:
    kept = of_rows(seed, joins=False)
    assert sum(record["kind"] == "batch" and bool(record["result"]) and record["result"]["is_whole"] for record in kept) > 5
    result = again(kept)
    assert result.difference is None and not result.refused and result.decisions > 150, result


class Last(FifoPolicy):
    """Whoever came last is next: another version of the code."""

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return sorted(waiting, key=lambda w: w.since_s, reverse=True)


@pytest.mark.parametrize("policy", DISPATCH_POLICIES)
def test_another_code_is_found_with_both_sides(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = of_a_world(policy, "fixed", 0)
    monkeypatch.setattr(DISPATCH_POLICIES[policy], "rank", Last.rank)
    result = again(records)
    assert result.difference is not None and result.difference.recorded != result.difference.replayed
    assert result.at["kind"] in ("batch", "snapshot")


GIVEN: dict[str, tuple[tuple[str, ...], ...]] = {
    "request": (("now_s",), ("event", "observation", "stamp_ns"), ("event", "request", "id")),
    "batch": (("now_s",), ("result", "requests"), ("result", "batch")),
    "reply": (
        *(("result", "served", name) for name in ("queue_wait_s", "inference_s", "batch_size", "server_load", "superseded")),
        ("request",),
        ("result", "execution_horizon"),
    ),
    "event": (("result",),),
}


def changed(value: Any) -> Any:
    if isinstance(value, list):
        return value[::-1] if len(value) > 1 else [*value, None]
    if isinstance(value, dict):
        key = next((key for key in ("sequence", "remaining_s") if key in value), next(iter(value), "x"))
        return {**value, key: changed(value.get(key))}
    return value + 1 if isinstance(value, (int, float)) else "another"


@pytest.mark.parametrize("seed", range(16))
def test_one_record_that_is_another_is_found(seed: int) -> None:
    """What was decided, or what it was decided from: at the record, or where it first makes a difference."""
    rng, records = random.Random(seed), copy.deepcopy(of_a_world("best", "wait"))
    kind = rng.choice(list(GIVEN))
    number = rng.choice([r["n"] for r in records if r["kind"] == kind and r["n"] < len(records) // 2 and not _changes_nothing(r)])
    *path, key = rng.choice([path for path in GIVEN[kind] if _has(records[number], path)])
    part = functools.reduce(operator.getitem, path, records[number])
    part[key] = changed(part[key])
    result = again(records)
    assert result.difference is not None and result.at["n"] >= number


def _changes_nothing(record: dict[str, Any]) -> bool:
    """When a look at nothing was taken makes no difference to anybody."""
    return record["kind"] == "batch" and record["result"] is None


def _has(record: Any, path: Sequence[str]) -> bool:
    for name in path:
        if not isinstance(record, dict) or name not in record:
            return False
        record = record[name]
    return True


def test_a_record_that_is_missing_is_found_and_a_gap_begins_anew_at_the_next_snapshot() -> None:
    records = of_a_program(5)
    missing = next(r["n"] for r in records if r["kind"] == "request" and "result" in r)
    later = again([r for r in records if r["n"] != missing])
    assert later.skipped and later.decisions and later.difference is None
    unnoticed = [{**r, "n": r["n"] - (r["n"] > missing)} for r in records if r["n"] != missing]
    assert again(unnoticed).difference is not None


# --- horizons -------------------------------------------------------------------------------------------------------------


class Unsure(FakeEngine):
    clock = itertools.count(0.0, 0.25).__next__
    """What is decoded between two reads takes 0.25 s."""

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        updates = np.random.default_rng(len(requests)).random((3, 4, 2), np.float32)
        return [EngineReply(chunk_model=rows(), chunk_robot=rows(), updates=updates) for _ in requests]


def _decoding_s(record: Mapping[str, Any]) -> Any:
    return (record["event"]["request"] if record["kind"] == "request" else record["result"]["served"])["decoding_s"]


def of_horizons(policy: str) -> list[dict[str, Any]]:
    server = ModelServer(ServerConfig(name="s"), Unsure())
    kept = Kept(server)
    epoch = server.open_session(session_request(horizon=HorizonRequest(policy=policy, steps=2, threshold=0.2))).session_epoch
    for sequence in range(1, 9):
        server.submit(observation(epoch, sequence), float(sequence))
        assert server.loop.step(lambda: float(sequence))  # noqa: B023
    return kept.records()


@pytest.mark.parametrize("policy", ["", "static", "confidence", "curvature"])
def test_how_far_a_chunk_is_executed_is_decided_again(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = of_horizons(policy)
    assert again(records).difference is None
    assert {_decoding_s(record) for record in records if record["kind"] in ("request", "reply")} == {0.25}
    if policy:
        monkeypatch.setattr(HORIZON_POLICIES[policy], "rows", lambda self, confidence, horizon: 3)
        found = again(records).difference
        assert found is not None and (found.field, found.replayed) == ("result.execution_horizon", 3)


class Judge(FakeEngine):
    contract = replace(CONTRACT, output=OutputKind.JUDGEMENT, chunk_length=0, action_names=(), cameras=())

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        return [EngineReply(verdict="ongoing", text=f"of {len(requests)}") for _ in requests]


def of_text() -> list[dict[str, Any]]:
    server = ModelServer(ServerConfig(name="s"), Judge())
    kept = Kept(server)
    for component in (MONITOR, SYSTEM2):
        request = session_request(component=component, cameras=(), action_names=())
        asked = observation(
            server.open_session(request).session_epoch, images=(), prefix_model=empty(0, 0), prefix_robot=empty(0, 0)
        )
        server.submit(replace(asked, id=replace(asked.id, component=component)), 1.0)
        assert server.loop.step(lambda: 2.0)
    return kept.records()


def test_what_judges_and_planners_say_is_decided_again() -> None:
    result = again(of_text())
    assert result.difference is None and result.decisions > 6


# --- threads --------------------------------------------------------------------------------------------------------------


class Busy(Foreign):
    """Several at a time; fails now and then."""

    max_concurrent = 3

    def infer(self, requests: Sequence[InferenceRequest]) -> list[Any]:
        time.sleep(0.0002)
        return [] if random.random() < 0.1 else super().infer(requests)


def test_notes_of_many_threads_are_in_the_order_of_the_lock() -> None:
    """Robots that ask, come and go, engines that run, and somebody who resizes, drains and looks, all at once."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        kept = _stressed(seconds=0.8)
    finally:
        sys.setswitchinterval(interval_s)
    records = kept.records()
    result = again(records)
    assert result.difference is None and not result.refused, result
    kinds = Counter(r["kind"] for r in records)
    assert kinds["reply"] > 20 and kinds["snapshot"] > 1


def _stressed(seconds: float) -> Kept:
    server = ModelServer(ServerConfig(name="s", batch_size=4, max_concurrent=3, dispatch="best", max_sessions=6), Busy())
    kept, ends_s = Kept(server), time.monotonic() + seconds

    def robot(name: str) -> None:
        while time.monotonic() < ends_s:
            with contextlib.suppress(RfmError):
                epoch = server.open_session(session_request(name, cameras=())).session_epoch
                for sequence in range(1, random.randrange(2, 30)):
                    server.submit(_asked(epoch, sequence, name), time.monotonic())
                    time.sleep(0.0003)
                server.close_session(name, "system1", epoch)

    def engine() -> None:
        while time.monotonic() < ends_s:
            server.loop.step(time.monotonic)

    def operator() -> None:
        while time.monotonic() < ends_s:
            server.resize(random.randrange(1, 5), 6)
            server.snapshot(time.monotonic())
            server.collect_sessions([("r0", "system1")], time.monotonic())
            server.reconfigure(replace(server.config, dispatch=random.choice(list(DISPATCH_POLICIES))))
            kept.snapshot()
            time.sleep(0.05)

    does = [*[lambda i=i: robot(f"r{i}") for i in range(5)], engine, engine, operator]
    threads = [threading.Thread(target=do) for do in does]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return kept


def _asked(epoch: int, sequence: int, robot: str) -> ObservationRequest:
    return observation(epoch, sequence, robot, images=())


# --- nobody listens -------------------------------------------------------------------------------------------------------


def test_while_nobody_listens_a_server_is_as_without_a_journal() -> None:
    server = ModelServer(ServerConfig(name="s"), FakeEngine())
    kept = Kept(server)
    with server.locked_core() as brain:
        assert type(brain) is Witness
    kept.journal.listeners(0, 2e6)
    kept.written.write()
    with server.locked_core() as brain:
        assert type(brain) is ServerCore


@pytest.mark.parametrize(("limit", "notes"), [("MAX_NOTES", 11), ("MAX_IMAGE_BYTES", 5 * (16 * 16 * 3 + len(JPEG)))])
def test_what_is_decided_faster_than_it_is_written_begins_another_chain(
    limit: str, notes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session and five requests, each charged and deposited."""
    monkeypatch.setattr(journal, limit, notes)
    server = ModelServer(ServerConfig(name="s"), FakeEngine())
    kept = Kept(server)
    epoch = server.open_session(session_request()).session_epoch
    for sequence in range(1, 9):
        server.submit(observation(epoch, sequence), 1.0)
    kept.written.write()
    assert server.loop.step(lambda: 2.0)
    records = kept.records(failures=1)
    (first, second) = (number for number, record in enumerate(records) if record["kind"] == "begin")
    requests = [record for record in records[first:second] if record["kind"] == "request"]
    assert len(requests) == 5 and named(records[second - 2]) in ("RequestReceived", "RequestEnqueued"), "and nothing after the gap"
    before, after = again(records[:second]), again(records[second:])
    assert before.difference is None and before.broke_off.endswith("decided faster than it could be written")
    assert after.difference is None and any(record["kind"] == "reply" for record in records[second:])


def test_before_a_model_is_loaded_there_is_nothing_to_decide_again() -> None:
    kept = Kept(ModelServer(ServerConfig(name="s"), FakeEngine()))
    kept.written.follow(None, {})
    kept.journal.anew(1e6, "another model")
    kept.journal.note("transition", 1e6, lambda: {"from": "loading", "to": "ready", "reason": ""})
    kept.snapshot()
    records = kept.records()
    second = max(number for number, record in enumerate(records) if record["kind"] == "begin")
    result = again(records[second:])
    assert not result.refused and result.difference is None and not result.notes and result.snapshots == 1


def test_another_model_begins_another_chain() -> None:
    kept = Kept(ModelServer(ServerConfig(name="s"), FakeEngine()))
    kept.written.follow(ModelServer(ServerConfig(name="s", batch_size=3), FakeEngine()), {"model": "other"})
    kept.journal.anew(2e6, "another model")
    begins = [record for record in kept.records() if record["kind"] == "begin"]
    assert [one["config"]["batch_size"] for one in begins] == [1, 3] and begins[1]["engine"]["model"] == "other"
    assert len({page.run for page in kept.pages}) == 2


def test_what_went_wrong_outside_of_the_brain_is_told_with_the_reason() -> None:
    engine = Foreign()
    engine.does = 6
    server = ModelServer(ServerConfig(name="s"), engine)
    kept = Kept(server)
    epoch = server.open_session(session_request(cameras=())).session_epoch
    server.submit(observation(epoch, images=()), 1.0)
    assert not server.loop.step(lambda: 2.0)
    records = kept.records()
    (counted,) = [record for record in records if record["kind"] == "counts"]
    assert counted["counts"] == {"engine_error": 1} and counted["problems"] == {"engine_error": "RuntimeError: lost"}
    (reply,) = [record for record in records if record["kind"] == "reply"]
    assert again(records).difference is None and reply["event"]["answer"] is reply["result"] is None


# --- what cannot be recorded ----------------------------------------------------------------------------------------------


class Foreigner(DispatchPolicy):
    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        return waiting


def test_a_policy_of_somebody_else_is_said_not_to_be_recorded() -> None:
    server = ModelServer(ServerConfig(name="s"), FakeEngine(), policy=Foreigner())
    kept = Kept(server)
    epoch = server.open_session(session_request()).session_epoch
    server.submit(observation(epoch, 1), 1.0)
    assert server.loop.step(lambda: 2.0)
    records = kept.records()
    (snapshot,) = [record for record in records if record["kind"] == "snapshot"]
    assert snapshot["state"] is None and snapshot["config"]["dispatch"] == "fifo"
    assert snapshot["unrecordable"].startswith("dispatch policy Foreigner is not what `dispatch: fifo` makes")
    assert any(record["kind"] == "reply" for record in records), "all that was decided is recorded all the same"
    result = again(records)
    assert result.refused and "Foreigner is not what `dispatch: fifo` makes" in result.notes[0] and not result.decisions
