"""Effect of measured profiles: schedules of ROSA's P1 (actions alone) with measured and with shipped, derived profiles, and the
figures of the paper that need no other input (`rfm reproduce rosa`)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from lab.benchmarks.gpu import texts, vlm
from lab.benchmarks.gpu.child import Skip, Task
from lab.benchmarks.gpu.networks import parameters_of
from lab.benchmarks.gpu.pieces import PROFILED, TEXTS
from lab.benchmarks.gpu.profiled import comment_of, model_of
from lab.benchmarks.gpu.rows import Value
from ros2_rfm_serving.operate.inputs import Inputs, load_inputs, solve, with_system1
from ros2_rfm_serving.profiles import format_rows, read_rows
from ros2_rfm_serving.scheduler import to_schedule
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.simulation.simulate import simulate
from ros2_rfm_serving.types import SYSTEM1

DERIVED_MODEL, DERIVED_GPU = "nvidia/GR00T-N1.6-3B", "NVIDIA H200"
FLEETS, TOY_FLEETS = (8, 16, 32, 64), (8, 32)
SECONDS, TOY_SECONDS = 60.0, 10.0
ROSAS = ("groot_n1_6", "groot_n1_7")
"""System 1 of ROSA's figures: the paper's model if it was measured, or its successor."""
POLICIES = ("best", "rosa")
FIGURES_OF_ALL = ("6", "9", "10", "14")
FIGURE_OF_ACTIONS = ("14",)
"""Figure of P1 alone."""


def run(task: Task) -> None:
    """Plan per fleet and policy: with the derived profile, then with each measured one.

    Raises: `Skip` while profiles are missing.
    """
    rows, folder = task.rows("plan"), catalogue_of(task)
    measured = [(model_of(task.machine, name), task.machine.gpu_type) for name in _profiled(task)]
    sources: list[tuple[str, str, Path | None]] = [(DERIVED_MODEL, DERIVED_GPU, None), *((*one, folder) for one in measured)]
    done = 0
    for model, gpu_type, profiles in sources:
        for robots in TOY_FLEETS if task.is_toy else FLEETS:
            for policy in POLICIES:
                source = "measured" if profiles else "derived"
                if rows.has(source=source, model=model, gpu_type=gpu_type, robots=robots, policy=policy):
                    continue
                task.begin(done)
                inputs = _inputs(model, gpu_type, profiles, robots)
                rows.add(
                    source=source, model=model, gpu_type=gpu_type, robots=robots, policy=policy, **_figures(inputs, policy, task)
                )
                print(f"{source} {model}, {robots} robots, {policy}: {rows.rows[-1]['goodput']} actions/s", flush=True)
                done += 1
    if missing := sorted(set(PROFILED) - set(_profiled(task))):
        raise Skip(f"planned with what was measured; no profile yet of {', '.join(missing)}")


def run_rosa(task: Task) -> None:
    """Reproduce the figures; those with text models only where these have a profile on that GPU: the others are P1's."""
    folder, gpu_type = catalogue_of(task), task.machine.gpu_type
    model = model_of(task.machine, next(name for name in ROSAS if name in _profiled(task)))
    known = {(row.model, row.gpu_type) for file in folder.glob("*.csv") for row in read_rows(file)}
    figures = FIGURES_OF_ALL if all((text, gpu_type) in known for text in texts.PUBLISHED.values()) else FIGURE_OF_ACTIONS
    for figure in figures:
        given = ["--figure", figure, "--profiles", str(folder), "--gpu-type", gpu_type, "--system1", model, "--jobs", "2"]
        given += ["--out", str(task.out / "rosa"), *(["--quick"] if task.is_toy else [])]
        code = subprocess.run([sys.executable, "-m", "ros2_rfm_serving.cli", "reproduce", "rosa", *given], check=False).returncode
        if code:
            raise SystemExit(code)
    (task.out / "rosa" / "machine.txt").write_text("".join(f"{key}: {value}\n" for key, value in task.machine.columns().items()))


