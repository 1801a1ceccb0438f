"""Page of `rfm reproduce kairos`: the setup, and every claim of the paper beside our result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lab.reproductions.claims import Claim
from lab.reproductions.kairos import reasons
from lab.reproductions.kairos.claims import STATISTICS, Of, Results, count, reduction
from lab.reproductions.kairos.points import (
    BEYOND,
    CORNERS,
    CUTS,
    FAR_BEYOND,
    HORIZONS,
    IN_FLIGHT,
    LEADS,
    LOADS,
    NO_QUICKER,
    OTHER_HORIZONS,
    POLICIES,
    RATE_HZ,
    REFETCH_S,
    SENSITIVE,
    SLO_S,
    TOP,
    Run,
    Setting,
)
from lab.reproductions.kairos.recorded import Recorded
from lab.reproductions.kairos.replay import (
    BATCHES_IN_FLIGHT,
    CLOUD_TIME,
    EDGE,
    MAX_BATCH_SIZE,
    PAYLOAD_MB,
    WIFI_S,
    cloud_law,
)
from lab.reproductions.kairos.sweep import MARGIN, pooled, value_of
from lab.reproductions.kairos.texts import (
    CUT,
    FIGURES,
    FLEET,
    INTRODUCTION,
    NO_QUICKER_CLOUD,
    PARTS,
    SET_UP,
    SUCCEEDING,
    WAITS,
    WITHOUT,
)

Claims = Mapping[str, Sequence[Claim]]


def page(results: Results, claims: Claims, setting: Setting) -> str:
    holding, number = count(claims)
    summary = f"Of {number} claims {holding} hold ([claims.csv](claims.csv), a row per workload).\n"
    parts = [INTRODUCTION, summary, _set_up(results, setting)]
    for name, (title, text) in FIGURES.items():
        heading = f"Figure {name}: {title}" if name.isdigit() else title
        parts.append(f"## {heading}\n\n    rfm reproduce kairos --figure {name}\n\n{text}\n\n![{title}](figure{name}.png)\n")
        parts.append(_claims(claims, name))
        parts += {"11": _sweep, "12": _online, "13": _in_flight, "14": _fleets, "16": _orders, "refetch": _refetch}.get(
            name, _nothing
        )(results)
        if name == "12":
            parts.append("### Table 2: latency reduction at the highest rate\n")
            parts.append(_claims(claims, "table2"))
    return "\n".join(part for part in parts if part)


def _nothing(results: Results) -> list[str]:
    return []


def _set_up(results: Results, setting: Setting) -> str:
    return SET_UP.format(
        workloads=_table(
            ("workload", "policy", "tasks", "episodes", "scenes", "requests a task", "edge full at"),
            (_workload(results.of(name)) for name in results.recorded),
        ),
        rate=RATE_HZ,
        lead=LEADS[0],
        slo=SLO_S,
        edge=f"{1e3 * EDGE.base_s:g} + {1e3 * EDGE.per_row_s:g} B",
        cloud=f"{1e3 * cloud_law().base_s:g} + {1e3 * cloud_law().per_row_s:g} B",
        batch=MAX_BATCH_SIZE,
        jitter=EDGE.jitter,
        payload=PAYLOAD_MB,
        wifi=1e3 * WIFI_S,
        in_flight=BATCHES_IN_FLIGHT,
        tasks=setting.num_tasks,
        seeds=len(setting.seeds),
        top=TOP,
        beyond=" and ".join(f"{load:g}" for load in BEYOND),
        margin=100 * MARGIN,
        horizons=_table(("workload", "horizon", "H or t of each task"), _horizons(results.recorded)),
        asked=_table(reasons.ASKED, (row for name in results.recorded for row in reasons.asked(results.of(name)))),
    )


def _workload(of: Of) -> tuple[str, ...]:
    workload, traces = of.recorded.workload, of.recorded.traces["static"]
    episodes = of.cells()[0].episodes
    rate_hz = of.run("static", "fifo", 1.0).rate_hz if LOADS else 0.0
    what = f"[{workload.model}](../../../models/{workload.model}/MODEL_CARD.md): {workload.title}"
    scenes = len(traces) // len(workload.tasks)
    figures = (str(len(workload.tasks)), str(episodes), str(scenes), f"{of.recorded.requests():.1f}", f"{rate_hz:.1f} tasks/s")
    return workload.name, what, *figures


def _horizons(recorded: Mapping[str, Recorded]) -> Iterable[tuple[str, str, str]]:
    for workload, each in recorded.items():
        for name, by_task in each.horizons.items():
            values = {value_of(horizon) for horizon in by_task.values()}
            told = ", ".join(f"{task} {value_of(horizon):g}" for task, horizon in by_task.items())
            yield workload, name, f"all {values.pop():g}" if len(values) == 1 else told


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows)]
    return "\n".join([*lines, ""])


def _claims(claims: Claims, figure: str) -> str:
    """Return a table with a row per claim and a column per workload."""
    found: dict[str, dict[str, Claim]] = {}
    for workload, of in claims.items():
        for claim in of:
            if claim.figure == figure:
                found.setdefault(claim.text, {})[workload] = claim
    if not found:
        return ""
    names = [name for name in claims if any(name in by_name for by_name in found.values())]
    rows = [_claim(text, by_name, names) for text, by_name in found.items()]
    return _table(("claim", "paper or promise", *names), rows)


def _claim(text: str, by_workload: Mapping[str, Claim], names: Sequence[str]) -> list[str]:
    claim = next(iter(by_workload.values()))
    cells = [text, f"{claim.rule.value} {claim.paper:g} {claim.unit}".strip()]
    for name in names:
        cells.append(_figure(by_workload[name]) if name in by_workload else "")
    return cells


def _figure(claim: Claim) -> str:
    """Return the figure, rounded as in `claims.csv` and once more."""
    ours = f"{float(f'{claim.ours:.6g}'):.3g}"
    return ours if claim.holds else f"**{ours}, no**"


def _sweep(results: Results) -> list[str]:
    rows = []
    for name, recorded in results.recorded.items():
        for cell in pooled(recorded.cells):
            low, high = cell.interval
            title = f"{name}, noise {cell.noise:g}" if cell.noise else name
            success = f"{cell.success:.1%} ({low:.1%} to {high:.1%}, n = {cell.episodes})"
            rows.append((title, f"{cell.policy} {cell.value:g}", f"{cell.horizon:.1f}", success))
    return [_table(("workload", "horizon", "mean executed steps", "success, 95 % interval"), rows)]


def _online(results: Results) -> list[str]:
    """Return the tables of each part's share, and of every policy at the highest rate."""
    shares = [_shares(results.of(name), load) for name in results.recorded for load in (*LOADS, *BEYOND)]
    headings = ("workload", "load", "horizon", "wait ratio", "both", "scheduler adds", "balanced", "both", "stood still before")
    rows = [
        (name, *_figures(run))
        for name in results.recorded
        for horizon in (*HORIZONS, *OTHER_HORIZONS)
        for dispatch in POLICIES
        if (run := _run_of(results.of(name), horizon, dispatch))
    ]
    columns = ("workload", "horizon", "dispatch", "mean (s)", "P25", "P95", "in SLO", "requests a task", "stood still", "success")
    left_out = [_without(results.of(name), task) for name in results.recorded for task in results.recorded[name].workload.tasks]
    left_out_headings = ("workload", "without", "horizon", "wait ratio", "both")
    cuts = [_cut(results.of(name), cut) for name in results.recorded for cut in (0, *CUTS)]
    by_policy = (f"{name}: mean, P25, P95" for name in ("wait ratio", "balanced", "wait ratio, against least attained"))
    succeeding = [row for name in results.recorded for row in reasons.succeeding(results.of(name))]
    waits = [row for name in results.recorded for row in reasons.waits(results.of(name))]
    cut_headings = ("workload", "steps a round", "requests a task", "spread", "lowest quarter", *by_policy)
    shared = [PARTS, _table(headings, shares), WITHOUT, _table(left_out_headings, left_out), CUT, _table(cut_headings, cuts)]
    shared += [SUCCEEDING, _table(reasons.SUCCEEDING, succeeding), WAITS, _table(reasons.WAITS, waits)]
    return [*shared, f"At the highest rate ({TOP:g}):\n", _table(columns, rows)]


