"""`rfm train`: demonstrations of scripted experts, then the embedded models as bundles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

WHAT = ("policy", "judge", "safety", "monitor", "planner", "staged-policy", "diffusion", "autoregressive", "image-policy", "all")


class Head(Enum):
    REGRESSION = "regression"
    FLOW = "flow"


StagedSteps = Annotated[int, typer.Option(min=1, help="Training steps of the staged policy, which goes on from the policy")]
DiffusionSteps = Annotated[int, typer.Option(min=1, help="Training steps of the diffusion policy, which goes on from the policy")]
AutoregressiveSteps = Annotated[
    int, typer.Option(min=1, help="Training steps of the autoregressive policy, which sets out from the policy's eyes")
]
Simulator = Annotated[str, typer.Option(help="Policy: of another world, as a descriptor's `simulator` names it (docs/worlds.md)")]


def train(
    what: Annotated[str, typer.Argument(help=f"{', '.join(WHAT[:-1])}, or all but the last of these")] = "all",
    out: Annotated[Path, typer.Option(help="Folder that gets the bundles; demonstrations are kept below it")] = Path("models"),
    episodes: Annotated[int, typer.Option(min=1, help="Successful demonstrations per task")] = 200,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the policy")] = 8000,
    judge_steps: Annotated[int, typer.Option(min=1, help="Training steps of the judge")] = 2500,
    staged_steps: StagedSteps = 1500,
    staged_episodes: Annotated[int, typer.Option(min=1, help="Demonstrations of the two-stage task, for the staged policy")] = 150,
    diffusion_steps: DiffusionSteps = 5000,
    autoregressive_steps: AutoregressiveSteps = 3500,
    small_steps: Annotated[int, typer.Option(min=1, help="Training steps of safety and monitor; a third of the planner's")] = 800,
    stage_episodes: Annotated[int, typer.Option(min=10, help="Episodes of the two-stage task, for safety and monitor")] = 120,
    seed: Annotated[int, typer.Option(help="Of demonstrations, initial weights and batches")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 2,
    dataset: Annotated[Path | None, typer.Option(help="Policy: goes on from --start with what `rfm export` wrote here")] = None,
    start: Annotated[Path | None, typer.Option(help="With --dataset: the policy to go on from; default: the shipped one")] = None,
    simulator: Simulator = "",
    task: Annotated[str, typer.Option(help="With --simulator: the task, which also names the bundle: <task>_flow")] = "",
    head: Annotated[Head, typer.Option(help="Image policy: one pass, or solver steps, which say how sure")] = Head.REGRESSION,
    resume: Annotated[bool, typer.Option("--resume", help="Image policy: goes on from its checkpoint below --out")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the policy: a third faster, needs a C++ compiler")] = False,
) -> None:
    """Trains the embedded models on a CPU.

    Examples:  rfm train policy --out /tmp/models --episodes 50 --steps 1000   |   rfm train policy --dataset /tmp/shift --steps 500
    """
    import torch

    from lab.training import judges, policies
    from lab.training.workshop import Workshop

    _check(what, dataset, simulator, task)
    torch.set_num_threads(threads)
    workshop = Workshop(out, seed, threads, episodes, staged_episodes, stage_episodes)
    if dataset is not None:
        policies.recorded(out, dataset, start, steps, seed)
    elif simulator:
        policies.simulated(workshop, simulator, task, steps, compiled=compiled)
    elif what == "image-policy":
        policies.images(workshop, steps, head=head.value, compiled=compiled, resume=resume)
    else:
        lessons: Mapping[str, Callable[[Workshop], None]] = {
            "planner": partial(judges.planner, steps=3 * small_steps),
            "safety": partial(judges.safety, steps=small_steps),
            "monitor": partial(judges.monitor, steps=small_steps),
            "staged-policy": partial(policies.staged, steps=staged_steps),
            "diffusion": partial(policies.diffusion, steps=diffusion_steps, compiled=compiled),
            "autoregressive": partial(policies.autoregressive, steps=autoregressive_steps),
            "policy": partial(policies.flow, steps=steps, compiled=compiled),
            "judge": partial(judges.judge, steps=judge_steps),
        }
        for name in lessons if what == "all" else (what,):
            lessons[name](workshop)


def _check(what: str, dataset: Path | None, simulator: str, task: str) -> None:
    """Check the arguments. Raises: `typer.BadParameter`."""
    if what not in WHAT:
        raise typer.BadParameter(f"{what!r} is not one of {', '.join(WHAT)}")
    if dataset is not None and what != "policy":
        start = " --start models/metaworld_images" if what == "image-policy" else ""
        raise typer.BadParameter(f"a data set of robots trains a policy: rfm train policy --dataset {dataset}{start}, not {what}")
    if dataset is None and simulator and (what != "policy" or not task):
        raise typer.BadParameter("of another world a policy is trained, of one task: rfm train policy --simulator X --task Y")
