"""What a server's records are: events that come back from their bytes, and errors that name what is none."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import Checked, Page, records
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.replay import Replayed, brains, replay
from ros2_rfm_serving.audit.servers.reading import event_of
from ros2_rfm_serving.audit.servers.records import record_of, without_arrays
from ros2_rfm_serving.audit.servers.replay import ServerReplay
from ros2_rfm_serving.audit.servers.witness import Note, witnessed
from ros2_rfm_serving.audit.values import SERVER_EVENTS
from ros2_rfm_serving.audit.whatif.chains import chains_of
from ros2_rfm_serving.dispatch import DISPATCH_POLICIES, DispatchPolicy, EngineView, WaitingRequest, dispatcher
from ros2_rfm_serving.dispatch.fifo import FifoPolicy
from ros2_rfm_serving.errors import BadMessageError, RfmError
from ros2_rfm_serving.server import ModelServer, ServerConfig, ServerCore, events
from ros2_rfm_serving.types import SYSTEM1
from ros2_rfm_serving.types.state import kept
from test.unit.audit.servers import Kept, again
from test.unit.audit.test_server_replay import named, of_a_program, of_a_world, of_pipelined_sessions, of_rows, of_text
from test.unit.deep_equality import difference
from test.unit.fakes import FakeEngine, observation, session_request
from test.unit.server.frames_machine import FramesMachine
from test.unit.server.mirrored import CACHES
from test.unit.server.rows_machine import Machine

pytestmark = pytest.mark.interpreted
Records = list[dict[str, Any]]
ELSEWHERE = {("EncodedImage", "data"): "stands in the observation itself"}
NO_BATCH = {"~": "BatchEnded", "batch": "x", "has_answer": [], "num_failed": 0}
NO_ENGINE = {"~": "EnginePolled", "engine": 99}


def of_rare_events() -> Records:
    """Operators' commands, other rates of the schedule, and requests that are refused or dropped."""
    server = ModelServer(ServerConfig(name="s"), FakeEngine())
    log = Kept(server)
    epoch = server.open_session(session_request()).session_epoch
    server.declare({("r1", SYSTEM1): 20.0})
    server.superseded_early(observation(epoch, 1).id)
    with pytest.raises(BadMessageError):
        server.submit(replace(observation(epoch, 2), state=np.zeros(99, np.float32)), 1.0)
    server.submit(observation(epoch, 3), 1.1)
    server.drain()
    with pytest.raises(BadMessageError):
        server.check_admission(observation(epoch, 4).id)
    server.refuse_waiting()
    server.resume()
    server.close_session("r1", SYSTEM1, epoch)
    return log.records()


def test_what_seldom_happens_is_decided_again() -> None:
    result = again(of_rare_events())
    assert result.difference is None and not result.refused and result.decisions >= 10, result


# --- events come back -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(seed=st.integers(0, 1 << 32), policy=st.sampled_from([*DISPATCH_POLICIES]), pipelined=st.booleans(), joins=st.booleans())
def test_each_event_comes_back_from_its_bytes_and_is_decided_alike(seed: int, policy: str, pipelined: bool, joins: bool) -> None:
    """Any policy; rows that join and leave, or batches; sessions with one request at a time, or pipelined ones."""
    machine = FramesMachine(seed, dispatch=policy) if pipelined else Machine(seed, dispatch=policy, joins=joins)
    notes: list[Note] = []
    with machine.server.locked_core() as core:
        state = core.state()
        twin = ServerCore.from_state(core.config, core.contract, core.limits, state)
    machine.server.record_calls(lambda core: witnessed(core, lambda: machine.now_s, notes.append))
    for _ in range(80):
        machine.happen()
    for note in notes:
        record = orjson.loads(orjson.dumps(record_of(note), option=orjson.OPT_SERIALIZE_NUMPY))
        event, now_s = event_of(record)
        assert not (found := difference(without_arrays(note.event), event, ELSEWHERE)), found
        assert now_s == (note.now_s or 0.0)
        try:
            answer = twin.handle(event, now_s)
        except RfmError as error:
            answer = error
        twin.faults.clear()
        if isinstance(note.answer, Exception):
            assert repr(answer) == repr(note.answer)
    assert len(notes) > 50 and not (found := difference(machine.server.core.brain, twin, CACHES)), found  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "make",
    [
        *(lambda policy=policy: of_a_world(policy, "wait") for policy in DISPATCH_POLICIES),
        lambda: of_a_world("best", "fixed", in_flight=3),
        lambda: of_a_world("best", "saturation"),
        lambda: of_rows(3),
        lambda: of_rows(4, joins=False),
        of_pipelined_sessions,
        lambda: of_a_program(11),
    ],
)
def test_a_replay_begins_at_any_snapshot(make: Callable[[], Records]) -> None:
    kept_records = make()
    snapshots = [number for number, record in enumerate(kept_records) if record["kind"] == "snapshot"]
    for number, first in enumerate(snapshots):
        result = again([kept_records[0], *kept_records[first:]])
        assert result.difference is None and not result.refused, (result.at, result.difference, result.notes)
        assert result.snapshots == len(snapshots) - number - 1


