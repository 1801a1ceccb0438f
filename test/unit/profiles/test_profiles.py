"""Service laws, profile files, queries, and `rfm profile`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from ros2_rfm_serving.cli import profile as command
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.emulated import EmulatedEngine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ConfigurationError, ModelError, ProfileError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.operate import profile_sheet
from ros2_rfm_serving.operate.profiled import BATCHINGS, derived
from ros2_rfm_serving.profiles import (
    COLUMNS,
    HEADER,
    ContinuousService,
    FixedService,
    ProcessorSharing,
    Profile,
    ProfileRow,
    format_rows,
    load_profiles,
    measure,
    parse_profiles,
    read_rows,
    unit_mean_factors,
)
from ros2_rfm_serving.profiles.arrivals import make_arrivals
from ros2_rfm_serving.profiles.service import unit_mean_factor
from test.unit.fakes import CONTRACT

TEXT_MODEL = ContinuousService(base_s=0.45, per_request_s=0.02)
AT = ("policy", "GPU", "fixed", 1)


def row(rate_hz: float, latency_ms: float, arrivals: str = "periodic", **changes: object) -> ProfileRow:
    point = ProfileRow(*AT, rate_hz, latency_ms, latency_ms, latency_ms + 1, latency_ms + 2, latency_ms + 3, arrivals)
    return replace(point, **changes)  # type: ignore[arg-type]


# --- service laws ---


def departures(service: ContinuousService, requests: list[tuple[float, float]]) -> dict[int, float]:
    """When each of (arrival, work) leaves a server that is asked only at the instants when something happens."""
    server: ProcessorSharing[int] = ProcessorSharing(service)
    left: dict[int, float] = {}
    coming = list(enumerate(requests))
    while coming or len(server):
        arrival_s = coming[0][1][0] if coming else math.inf
        finish_s = server.next_finish_s()
        if arrival_s <= finish_s:
            i, (now_s, work) = coming.pop(0)
            server.add(i, now_s, work)
        else:
            done = server.finished(finish_s)
            assert done
            left.update(dict.fromkeys(done, finish_s))
    return left


loads = st.lists(st.tuples(st.floats(0, 5), st.floats(0.2, 3)), min_size=1, max_size=25).map(sorted)


@settings(deadline=None)
@given(loads, st.floats(0.01, 1), st.floats(0.001, 1))
def test_processor_sharing_gives_every_request_its_work(requests: list[tuple[float, float]], base_s: float, per_s: float) -> None:
    service = ContinuousService(base_s=base_s, per_request_s=per_s, max_concurrent=100)
    left = departures(service, requests)
    assert len(left) == len(requests)
    instants = sorted({t for t, _ in requests} | set(left.values()))
    done = dict.fromkeys(left, 0.0)
    for start_s, end_s in pairwise(instants):
        present = [i for i, (t, _) in enumerate(requests) if t <= start_s and left[i] >= end_s]
        for i in present:
            done[i] += (end_s - start_s) / service.mean_s(len(present))
    for i, (_, work) in enumerate(requests):
        assert done[i] == pytest.approx(work, rel=1e-6, abs=1e-6)


def test_a_request_alone_takes_the_unloaded_time_and_a_full_server_its_capacity() -> None:
    assert departures(TEXT_MODEL, [(1.0, 1.0), (9.0, 1.0)]) == pytest.approx({0: 1.47, 1: 9.47})
    full = departures(replace(TEXT_MODEL, max_concurrent=10), [(0.0, 1.0)] * 200)
    assert 200 / max(full.values()) == pytest.approx(10 / 0.65)
    assert TEXT_MODEL.capacity_hz() < 1 / TEXT_MODEL.per_request_s == pytest.approx(TEXT_MODEL.capacity_hz(10**6), rel=0.1)


@settings(deadline=None)
@given(loads, st.integers(1, 4))
def test_no_more_than_the_maximum_are_in_service_and_the_rest_queue_in_order(
    requests: list[tuple[float, float]], most: int
) -> None:
    left = departures(ContinuousService(base_s=0.3, per_request_s=0.1, max_concurrent=most), [(t, 1.0) for t, _ in requests])
    assert list(left) == sorted(left)  # equal work: first come, first to leave
    for i, (t, _) in enumerate(requests):
        assert left[i] - t >= 0.4 - 1e-9


def test_what_finished_before_a_request_enters_is_not_lost() -> None:
    server: ProcessorSharing[str] = ProcessorSharing(TEXT_MODEL)
    server.add("early", 0.0)
    server.add("late", 5.0)
    assert server.next_finish_s() == 5.0 and server.finished(5.0) == ["early"]
    assert server.next_finish_s() == pytest.approx(5.47) and len(server) == server.num_running == 1
    assert server.finished(9.0) == ["late"] and server.next_finish_s() == math.inf


def test_the_jitter_is_what_it_says() -> None:
    rng = np.random.default_rng(0)
    law = FixedService(base_s=0.04, per_row_s=0.01, jitter=0.1)
    drawn = [law.draw_s(4, rng) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(0.08, rel=0.01) and np.std(drawn) / np.mean(drawn) == pytest.approx(0.1, rel=0.05)
    assert replace(law, jitter=0.0).draw_s(4, rng) == pytest.approx(0.08) and law.capacity_hz(4) == pytest.approx(50)


def test_variates_that_are_drawn_ahead_are_those_that_would_be_drawn_one_by_one() -> None:
    one_by_one, ahead = np.random.default_rng(7), unit_mean_factors(0.3, np.random.default_rng(7))
    assert [next(ahead) for _ in range(200)] == [unit_mean_factor(0.3, one_by_one) for _ in range(200)]
    assert next(unit_mean_factors(0.0, one_by_one)) == 1.0


# --- the file ---


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"p\.csv:1: is empty"),
        ("# only a comment\n", r"p\.csv:2: is empty"),
        ("model,latency\n", r"p\.csv:1: columns are model,latency; they must be model,gpu_type"),
        ("{header}\npolicy,GPU,fixed,1.5,2,1,1,1,1,1\n", r"p\.csv:2: batch_size is '1\.5'; .* whole number"),
        ("{header}\npolicy,GPU,fixed,0,2,1,1,1,1,1\n", "batch_size is '0'"),
        ("{header}\npolicy,GPU,continuous,4,2,1,1,1,1,1\n", r"p\.csv:2: batch_size is 4; with continuous batching it must be 1"),
        ("{header},arrivals\npolicy,GPU,fixed,1,2,1,1,1,1,1,bursts\n", r"p\.csv:2: arrivals is 'bursts'; it must be one of fleet"),
        ("{header}\npolicy,GPU,fixed,1,2,1,1,1,1,1,fleet\n", r"p\.csv:2: has more cells"),
        ("{header}\n,GPU,fixed,1,2,1,1,1,1,1\n", r"p\.csv:2: model is missing"),
        ('{header}\n"policy,GPU\n', r"p\.csv:2: is not CSV"),
        (
            "{header}\npolicy,GPU,fixed,1,2,1,1,1,1,1\n\npolicy,GPU,fixed,1,2,3,3,3,3,3\n",
            r"p\.csv:4: repeats the point of p\.csv:2",
        ),
        ("# one\n# two\n{header}\npolicy,GPU,fixed,1,2,x,1,1,1,1\n", r"p\.csv:4: mean_ms is 'x'"),
    ],
)
def test_a_bad_file_is_refused_by_file_and_line(text: str, problem: str) -> None:
    with pytest.raises(ProfileError, match=problem):
        parse_profiles(text.format(header=",".join(COLUMNS)), "p.csv")


def test_duplicates_are_found_across_files_and_unreadable_ones_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="holds no latency profiles"):
        load_profiles(tmp_path)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(format_rows([row(2, 10)]))
    with pytest.raises(ProfileError, match=r"b\.csv:2: repeats the point of .*a\.csv:2"):
        load_profiles(tmp_path)
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match=r"b\.csv: is not UTF-8"):
        load_profiles(tmp_path)


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    rows = [row(2, 10, "fleet"), row(4.125, 12.5, "poisson"), row(1, 1, gpu_type='NVIDIA "H200", 2', batch_size=8)]
    (tmp_path / "p.csv").write_text(format_rows(rows, "derived\nin two lines"))
    assert read_rows(tmp_path / "p.csv") == rows
    assert (tmp_path / "p.csv").read_text().splitlines()[:3] == ["# derived", "# in two lines", ",".join(HEADER)]


# --- queries ---


def test_a_percentile_between_two_columns_is_on_the_line_between_them_where_the_tail_thins_out() -> None:
    """Of fixed batches from the 90th on; elsewhere the higher one."""
    profile = Profile.of([row(2, 10), row(4, 20)])
    assert [profile.latency_s(*AT, 3, percentile=p) for p in (10, 50, 51, 90, 92, 97, 99)] == pytest.approx(
        [0.015, 0.015, 0.016, 0.016, 0.0164, 0.0175, 0.018]
    )
    assert profile.capacity_hz(*AT, 0.0164, 92) == pytest.approx(3)
    with pytest.raises(ProfileError, match="percentiles up to 99"):
        profile.latency_s(*AT, 3, percentile=99.9)
    with pytest.raises(ProfileError, match="up to 4 requests/s"):
        profile.latency_s(*AT, 4.01)
    thick = Profile.of([row(2, 10, p95_ms=12.9), row(4, 20, p95_ms=22.9)])
    assert [thick.latency_s(*AT, 3, percentile=p) for p in (92, 97)] == pytest.approx([0.0179, 0.018])
    streamed = [row(2, 10, batching="continuous"), row(4, 20, batching="continuous")]
    assert Profile.of(streamed).latency_s("policy", "GPU", "continuous", 1, 3, percentile=70) == pytest.approx(0.0155)


@pytest.mark.parametrize("arrivals", ["fleet", "poisson"])
@pytest.mark.parametrize(("service", "size"), [(TEXT_MODEL, 1), (FixedService(base_s=0.04, per_row_s=0.007, jitter=0.05), 4)])
def test_no_percentile_between_two_columns_is_below_what_servers_take(
    service: ContinuousService | FixedService, size: int, arrivals: str
) -> None:
    subject = measure.subject_of(service, size)
    for share in (0.1, 0.5, 0.8):
        rate_hz, rng = share * subject.max_rate_hz, np.random.default_rng(1)
        found_s = subject.latencies_s(make_arrivals(arrivals, rate_hz, subject.unloaded_s, rng), 16_000, rng)[1600:]
        key = ("policy", "GPU", service.batching, size)
        profile = Profile.of([measure.row(key, arrivals, rate_hz, found_s)])
        for percentile in (60, 75, 85, 91, 93, 97, 98):
            said_s = profile.latency_s(*key, rate_hz, percentile=percentile)
            assert said_s >= 0.995 * np.quantile(found_s, percentile / 100), (share, percentile)


def test_noise_is_removed_upwards() -> None:
    noisy = [row(2, 10), row(4, 9), row(6, 30), row(8, 25, p50_ms=40, mean_ms=90)]
    rates, mean, columns = Profile.of(noisy).curve_arrays(*AT)
    assert rates.tolist() == [2, 4, 6, 8] and mean == pytest.approx([0.01, 0.01, 0.03, 0.09])
    assert columns["p50"] == pytest.approx([0.01, 0.01, 0.03, 0.04])
    assert columns["p90"] == pytest.approx([0.011, 0.011, 0.031, 0.04]) and columns["p99"][-1] == pytest.approx(0.09)


numbers = st.floats(0.1, 1000)


@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8, unique_by=lambda p: p[0]), numbers, st.floats(0, 1))
def test_capacity_is_the_exact_inverse_of_latency(points: list[tuple[float, float]], limit_ms: float, share: float) -> None:
    profile = Profile.of([row(rate, latency) for rate, latency in points])
    highest = profile.max_rate_hz(*AT)
    for limit_s in (limit_ms / 1e3, profile.latency_s(*AT, share * highest)):
        capacity = profile.capacity_hz(*AT, limit_s)
        if capacity == 0.0:
            assert profile.latency_s(*AT, 0) > limit_s
            continue
        assert profile.latency_s(*AT, capacity) <= limit_s * (1 + 1e-9)
        if capacity < highest:
            assert profile.latency_s(*AT, capacity) == pytest.approx(limit_s, rel=1e-6)
            beyond = min(capacity * (1 + 1e-3), highest)
            assume(beyond > capacity)
            assert profile.latency_s(*AT, beyond) >= limit_s * (1 - 1e-9)
    with pytest.raises(ProfileError, match="not a number"):
        profile.capacity_hz(*AT, math.nan)


def test_a_view_prefers_its_arrivals_and_falls_back_on_the_next() -> None:
    profile = Profile.of([row(2, 10, "periodic"), row(2, 30, "fleet"), row(2, 20, "poisson"), row(2, 5, model="other")])
    assert profile.latency_s(*AT, 2, "mean") == pytest.approx(0.030)
    views = {name: profile.under(name).latency_s(*AT, 2, "mean") for name in ("periodic", "poisson", "fleet")}
    assert views == pytest.approx({"periodic": 0.010, "poisson": 0.020, "fleet": 0.030})
    assert profile.under("poisson").latency_s("other", *AT[1:], 2, "mean") == pytest.approx(0.005)
    assert profile.models_on("GPU") == ["other", "policy"] and profile.models_on("CPU") == []
    with pytest.raises(ProfileError, match="one of fleet, poisson, periodic"):
        profile.under("bursts")


# --- what is shipped, and what derived it ---


@pytest.mark.parametrize("index", [3, 57, 172, 271, 419])
def test_a_derived_row_can_be_derived_again(repository: Path, index: int) -> None:
    folder = repository / "config" / "profiles"
    shipped = read_rows(folder / "h200.csv")[index]
    entry = Catalogue.load(folder / "models.yaml")[shipped.model]
    (server,) = (s for s in derived(shipped.model, entry, shipped.gpu_type, (), BATCHINGS) if s.key == shipped.key)
    again = measure.measure(
        server.start(), shipped.key, shipped.arrivals, shipped.rate_hz, command.DERIVED_REQUESTS, repetitions=server.repetitions
    )
    assert again == shipped


def test_derived_profiles_say_so_and_agree_with_the_figures_they_come_from(repository: Path) -> None:
    folder = repository / "config" / "profiles"
    assert (folder / "h200.csv").read_text().startswith("# derived from published figures by `rfm profile --derive")
    profile = load_profiles(folder)
    gr00t, pi05 = "nvidia/GR00T-N1.6-3B", "physical-intelligence/pi0.5"
    for model in (gr00t, pi05):  # ROSA Fig. 13: batch 16 gives 3 to 4 times the throughput of batch 1
        one, sixteen = (profile.max_rate_hz(model, "NVIDIA H200", "fixed", size) for size in (1, 16))
        assert 3 <= sixteen / one <= 4
    for size, published_ms in {1: 52.4, 2: 65.1, 4: 91.9, 8: 147.4}.items():  # SGLang on an H100
        law = Catalogue.load(folder / "models.yaml")[pi05].gpus["NVIDIA H200"].service
        assert law and 1e3 * law.law().mean_s(size) == pytest.approx(published_ms, rel=0.02)
    judge, safety = ("Qwen2.5-VL-7B-Instruct", 32, math.inf, 2.0), ("Qwen2.5-VL-3B-Instruct", 64, 128, 0.5)
    for model, carried_hz, refused_hz, slo_s in (judge, safety):  # ROSA Table 3: servers for the obligations of 32 and 64 robots
        capacity = profile.capacity_hz(model, "NVIDIA H200", "continuous", 1, slo_s)
        assert carried_hz <= capacity < refused_hz


FARTHEST = 0.114
"""ROSA's 8 capped robots (Fig. 6) want System 2 slower, its 32 uncapped ones (Fig. 10) faster: by no law are both much nearer; the
laws share that out among all figures."""


def test_the_laws_honour_rosas_figures_of_saturated_and_of_idle_servers(repository: Path) -> None:
    """ROSA §4.2 and §4.3 on P4; `test_rosa_laws.py` has the whole system."""
    folder, gpu, t_act_s, horizon = repository / "config" / "profiles", "NVIDIA H200", 0.2, 10
    catalogue, profile = Catalogue.load(folder / "models.yaml"), load_profiles(folder)
    services = (catalogue[model].gpus[gpu].service for model in ("nvidia/GR00T-N1.6-3B", "Qwen2.5-VL-7B-Instruct"))
    system1, system2 = (service.law() for service in services if service)
    plan_s = system2.mean_s(1) / horizon
    assert 16 * system1.mean_s(1) - t_act_s - plan_s == pytest.approx((0.5345 + 0.5208) / 2, rel=FARTHEST)  # 16 robots, batch 1
    assert 2 / (t_act_s + system1.mean_s(1) + plan_s) == pytest.approx(7.4, rel=FARTHEST)  # one GPU per model, 2 robots
    assert 4 * 2 / system1.mean_s(2) == pytest.approx(145.5, rel=FARTHEST)  # 64 robots on 4 servers, uncapped: batches of 2
    assert 16 / 2 * system1.mean_s(2) - t_act_s - 1.3 * plan_s > 0.2  # most of them are late then
    within_slo = [
        profile.under("poisson").capacity_hz("nvidia/GR00T-N1.6-3B", gpu, "fixed", size, 0.2) for size in catalogue_sizes(catalogue)
    ]
    assert max(within_slo) == within_slo[1] == pytest.approx(78.8 / 0.972 / 4, rel=FARTHEST)  # capped, batches of 2 carry most


def catalogue_sizes(catalogue: Catalogue) -> tuple[int, ...]:
    service = catalogue["nvidia/GR00T-N1.6-3B"].gpus["NVIDIA H200"].service
    assert service
    return service.batch_sizes


SERVICE = "{batching: fixed, base_ms: 0.2, per_row_ms: 0.05, batch_sizes: [1, 2], jitter: 0.05}"
TINY = f"""\
models:
  tiny:
    engine: emulated
    action_names: [x]
    gpus:
      CPU:
        memory_gb: 1
        load_s: 0
        source: made up
        derivation: made up
        service: {SERVICE}
