"""`rfm bench serving` without its peers: figures from what clients print, processes told apart, environments, the load itself."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lab.benchmarks.path.pictures import photograph
from lab.benchmarks.serving import environments as peer_environments
from lab.benchmarks.serving import report as bench_serving
from lab.benchmarks.serving import run as serving_run
from lab.benchmarks.serving import systems as serving_systems
from lab.benchmarks.serving.environments import PeerEnvironment, python_of
from lab.benchmarks.serving.marked_processes import Marked
from lab.benchmarks.serving.plot import serving_chart
from lab.benchmarks.serving.run import Visit, cell, visit
from lab.benchmarks.serving.systems import SYSTEMS, Setup, System, make
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.errors import ConfigurationError, ModelError, RfmError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import InferenceRequest, RequestId

LATENCIES = {"latencies_s": [0.011, 0.012, 0.013, 0.110], "wrong": 1, "failed": 2}
SERVER = "import sys, time; print('loading'); print('READY now', flush=True); time.sleep(60)"
CLIENTS = "import sys, json; print('BEGIN', flush=True); print('END', flush=True); print(json.dumps({told}), flush=True)"


def system(server: str = SERVER, told: Any = LATENCIES) -> System:
    clients = (sys.executable, "-c", CLIENTS.replace("{told}", repr(told)))
    return System(title="toy", server=(sys.executable, "-c", server), ready="READY", clients=clients)


def setup(folder: Path) -> Setup:
    images = folder / "images"
    images.mkdir(parents=True)
    return Setup(
        images=images,
        scratch=folder,
        environments=folder / "peers",
        port=1,
        most_clients=8,
        model_s=0.01,
        warm_up_s=1.0,
        seconds=2.0,
        openpi=None,
        say=lambda text: None,
    )


def load_program() -> ModuleType:
    """`lab/benchmarks/serving/peers/run.py` as it runs by its path."""
    spec = importlib.util.spec_from_file_location("peers_run", serving_systems.RUN)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cell_is_what_the_path_added() -> None:
    made = cell(8, LATENCIES, (0.4, 0.2), 0.01, 2.0)
    assert made.requests == 4 and made.requests_hz == 2.0
    assert made.added_p50_ms == pytest.approx(2.5)
    assert made.server_cpu_ms == pytest.approx(100.0) and made.cpu_ms == pytest.approx(150.0)
    assert (made.wrong, made.failed) == (1, 2)


def test_without_replies_nothing_is_known() -> None:
    made = cell(1, {"latencies_s": [], "wrong": 0, "failed": 3}, (0.1, 0.1), 0.01, 2.0)
    assert math.isnan(made.added_p50_ms) and math.isnan(made.cpu_ms)


def test_a_visit_starts_measures_and_ends() -> None:
    made = visit(system(), [1, 8], 0.01, 2.0)
    assert [c.clients for c in made.cells] == [1, 8]
    assert made.start_s > 0 and made.memory_mb > 1 and made.num_processes == 1


def test_a_server_that_ends_says_why() -> None:
    with pytest.raises(RfmError, match="no such model"):
        visit(system("print('no such model')"), [1], 0.01, 2.0)


def test_clients_that_tell_nothing_are_no_measurement() -> None:
    silent = replace(system(), clients=(sys.executable, "-c", "print('BEGIN')"))
    with pytest.raises(RfmError, match="did not finish"):
        visit(silent, [1], 0.01, 2.0)


def test_servers_keep_their_bytecode_whatever_the_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or start-up is that of a compiler."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    marked = Marked([sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"], {})
    try:
        assert marked.process.stdout
        assert marked.process.stdout.read().strip() == "False"
    finally:
        marked.end()


def test_descendants_are_counted_and_ended_however_deep() -> None:
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
    marked = Marked([sys.executable, "-c", f"{child}start_new_session=True); time.sleep(60)"], {})
    try:
        end_s = time.monotonic() + 30
        while len(marked.pids()) < 2 and time.monotonic() < end_s:
            time.sleep(0.05)
        assert len(marked.pids()) == 2 and marked.cpu_s() >= 0 and marked.memory_mb() > 0
    finally:
        marked.end()
    assert not marked.pids()


def test_an_environment_is_made_once_and_pip_s_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, int("bad" in command), b"a line\nNo matching distribution\n")

    monkeypatch.setattr(peer_environments, "_run", run)
    good = PeerEnvironment(name="good", installs=(("one==1",), ("two==2",)))
    python = python_of(good, tmp_path, lambda text: None)
    assert python == python_of(good, tmp_path, lambda text: None) and len(commands) == 3
    with pytest.raises(ConfigurationError, match="No matching distribution"):
        python_of(replace(good, name="worse", installs=(("bad",),)), tmp_path, lambda text: None)
    assert good.folder(tmp_path) != replace(good, installs=(("one==2",),)).folder(tmp_path)


def test_what_cannot_be_installed_is_reported_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Path:
        raise ConfigurationError("no network")

    monkeypatch.setattr(serving_systems, "python_of", refuse)
    chosen, missing = bench_serving._prepared(["ours", "ray"], setup(tmp_path))
    assert [each.title for each in chosen] == ["rfm_serving, DDS"]
    assert "no network" in missing["ray"]


def test_an_unknown_system_and_a_wrong_checkout_are_named(tmp_path: Path) -> None:
    given = setup(tmp_path)
    with pytest.raises(ConfigurationError, match="ours"):
        make("our", given)
    with pytest.raises(ConfigurationError, match="no openpi server"):
        make("openpi", replace(given, openpi=tmp_path / "nowhere"))
    assert CliRunner().invoke(app, ["bench", "serving", "--clients", "none"]).exit_code


def test_table_figure_and_json_of_two_rounds() -> None:
    made = visit(system(), [1], 0.01, 2.0)
    rounds: list[Visit] = [made, replace(made, cells=(replace(made.cells[0], added_p50_ms=5.0),))]
    assert bench_serving._spread([2.5, 5.0]) == "3.8 (2.5 - 5.0)"
    assert bench_serving._table({"toy": rounds}, 10.0).row_count == 1
    report = bench_serving._report({"toy": rounds}, {"other": "why"}, [0.1])
    assert json.loads(json.dumps(report, allow_nan=False))["systems"]["toy"][1]["cells"][0]["added_p50_ms"] == 5.0
    assert len(serving_chart({"toy": rounds}).axes) == 3


def test_rounds_that_were_measured_are_kept_when_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = ["first", "second", "third"]

    def visited(*_: object) -> str:
        if not left:
            raise KeyboardInterrupt
        return left.pop(0)

    monkeypatch.setattr(bench_serving, "visit", visited)
    monkeypatch.setattr(bench_serving, "COOL_DOWN_S", 0.0)
    given, missing = setup(tmp_path), dict[str, str]()
    chosen = [make("ours", given), make("ours-decoding", given)]
    visits, loads = bench_serving._visit_all(chosen, [1], 3, given, missing)
    assert list(visits.values()) == [["first", "third"], ["second"]] and len(loads) == 4 and list(missing.values()) == ["stopped"]


def test_one_that_fails_is_named_the_others_are_measured_and_the_status_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = visit(system(), [1], 0.01, 2.0)

    def visited(asked: System, *_: object) -> Visit:
        if asked.title.startswith("openpi"):
            raise RfmError("it died")
        return made

    monkeypatch.setattr(bench_serving, "visit", visited)
    monkeypatch.setattr(bench_serving, "COOL_DOWN_S", 0.0)
    monkeypatch.setattr(serving_systems, "python_of", lambda *_: Path(sys.executable))
    result = CliRunner().invoke(app, ["bench", "serving", "--systems", "openpi,ours", "--clients", "1", "--rounds", "1"])
    assert result.exit_code == 1 and "openpi (its loop): not measured: it died" in result.output, result.output
    assert CliRunner().invoke(app, ["bench", "serving", "--systems", "ours", "--clients", "1", "--rounds", "1"]).exit_code == 0


def test_the_load_notices_wrong_replies_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program()
    model = program.SleepingModel(0.001)
    calls = 0

    def request(state: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("lost")
        time.sleep(0.001)
        return model([state + (calls % 2)])[0]

    load = program.Load(lambda: request, 1)
    figures = load.run(0.2, 0.3)
    assert figures["latencies_s"] and min(figures["latencies_s"]) >= 0.001
    assert figures["failed"] == 1 and 0 < figures["wrong"] < len(figures["latencies_s"])
    assert capsys.readouterr().out.split() == ["BEGIN", "END"]


def test_at_a_rate_every_system_is_asked_at_the_same_instants() -> None:
    dues = load_program().dues
    first, again = (list(itertools.islice(dues(3, 20.0), 200)) for _ in range(2))
    assert first == again != list(itertools.islice(dues(4, 20.0), 200))
    assert first == sorted(first) and len(first) / first[-1] == pytest.approx(20.0, rel=0.02)
    assert {int(20 * due_s - 20 * first[0] + 0.5) for due_s in first} >= {0, 100, 199}


def test_a_client_that_waits_leaves_out_what_was_due(capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program()
    model, asleep_s = program.SleepingModel(0.0), 0.05

    def request(state: Any) -> Any:
        time.sleep(asleep_s)
        return model([state])[0]

    load = program.Load(lambda: request, 1, rate_hz=100.0)
    figures = load.run(0.1, 0.6)
    assert figures["left_out"] > len(figures["latencies_s"]) >= 1, "of five that are due in 50 ms one is asked"
    assert min(figures["latencies_s"]) >= asleep_s and not figures["wrong"]
    asleep_s = 0.0
    at_leisure = program.Load(lambda: request, 2, rate_hz=20.0)
    asked = at_leisure.run(0.1, 0.5)
    assert len(asked["latencies_s"]) + asked["left_out"] == pytest.approx(20, abs=4)


def test_what_was_due_while_a_client_waited_beyond_the_end_is_left_out_too(capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program()
    model = program.SleepingModel(0.6)
    figures = program.Load(lambda: lambda state: model([state])[0], 1, rate_hz=100.0).run(0.0, 0.3)
    assert not figures["latencies_s"] and figures["left_out"] >= 20


def test_the_rate_is_told_to_all_clients_and_what_is_left_out_is_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_systems, "python_of", lambda *_: Path("python"))
    given = replace(setup(tmp_path), rate_hz=6.5)
    for name in ("ours-decoding", "openpi-decoding"):
        clients = make(name, given).clients
        assert clients[clients.index("--rate-hz") + 1] == "6.5"
    made = cell(8, {**LATENCIES, "left_out": 3}, (0.4, 0.2), 0.01, 2.0)
    assert made.left_out == 3 and cell(8, LATENCIES, (0.4, 0.2), 0.01, 2.0).left_out == 0
    assert bench_serving._troubles([made, made]) == "25%, 4, 6"


def test_a_load_that_cannot_connect_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_program()

    def refuse() -> Any:
        raise OSError("nobody listens")

    monkeypatch.setattr(program.threading, "excepthook", lambda _: None)
    with pytest.raises(program.threading.BrokenBarrierError):
        program.Load(refuse, 2).run(0.1, 0.1)


def engine_spec(options: dict[str, Any], slept: list[float]) -> EngineSpec:
    entry = CatalogueEntry(
        engine="ros2_rfm_serving.engines.fixed_latency:build",
        options=options,
        action_names=("a", "b"),
        state_size=3,
        chunk_length=4,
    )
    return EngineSpec(model="m", entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="EMULATED", wait=slept.append)


def test_the_sleeping_engine_sleeps_once_per_batch_and_repeats_the_state() -> None:
    slept: list[float] = []
    engine = build_engine(engine_spec({"seconds": 0.25}, slept))
    rows = [
        InferenceRequest(
            id=RequestId(robot=f"r{i}", component="system1", session_epoch=1, episode=1, sequence=1),
            instruction="",
            state=np.array([i, 2 * i, 3], np.float32),
            images={},
            inference_delay_steps=0,
            prefix_model=np.zeros((0, 0), np.float32),
        )
        for i in range(3)
    ]
    replies = engine.infer(rows)
    assert [tuple(reply.chunk_robot[0]) for reply in replies] == [(0, 0), (1, 2), (2, 4)]  # type: ignore[union-attr]
    assert slept == [0.25]
    assert engine.takes_encoded and engine.contract.emulated
    with pytest.raises(ModelError, match="second"):
        build_engine(engine_spec({"second": 1}, []))


def test_peers_that_decode_do_it_with_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_program().SleepingModel
    state, image = np.ones(14, np.float32), photograph(64, 48, seed=0)
    assert model(0.0, decodes=True)([state], [[image, image]])[0][0, 0] == 1
    assert len(model(0.0)([state], [[b"no JPEG"]])) == 1, "undecoded, as it comes"
    with pytest.raises(ValueError, match="JPEG"):
        model(0.0, decodes=True)([state], [[image, b"no JPEG"]])
    monkeypatch.setattr(serving_systems, "python_of", lambda *_: Path("python"))
    made = {name: make(name, setup(tmp_path / name)) for name in ("openpi", "openpi-decoding", "ray", "ray-decoding")}
    assert {name for name, system in made.items() if "--decode" in system.server} == {"openpi-decoding", "ray-decoding"}
    assert len({system.title for system in made.values()}) == 4


def test_lerobots_observations_carry_jpegs_which_its_server_decodes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeRobot's part is stood in for: what it is given when its own path begins."""

    class Rest:
        def _predict_action_chunk(self, observation: Any) -> Any:
            return {camera: observation.get_observation()[camera] for camera in ("camera_0", "camera_1")}

    asked: list[tuple[int, dict[str, Any]]] = []
    module = ModuleType("peer_lerobot")
    vars(module).update(
        CAMERAS=("camera_0", "camera_1"), StubbedServer=Rest, run=None, asking=lambda port, images: asked.append((port, images))
    )
    monkeypatch.setitem(sys.modules, "peer_lerobot", module)
    monkeypatch.syspath_prepend(str(Path(serving_systems.RUN).parent))
    for name in ("peer_lerobot_jpeg", "peer_lerobot_each"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    jpeg, each = importlib.import_module("peer_lerobot_jpeg"), importlib.import_module("peer_lerobot_each")
    images = {"camera_0": photograph(64, 48, seed=0), "camera_1": photograph(32, 48, seed=1)}
    observation, broken = dict(images), {**images, "camera_1": b"no JPEG"}
    found = jpeg.DecodingServer()._predict_action_chunk(SimpleNamespace(get_observation=lambda: observation))
    assert [found[camera].shape for camera in sorted(found)] == [(48, 64, 3), (48, 32, 3)]
    with pytest.raises(ValueError, match="JPEG"):
        jpeg.DecodingServer()._predict_action_chunk(SimpleNamespace(get_observation=lambda: broken))
    for connect in (jpeg.connect, each.connect, each.connect):
        connect(7, images)
    assert asked == [(7, images), (7, images), (8, images)], "one server for all, or each its own"


def test_lerobot_has_a_server_per_robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_systems, "python_of", lambda *_: Path("python"))
    made = {name: make(name, setup(tmp_path / name)) for name in ("lerobot", "lerobot-decoding", "lerobot-each")}
    assert len({system.title for system in made.values()}) == 3
    assert made["lerobot-each"].environment["LEROBOT_ROBOTS"] == "8"
    assert not [name for name, system in made.items() if "--decode" in system.server], "they decode before the model is asked"


def test_every_peer_has_both_sides() -> None:
    folder = Path(serving_systems.RUN).parent
    for file in folder.glob("peer_*.py"):
        text = file.read_text(encoding="utf-8")
        assert "def serve(" in text and "def connect(" in text, file.name
    assert {"ours", "openpi", "ray", "lerobot"} <= set(SYSTEMS) and serving_run.START_LIMIT_S > 0
