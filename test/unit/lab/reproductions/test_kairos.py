"""Replay of traces in virtual time, and the sweep over horizons."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lab.reproductions.kairos import data as tables
from lab.reproductions.kairos.claims import Results, claims_of, reduction
from lab.reproductions.kairos.episodes import arms_of, count, engine_of
from lab.reproductions.kairos.points import FIGURES, Point, Setting, capacity_hz, points_of, run
from lab.reproductions.kairos.recorded import load
from lab.reproductions.kairos.replay import Deployment, Load, replay
from lab.reproductions.kairos.sweep import (
    Cell,
    load_cells,
)
from lab.reproductions.kairos.traces import Outcome, Pace, TraceRobot, cut_anew, load_traces, write_traces
from lab.reproductions.kairos.workloads import WORKLOADS
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.server.horizon import horizon_decisions
from ros2_rfm_serving.types import (
    NO_VALUES,
    SYSTEM1,
    ActionChunk,
    Array,
    EngineReply,
    HorizonRequest,
    ModelContract,
    ObservationRequest,
    OutputKind,
    SessionGrant,
    SessionRequest,
    empty,
)
from ros2_rfm_serving.virtual_time.events import Events
from test.unit.fakes import SERVED
from test.unit.lab.reproductions.recordings import PUSH, TRACE, WORKLOAD, recorded

PACE = Pace(control_rate_hz=30.0, lead_steps=2, slo_s=0.5)


# --- one robot ---


class SlowService:
    """Answers after the same time, and remembers what it was asked."""

    way_s = 0.01

    def __init__(self, events: Events, seconds: float) -> None:
        self._events, self._seconds = events, seconds
        self.asked: list[tuple[float, ObservationRequest]] = []

    def open(self, request: SessionRequest) -> SessionGrant:
        return SessionGrant(session_epoch=7, contract=ModelContract(model="m", model_hash="", output=OutputKind.ACTION_CHUNK))

    def close(self, robot: str, epoch: int) -> None: ...

    def send(self, request: ObservationRequest, client: TraceRobot) -> None:
        self.asked.append((self._events.now_s, request))
        chunk = ActionChunk(
            id=request.id,
            stamp_ns=request.stamp_ns,
            server="s",
            model_hash="",
            action_names=(),
            chunk_model=empty(4, 0),
            chunk_robot=empty(4, 0),
            confidence=NO_VALUES,
            execution_horizon=0,
            inference_delay_steps=0,
            served=SERVED,
        )
        self._events.at(self._events.now_s + self._seconds, client.receive, chunk)


def one_task(seconds: float, lead_steps: int) -> tuple[Outcome, SlowService]:
    events, outcomes = Events(), list[Outcome]()
    service = SlowService(events, seconds)
    pace = Pace(control_rate_hz=10.0, lead_steps=lead_steps)
    TraceRobot("r", pace, events, service, lambda robot, outcome: outcomes.append(outcome)).begin(TRACE)
    events.run(100.0)
    (outcome,) = outcomes
    return outcome, service


def test_a_chunk_in_time_costs_nothing() -> None:
    outcome, service = one_task(0.1, lead_steps=2)
    assert outcome.latency_s == pytest.approx(0.1 + 0.4 + 0.2) and outcome.stalled_s == 0.0
    (first_s, first), (second_s, second) = service.asked
    assert (first_s, first.episode_start, first.report.executing_s) == (0.0, True, 0.0)
    assert second_s == pytest.approx(0.3) and not second.episode_start
    assert second.report.executing_s == pytest.approx(0.2) and second.report.remaining_s == pytest.approx(0.2)
    assert second.report.executed_steps == 4 and second.id.component == SYSTEM1


def test_a_robot_stands_still_while_its_chunk_is_late() -> None:
    outcome, _ = one_task(0.5, lead_steps=2)
    assert outcome.stalled_s == pytest.approx(0.3) and outcome.latency_s == pytest.approx(0.5 + 0.4 + 0.3 + 0.2)
    assert outcome.waits_s == pytest.approx([0.5, 0.5])


def test_a_synchronous_robot_asks_when_it_has_nothing_left() -> None:
    outcome, service = one_task(0.1, lead_steps=0)
    assert outcome.latency_s == pytest.approx(0.1 + 0.4 + 0.1 + 0.2)
    assert service.asked[1][1].report.remaining_s == pytest.approx(0.0)


# --- many ---


@pytest.mark.parametrize("load", [Load(num_tasks=20, rate_hz=5.0), Load(num_tasks=20, num_robots=4)])
def test_a_replay_follows_from_its_seed(load: Load) -> None:
    first, again, other = (replay(PUSH, load, Deployment(dispatch="wait_ratio"), PACE, seed) for seed in (1, 1, 2))
    assert first == again and first != other
    assert len(first.outcomes) == 20 and first.num_rows == sum(len(o.trace.executed) for o in first.outcomes)
    assert all(o.latency_s >= o.trace.steps / PACE.control_rate_hz for o in first.outcomes)


def test_what_overflows_runs_in_the_cloud() -> None:
    load = Load(num_tasks=60, rate_hz=200.0)
    edge, hybrid = (replay(PUSH, load, Deployment(dispatch="wait_ratio", cloud=cloud), PACE, 0) for cloud in (False, True))
    assert edge.offloaded_rows == 0 < hybrid.offloaded_rows < hybrid.num_rows
    assert np.mean(hybrid.latencies_s) < np.mean(edge.latencies_s)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_can_be_replayed(figure: str) -> None:
    point = next(iter(points_of(figure, "flow", (0.5, 1.5), (10,))))
    result = run(point, recorded(), Setting(num_tasks=8, seeds=(0, 1)))
    assert result.p25_s <= result.p95_s and result.success == 1.0 and result.requests == 4.0 and 0.0 < result.attainment <= 1.0
    assert result.age_ms >= 2.5, "an observation takes as long to get there"


def test_arrivals_are_shares_of_what_the_edge_can_do() -> None:
    half, over = (
        run(Point(workload="flow", horizon="static", dispatch="fifo", load=load), recorded(), Setting(num_tasks=300, seeds=(0,)))
        for load in (0.5, 2.0)
    )
    assert half.rate_hz == pytest.approx(0.5 * capacity_hz(recorded()))
    assert half.batch < 4 and over.batch > 12 and over.mean_s > 2 * half.mean_s


def test_the_same_episodes_cut_anew_ask_as_often_as_their_rounds_say() -> None:
    assert cut_anew(replace(TRACE, executed=(4, 4, 1)), 4).executed == (4, 4, 1)
    assert cut_anew(TRACE, 6).executed == (6,) and cut_anew(TRACE, 6).steps == TRACE.steps
    point, setting = Point(workload="flow", horizon="static", dispatch="fifo", load=1.5, cut=2), Setting(num_tasks=8, seeds=(0,))
    cut = run(point, recorded(), setting)
    assert cut.requests > 6.0 and cut.rate_hz == pytest.approx(1.5 * capacity_hz(recorded().only(cut=2)))
    assert recorded().spread() == 0.0 < recorded().only(cut=2).spread()


def test_what_was_written_is_read_as_it_was(tmp_path: Path) -> None:
    setting, points = Setting(num_tasks=8, seeds=(0,)), [*points_of("16", "flow", (1.5,), ())][:2]
    points.append(replace(points[0], seed=3, succeeding=True, refetch=True, cut=2))
    points = [replace(point, horizon="static") for point in points]
    runs = {point: run(point, recorded(), setting) for point in points}
    tables.write("16", Results(recorded={"flow": recorded()}, runs=runs), points, tmp_path)
    read = tables.written(tmp_path, ("11", "16"))
    assert read.keys() == runs.keys() and all(read[p].mean_s == pytest.approx(runs[p].mean_s, rel=1e-5) for p in points)
    assert read[points[-1]].slow_steps > 0 and read[points[0]].steps == pytest.approx(runs[points[0]].steps, rel=1e-5)


def test_a_slow_cloud_is_worth_less() -> None:
    load = Load(num_tasks=60, rate_hz=60.0)
    quick, slow = (
        np.mean(replay(PUSH, load, Deployment(dispatch="fifo", edge=False, cloud=True, cloud_time=time), PACE, 0).latencies_s)
        for time in (0.5, 1.0)
    )
    assert slow > 1.2 * quick


def test_more_batches_in_flight_make_more_of_a_cloud_far_away() -> None:
    load = Load(num_tasks=200, rate_hz=60.0)
    one, two = (
        replay(PUSH, load, Deployment(dispatch="wait_ratio", cloud=True, batches_in_flight=number), PACE, 0) for number in (1, 2)
    )
    assert two.offloaded_rows > one.offloaded_rows and np.mean(two.latencies_s) < 0.9 * np.mean(one.latencies_s)


def test_newer_observations_are_newer_and_every_task_ends() -> None:
    pace, load = replace(PACE, lead_steps=8), Load(num_tasks=60, rate_hz=16.0)
    never, asked = (
        replay(PUSH, load, Deployment(dispatch="wait_ratio", refetch_after_s=after_s), pace, 0) for after_s in (math.inf, 0.05)
    )
    assert never.refetched == 0 < asked.refetched
    ages_s = [np.mean([age_s for outcome in report.outcomes for age_s in outcome.ages_s]) for report in (never, asked)]
    assert ages_s[1] < ages_s[0] and all(len(outcome.ages_s) == 4 for outcome in asked.outcomes)


def test_a_claim_is_computed() -> None:
    fifo = run(Point(workload="flow", horizon="static", dispatch="fifo", load=1.5), recorded(), Setting(num_tasks=8, seeds=(0,)))
    faster = replace(fifo, mean_s=fifo.mean_s / 2)
    assert reduction(faster, fifo) == pytest.approx(50.0) and reduction(fifo, faster) == pytest.approx(-100.0)
    results = Results(recorded={"flow": recorded()}, runs={fifo.point: fifo})
    with pytest.raises(KeyError):
        results.of("flow").run("confidence", "fifo")
    assert claims_of(results) == {"flow": []}, "nothing is claimed of what was not run"


def test_a_workload_whose_policy_sees_is_recorded_with_its_cameras(repository: Path) -> None:
    seen = replace(WORKLOAD, model="metaworld_images", tasks=("handle-press",), sees=True)
    engine, (arm, *others) = engine_of(seen, repository / "models" / seen.model), arms_of(seen, "handle-press", 1)
    assert not others and len(engine.contract.cameras) == len(arm.cameras) == 2
    none = Cell.none(0.0, "static", 8.0, "handle-press")
    one = count([arm], engine, none, seen.horizon("static", 8), 1)
    assert (one.episodes, one.successes) == (1, 1) and one.steps > one.rounds > 1
    assert count([arm], engine, one, seen.horizon("static", 8), 1) == one, "what is there is not run again"


@pytest.mark.parametrize("name", WORKLOADS)
def test_shipped_recordings_fit_their_workload(repository: Path, name: str) -> None:
    folder = repository / "lab" / "reproductions" / "kairos" / "recordings" / name
    if not folder.is_dir():
        pytest.skip("not recorded")
    held = load(WORKLOADS[name], folder)
    assert {task for task, _ in held.traces["static"]} == set(held.workload.tasks)
    assert (repository / "models" / held.workload.model).is_dir() and held.requests() > 1


# --- horizons ---


def rows_of(horizon: HorizonRequest, updates: Array) -> int:
    (outlook,) = horizon_decisions([horizon], [EngineReply(chunk_robot=empty(len(updates[0]), 1), updates=updates)])
    return outlook.execution_horizon


def test_the_paper_s_rule_compares_an_action_s_last_update_with_its_earlier_ones() -> None:
    updates = np.ones((3, 8, 1), np.float32)
    updates[-1, 5:] = 1.5  # Fig. 7: 50 % above the mean, at a threshold of 40 %
    assert rows_of(WORKLOAD.horizon("confidence", 0.4), updates) == 5
    assert rows_of(WORKLOAD.horizon("confidence", 0.6), updates) == 8
    assert rows_of(WORKLOAD.horizon("confidence", 0.4), 0.01 * updates) == 5, "relative"
    updates[-1, 1:] = 1.5
    assert rows_of(WORKLOAD.horizon("confidence", 0.4), updates) == 4, "H_min"


def test_curvature_is_how_far_the_answer_moved_from_where_the_second_step_was_heading() -> None:
    updates = np.ones((4, 8, 1), np.float32)
    updates[2:, 6:] = 1.2  # two steps, 0.2 each
    assert rows_of(WORKLOAD.horizon("curvature", 0.3), updates) == 6
    assert rows_of(WORKLOAD.horizon("curvature", 0.5), updates) == 8
    assert rows_of(WORKLOAD.horizon("curvature", 0.3), 0.01 * updates) == 8, "absolute"
    updates[0] = 9.0
    assert rows_of(WORKLOAD.horizon("curvature", 0.5), updates) == 8, "the first step knows nothing yet"
    updates[2, 4:] = np.nan
    assert rows_of(WORKLOAD.horizon("curvature", 0.5), updates) == 4
    assert rows_of(WORKLOAD.horizon("curvature", 0.5), updates[:2]) == 0, "two steps cannot bend: the robot's own"


# --- files and the command ---


def test_traces_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "traces.csv"
    write_text(file, write_traces(PUSH))
    assert load_traces(file) == PUSH


@pytest.mark.parametrize(
    "text", ["", "a,b\n", "policy,value,task,seed,success,executed\n", "policy,value,task,seed,success,executed\ns,4,p,1,1,4 x\n"]
)
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "traces.csv"
    write_text(file, text)
    with pytest.raises(ConfigurationError, match=r"traces\.csv"):
        load_traces(file)
    with pytest.raises(ConfigurationError, match="nothing"):
        load_cells(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--workload", "flows"), "no 'flows'"),
        (("--figure", "15", "--workload", "diffusion"), "of 'flow' alone"),
        (("--data", "nowhere"), "no traces.csv"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", "kairos", *options, "--out", str(tmp_path)])
    assert result.exit_code and problem in str(result.exception)


def test_the_command_is_alive(tmp_path: Path) -> None:
    command = ["reproduce", "kairos", "--figure", "16", "--quick", "--jobs", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert {file.name for file in tmp_path.iterdir()} == {"figure16.csv", "figure16.png"}


@pytest.mark.patient
def test_a_quick_look_at_everything_has_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.reproductions.kairos.run.QUICK_TASKS", 2)
    result = CliRunner().invoke(app, ["reproduce", "kairos", "--quick", "--jobs", "1", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "figure14.csv").is_file() and not (tmp_path / "README.md").exists(), "every rate and fleet is on the page"