def _profiled(task: Task) -> list[str]:
    """Return the architectures with a measured profile."""
    file = task.out / "profiles" / task.machine.profile_name
    known = {(row.model, row.gpu_type) for row in read_rows(file)} if file.exists() else set()
    return [name for name in PROFILED if (model_of(task.machine, name), task.machine.gpu_type) in known]


def catalogue_of(task: Task) -> Path:
    """Return a folder of profiles: the measured one, and the shipped ones for other models. Its models have no derived law, which
    would replace the measurements.
    Raises: `Skip` before any measurement.
    """
    measured = task.out / "profiles" / task.machine.profile_name
    if not measured.exists():
        raise Skip(f"{measured} is not there: no profile was measured yet")
    folder = task.out / "profiles" / "catalogue"
    folder.mkdir(exist_ok=True)
    shutil.copy(measured, folder / "measured.csv")
    acting = {model_of(task.machine, name): name for name in PROFILED}
    spoken = {texts.model_of(task.machine, name): name for name in TEXTS[task.machine.size]}
    new = {(row.model, row.gpu_type) for row in read_rows(measured)}
    others = [row for file in sorted(shipped("config", "profiles").glob("*.csv")) for row in read_rows(file)]
    kept = [row for row in others if (row.model, row.gpu_type) not in new]
    (folder / "shipped.csv").write_text(format_rows(kept, "of the shipped profiles"), encoding="utf-8")
    catalogue = yaml.safe_load(shipped("config", "profiles", "models.yaml").read_text(encoding="utf-8"))
    for model, gpu_type in sorted(new):
        answers = {"output": "judgement"} if model in spoken else {"action_names": ["x"]}
        entry = catalogue["models"].setdefault(model, {"engine": "emulated", **answers, "gpus": {}})
        memory_gb = _memory_gb(task, acting.get(model), spoken.get(model))
        entry["gpus"][gpu_type] = {"memory_gb": memory_gb, "load_s": 6, "source": comment_of(task.machine)}
    (folder / "models.yaml").write_text(yaml.safe_dump(catalogue, sort_keys=False), encoding="utf-8")
    return folder


def _memory_gb(task: Task, acts: str | None, speaks: str | None) -> float:
    """Return the memory: weights of two bytes, and 4 GB more, as in docs/profiles.md; a toy needs hardly any."""
    if task.is_toy:
        return 0.1
    assert acts or speaks
    parameters = vlm.parameters_of(speaks) if speaks else parameters_of(str(acts))
    return round(4.0 + 2e-9 * parameters, 1)


def _inputs(model: str, gpu_type: str, profiles: Path | None, robots: int) -> Inputs:
    inputs = load_inputs(shipped("config", "rosa", "p1.yaml"), profiles, robots=robots)
    return Inputs(factory=with_system1(inputs.factory, model, gpu_type), profile=inputs.profile, catalogue=inputs.catalogue)


def _figures(inputs: Inputs, policy: str, task: Task) -> dict[str, Value]:
    solution = solve(inputs, policy, work=2.0, explained=False)
    if not solution.servers:
        return {"feasible": "False", "planned": 0.0, "goodput": 0.0, "p99_ms": "", "batch_sizes": ""}
    report = simulate(
        to_schedule(solution, inputs.factory.robots, epoch=1),
        inputs.factory,
        inputs.catalogue,
        inputs.profile,
        seconds=TOY_SECONDS if task.is_toy else SECONDS,
        seed=0,
    )
    sizes = sorted({server.batch_size for server in solution.servers})
    return {
        "feasible": str(solution.feasible),
        "planned": solution.expected,
        "goodput": report.goodput,
        "p99_ms": 1e3 * report.components[SYSTEM1].p99_s,
        "batch_sizes": "+".join(map(str, sizes)),
    }