def _shares(of: Of, load: float) -> tuple[str, ...]:
    horizon, scheduler, both = (
        of.gain(*part, load) for part in (("confidence", "fifo"), ("static", "wait_ratio"), ("confidence", "wait_ratio"))
    )
    ours, ours_both = of.gain("static", "balanced", load), of.gain("confidence", "balanced", load)
    percent = [f"{x:.0f} %" for x in (horizon, scheduler, both)]
    stood = f"{of.run('static', 'fifo', load).stalled:.0%}"
    return of.workload, f"{load:g}", *percent, f"{both - horizon:+.0f}", f"{ours:.0f} %", f"{ours_both:.0f} %", stood


def _without(of: Of, task: str) -> tuple[str, ...]:
    base = of.run("static", "fifo", without=task)
    gains = [reduction(of.run(*part, without=task), base) for part in CORNERS[1:]]
    return of.workload, task, *(f"{gain:.0f} %" for gain in gains)


def _cut(of: Of, cut: int) -> tuple[str, ...]:
    """Return the gain of the scheduler alone where every round of the same episodes executes this number of steps."""
    base = of.run("static", "fifo", cut=cut)
    gains = []
    for dispatch in POLICIES[2:]:
        run = of.run("static", dispatch, cut=cut)
        gains.append(", ".join(f"{reduction(run, base, statistic):.0f}" for statistic in STATISTICS) + " %")
    against = of.run("static", "least_attained", cut=cut)
    run = of.run("static", "wait_ratio", cut=cut)
    gains.append(", ".join(f"{reduction(run, against, statistic):.0f}" for statistic in STATISTICS) + " %")
    recorded = of.recorded.only(cut=cut)
    steps = str(cut) if cut else "as recorded"
    return of.workload, steps, f"{recorded.requests():.1f}", f"{recorded.spread():.2f}", f"{recorded.lowest():.2f}", *gains


