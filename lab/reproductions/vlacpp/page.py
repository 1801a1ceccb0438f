"""Page, data and plot of `rfm reproduce vlacpp`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.reproductions.claims import Claim, claim_row
from lab.reproductions.files import write_rows
from lab.reproductions.vlacpp.points import DELAY_STEPS, NOISE, POINTS, STEPS, Mode, Outcome, Point, Replanned
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.reports.charts import DPI, figure_of

PLOT = "figure3.png"
COLOURS = {Mode.WAITS: "C7", Mode.NAIVE: "C3", Mode.CHUNKED: "C0"}
SPREAD = 1.04
"""Relative offset of modes beside each other, on a logarithmic axis."""
INTRODUCTION = f"""# vla.cpp, reproduced

How many steps of a chunk to execute before the next call (App. G, Table 12 and Fig. 3), with the embedded policy on the four
Meta-World tasks, with and without real-time chunking.

    rfm reproduce vlacpp --out docs/reproductions/vlacpp        # this page; goes on from measured.json, --anew measures anew

- **synchronous** is the paper's: the world stands still while a call is answered.
- **naive** and **real-time chunking** do not wait: an answer takes {DELAY_STEPS} control steps of 50 ms; what is left of the chunk
  before is executed meanwhile. Naive, the next chunk knows nothing of it; with real-time chunking it [continues it](../../rtc.md).
- S is what a robot executes before it asks again, of chunks of 24 rows. Who does not wait has one request in flight: S below the
  delay is the delay, and at the whole chunk rows run out before the answer comes. Steps per call and idle steps say so.
- **Disturbed**: noise of standard deviation {NOISE:g} of full scale (1 cm a step) on every executed action. Without it the policy
  knows after one look where everything is and will be, and S hardly matters.
- Worlds run in lockstep, cameras at 5 Hz, the same seeds at every point. *Latency* is measured apart from them: calls that an
  episode of each task asked for are computed again, in each round one of every point, in an order that changes. It is CPU time
  of one thread, which does not count waiting for a core, but is longer where others use caches and memory; so all points have
  their turns. The *control rate* is what that thread could keep up: steps per call over latency, as in the paper.
"""
NOTES = """
**Why no collapse.** The paper's policy falls to 38 % at its whole chunk of 50 rows (2.5 s at 20 Hz). These chunks have 24 rows,
1.2 s of an episode of some 3 s in which nothing moves but the arm: two or three looks are enough. Disturbed, success falls with
S from the first step on: there is no plateau, what is not looked at is lost. The control rate stays below linear because
episodes end within a chunk, so that less than S steps of a call are executed; a call itself takes as long at every S.

**What real-time chunking costs.** It takes the jumps out of the command. Where the arm is disturbed it pays for that: the rows
that go on while an answer is computed, and those that continue them, were planned before the push.

## The paper's other tables

