"""Data of `rfm reproduce rosa`: the runs as CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.reproductions.files import write_rows
from lab.reproductions.rosa.claims import Results, deviations_of, worst_and_median
from lab.reproductions.rosa.runs import Batching, Run, Sizing, allocation_text, placement_text, points_of
from ros2_rfm_serving.factory import Factory


def write(figure: str, results: Results, factories: Mapping[str, Factory], out: Path) -> None:
    """Write the data of a figure. factories: workload -> factory."""
    for name, rows in _files(figure, results, factories):
        write_rows(out / f"{name}.csv", rows)


def _files(figure: str, results: Results, factories: Mapping[str, Factory]) -> Iterator[tuple[str, Iterable[Mapping[str, Any]]]]:
    fleets = sorted({point.num_robots for point in results.runs})
    wanted = set(points_of(figure, fleets))
    runs = [run for point, run in results.runs.items() if point in wanted]
    if figure == "11":
        yield "figure11", map(_sizing_row, results.sizings)
    elif figure == "14":
        yield "figure14", map(_batching_row, results.batchings)
    elif figure == "tables":
        yield "tables1-2", (row for workload, factory in factories.items() for row in _declared(workload, factory))
        yield "table3", map(_allocation_row, runs)
    elif figure == "policies":
        yield "policies", map(_run_row, runs)
        yield "servers", (row for run in runs for row in _server_rows(run))
        yield "deviations", _deviation_rows(results)
    else:
        yield f"figure{figure}", map(_run_row, runs)


def _run_row(run: Run) -> dict[str, Any]:
    lowest, component = run.lowest_attainment
    system1 = run.system1
    return {
        "workload": run.point.workload,
        "robots": run.point.num_robots,
        "policy": run.point.policy,
        "rate_control": run.point.capped,
        "allocation_of": run.point.allocation,
        "placement": placement_text(run.solution),
        "predicted_feasible": run.solution.feasible,
        "objective_hz": run.solution.objective,
        "expected_goodput_hz": run.solution.expected,
        "bound_hz": run.solution.bound,
        "goodput_hz": run.goodput,
        "raw_hz": run.raw,
        "system1_attainment": system1.slo_attainment if system1 else "",
        "system1_p50_ms": 1e3 * system1.p50_s if system1 else "",
        "system1_p99_ms": 1e3 * system1.p99_s if system1 else "",
        "lowest_attainment": lowest if component else "",
        "lowest_component": component,
    }


def _server_rows(run: Run) -> Iterator[dict[str, Any]]:
    simulated = {server.server: server for server in run.report.servers} if run.report else {}
    for server in run.solution.servers:
        of = simulated[server.server]
        yield {
            "workload": run.point.workload,
            "robots": run.point.num_robots,
            "policy": run.point.policy,
            "rate_control": run.point.capped,
            "server": server.server,
            "model": server.model,
            "batch_size": server.batch_size,
            "streams": server.num_streams,
            "predicted_feasible": run.solution.feasible,
            "predicted_rate_hz": server.rate_hz,
            "rate_hz": of.rate_hz,
            "predicted_p99_ms": 1e3 * server.p99_s,
            "p99_ms": 1e3 * of.p99_s,
        }


def _deviation_rows(results: Results) -> Iterator[dict[str, Any]]:
    for of in deviations_of(results):
        (worst, middle), (worst_p99, middle_p99) = worst_and_median(of.goodput), worst_and_median(of.p99)
        yield {
            "policy": of.policy,
            "rate_control": of.capped,
            "runs": len(of.goodput),
            "goodput_median": middle,
            "goodput_worst": worst,
            "goodput_over_10_percent": sum(abs(deviation) > 0.1 for deviation in of.goodput),
            "servers": len(of.p99),
            "p99_median": middle_p99,
            "p99_worst": worst_p99,
            "p99_over_10_percent": sum(abs(deviation) > 0.1 for deviation in of.p99),
        }


def _sizing_row(sizing: Sizing) -> dict[str, Any]:
    return {
        "workload": sizing.workload,
        "robots": sizing.num_robots,
        "policy": sizing.policy,
        "rosa_hz": sizing.objective,
        "gpus": "" if sizing.needed is None else sizing.needed,
        "ratio": sizing.ratio,
    }


def _batching_row(batching: Batching) -> dict[str, Any]:
    return {
        "robots": batching.num_robots,
        "period_ms": batching.period_ms,
        "batch_size": batching.batch_size,
        "predicted_speedup": batching.predicted_speedup,
        "simulated_speedup": batching.simulated_speedup,
    }


def _declared(workload: str, factory: Factory) -> Iterator[dict[str, Any]]:
    """Yield Tables 1 and 2, as the descriptors have them."""
    for entry in factory.robot_fleet:
        task = factory.tasks[entry.task]
        for name, component in task.components.items():
            yield {
                "workload": workload,
                "task": entry.task,
                "share_of_robots": entry.num_robots / len(factory.robots),
                "t_act_ms": 1e3 * task.cycle_period_s,
                "component": name,
                "model": component.model,
                "freq_hz": component.freq_hz or "",
                "calls_per_action": task.calls_per_action(name) or "",
                "slo_ms": component.slo_ms,
                "percentile": task.percentile,
            }


def _allocation_row(run: Run) -> dict[str, Any]:
    return {
        "policy": run.point.policy,
        "robots": run.point.num_robots,
        "servers_s1_s2_safety_monitor": allocation_text(run.solution),
        "placement": placement_text(run.solution),
    }