"""


@pytest.mark.parametrize(
    ("found", "instead", "problem"),
    [
        ("batching: fixed", "batching: guessed", r"models\.yaml:11: .*service\.batching"),
        ("per_row_ms: 0.05, ", "", r"models\.yaml:11: .*per_row_ms is missing: fixed batching needs it"),
        ("jitter: 0.05", "max_concurrent: 4", "fixed batching has no max_concurrent"),
        ("[1, 2]", "[2, 1]", "must be a rising list"),
        ("base_ms: 0.2", "base_ms: -1", r"models\.yaml:11: .*service\.base_ms"),
        ("base_ms: 0.2", "base_m: 1", "did you mean `base_ms`"),
        ("jitter: 0.05", "wave: {from_rows: 0, extra_rows: 1}", r"models\.yaml:11: .*wave\.from_rows"),
        ("        derivation: made up\n", "", r"models\.yaml:6: .*CPU.*derivation is missing"),
    ],
)
def test_a_bad_service_law_is_refused_by_line_and_key(tmp_path: Path, found: str, instead: str, problem: str) -> None:
    assert found in TINY
    (tmp_path / "models.yaml").write_text(TINY.replace(found, instead))
    with pytest.raises(ConfigurationError, match=problem):
        Catalogue.load(tmp_path / "models.yaml")


def test_an_emulated_engine_runs_its_law_padded_to_the_servers_batch(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(TINY.replace("jitter: 0.05", "jitter: 0"))
    waited: list[float] = []
    entry = Catalogue.load(tmp_path / "models.yaml")["tiny"]
    spec = EngineSpec(model="tiny", entry=entry, models_folder=tmp_path, profile=Profile({}), gpu_type="CPU", wait=waited.append)
    engine = build_engine(spec)
    assert isinstance(engine, EmulatedEngine) and isinstance(engine.service, FixedService) and engine.max_batch_size == 2
    request = warmup_request(engine.contract)
    engine.infer([request])
    engine.prepare(2)
    engine.infer([request])
    assert waited == pytest.approx([0.00025, 0.0003])
    with pytest.raises(ModelError, match="batches of 1 to 2, not 3"):
        engine.prepare(3)


# --- the command ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.yaml").write_text(TINY)
    return tmp_path


def run(folder: Path, *arguments: str, out: str = "out.csv") -> Result:
    fixed = ["profile", "tiny", "--out", str(folder / out), "--profiles", str(folder), "--requests", "20"]
    return CliRunner().invoke(app, [*fixed, *arguments])


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Ctrl-C after as many points as the list says; counts those that were measured."""
    real, left = measure.measure, [7, 0]

    def limited(*args: object, **options: object) -> ProfileRow:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        left[1] += 1
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(profile_sheet, "measure", limited)
    yield left


