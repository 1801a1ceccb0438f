"""A factory in virtual time, recorded as a live one is, to a bag: its replay comes close to it, and with a change to one that was
run with that change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.robots.recorded import RecordedBrain
from ros2_rfm_serving.audit.servers.journal import ServerJournal
from ros2_rfm_serving.audit.whatif import replay as replaying
from ros2_rfm_serving.audit.whatif.asking import Question, what_if
from ros2_rfm_serving.audit.whatif.case import Case
from ros2_rfm_serving.audit.whatif.changes import with_settings
from ros2_rfm_serving.audit.whatif.comparison import Comparison
from ros2_rfm_serving.audit.whatif.factories import Knowledge
from ros2_rfm_serving.audit.whatif.figures import Figures
from ros2_rfm_serving.audit.whatif.reading import recording
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.robot import RobotConfig
from test.unit.audit import recorded
from test.unit.audit import whatif_cases as made

STAMP_S = 1_000_000.0
KNOWN = Knowledge(profile=Profile({}), catalogue=Catalogue(models={}))


def run(case: Case, folder: Path, seed: int = 7, lost: str = "") -> Figures:
    """Recorded to a bag, as far as a replay in virtual time needs it. lost: a writer whose journal is not in it."""
    pages: list[Page] = []
    runs = itertools.count(1)

    def journal(writer: str, role: str) -> Journal:
        return Journal(writer, role, send=pages.append, stamp_s=lambda: STAMP_S, draw=lambda: next(runs))

    journals: list[tuple[Journal, Callable[[], object]]] = []

    def brain(config: RobotConfig) -> RecordedBrain:
        one = journal(f"robot/{config.name}", "robot")
        journals.append((one, lambda: None))
        return RecordedBrain(config, one)

    with mock.patch("ros2_rfm_serving.audit.whatif.robot.RobotCore", brain):
        live = replaying._Replay(case, seed, None)
    for name, host in live._hosts.items():
        written = ServerJournal(journal(f"server/{name}", "server"), lambda: live._world.events.now_s)
        written.follow(host._server, {})
        journals.append((written._journal, written.write))
    for one, _ in journals:
        one.listeners(1, -10.0)
        one.tend(0.0)
    outcome = live.outcome()
    for one, write in journals:
        write()
        one.close(case.seconds, "the test ends")
    with BagWriter(folder) as bag:
        _write(bag, [page for page in pages if page.writer != lost], case)
    return outcome.figures


def _write(bag: BagWriter, pages: list[Page], case: Case) -> None:
    kind = "rfm_serving/msg/AuditPage"
    for page in pages:
        bag.write(f"/{page.writer}/audit", kind, recorded.definition(kind), recorded.page(page), int(STAMP_S * 1e9))
    for i, server in itertools.product(range(int(2 * case.seconds)), case.servers):
        status = {"header": recorded.made("std_msgs/msg/Header", frame_id=server), "state": 1}
        recorded.write(bag, f"/{server}", "rfm_serving/msg/ServerStatus", int((STAMP_S + 0.5 * i) * 1e9), **status)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Figures]]:
    folder = tmp_path_factory.mktemp("bag") / "bag"
    yield folder, run(made.case(14), folder)


def rows_of(found: Comparison) -> dict[str, tuple[float, float]]:
    """Name -> as replayed, changed."""
    return {row.name: (row.replayed.median, row.changed.median if row.changed else 0.0) for row in found.rows}


FIGURES = ("chunks_hz", "actions_hz", "staleness_p50_s", "round_trip_p50_s", "mean_batch")


def test_what_is_read_from_a_recording_are_its_figures(live: tuple[Path, Figures]) -> None:
    folder, was = live
    read = recording(Bag(folder))
    assert len(read.case.robots) == 14 and read.case.servers["server_1"].config.dispatch == "fifo"
    for name in FIGURES:
        assert getattr(read.figures, name) == pytest.approx(getattr(was, name), rel=0.02), name


def test_a_replay_comes_close_to_what_was_recorded(live: tuple[Path, Figures]) -> None:
    folder, _ = live
    for row in what_if(Bag(folder), Question(), KNOWN, seeds=2).rows:
        if row.name in FIGURES:
            assert abs(row.error) < 0.06, row


@pytest.mark.parametrize("change", ["batch_size=2", "mode=sync", "batching=wait"])
def test_a_replay_with_a_change_comes_close_to_a_run_with_it(live: tuple[Path, Figures], change: str, tmp_path: Path) -> None:
    folder, _ = live
    told = rows_of(what_if(Bag(folder), Question(settings=change), KNOWN, seeds=2))
    really = run(with_settings(made.case(14), change), tmp_path / "bag", seed=8)
    for name in FIGURES:
        assert told[name][1] == pytest.approx(getattr(really, name), rel=0.1), name


def test_a_recording_without_journals_is_refused_with_the_fix(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "bag") as bag:
        _write(bag, [], made.case(1))
    with pytest.raises(RfmError, match="no robot's journal is in it; record with"):
        recording(Bag(tmp_path / "bag"))


def _replanned(at_s: float, case: Case) -> Case:
    """From then on the schedule names a server that nobody has started."""
    (placement,), routes = case.schedule.placements, case.schedule.routes
    then = replace(
        case.schedule,
        epoch=2,
        placements=(replace(placement, server="server_2_system1"),),
        routes=tuple(replace(route, server="server_2_system1") for route in routes),
    )
    return replace(case, schedules=(*case.schedules, (at_s, then)))


def test_a_factory_that_was_planned_anew_is_replayed_with_the_servers_of_every_schedule(tmp_path: Path) -> None:
    was = run(_replanned(12.0, made.case(2)), tmp_path / "bag")
    read = recording(Bag(tmp_path / "bag"))
    assert set(read.case.servers) == {"server_1"} and len(read.case.schedules) == 2
    assert any("server_2_system1 was planned" in gap and "is not there" in gap for gap in read.case.gaps)
    found = what_if(Bag(tmp_path / "bag"), Question(settings="dispatch=swift"), KNOWN, seeds=2)
    (chunks,) = (row for row in found.rows if row.name == "chunks_hz")
    assert was.chunks_hz > 1.0 and abs(chunks.error) < 0.1 and chunks.ratio == pytest.approx(1.0, abs=0.1)


def test_a_recording_that_lacks_the_journal_of_one_who_gave_chunks_is_refused_with_its_name(tmp_path: Path) -> None:
    case = made.case(2)
    other = made.server("server_2")
    other = replace(other, placement=replace(other.placement, model="another"))
    stays, moves = case.schedule.routes
    schedule = replace(
        case.schedule,
        placements=(*case.schedule.placements, other.placement),
        routes=(stays, replace(moves, server="server_2")),
    )
    both = replace(case, servers={**case.servers, "server_2": other}, schedules=((0.0, schedule),))
    run(both, tmp_path / "bag", lost="server/server_2")
    with pytest.raises(RfmError, match=r"no journal of server_2 is in it.*record with `rfm record`"):
        recording(Bag(tmp_path / "bag"))
    like = replace(schedule, placements=(*case.schedule.placements, replace(other.placement, model="smolvla")))
    run(replace(both, schedules=((0.0, like),)), tmp_path / "like", lost="server/server_2")
    read = recording(Bag(tmp_path / "like"))
    assert set(read.case.servers) == {"server_1", "server_2"}
    assert any("server_2 has no journal" in gap and "stands in" in gap for gap in read.case.gaps)