def _run_of(of: Of, horizon: str, dispatch: str) -> Run | None:
    try:
        return of.run(horizon, dispatch)
    except KeyError:
        return None


def _figures(run: Run) -> tuple[str, ...]:
    latencies = [f"{seconds:.2f}" for seconds in (run.mean_s, run.p25_s, run.p95_s)]
    rest = (f"{run.attainment:.1%}", f"{run.requests:.1f}", f"{run.stalled:.0%}", f"{run.success:.1%}")
    return (run.point.horizon, run.point.dispatch, *latencies, *rest)


def _in_flight(results: Results) -> list[str]:
    rows, slower = [], [(load, NO_QUICKER) for load in (TOP, *BEYOND)]
    for name in results.recorded:
        for load in (TOP, *BEYOND):
            alone = [results.of(name).run("confidence", "wait_ratio", load, deployment=where) for where in ("edge", "cloud")]
            hybrid = [results.of(name).run("confidence", "wait_ratio", load, deployment="hybrid", in_flight=n) for n in IN_FLIGHT]
            told = [f"{run.mean_s:.2f} ({run.offloaded:.0%})" for run in hybrid]
            rows.append((name, f"{load:g}", *(f"{run.mean_s:.2f}" for run in alone), *told))
    headings = ("workload", "load", "edge", "cloud", *(f"hybrid, {n} in flight" for n in IN_FLIGHT))
    return [
        "Mean task latency (s), and the share of requests that ran in the cloud:\n",
        _table(headings, rows),
        NO_QUICKER_CLOUD,
        _table(
            ("workload", "load", "a batch in the cloud over the edge's", "cloud", "hybrid", "less than the cloud"),
            [_clouded(results.of(name), *each) for name in results.recorded for each in ((FAR_BEYOND, CLOUD_TIME), *slower)],
        ),
    ]


def _clouded(of: Of, load: float, cloud_time: float) -> tuple[str, ...]:
    cloud, hybrid = (
        of.run("confidence", "wait_ratio", load, deployment=where, cloud_time=cloud_time) for where in ("cloud", "hybrid")
    )
    latencies = [f"{run.mean_s:.2f}" for run in (cloud, hybrid)]
    return of.workload, f"{load:g}", f"{cloud_time:g}", *latencies, f"{reduction(hybrid, cloud):.0f} %"


def _fleets(results: Results) -> list[str]:
    rows = [row for name in results.recorded for row in reasons.fleets(results.of(name))]
    return [FLEET, _table(reasons.FLEET, rows)]


def _orders(results: Results) -> list[str]:
    of = results.of(SENSITIVE)
    return [_table(reasons.ORDER, reasons.orders(of)), reasons.slowest(of)]


def _refetch(results: Results) -> list[str]:
    of, rows = results.of(SENSITIVE), []
    for where in ("edge", "hybrid"):
        for lead in LEADS:
            for load in LOADS:
                runs = [
                    of.run("confidence", "wait_ratio", load, lead_steps=lead, refetch=refetch, deployment=where)
                    for refetch in (False, True)
                ]
                told = [f"{run.age_ms:.0f} ms, {run.moved_steps:.1f} steps, {run.mean_s:.2f} s" for run in runs]
                rows.append((where, str(lead), f"{load:g}", *told))
    limit = f"from {1e3 * REFETCH_S:g} ms on"
    return [_table(("where", "asks ahead", "load", "never asked again", f"asked again {limit}"), rows)]


TABLES = {"11": _sweep, "12": _online, "13": _in_flight, "14": _fleets, "16": _orders, "refetch": _refetch}
"""Tables of a figure beside its claims."""
