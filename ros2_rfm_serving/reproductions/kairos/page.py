"""The page of `rfm reproduce kairos`: what was done, and every claim of the paper beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ros2_rfm_serving.reproductions.claims import Claim
from ros2_rfm_serving.reproductions.kairos.claims import Results, gap
from ros2_rfm_serving.reproductions.kairos.points import (
    BEYOND,
    HORIZONS,
    OTHER_HORIZONS,
    PACE,
    POLICIES,
    RATES,
    Point,
    Run,
    Setting,
)
from ros2_rfm_serving.reproductions.kairos.replay import CLOUD, EDGE, MAX_BATCH_SIZE, PAYLOAD_MB, WIFI_S
from ros2_rfm_serving.reproductions.kairos.sweep import MIN_STEPS, chosen, pooled, value_of

INTRODUCTION = """# Kairos §5, reproduced

Recorded Meta-World tasks, replayed in virtual time against the model server of the floor. What differs from the paper is the
policy, the four tasks and the GPU, which is a service law; server, dispatch and horizons are the code that runs live.

    rfm reproduce kairos --out docs/reproductions/kairos       # this page, from the shipped sweep and traces (config/kairos)
    rfm reproduce kairos --figure 12 --out /tmp/kairos         # one figure
    rfm reproduce kairos --record 100 --out /tmp/kairos        # sweep and traces anew: about an hour on one core

*At least* and *at most* say what is compared; where the paper gives a range over its workloads, its lowest figure stands here.
"""
FIGURES = {
    "11": (
        "success against the mean executed horizon",
        """The embedded policy (chunks of 24, five solver steps), four tasks, synchronous rounds: the world stands still while the
engine works. `confidence` is the paper's rule. `curvature` cuts where the solver's path bends by more than t: absolute, not
relative to an action's own updates. The policy samples from the mean of the noise, and so the updates tell something: started
from noise, they mostly remove it. A static horizon has one value for all tasks, and so has a threshold. What dominates does so
point by point; the intervals of neighbouring points overlap.

Right: the same with noise (standard deviation 0.3) on every executed action. No update can foretell that, and how much a phase
of the task suffers from it is not what the model is unsure of.""",
    ),
    "12": (
        "task latency by arrival rate",
        """Bars from P25 to P95. Both horizons are tuned per task, as in the paper: the static one is the largest of the most
successful, the threshold executes most of those that succeed no less often in the sweep. `.._one`: one H, one t, for all tasks.

P25 comes out otherwise than in the paper: our tasks are a few rounds long. By wait ratio, the first request of a task, which
has not waited yet, comes last; least attained serves it first, and lets the longest tasks pay.""",
    ),
    "13": (
        "edge, cloud and hybrid",
        """One batch at a time is on its way to the cloud and back: in the hybrid, the round trip counts against the cloud's
throughput. With the cloud alone it only delays requests and replies. So the faster GPU alone wins once the edge is loaded, as with
mimic-video in the paper; below that, the edge does.""",
    ),
    "14": (
        "fleets that work through a set of tasks",
        """A robot takes the next task as soon as it has finished one: who waits does not ask, and the mean latency is the number of
robots over the throughput. Requests per task decide that; dispatch only moves latency between tasks.""",
    ),
    "15": ("number of wait-ratio buckets", "At the highest rate; *none* ranks by the wait ratio itself."),
    "16": ("order inside a bucket", "At the highest rate. Here the order shortens the mean, not the tail."),
    "17": ("the network between edge and cloud", "Hybrid, at the highest rate."),
}
SET_UP = """## Set-up

- **Traces.** How many actions every round of an episode executed, recorded in scenes that the sweep did not have. Robots run at
  {rate:g} Hz and ask {lead} actions ahead; they stand still while a chunk is late.
- **Edge** (RTX A6000, SmolVLA): {edge} ms for a batch of B, at most {batch}, {jitter:.0%} scatter. 50 ms alone is what an
  RTX 3060 (54.8) and an RTX 5090 (49.6) take (vla.cpp); with B it grows as SGLang's pi0.5 does on an H100.
- **Cloud** (A100): half of that, {cloud} ms, 100 ms away (there and back), 1 Gbit/s, {payload:g} MB an observation.
  Wi-Fi: {wifi:g} ms one way.
