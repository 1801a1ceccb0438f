"""`rfm tune`: how many requests of a robot should be in flight, and how their solver steps are spread over frames."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import yaml_edit, yaml_source
from ros2_rfm_serving.factory.cluster import CONTINUOUS
from ros2_rfm_serving.factory.descriptor import CLUSTER
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.operate.inputs import (
    CatalogueFile,
    ChartFile,
    Inputs,
    JsonFlag,
    OwnFactoryFile,
    Profiles,
    console,
    load_inputs,
    print_json,
    write_text,
)
from ros2_rfm_serving.profiles.tuner import TuningGoal, TuningResult, best_of, frontier_of, grid
from ros2_rfm_serving.profiles.tuner import tune as search
from ros2_rfm_serving.reports.charts import require_matplotlib
from ros2_rfm_serving.types import SYSTEM1, PipelineConfig

if TYPE_CHECKING:
    from ros2_rfm_serving.factory import TaskEntry
    from ros2_rfm_serving.operate.pipeline_tuning import MeasuredBench

EPISODES = 52
_BATCHING_WRITTEN = f", and {CLUSTER}.batching: {CONTINUOUS}, without which no server takes pipelined sessions"


def tune(
    file: OwnFactoryFile,
    min_rate: Annotated[float, typer.Option(min=1e-3, max=1e6, metavar="HZ", help="Answers/s that one robot needs")],
    min_success: Annotated[float, typer.Option(min=0, max=1, metavar="SHARE", help="Of episodes")] = 0.95,
    task: Annotated[str, typer.Option(help="Of the descriptor; default: the only one, or else each must be named")] = "",
    max_depth: Annotated[
        int, typer.Option(min=2, max=64, metavar="L", help="Most requests in flight: pp_perception + pp_generation")
    ] = 8,
    episodes: Annotated[int, typer.Option(min=1, help="Per configuration that is run")] = EPISODES,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode")] = 0,
    slower: Annotated[
        float, typer.Option(min=0.01, max=1e4, metavar="X", help="The computer that will serve takes X times as long as this one")
    ] = 1.0,
    gpu: Annotated[str, typer.Option(metavar="TYPE", help="Throughput from the model's service law on it, not measured here")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Leave the descriptor as it is")] = False,
    chart: ChartFile = None,
    json: JsonFlag = False,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
) -> None:
    """Finds the fastest pipeline of a task that succeeds often enough (AURAS §4.3.2), and writes `execution.pipelining`, and the
    `batching: continuous` that it needs where the servers do not say how they batch.

    Throughput is measured in process, or from a service law; success in simulated worlds in lockstep, at the world's control rate.
    Exit status 1: none meets both.

    Example:  rfm tune my_factory.yaml --task push --min-rate 20 --min-success 0.95 --chart frontier.png

    Example:  rfm tune my_factory.yaml --task push --min-rate 5 --slower 10 --dry-run
    """
    inputs = load_inputs(file, profiles, catalogue)
    name, declared = _task(inputs, task)
    _rehearse(None if dry_run else file, name, chart)
    goal = TuningGoal(min_rate_hz=min_rate, min_success=min_success, max_depth=max_depth)
    bench = _bench(inputs, name, declared, episodes=episodes, seed=seed, slower=slower, gpu=gpu)
    tried = _search(goal, bench)
    best = best_of(tried)
    if chart:
        _draw(tried, goal, best, f"{file.name}: {name}", chart)
    if json:
        print_json({"task": name, "chosen": asdict(best.pipelining) if best else None, "tried": [_figures(own) for own in tried]})
    else:
        console.print(_table(tried, best))
    if best is None:
        if not json:
            console.print(f"no configuration reaches {min_rate:g}/s and {min_success:.0%}; L is at most {max_depth}")
        raise typer.Exit(1)
    if not dry_run:
        adds_batching = _lacks_batching(file)
        write_text(file, _edited(file, name, best.pipelining))
        if not json:
            console.print(f"{file}: {name}.execution.pipelining written" + _BATCHING_WRITTEN * adds_batching)


def _task(inputs: Inputs, name: str) -> tuple[str, TaskEntry]:
    """Return the task. Raises: `ConfigurationError`."""
    tasks, file = inputs.factory.tasks, inputs.factory.file
    if name not in tasks and (name or len(tasks) != 1):
        fix = did_you_mean(name, tasks) if name else f"name one of {', '.join(tasks)}"
        problem = f"has no task {name!r}" if name else f"has {len(tasks)} tasks"
        raise ConfigurationError(problem, file=file, key="--task", fix=fix)
    name = name or next(iter(tasks))
    if SYSTEM1 not in tasks[name].components:
        raise ConfigurationError("has no system1, whose requests could be pipelined", file=file, key=f"{name}.components")
    if tasks[name].world is None:
        fix = "declare a `world`, in which success can be measured"
        raise ConfigurationError("is missing", file=file, key=f"{name}.world", fix=fix)
    return name, tasks[name]


def _rehearse(file: Path | None, task: str, chart: Path | None) -> None:
    """Check at the beginning what would spoil the end of a long run. Raises: `ConfigurationError`."""
    if file is not None:
        _lacks_batching(file)
        _edited(file, task, PipelineConfig())
        if not os.access(file, os.W_OK):
            raise ConfigurationError("cannot be written", file=str(file), fix="make it writable, or say --dry-run")
    if chart is not None:
        require_matplotlib()
        if not chart.absolute().parent.is_dir():
            raise ConfigurationError("is in no folder", file=str(chart), key="--chart", fix=f"make {chart.parent} first")


def _lacks_batching(file: Path) -> bool:
    """Return whether the only group of servers declares no batching, so that the one for pipelined sessions can be written.
    Raises: `ConfigurationError` for servers with another batching."""
    source = yaml_source.read(file)
    cluster = source.data[CLUSTER]
    groups = cluster if isinstance(cluster, list) else [cluster]
    if any(group.get("batching") == CONTINUOUS for group in groups):
        return False
    if groups == [cluster] and "batching" not in cluster:
        return True
    fix = "write `batching: continuous` there, or say --dry-run"
    problem = "no server would take the pipelined sessions that are to be written"
    raise source.error((CLUSTER, "batching") if groups == [cluster] else (CLUSTER,), problem, fix)


def _bench(inputs: Inputs, name: str, task: TaskEntry, *, episodes: int, seed: int, slower: float, gpu: str) -> MeasuredBench:
    """Return the bench. Raises: `ConfigurationError`, `ModelError`."""
    try:
        from ros2_rfm_serving.engines.embedded.options import BundleOptions
        from ros2_rfm_serving.operate.pipeline_tuning import MeasuredBench, Place, law_of
    except ImportError as error:
        fix = "pip install 'ros2-rfm-serving[torch,metaworld]'"
        raise ConfigurationError(f"tuning needs {error.name}", fix=fix) from None
    from ros2_rfm_serving.shipped import shipped

    model = task.components[SYSTEM1].model
    entry = inputs.catalogue.models.get(model)
    if entry is None or entry.engine != "bundle":
        fix = "name a model whose catalogue entry says `engine: bundle`"
        key = f"{name}.components.system1.model"
        raise ConfigurationError(
            f"{model!r} is no embedded policy, which alone runs here", file=inputs.factory.file, key=key, fix=fix
        )
    assert task.world is not None
    place = Place(
        model=model,
        folder=shipped("models") / entry.bundle,
        options=BundleOptions.model_validate(entry.options).model_copy(update={"device": "cpu"}),
        world_task=task.world.task,
        control_rate_hz=task.world.control_rate_hz,
        slower=slower,
    )
    return MeasuredBench(place, episodes, seed, law_of(model, entry, gpu) if gpu else None)


def _search(goal: TuningGoal, bench: MeasuredBench) -> list[TuningResult]:
    """Search, and return the tried configurations; Ctrl-C ends it with nothing written."""
    tried: list[TuningResult] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("throughput of the grid")
        bench.say = lambda text: progress.update(bar, description=text)
        for own in search(goal, bench, [p for p in grid(goal.max_depth) if bench.can(p)]):
            tried.append(own)
    return tried


def _edited(file: Path, task: str, pipelining: PipelineConfig) -> str:
    """Return the descriptor with the pipelining, its line ends unchanged.
    Raises: `ConfigurationError` when it cannot be written there."""
    from ros2_rfm_serving.factory.reading import parse_factory

    with file.open(encoding="utf-8", newline="") as source:
        text = source.read()
    if _lacks_batching(file):
        text = yaml_edit.with_key(text, (CLUSTER, "batching"), CONTINUOUS, str(file))
    edited = yaml_edit.with_key(text, (task, "execution", "pipelining"), asdict(pipelining), str(file))
    parse_factory(edited, str(file))
    return edited


def _figures(own: TuningResult) -> dict[str, Any]:
    return {
        **asdict(own.pipelining),
        "rate_hz": own.rate_hz,
        "staleness_s": own.staleness_s,
        "verdict": own.verdict.value,
        "episodes": own.success.episodes if own.success else 0,
        "successes": own.success.successes if own.success else None,
    }


def _table(tried: list[TuningResult], best: TuningResult | None) -> Table:
    from ros2_rfm_serving.monitoring.board import wilson_interval

    table = Table(title="configurations, in the order in which they were tried; *: on the frontier", title_justify="left")
    for heading in ("pp_perception", "pp_generation", "alpha", "fetch_offset", "answers/s", "staleness"):
        table.add_column(heading, justify="right")
    table.add_column("success, 95 % interval")
    table.add_column("")
    frontier = frontier_of(tried)
    for own in tried:
        success = "not run"
        if own.success:
            low, high = wilson_interval(own.success.successes, own.success.episodes)
            success = f"{own.success.share:.0%} ({low:.0%} to {high:.0%})"
        keys = (f"{value:g}" for value in asdict(own.pipelining).values())
        verdict = "chosen" if own is best else own.verdict.value + (" *" if own in frontier else "")
        style = "bold" if own is best else None
        table.add_row(*keys, f"{own.rate_hz:.1f}", f"{1e3 * own.staleness_s:.0f} ms", success, verdict, style=style)
    return table


def _draw(tried: list[TuningResult], goal: TuningGoal, best: TuningResult | None, title: str, file: Path) -> None:
    """Draw throughput over success, staleness as colour. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.reports.charts import figure_of, save

    figure, (axis,) = figure_of(7, 4.5, 1)
    run = [(own, own.success) for own in tried if own.success]
    dots = axis.scatter(
        [100 * success.share for _, success in run],
        [own.rate_hz for own, _ in run],
        c=[1e3 * own.staleness_s for own, _ in run],
        cmap="viridis",
        zorder=3,
    )
    frontier = [own for own in frontier_of(tried) if own.success]
    axis.plot([100 * own.success.share for own in frontier if own.success], [own.rate_hz for own in frontier], color="C7", lw=1)
    if best and best.success:
        axis.plot(100 * best.success.share, best.rate_hz, "o", ms=14, mfc="none", mec="C3", label="chosen")
        axis.legend(fontsize=8)
    figure.colorbar(dots, ax=axis, label="staleness (ms)")
    axis.axhline(goal.min_rate_hz, color="black", lw=0.8, ls="--")
    axis.axvline(100 * goal.min_success, color="black", lw=0.8, ls="--")
    axis.set_xlabel("success (%)")
    axis.set_ylabel("answers/s of one robot")
    axis.set_title(title, fontsize=10)
    axis.grid(visible=True, alpha=0.2)
    save(figure, file)
