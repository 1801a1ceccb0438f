"""`rfm plan`, `rfm capacity`, `rfm check` and `rfm bench scheduler`: what they print, answer and refuse."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from lab.benchmarks import scheduler as bench_scheduler
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError, ProfileError, RfmError, ScheduleError
from ros2_rfm_serving.operate.inputs import load_inputs
from ros2_rfm_serving.reports import charts
from ros2_rfm_serving.reports.placement import allocation, names
from ros2_rfm_serving.scheduler import POLICIES, plan_factory
from ros2_rfm_serving.scheduler.sizing import ModelLoad, ThresholdSearch, demanding, reached, required_rates
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution, Stream
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.simulation.random_factories import Size, random_factory

P4 = str(shipped("config", "rosa", "p4.yaml"))
MIX4 = str(shipped("config", "rosa", "mix4.yaml"))


def rfm(*arguments: str, fails_with: type[RfmError] | None = None) -> Result:
    done = CliRunner().invoke(app, list(arguments))
    if fails_with:
        assert isinstance(done.exception, fails_with), done.exception
    elif done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def rfm_json(*arguments: str, exit_code: int = 0) -> Any:
    done = rfm(*arguments, "--json")
    assert done.exit_code == exit_code, done.output
    return json.loads(done.stdout)


def edited(tmp_path: Path, *changes: tuple[str, str]) -> str:
    text = Path(P4).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "edited.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


class TestContinuous:
    """`batching: continuous`, of GPUs on which an action model was measured in both ways."""

    @pytest.mark.parametrize(
        ("entry", "warns"),
        [
            ("{engine: lerobot}", True),
            ("{engine: jax}", True),
            ("{engine: remote}", True),
            ("{engine: emulated}", True),
            ("{engine: bundle, bundle: metaworld_flow}", False),
            ('{engine: "somebody.elses:build"}', False),
        ],
    )
    def test_models_that_answer_whole_batches_are_named(self, tmp_path: Path, entry: str, warns: bool) -> None:
        (tmp_path / "models.yaml").write_text(f"models:\n  nvidia/GR00T-N1.6-3B: {entry}\n")
        model = "nvidia/GR00T-N1.6-3B"
        for batching in ("continuous", "wait"):
            file = edited(tmp_path, ("dispatch: fifo", f"batching: {batching}"))
            said = rfm("check", file, "--catalogue", str(tmp_path / "models.yaml")).stdout
            assert (f"{model!r} answers whole batches" in said) is (warns and batching == "continuous"), said

    def test_the_plan_batches_continuously_only_where_the_descriptor_says_so(self, tmp_path: Path) -> None:
        asked = edited(tmp_path, ("dispatch: fifo", "batching: continuous"))
        for file, batching in ((P4, "fixed"), (asked, "continuous")):
            plan = rfm_json("plan", file, "--robots", "16", "--budget", "0.1")
            system1 = [s for s in plan["servers"] if s["model"].startswith("nvidia/")]
            assert {server["batching"] for server in system1} == {batching}

    def test_check_and_capacity_say_how_servers_batch(self, tmp_path: Path) -> None:
        asked = edited(tmp_path, ("dispatch: fifo", "batching: continuous"))
        said = rfm("check", asked).stdout
        assert "8 x NVIDIA H200 (batching continuously)" in said and "16; continuous; planned continuous)" in said
        assert "planned in fixed batches" in rfm("check", P4).stdout

    def test_a_model_that_was_only_measured_in_batches_is_warned_about(self, tmp_path: Path) -> None:
        folder = shipped("config", "profiles")
        (tmp_path / "models.yaml").write_text((folder / "models.yaml").read_text(encoding="utf-8"), encoding="utf-8")
        lines = (folder / "h200.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        text = "".join(line for line in lines if "GR00T" not in line or ",continuous," not in line or line.startswith("#"))
        (tmp_path / "h200.csv").write_text(text, encoding="utf-8")
        said = rfm("check", edited(tmp_path, ("dispatch: fifo", "batching: continuous")), "--profiles", str(tmp_path)).stdout
        assert "GR00T-N1.6-3B' was never measured on NVIDIA H200 with `batching: continuous`" in said.replace("\n", " ")

    def test_servers_of_one_gpu_type_batch_alike(self, tmp_path: Path) -> None:
        group = "\n  - {num_servers: 4, gpu_type: NVIDIA H200"
        groups = f"server_cluster:{group}, batching: continuous}}{group}}}\n"
        text = groups + "robot_fleet:" + Path(P4).read_text(encoding="utf-8").split("robot_fleet:")[1]
        (tmp_path / "mixed.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigurationError, match=r"server_cluster.1.*batching.*gpu_type of their own"):
            load_inputs(tmp_path / "mixed.yaml")


@pytest.mark.parametrize("command", ["check", "plan", "capacity"])
def test_a_dispatch_policy_that_nobody_has_is_refused_before_anything_is_planned(command: str, tmp_path: Path) -> None:
    file = edited(tmp_path, ("dispatch: fifo", "dispatch: edf"))
    problem = str(rfm(command, file, fails_with=ConfigurationError).exception)
    assert file in problem and "server_cluster.dispatch" in problem and "'edf'" in problem and "fifo, least_attained" in problem


class TestPlan:
    def test_json_has_the_documented_shape_and_adds_up(self) -> None:
        plan = rfm_json("plan", P4, "--policy", "rosa")
        assert {"policy", "feasible", "objective", "bound", "work", "tasks", "servers", "problems"} <= set(plan)
        task = plan["tasks"]["assemble_kit"]
        assert task["num_robots"] == 32 and 0 < task["action_rate_hz"] <= task["closed_loop_rate_hz"] * (1 + 1e-9)
        assert plan["objective"] == pytest.approx(32 * task["action_rate_hz"]) and plan["objective"] <= plan["bound"]
        seen: dict[str, int] = {}
        for server in plan["servers"]:
            load_hz = sum(stream["num_robots"] * stream["rate_hz_each"] for stream in server["streams"])
            assert server["rate_hz"] == pytest.approx(load_hz)
            for stream in server["streams"]:
                seen[stream["component"]] = seen.get(stream["component"], 0) + stream["num_robots"]
                assert server["p99_ms"] <= stream["slo_ms"]
        assert seen == {"system1": 32, "system2": 32, "safety": 32, "monitor": 32}

    def test_tables_name_alike_servers_once_with_units(self) -> None:
        done = rfm("plan", P4, "--policy", "baseline3")
        rows = [line for line in done.stdout.splitlines() if line.startswith("│") and "GR00T" in line]
        assert len(rows) == 1 and "server_1-2" in rows[0] and "│  200 │" in rows[0]
        assert "(Hz)" in done.stdout and "(ms)" in done.stdout and "(actions/s)" in done.stdout
        assert "unlimited" in done.stdout and "infeasible with policy baseline3; objective 0.00" in done.stdout
        assert "feasible with policy rosa; objective" in rfm("plan", P4, "--policy", "rosa").stdout

    def test_one_robot_is_explained(self) -> None:
        found = rfm_json("plan", P4, "--robots", "18", "--budget", "0.1", "--explain", "assemble_kit_1")["choices"]
        assert [choice["component"] for choice in found] == ["monitor", "safety", "system1", "system2"]
        assert all(choice["why_server"] and choice["why_rate"] for choice in found)
        assert any(other["cost_actions_hz"] > 0.1 for choice in found for other in choice["alternatives"])
        told = rfm("plan", P4, "--robots", "18", "--budget", "0.1", "--explain", "assemble_kit_1").stdout
        assert "why that rate: its own cycle: 200 ms of execution" in told and "the factory would lose" in told

    def test_compare_has_a_line_per_policy_and_its_allocation(self) -> None:
        done = rfm("plan", P4, "--compare", "--budget", "0.2")
        assert done.exit_code == 0 and "system1:system2:safety:monitor" in done.stdout
        lines = {
            line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("│ ") and line.split()[1] in POLICIES
        }
        assert set(lines) == set(POLICIES) and "2:2:2:2" in lines["baseline3"]
        plans = rfm_json("plan", P4, "--compare", "--budget", "0.2")["policies"]
        assert [plan["policy"] for plan in plans] == list(POLICIES)
        assert plans[0]["objective"] == max(plan["objective"] for plan in plans)

    def test_an_infeasible_factory_is_explained_with_status_1(self, tmp_path: Path) -> None:
        small = edited(tmp_path, ("num_servers: 8", "num_servers: 4"))
        done = rfm("plan", small, "--robots", "130")
        assert done.exit_code == 1 and "infeasible with policy best" in done.stdout
        assert "problem: " in done.stdout and "remedy: feasible with" in done.stdout
        plan = rfm_json("plan", small, "--robots", "130", exit_code=1)
        assert not plan["feasible"] and plan["problems"] and plan["servers"] == []

    def test_an_slo_that_is_missed_by_many_servers_is_one_line(self) -> None:
        done = rfm("plan", P4, "--policy", "baseline3")
        problems = [line for line in done.stdout.splitlines() if line.startswith("problem:")]
        assert done.exit_code == 1 and len(problems) == 1
        assert "system1 of 'assemble_kit' on server_1-2: predicted p99" in problems[0] and "the SLO is 200 ms" in problems[0]

    def test_rate_control_caps_what_robots_send(self) -> None:
        def caps(*arguments: str) -> set[float | None]:
            plan = rfm_json("plan", P4, "--robots", "8", *arguments)
            return {s["max_rate_hz_each"] for server in plan["servers"] for s in server["streams"] if s["component"] == "system1"}

        assert caps("--policy", "baseline3", "--no-rate-control") == {None}
        assert None not in caps("--policy", "baseline3", "--rate-control")

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            (("--policy", "nope"), ScheduleError, "no policy is named 'nope'; there are: best, rosa"),
            (("--profiles", "/does/not/exist"), ProfileError, "holds no latency profiles"),
            (("--catalogue", "/does/not/exist.yaml"), ConfigurationError, "cannot be read"),
            (("--chart", "/does/not/exist.png", "--policy", "rosa"), ConfigurationError, "cannot be written"),
        ],
    )
    def test_bad_options_are_clear_errors(self, arguments: tuple[str, ...], error: type[RfmError], text: str) -> None:
        assert text in str(rfm("plan", P4, *arguments, fails_with=error).exception)

    def test_a_fleet_smaller_than_its_tasks_and_a_cluster_of_standbys_are_refused(self, tmp_path: Path) -> None:
        assert "ask for at least 4" in str(rfm("plan", MIX4, "--robots", "3", fails_with=ConfigurationError).exception)
        file = edited(tmp_path, ("robot_fleet:", "standby: {num_servers: 1}\nrobot_fleet:"))
        assert "standby.num_servers" in str(rfm("plan", file, "--servers", "1", fails_with=ConfigurationError).exception)

    def test_a_model_that_was_never_measured_has_no_plan(self, tmp_path: Path) -> None:
        done = rfm("plan", edited(tmp_path, ("NVIDIA H200", "NVIDIA H100")))
        assert done.exit_code == 1 and "no latency profile of 'nvidia/GR00T-N1.6-3B' on NVIDIA H100" in done.stdout


class TestCharts:
    def test_plan_draws_every_server(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        file = tmp_path / "plan.png"
        assert rfm("plan", P4, "--policy", "rosa", "--chart", str(file)).exit_code == 0
        assert file.read_bytes().startswith(b"\x89PNG")

    def test_without_matplotlib_the_error_names_the_extra(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        done = rfm("plan", P4, "--policy", "rosa", "--chart", str(tmp_path / "x.png"), fails_with=ConfigurationError)
        assert "ros2-rfm-serving[plots]" in str(done.exception)

    def test_the_points_of_an_axis_have_both_ends(self) -> None:
        assert charts.spread(1, 64, 7) == [1, 2, 4, 8, 16, 32, 64]
        assert charts.spread(5, 5, 9) == [5]


class TestPlacement:
    def test_names_are_joined_into_ranges(self) -> None:
        assert names(["server_1", "server_2", "server_3", "server_7"]) == "server_1-3,7"
        assert names(["server_2_monitor", "server_1_monitor", "server_1_safety"]) == "server_1-2_monitor, server_1_safety"

    def test_allocation_counts_a_shared_gpu_once(self) -> None:
        def server(name: str, *components: str, gpu: str = "") -> ServerSolution:
            streams = tuple(Stream(task="t", component=c, num_robots=1, rate_hz=1, cap_hz=1, slo=Slo(1.0)) for c in components)
            common = {
                "gpu_type": "G",
                "model": "m",
                "batching": "fixed",
                "batch_size": 1,
                "rate_hz": 1.0,
                "mean_s": 1.0,
                "p99_s": 1.0,
            }
            return ServerSolution(server=name, streams=streams, gpu=gpu, **common)  # type: ignore[arg-type]

        servers = (
            server("server_1", "system1"),
            server("server_2", "system1", "monitor"),
            server("server_3_a", "system1", gpu="server_3"),
            server("server_3_b", "monitor", gpu="server_3"),
            server("server_4"),
        )
        solution = Solution(policy="p", feasible=True, objective=1, bound=1, servers=servers)
        assert allocation(solution, ["system1", "monitor"]) == "1:0 + 2 of system1+monitor + 1 idle"

    def test_shipped_files_are_found_beside_the_package_and_in_an_installation(self, tmp_path: Path) -> None:
        package = tmp_path / "lib" / "python3.11" / "site-packages" / "ros2_rfm_serving"
        config = tmp_path / "share" / "rfm_serving" / "config"
        (config / "profiles").mkdir(parents=True)
        assert shipped("config", package=package) == config
        with pytest.raises(ConfigurationError, match=r"config/nothing\.yaml is not where"):
            shipped("config", "nothing.yaml", package=package)


class TestSearch:
    @given(threshold=st.integers(0, 70), start=st.integers(1, 64), rising=st.booleans())
    def test_finds_the_threshold_from_anywhere(self, threshold: int, start: int, rising: bool) -> None:
        search = ThresholdSearch(lambda n: n >= threshold if rising else n <= threshold, 1, 64, rising=rising)
        possible = [n for n in range(1, 65) if (n >= threshold if rising else n <= threshold)]
        expected = (min(possible) if rising else max(possible)) if possible else None
        assert search.run(start) == expected == search.best()
        assert search.monotone(expected) and len(search.trials) <= 16

    def test_says_when_the_answer_is_not_monotone(self) -> None:
        search = ThresholdSearch(lambda n: n in (3, 5) or n > 7, 1, 64, rising=True)
        assert search.run(8) == 8
        assert search.trials.keys() == {4, 6, 7, 8} and search.monotone(None)
        search.holds = lambda n: n == 2
        assert not search.monotone(4) and search.best() == 2


class TestFormulas:
    @pytest.mark.parametrize(("service_s", "clients"), [(0.020, 40), (0.150, 5)])
    def test_remote_rtc_s_own_examples(self, service_s: float, clients: int) -> None:
        """P10: ACT at 20 ms and 1 Hz: about 40 clients per GPU; Pi0 at 150 ms: about 5, 300 robots: about 60 GPUs."""
        load = ModelLoad(model="m", num_robots=300, rate_hz=300.0, service_s=service_s, slack_s=1.0, slo_rate_hz=50.0)
        assert load.remote_rtc_servers == math.ceil(300 / clients)

    def test_a_long_round_trip_leaves_no_client(self) -> None:
        load = ModelLoad(model="m", num_robots=1, rate_hz=1.0, service_s=0.1, slack_s=0.1 - 0.05, slo_rate_hz=0.0)
        assert load.remote_rtc_servers == math.inf and load.rosa_servers == math.inf

    def test_rosa_rounds_up_every_model(self) -> None:
        def servers(rate_hz: float) -> float:
            return ModelLoad(model="m", num_robots=8, rate_hz=rate_hz, service_s=1, slack_s=1, slo_rate_hz=4.0).rosa_servers

        assert (servers(8.0), servers(8.1)) == (2, 3)


class TestRequired:
    def test_a_rate_then_the_floor_then_a_share_of_the_closed_loop(self, tmp_path: Path) -> None:
        floored = load_inputs(Path(edited(tmp_path, ("assemble_kit:\n", "assemble_kit:\n  min_action_rate_hz: {per_class: 64}\n"))))
        bare = load_inputs(Path(P4))
        assert required_rates(floored.factory, floored.profile, 1.5)["assemble_kit"].rate_hz == 1.5
        assert required_rates(floored.factory, floored.profile, None)["assemble_kit"].rate_hz == 2.0
        share = required_rates(bare.factory, bare.profile, None)["assemble_kit"]
        # 200 ms of motion, 47.2 ms of System 1, a tenth of 0.45 s of System 2
        assert share.rate_hz == pytest.approx(0.8 / 0.2922, rel=0.02) and share.source == "80% of the unloaded closed loop"

    def test_what_no_cluster_can_give_is_refused(self) -> None:
        done = rfm("capacity", P4, "--rate", "20", fails_with=ScheduleError)
        assert "asks for 20 actions/s" in str(done.exception) and "on idle servers" in str(done.exception)


class TestCapacity:
    def test_answers_are_the_limits_themselves(self) -> None:
        answers = rfm_json("capacity", P4, "--policy", "rosa")
        inputs = load_inputs(Path(P4))
        required = required_rates(inputs.factory, inputs.profile, None)

        def holds(servers: int, robots: int) -> bool:
            factory = demanding(inputs.factory.with_num_servers(servers).with_num_robots(robots), required)
            return reached(plan_factory(factory, inputs.profile, inputs.catalogue, policy="rosa", explained=False), required)

        servers, robots = answers["servers"]["answer"], answers["robots"]["answer"]
        assert holds(servers, 32) and not holds(servers - 1, 32)
        assert holds(8, robots) and not holds(8, robots + 1)
        assert answers["servers"]["monotone"] and answers["robots"]["monotone"]
        assert answers["robots"]["fleet"] == {"assemble_kit": robots}

    def test_a_higher_rate_needs_more_gpus_and_leaves_fewer_robots(self) -> None:
        low, high = (rfm_json("capacity", P4, "--policy", "rosa", "--rate", rate) for rate in ("1.5", "2.8"))
        for name in ("answer", "rosa_accounting", "remote_rtc_p10"):
            assert low["servers"][name] <= high["servers"][name] and low["robots"][name] >= high["robots"][name]
        assert low["servers"]["answer"] < high["servers"]["answer"]

    @pytest.mark.patient
    def test_the_table_sets_the_formulas_beside_the_answer(self) -> None:
        done = rfm("capacity", MIX4, "--policy", "rosa", "--rate", "1", "--robots", "16")
        assert done.exit_code == 0
        assert "at least 1.00 actions/s (--rate)" in done.stdout and "Remote-RTC P10" in done.stdout
        assert "GPUs for 4 x pick_action_only" in done.stdout and "robots for 8 x NVIDIA H200" in done.stdout


class TestCheck:
    def test_says_what_is_declared_and_known(self) -> None:
        done = rfm("check", P4)
        assert done.exit_code == 0 and "warning" not in done.stdout
        assert "valid. 32 robots; servers: 8 x NVIDIA H200" in done.stdout
        assert "system2 (Qwen2.5-VL-7B-Instruct): 0.1 per action, p99 within 2000 ms" in done.stdout
        ways = "batch 1, 2, 4, 8, 16; continuous; planned in fixed batches"
        assert f"nvidia/GR00T-N1.6-3B on NVIDIA H200: in the catalogue, profiled ({ways}), 10 of 141 GB" in done.stdout

    def test_warns_of_unknown_unmeasured_and_oversized_models(self, tmp_path: Path) -> None:
        catalogue = tmp_path / "models.yaml"
        text = shipped("config", "profiles", "models.yaml").read_text(encoding="utf-8")
        catalogue.write_text(text.replace("NVIDIA H200: {memory_gb: 141}", "NVIDIA H200: {memory_gb: 24}"), encoding="utf-8")
        file = edited(tmp_path, ("nvidia/GR00T-N1.6-3B", "nobody/knows"))
        done = rfm("check", file, "--catalogue", str(catalogue))
        assert done.exit_code == 1 and "valid" not in done.stdout
        assert "it does not start yet: 'nobody/knows' is not in the catalogue; 'Qwen2.5-VL-7B-Instruct' does not fit" in done.stdout
        assert "warning: 'nobody/knows' was never measured on NVIDIA H200" in done.stdout
        assert "warning: 'nobody/knows' is not in the catalogue" in done.stdout
        assert "warning: 'Qwen2.5-VL-7B-Instruct' does not fit into the memory of NVIDIA H200" in done.stdout

    def test_refuses_models_whose_answers_robots_cannot_use(self, tmp_path: Path) -> None:
        """Their chunks would be dropped one by one, and no action would count."""
        policy, judge = "nvidia/GR00T-N1.6-3B", "Qwen2.5-VL-3B-Instruct"
        text = Path(P4).read_text(encoding="utf-8")
        assert policy in text and judge in text
        acts, judges = edited(tmp_path, (judge, policy)), tmp_path / "judges.yaml"
        judges.write_text(text.replace(policy, judge), encoding="utf-8")
        for file, component, asked in ((acts, "safety", "judgement"), (str(judges), "system1", "action_chunk")):
            for command in ("check", "plan", "simulate"):
                refused = str(rfm(command, file, fails_with=ConfigurationError).exception)
                assert f"components.{component}.model" in refused and f"name a model of `output: {asked}`" in refused

    def test_names_floors_values_modes_and_standbys(self, tmp_path: Path) -> None:
        extra = "assemble_kit:\n  value: 2\n  min_action_rate_hz: 1\n  execution: {mode: async}\n"
        file = edited(tmp_path, ("assemble_kit:\n", extra), ("robot_fleet:", "standby: {num_servers: 1}\nrobot_fleet:"))
        done = rfm("check", file)
        assert (
            "async execution, value 2, at least 1 actions/s per robot" in done.stdout and "standby: 1 of the servers" in done.stdout
        )


@pytest.mark.parametrize("verb", ["plan", "capacity"])
def test_a_gpu_type_may_be_written_with_brackets(tmp_path: Path, verb: str) -> None:
    """Which rich takes for markup: a closing one ended the command, another one was not seen."""
    folder, name = shipped("config", "profiles"), "CPU[/x][int8]"
    (tmp_path / "cpu.csv").write_text((folder / "cpu.csv").read_text().replace(",CPU,", f",{name},"))
    models = yaml.safe_load((folder / "models.yaml").read_text())
    for model in models["models"].values():
        model["gpus"] = {name if gpu == "CPU" else gpu: need for gpu, need in model["gpus"].items()}
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(models))
    factory = tmp_path / "factory.yaml"
    factory.write_text(shipped("config", "factory_quickstart.yaml").read_text().replace("gpu_type: CPU", f'gpu_type: "{name}"'))
    done = rfm(verb, str(factory), "--profiles", str(tmp_path))
    assert done.exit_code == 0 and name in done.stdout, done.exception


class TestRandomFactories:
    SIZE = Size(servers=6, robots=20, classes=3, models=3)

    @pytest.mark.parametrize("seed", range(6))
    def test_a_seed_gives_the_size_that_was_asked_for_twice(self, seed: int) -> None:
        one, two = random_factory(self.SIZE, seed), random_factory(self.SIZE, seed)
        assert one.factory == two.factory and len(one.factory.servers) == 6 and len(one.factory.robots) == 20
        assert len(one.factory.server_cluster) == 1 + seed % 2
        for group in one.factory.server_cluster:
            assert len(one.profile.models_on(group.gpu_type)) == 3
        assert one.factory != random_factory(self.SIZE, seed + 1).factory

    def test_most_can_be_served(self) -> None:
        cases = [random_factory(self.SIZE, seed) for seed in range(10)]
        assert sum(plan_factory(c.factory, c.profile, policy="rosa", explained=False).feasible for c in cases) >= 8


class TestBench:
    def test_writes_every_sample_and_prints_the_median(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(bench_scheduler, "SIZES", {(4, 8, 2, 2): 3})
        file = tmp_path / "bench.json"
        done = rfm("bench", "scheduler", "--policy", "rosa", "--json", str(file))
        (row,) = json.loads(file.read_text(encoding="utf-8"))
        assert len(row["work"]["samples"]) + len(row["failed"]) == 3 and row["size"] == "4 GPUs, 8 robots, 2 classes, 2 models"
        assert "4 GPUs, 8 robots" in done.stdout and "gap to the bound (%)" in done.stdout
        assert done.exit_code == (1 if row["failed"] else 0)

    def test_failures_are_shown_and_change_the_status(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bench_scheduler, "SIZES", {(1, 8, 2, 2): 3})
        done = rfm("bench", "scheduler", "--repetitions", "2")
        assert done.exit_code == 1 and "no schedule: " in done.stdout