def test_an_interrupted_measurement_goes_on_where_it_stopped(folder: Path, interrupted: list[int]) -> None:
    arguments = ("--batches", "1,2", "--arrivals", "periodic,fleet")
    assert run(folder, *arguments).exit_code == 130
    first = read_rows(folder / "out.csv")
    assert len(first) == 7
    interrupted[:] = [1000, 0]
    assert run(folder, *arguments).exit_code == 0
    rows = read_rows(folder / "out.csv")
    assert interrupted[1] == 33 and len(rows) == 40 and rows[:7] == first
    rates = [r.rate_hz for r in rows if r.batch_size == 1 and r.arrivals == "periodic"]
    assert rates == pytest.approx([rates[0] * (i + 1) for i in range(10)], rel=0.01)
    interrupted[:] = [0, 0]
    assert run(folder, *arguments).exit_code == 0  # nothing is left to do


def test_measured_and_derived_rows_are_never_mixed(folder: Path) -> None:
    assert run(folder, "--derive", "--arrivals", "poisson", "--batches", "2").exit_code == 0
    derived = read_rows(folder / "out.csv")
    assert len(derived) == 10 and derived[-1].rate_hz == pytest.approx(2 / 0.3e-3, rel=1e-3)
    measured = run(folder)
    assert isinstance(measured.exception, ProfileError) and "holds derived rows" in str(measured.exception)