def test_records_name_no_module_and_no_private_attribute() -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                assert key == "~" or not key.startswith("_"), key
                walk(part)
            assert ":" not in str(value.get("~", "")) and value.get("~") not in ("method", "function", "partial", "@")
        elif isinstance(value, list):
            for part in value:
                walk(part)

    every = [*of_a_program(3, 300), *of_a_program(8, 300), *of_rows(3)]
    every += [*of_pipelined_sessions(), *of_text(), *of_rare_events()]
    walk(every)
    assert {*map(named, every)} - {""} == SERVER_EVENTS.keys()


# --- another answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SessionRequested", "RequestEnqueued", "EnginePolled", "BatchEnded", "AnswerReceived"])
def test_an_answer_that_is_another_is_found_with_its_event(name: str) -> None:
    changed = copy.deepcopy(of_a_program(3, 300))
    record = next(one for one in changed if named(one) == name and one.get("result") not in (None, {}))
    record["result"] = {"another": 1}
    result = again(changed)
    assert result.difference is not None and (result.at["n"], result.at["event"]) == (record["n"], name)
    assert result.difference.field.startswith("result")


def test_a_refusal_in_place_of_an_answer_is_found_and_the_other_way_round() -> None:
    decided = of_a_program(3, 300)
    for key, other, value in (("result", "raised", "BadMessageError: no"), ("raised", "result", None)):
        changed = copy.deepcopy(decided)
        record = next(one for one in changed if named(one) in ("RequestReceived", "RequestEnqueued") and key in one)
        del record[key]
        record[other] = value
        result = again(changed)
        assert result.difference is not None and result.at["n"] == record["n"]


# --- policies of other packages -------------------------------------------------------------------------------------------


class Fair(DispatchPolicy):
    """Learns, and names what it keeps."""

    KEPT = kept(served="_served", newest="_newest")

    def __init__(self) -> None:
        self._served: defaultdict[str, int] = defaultdict(int)
        self._newest: deque[float] = deque(maxlen=3)

    def rank(self, waiting: Sequence[WaitingRequest], engine: EngineView, now_s: float) -> Sequence[WaitingRequest]:
        self._newest.append(now_s)
        ranked = sorted(waiting, key=lambda each: (self._served[each.request.id.robot], each.since_s))
        self._served[ranked[0].request.id.robot] += 1
        return ranked


class Forgetful(FifoPolicy):
    """Has an attribute that no table names."""

    def __init__(self) -> None:
        self.seen: set[str] = set()


class Unencodable(FifoPolicy):
    """Keeps a value that no recording can have."""

    KEPT = kept("newest")

    def __init__(self) -> None:
        self.newest = {"r1": Counter("a")}


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    def add(kind: type) -> None:
        class Entry:
            name = "added"
            load = staticmethod(lambda: kind)

        monkeypatch.setattr(dispatcher, "entry_points", lambda group: [Entry()])

    return add


def served_by(dispatch: str, rounds: int = 6) -> tuple[ModelServer, Kept, Callable[[int], None]]:
    server = ModelServer(ServerConfig(name="s", dispatch=dispatch, batch_size=2), FakeEngine())
    log = Kept(server)
    epochs = {robot: server.open_session(session_request(robot)).session_epoch for robot in ("r1", "r2", "r3")}

    def serve(first: int) -> None:
        for number in range(first, first + rounds):
            for robot, epoch in epochs.items():
                server.submit(observation(epoch, number, robot), float(number))
            server.loop.step(lambda: number + 0.5)  # noqa: B023

    return server, log, serve


def test_a_policy_that_names_what_it_keeps_is_decided_again(added: Callable[[type], None]) -> None:
    added(Fair)
    _, log, serve = served_by("added")
    serve(1)
    log.snapshot()
    serve(20)
    decided = log.records()
    middle = max(number for number, record in enumerate(decided) if record["kind"] == "snapshot")
    assert decided[middle]["state"]["mailboxes"]["policy"]["served"]
    for first in (1, middle):
        result = again([decided[0], *decided[first:]])
        assert result.difference is None and not result.refused and result.decisions > 20, result


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Forgetful, "Forgetful has seen, which its KEPT does not name"), (Unencodable, "Counter cannot be recorded")],
)
def test_a_policy_that_cannot_be_recorded_is_named_and_the_chain_goes_on(
    kind: type, reason: str, added: Callable[[type], None]
) -> None:
    added(kind)
    server, log, serve = served_by("added")
    serve(1)
    server.reconfigure(replace(server.config, dispatch="best"))
    log.snapshot()
    serve(20)
    decided = log.records()
    first, second = (record for record in decided if record["kind"] == "snapshot")
    assert reason in first["unrecordable"] and first["state"] is None and first["config"]["dispatch"] == "added"
    assert "unrecordable" not in second and second["state"]
    result = again(decided)
    assert result.refused and any(reason in note for note in result.notes)
    assert result.difference is None and result.skipped > 20 and result.decisions > 20, "from the second snapshot on"