| in the paper | here, in form | what is missing |
| --- | --- | --- |
| 2: fidelity, latency, chunk | [proved against their authors' code][proved] | success with published weights |
| 3: latency and footprint on three devices | [footprint][], on a CPU | a GPU, Jetsons |
| 4: an arm of steel | | all of it |
| 5: the architectures | [published architectures][architectures] | |
| 6: success on LIBERO | [precision][], [images][]: Meta-World, the shipped policies | LIBERO, published weights |
| 7: eager, compiled, ours | [where the time of a batch goes][phases]; [make gpu][gpu], at toy size | a GPU |
| 8, 9, Fig. 2: phases, intensity, roofline | [where the time of a batch goes][phases] | a GPU |
| 10, 11: a wrong position index, precision | [precision][], [below its tables][footprint] the index | |

[proved]: ../../measurements/engines.md#parity-with-the-authors-code
[footprint]: ../../measurements/engines.md#footprint
[architectures]: ../../reference/engines.md#published-architectures
[precision]: ../../measurements/engines.md#precision
[images]: ../../images.md
[phases]: ../../measurements/engines.md#where-the-time-of-a-batch-goes
[gpu]: ../../gpu.md
"""


def write(results: Replanned, claims: Sequence[Claim], out: Path) -> None:
    """Write all files. Raises: `ConfigurationError` when one cannot be written."""
    write_rows(out / "replan.csv", _rows(results))
    write_rows(out / "claims.csv", map(claim_row, claims))
    write_text(out / "README.md", page(results, claims))
    try:
        _figure(results).savefig(out / PLOT, dpi=DPI, pil_kwargs={"compress_level": 9})
    except OSError as error:
        raise ConfigurationError(
            f"cannot be written: {error.strerror}", file=str(out / PLOT), fix="choose another folder"
        ) from error


def page(results: Replanned, claims: Sequence[Claim]) -> str:
    machine = results.machine
    where = f"{machine.get('processor', '?')}, {machine.get('cores', '?')} cores, load {machine.get('load', '?')} at the end"
    where += f"; calls timed in {results.timing.rounds} rounds, load {results.timing.machine.get('load', '?')} at their end"
    said = f"{sum(claim.holds for claim in claims)} of {len(claims)} claims hold ([claims.csv](claims.csv))"
    parts = [
        INTRODUCTION,
        f"{results.episodes} episodes per point; {where}. {said}.\n",
        f"![success and control rate over the replan interval]({PLOT})\n",
        *(_table(mode, results) for mode in Mode),
        _claims(claims),
        NOTES,
    ]
    return "\n".join(parts)


def _table(mode: Mode, results: Replanned) -> str:
    headings = (
        "S",
        "steps per call",
        "latency: median, p95 (ms)",
        "control rate (Hz)",
        "success",
        "disturbed",
        "idle steps",
        "jump",
    )
    disturbed = dict(results.row(mode, disturbed=True))
    rows = [
        (
            str(steps),
            f"{one.steps_per_call:.1f}",
            *_timed(results, mode, steps),
            _success(one),
            _success(disturbed[steps]) if steps in disturbed else "not run",
            f"{one.idle_steps:.1f}",
            f"{one.seam_jump:.2f}",
        )
        for steps, one in results.row(mode)
    ]
    return f"## {mode.value[0].upper()}{mode.value[1:]}\n\n{_lines(headings, rows)}"


def _timed(results: Replanned, mode: Mode, steps: int) -> tuple[str, str]:
    if str(Point(mode=mode, steps=steps)) not in results.timing.call_s:
        return "not measured", ""
    median_s, high_s = results.call_s(mode, steps)
    return f"{1e3 * median_s:.2f}, {1e3 * high_s:.2f}", f"{results.control_hz(mode, steps):.0f}"


def _success(one: Outcome) -> str:
    low, high = one.interval
    return f"{one.success:.0%} ({low:.0%} to {high:.0%})"


def _claims(claims: Iterable[Claim]) -> str:
    rows = [
        (c.text, f"{c.paper:.3g} {c.unit}", f"{c.ours:.3g} {c.unit}", c.rule.value, "yes" if c.holds else "**no**") for c in claims
    ]
    return f"## Claims\n\n{_lines(('claim', 'paper', 'ours', 'rule', 'holds'), rows)}"


def _lines(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (headings, ["---"] * len(headings), *rows))


def _rows(results: Replanned) -> Iterator[dict[str, Any]]:
    for point in POINTS:
        if one := results.outcomes.get(str(point)):
            low, high = one.interval
            median_s, high_s = results.timing.call_s.get(str(Point(mode=point.mode, steps=point.steps)), (math.nan, math.nan))
            yield {
                "mode": point.mode.value,
                "S": point.steps,
                "noise": NOISE * point.disturbed,
                "steps_per_call": one.steps_per_call,
                "call_median_s": median_s,
                "call_p95_s": high_s,
                "control_hz": one.steps_per_call / median_s,
                "success": one.success,
                "low": low,
                "high": high,
                "episodes": one.episodes,
                "steps": one.steps,
                "idle_steps": one.idle_steps,
                "seam_jump": one.seam_jump,
            }


def _figure(results: Replanned) -> Any:
    """Draw success with its interval, undisturbed with the rate and disturbed, and the largest jump of a command; all over S."""
    figure, (still, disturbed, jump) = figure_of(14, 3.8, 3)
    for mode in Mode:
        _successes(still, results, mode, disturbed=False)
        _successes(disturbed, results, mode, disturbed=True)
        own = list(results.row(mode))
        jump.plot([steps for steps, _ in own], [one.seam_jump for _, one in own], "-o", ms=4, color=COLOURS[mode])
    rate = still.twinx()
    timed = [steps for steps, _ in results.row(Mode.WAITS) if str(Point(mode=Mode.WAITS, steps=steps)) in results.timing.call_s]
    rates = [results.control_hz(Mode.WAITS, steps) for steps in timed]
    rate.plot(timed, rates, "--", color="C2", label="control rate")
    rate.set_ylabel("control rate (Hz)")
    rate.set_ylim(bottom=0)
    rate.legend(fontsize=8, loc="lower right")
    labels = ("success (%)", "success of a disturbed arm (%)", "largest jump of a command at a seam, mean")
    for axis, label in zip((still, disturbed, jump), labels, strict=True):
        axis.set_xlim(STEPS[0] / 1.3, STEPS[-1] * 1.3)  # limits first: there may be no data yet
        axis.set_xscale("log", base=2)
        axis.set_xticks(STEPS, [str(steps) for steps in STEPS])
        axis.set_xlabel("S, executed steps per call")
        axis.set_ylabel(label)
        axis.grid(visible=True, alpha=0.2)
        axis.set_ylim(bottom=0)
    disturbed.legend(fontsize=8, loc="lower left")
    return figure


def _successes(axis: Any, results: Replanned, mode: Mode, *, disturbed: bool) -> None:
    own = list(results.row(mode, disturbed=disturbed))
    at = [steps * SPREAD ** (list(Mode).index(mode) - 1) for steps, _ in own]
    below = [100 * (one.success - one.interval[0]) for _, one in own]
    above = [100 * (one.interval[1] - one.success) for _, one in own]
    shares = [100 * one.success for _, one in own]
    axis.errorbar(at, shares, yerr=[below, above], fmt="-o", ms=4, elinewidth=0.6, color=COLOURS[mode], label=mode.value)