def test_rows_of_other_image_sizes_are_never_mixed(folder: Path) -> None:
    quick = ("--batches", "1", "--arrivals", "periodic")
    assert run(folder, *quick, "--image-size", "96x64").exit_code == 0
    assert (folder / "out.csv").read_text().startswith("# measured by `rfm profile`, camera images of 96x64\n")
    other = run(folder, *quick)
    assert isinstance(other.exception, ProfileError) and "camera images of 96x64" in str(other.exception)
    unknown = format_rows(read_rows(folder / "out.csv"))
    (folder / "out.csv").write_text(unknown)
    assert "nobody said how" in str(run(folder, *quick).exception)


def test_images_are_as_large_as_the_factory_s_robots_send_them(tmp_path: Path) -> None:
    text = "server_cluster: {num_servers: 1, gpu_type: CPU}\nrobot_fleet: [{task: a, num_robots: 1}, {task: b, num_robots: 1}]\n"
    for task, size in (("a", "[320, 240]"), ("b", "[1280, 720]"), ("unused", "[2000, 2000]")):
        text += f"{task}: {{image_size_px: {size}, pipeline: {{action_period_ms: 200}}, components: {{system1: {{model: m}}}}}}\n"
    (tmp_path / "factory.yaml").write_text(text)
    assert command._size_px("640x480", tmp_path / "factory.yaml") == (1280, 720)
    asked = warmup_request(CONTRACT, command._size_px("1280x720", None))
    assert all(image.shape == (720, 1280, 3) for image in asked.images.values())
    with pytest.raises(typer.BadParameter, match="no size such as 640x480"):
        command._size_px("640", None)