# --- what is no record ----------------------------------------------------------------------------------------------------


def damaged(spoil: Callable[[dict[str, Any]], None], kind: str, nth: int = 40) -> tuple[Records, Replayed]:
    changed = copy.deepcopy(of_a_program(3, 300))
    record = [one for one in changed if one["kind"] == kind][: nth + 1][-1]
    spoil(record)
    return changed, again(changed)


def renamed(record: dict[str, Any]) -> None:
    record["event"]["~"] = "HatReceived"


def with_a_hat(record: dict[str, Any]) -> None:
    record["event"]["hat"] = 1


def without_a_field(record: dict[str, Any]) -> None:
    record["event"].popitem()


def without_an_event(record: dict[str, Any]) -> None:
    record["event"] = None


def at_no_time(record: dict[str, Any]) -> None:
    record["now_s"] = "soon"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (renamed, "'HatReceived' is no event of this version's servers"),
        (with_a_hat, "has hat, which this version does not know"),
        (without_a_field, "as it was recorded lacks"),
        (without_an_event, "None is no event of this version's servers"),
        (at_no_time, "now_s is 'soon', and no time"),
    ],
)
def test_an_event_that_cannot_be_read_is_named_and_the_next_snapshot_goes_on(
    spoil: Callable[[dict[str, Any]], None], problem: str
) -> None:
    changed, result = damaged(spoil, "request")
    assert result.refused and result.difference is None and any(problem in note for note in result.notes), result.notes
    assert result.decisions > 50 and result.skipped < len(changed) / 2 and result.snapshots > 5


@pytest.mark.parametrize("event", [NO_BATCH, NO_ENGINE])
def test_an_event_with_values_of_another_kind_is_a_difference(event: dict[str, Any]) -> None:
    _, result = damaged(lambda record: record.update(event=event), "batch")
    assert result.difference is not None and result.at["event"] == event["~"]


def with_another_name(record: dict[str, Any]) -> None:
    record["state"]["hat"] = record["state"].pop("figures")


def of_another_kind(record: dict[str, Any]) -> None:
    record["state"]["sessions"]["open"] = 7


def of_a_robot(record: dict[str, Any]) -> None:
    record["config"] = codec.plain(events.EnginePolled(0))


def without_limits(record: dict[str, Any]) -> None:
    record["limits"] = None


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (with_another_name, "the snapshot of ServerCore has hat, which this version does not know and lacks figures"),
        (of_another_kind, "TypeError"),
        (of_a_robot, "it is no snapshot of a server"),
        (without_limits, "`limits` has no limits of engines"),
    ],
)
def test_a_snapshot_that_cannot_be_restored_is_named_and_the_next_one_goes_on(
    spoil: Callable[[dict[str, Any]], None], problem: str
) -> None:
    changed = copy.deepcopy(of_a_program(3, 300))
    spoil(changed[1])
    result = again(changed)
    assert result.refused and any("a snapshot, cannot be replayed from" in note and problem in note for note in result.notes)
    assert result.difference is None and result.decisions > 50


def test_a_line_that_is_cut_off_is_named() -> None:
    lines = [orjson.dumps(record) for record in of_a_program(3, 300)]
    pages = [Page(writer="server/s", run=1, first=0, previous="", lines=(*lines[:30], lines[30][:40]))]
    pages.append(Page(writer="server/s", run=1, first=31, previous="", lines=tuple(lines[31:])))
    *_, result = replay(pages, {"server": brains(ServerReplay)})
    assert result.refused and any("a record is no JSON" in note for note in result.notes)
    assert result.difference is None and result.decisions > 50, "the next page goes on at its snapshot"


@pytest.mark.parametrize("recorded", [1, 3])
def test_a_recording_in_another_format_is_refused_by_its_name(recorded: int) -> None:
    """As those were in which servers kept their objects: also by what reads only parts of it. Its hashes can be verified."""
    log = Kept(ModelServer(ServerConfig(name="s"), FakeEngine()))
    log.records()
    lines = [{**record, "format": recorded} if "format" in record else record for record in records(log.pages[0])]
    page = replace(log.pages[0], lines=tuple(map(orjson.dumps, lines)))
    refusal = f"recorded in format {recorded}, which this version does not read"
    *_, result = replay([page], {"server": brains(ServerReplay)})
    assert result.refused and not result.decisions and result.notes == [refusal]
    for read in (lambda: AuditLog([page]), lambda: chains_of([page])):
        with pytest.raises(RfmError, match=f"server/s: {refusal}"):
            read()
    checked = Checked("server/s", page.run)
    for one in log.pages:
        checked.add(one)
    checked.end()
    assert not checked.flaws


def test_a_decision_where_no_model_was_loaded_is_named() -> None:
    kept = of_rare_events()
    for record in kept:
        if record["kind"] == "snapshot":
            record.update(dict.fromkeys(("config", "contract", "limits", "state")))
    result = again(kept)
    assert result.refused and result.difference is None and "it is a decision, and no model was loaded" in result.notes[0]
