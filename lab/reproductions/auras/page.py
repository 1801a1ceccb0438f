"""Page of `rfm reproduce auras`: the setup, and every claim of the paper beside our result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lab.reproductions.auras.measured import FRAMES, Measured
from lab.reproductions.auras.points import PARALLEL, PERIOD_STEPS, Point, points_of
from lab.reproductions.claims import Claim
from ros2_rfm_serving.monitoring.board import wilson_interval

INTRODUCTION = """# AURAS §6, reproduced

One robot's requests in flight together, in the four execution modes of the paper, with the embedded policies on one core.

    rfm reproduce auras --out docs/reproductions/auras          # this page; goes on from measured.json, --anew measures anew
    rfm reproduce auras --figure 10 --out /tmp/auras            # one figure

*At least* and *at most* say what is compared.
"""
SET_UP = """## Set-up

- **Machine.** {processor}; PyTorch on one thread, the process on one core, one process at a time.
- **Time** is CPU time of the process, so that what else ran on the machine is not in it; shared caches remain.
  Every mode is timed beside SEQ, three times; a speedup is the median of the three ratios.
- **Modes.** SEQ: perception, all steps, answer, then the newest observation. DEC: perception in a thread of its own, all the
  time; a generation begins with the newest context. PAR: workers in threads, a whole request each, observations at the rate of
  AURAS' frames, the newest one first. AURAS: the step loop that serves (`SteppingEngine`), one frame after the other.
- **Policies.** `flow`: models/metaworld_flow, 5 and 10 Euler steps. `diffusion`: models/metaworld_diffusion, 40 and 100 DDIM steps.
- **Success**: {episodes} episodes per point over the four Meta-World tasks, 95 % intervals (Wilson), noise {noise} on executed
  actions. Worlds run in lockstep, with the measured intervals and latencies: one SEQ inference takes {period} control steps, the
  longest period at which SEQ keeps up (last figure), and everything else as much less or more as was measured. A chunk is
  executed from the row of the present, counted from the observation that its last steps saw; a robot whose rows run out
  stands still. No chunk is conditioned on the one before (the paper does not, [we do](../../rtc.md)).
- **Not run**: points that measured.json lacks; the same command goes on with them.
- **Graphs.** Networks run as PyTorch runs them, in all modes; traced, as they are served, in the last figure.
- **Not here**: GPUs, and with them Nsight's warp occupancy and the memory of CUDA graphs.
"""
FIGURES = {
    "5": (
        "success by the degree of parallelism, without a public context",
        f"An answer every {PERIOD_STEPS} control steps, each on an observation that is 1 to 6 times as old.",
    ),
    "10": (
        "success and throughput of the execution modes",
        f"PAR has {PARALLEL} workers. AURAS spreads generation evenly over 8 stages, or over as many as there are steps: "
        "what 40 steps bear (Figure 12).",
    ),
    "11": (
        "throughput by the degree of parallelism",
        """Workers on one core take turns: what one gains the others lose. In a frame the stages of all requests are one batch,
and a batch of n rows costs less than n of one.""",
    ),
    "12": (
        "success and throughput by the two degrees",
        "Diffusion, 40 steps; left with pp_perception 1, right with pp_generation 1.",
    ),
    "13": (
        "skew of the partition",
        """Diffusion, 100 steps, 5 stages. The longest stage has a share of e^(5 alpha) of all: at alpha 1, 64 of the 100 steps,
of which most run in a batch of one.""",
    ),
    "14": ("deeper and shallower networks", "Random weights, which are as fast; diffusion, 40 steps, 8 stages."),
    "15": ("number of solver steps", "Diffusion; as many stages as steps, at most 8."),
    "16": (
        "throughput over the grid of degrees",
        """Perception in several stages gains nothing on one core: it is under 2 % of the work. Both offsets cost the same.""",
    ),
    "periods": (
        "when one sequential inference takes fewer or more control steps",
        "Diffusion, 40 steps. Not in the paper: why the set-up says what it says.",
    ),
    "traced": (
        "the same with traced graphs, as these policies are served",
        """Not in the paper, whose modes all run as CUDA graphs. Between a single row's small kernels PyTorch has as much