def test_the_command_says_what_is_wrong_before_it_measures(folder: Path) -> None:
    for arguments, problem in {
        ("--batches", "1,two"): "whole numbers",
        ("--batches", "0"): "below 1",
        ("--batching", "always"): "none of",
        ("--arrivals", "bursts"): "none of",
        ("--plot", str(folder / "nowhere" / "p.png")): "no folder",
    }.items():
        result = run(folder, *arguments)
        assert result.exit_code == 2 and problem in result.output
    missing = run(folder, "--derive", "--gpu-type", "TPU")
    assert isinstance(missing.exception, ModelError) and "has no `service` on 'TPU'" in str(missing.exception)
    unable = run(folder, "--batching", "continuous")
    assert isinstance(unable.exception, ModelError) and "batching: continuous" in str(unable.exception)
    assert "is a folder" in str(run(folder, out=".").exception)
    nowhere = run(folder, out="nowhere/out.csv")
    assert isinstance(nowhere.exception, ProfileError) and "cannot be written" in str(nowhere.exception)


def test_a_full_disk_is_an_error_and_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "out.csv").write_text(before := format_rows([row(2, 10)], "measured by `rfm profile`, camera images of 640x480"))

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = run(folder)
    assert isinstance(result.exception, ProfileError) and "No space left on device; make room" in str(result.exception)
    assert (folder / "out.csv").read_text() == before


def test_the_plot_is_a_picture(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(folder, "--derive", "--arrivals", "fleet", "--plot", str(folder / "p.png")).exit_code == 0
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