- **Load.** {tasks} tasks per run drawn with replacement, {seeds} seeds pooled; SLO of a request {slo:g} s.
- **Horizons** (H_min {h_min}), chosen by the sweep:

| horizon | H or t of each task |
| --- | --- |
{horizons}
"""


def page(results: Results, claims: Sequence[Claim], setting: Setting) -> str:
    holding = sum(claim.holds for claim in claims)
    parts = [INTRODUCTION, f"Of {len(claims)} claims {holding} hold ([claims.csv](claims.csv)).\n", _set_up(results, setting)]
    for number, (title, text) in FIGURES.items():
        parts.append(f"## Figure {number}: {title}\n\n    rfm reproduce kairos --figure {number}\n\n{text}\n")
        parts.append(f"![{title}](figure{number}.png)\n")
        parts.append(_claims(claim for claim in claims if number in claim.figure.split(", ")))
        if number == "11":
            parts.append(_sweep(results))
        if number == "12":
            parts.append(_top(results))
            parts.append("### Table 2: latency reduction at the highest rate\n")
            parts.append(_claims(claim for claim in claims if claim.figure == "table2"))
    return "\n".join(part for part in parts if part)


def _set_up(results: Results, setting: Setting) -> str:
    rows = [
        f"| {name} | {', '.join(f'{task} {value_of(horizon):g}' for task, horizon in by_task.items())} |"
        for name, by_task in chosen(results.cells).items()
    ]
    return SET_UP.format(
        rate=PACE.control_rate_hz,
        lead=PACE.lead_steps,
        slo=PACE.slo_s,
        edge=f"{1e3 * EDGE.base_s:g} + {1e3 * EDGE.per_row_s:g} B",
        cloud=f"{1e3 * CLOUD.base_s:g} + {1e3 * CLOUD.per_row_s:g} B",
        batch=MAX_BATCH_SIZE,
        jitter=EDGE.jitter,
        payload=PAYLOAD_MB,
        wifi=1e3 * WIFI_S,
        tasks=setting.num_tasks,
        seeds=len(setting.seeds),
        h_min=MIN_STEPS,
        horizons="\n".join(rows),
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows)]
    return "\n".join([*lines, ""])


def _claims(claims: Iterable[Claim]) -> str:
    rows = [
        (c.text, f"{c.paper:g} {c.unit}", f"{c.ours:.4g} {c.unit}", c.rule.value, "yes" if c.holds else "**no**") for c in claims
    ]
    return _table(("claim", "paper or promise", "ours", "rule", "holds"), rows) if rows else ""


def _sweep(results: Results) -> str:
    rows = []
    for title, cells in (("undisturbed", results.cells), ("noise 0.3", results.disturbed)):
        for cell in pooled(cells):
            low, high = cell.interval
            success = f"{cell.success:.1%} ({low:.1%} to {high:.1%}, n = {cell.episodes})"
            rows.append((title, f"{cell.policy} {cell.value:g}", f"{cell.horizon:.1f}", success))
    return _table(("world", "horizon", "mean executed steps", "success, 95 % interval"), rows)


def _top(results: Results) -> str:
    """Every policy at the highest rate."""
    top = max(RATES)
    points = [Point(horizon=h, dispatch=d, rate_hz=top) for h in (*HORIZONS, *OTHER_HORIZONS) for d in POLICIES]
    rows = [_figures(results.runs[point]) for point in points if point in results.runs]
    headings = ("horizon", "dispatch", "mean (s)", "P25", "P95", "in SLO", "requests a task", "stood still", "success")
    beyond = [f"{gap(results, rate):.0f} % at {rate:g} tasks/s" for rate in BEYOND]
    saturated = (
        f"Beyond, where either overloads the edge, Kairos' mean is below FIFO's with static horizons by {', '.join(beyond)}."
    )
    return f"At {top:g} tasks/s:\n\n{_table(headings, rows)}\n{saturated}\n"


def _figures(run: Run) -> tuple[str, ...]:
    latencies = [f"{seconds:.2f}" for seconds in (run.mean_s, run.p25_s, run.p95_s)]
    rest = (f"{run.attainment:.1%}", f"{run.requests:.1f}", f"{run.stalled:.0%}", f"{run.success:.1%}")
    return (run.point.horizon, run.point.dispatch, *latencies, *rest)