to do as in a batch; a traced graph has less, and so SEQ gains some of what a batch would have gained it. What is left is
arithmetic, which no batch saves on one core: a step of 20 rows takes 6.6 ms of CPU time, 0.33 ms a row, and of one row 1.2 ms, or
0.9 ms traced; of the 20 rows' operators matrices take 62 %, attention 10 %, GELU, norms and modulation 10 % (`rfm bench steps`,
medians of five rounds, load of the machine 10). On a GPU, whose single rows leave it idle (34.9 % occupied in the paper), the
same batch costs little more than one row.""",
    ),
}

AUTOREGRESSIVE = f"""## Figure 10, autoregressive

    rfm bench frames --json docs/reproductions/auras/{FRAMES}

Action tokens are part of the public context, and all decodes of a frame are one prefill (§4.2.3,
[how](../../reference/engines.md#action-tokens)). Worlds stand still within a frame here.

"""


def page(results: Measured, claims: Sequence[Claim]) -> str:
    holding = sum(claim.holds for claim in claims)
    parts = [INTRODUCTION, f"Of {len(claims)} claims {holding} hold ([claims.csv](claims.csv)).\n", _set_up(results)]
    for name, (title, text) in FIGURES.items():
        heading = f"Figure {name}: {title}" if name.isdigit() else title.capitalize()
        parts.append(f"## {heading}\n\n    rfm reproduce auras --figure {name}\n\n{text}\n\n![{title}](figure{name}.png)\n")
        if own := [claim for claim in claims if claim.figure == name]:
            parts.append(_claims(own))
        if name == "10":
            parts.append(_modes(results))
    if results.framed:
        own = [claim for claim in claims if claim.figure == "autoregressive"]
        parts.append(f"{AUTOREGRESSIVE}{_claims(own)}\n{_ways(results)}")
    if rest := [claim for claim in claims if claim.figure == "startup"]:
        parts.append(f"## Start-up (§6.7)\n\n{_claims(rest)}")
    return "\n".join(parts)


def _set_up(results: Measured) -> str:
    machine, load = results.machine.get("processor", "?"), results.machine.get("load", "?")
    machine += f", {results.machine.get('cores', '?')} cores, load {load} when it was last timed"
    own = results.parameters
    return SET_UP.format(processor=machine, episodes=own.get("episodes"), noise=own.get("noise"), period=PERIOD_STEPS)


def _claims(claims: Iterable[Claim]) -> str:
    rows = [
        (c.text, f"{c.paper:.4g} {c.unit}", f"{c.ours:.4g} {c.unit}", c.rule.value, "yes" if c.holds else "**no**") for c in claims
    ]
    return _table(("claim", "paper or promise", "ours", "rule", "holds"), rows)


def _ways(results: Measured) -> str:
    rows = []
    for way in results.framed:
        low, high = wilson_interval(way.successes, way.episodes) if way.episodes else (0.0, 1.0)
        success = f"{way.success:.0%} ({low:.0%} to {high:.0%}, n = {way.episodes})" if way.episodes else "not run"
        rows.append((way.name, f"{way.speedup:.2f} ({min(way.speedups):.2f} to {max(way.speedups):.2f})", success))
    return _table(("execution", "x SEQ", "success"), rows)


def _modes(results: Measured) -> str:
    points = [p for p in points_of("10") if str(p.timed) in results.timings and str(p) in results.successes]
    headings = ("policy", "mode", "answers/s", "x SEQ", "interval's variation", "completion", "first answer", "memory", "success")
    return _table(headings, [_mode(point, results) for point in points])


def _mode(point: Point, results: Measured) -> tuple[str, ...]:
    timing, success = results.timing(point), results.success(point)
    low, high = success.interval
    ratios = timing.speedups or (1.0,)
    return (
        str(point.policy),
        str(point.mode),
        f"{timing.rate_hz:.1f}",
        f"{timing.speedup:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{timing.interval_cv:.0%}",
        f"{1e3 * timing.latency_s:.0f} ms",
        f"{1e3 * timing.first_s:.0f} ms",
        f"{max(0.0, timing.memory_mb):.1f} MB",
        f"{success.share:.0%} ({low:.0%} to {high:.0%}, n = {success.episodes})",
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
