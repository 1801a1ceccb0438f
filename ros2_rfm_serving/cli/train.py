"""`rfm train`: what Meta-World's scripted experts show, then the embedded models, as bundles."""

from __future__ import annotations

import csv
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.extras import needing

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.embedded.networks import JudgeNetwork
    from ros2_rfm_serving.engines.embedded.training import TrainingConfig

console = Console()

POLICY, JUDGE = "metaworld_flow", "metaworld_judge"
SAFETY, MONITOR, PLANNER = "metaworld_safety", "metaworld_stages", "metaworld_planner"
STAGED_POLICY, DIFFUSION, AUTOREGRESSIVE = "metaworld_staged_flow", "metaworld_diffusion", "metaworld_autoregressive"
WHAT = ("policy", "judge", "safety", "monitor", "planner", "staged-policy", "diffusion", "autoregressive", "all")
NUM_LESSONS, NUM_HELD_OUT, NUM_PROMPTS = 40_000, 1000, 400
SAFETY_PROMPTS = ("is the work area clear?", "is the workcell safe?", "safe or unsafe?")


def train(
    what: Annotated[str, typer.Argument(help=f"{', '.join(WHAT[:-1])} or all")] = "all",
    out: Annotated[Path, typer.Option(help="Folder that gets the bundles; demonstrations are kept below it")] = Path("models"),
    episodes: Annotated[int, typer.Option(min=1, help="Successful demonstrations per task")] = 200,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the policy")] = 8000,
    judge_steps: Annotated[int, typer.Option(min=1, help="Training steps of the judge")] = 2500,
    staged_steps: Annotated[
        int, typer.Option(min=1, help="Training steps of the staged policy, which goes on from the policy")
    ] = 1500,
    staged_episodes: Annotated[int, typer.Option(min=1, help="Demonstrations of the two-stage task, for the staged policy")] = 150,
    diffusion_steps: Annotated[
        int, typer.Option(min=1, help="Training steps of the diffusion policy, which goes on from the policy")
    ] = 5000,
    autoregressive_steps: Annotated[
        int, typer.Option(min=1, help="Training steps of the autoregressive policy, which sets out from the policy's eyes")
    ] = 3500,
    small_steps: Annotated[int, typer.Option(min=1, help="Training steps of safety and monitor; a third of the planner's")] = 800,
    stage_episodes: Annotated[int, typer.Option(min=10, help="Episodes of the two-stage task, for safety and monitor")] = 120,
    seed: Annotated[int, typer.Option(help="Of demonstrations, initial weights and batches")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 2,
    dataset: Annotated[Path | None, typer.Option(help="Policy: goes on from --start with what `rfm export` wrote here")] = None,
    start: Annotated[Path | None, typer.Option(help="With --dataset: the policy to go on from; default: the shipped one")] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the policy: a third faster, needs a C++ compiler")] = False,
) -> None:
    """Trains the embedded models on a CPU.

    Examples:  rfm train policy --out /tmp/models --episodes 50 --steps 1000   |   rfm train policy --dataset /tmp/shift --steps 500
    """
    import torch

    from ros2_rfm_serving.engines.embedded import bundle, instructions
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, JudgeConfig
    from ros2_rfm_serving.engines.embedded.training import TrainingConfig, train_judge, train_policy
    from ros2_rfm_serving.worlds.metaworld import ACTION_NAMES, CAMERAS, STATE_SIZE, TASKS

    if what not in WHAT:
        raise typer.BadParameter(f"{what!r} is not one of {', '.join(WHAT)}")
    torch.set_num_threads(threads)
    if dataset is not None:
        _train_on_recording(what, out, dataset, start, steps, seed)
        return
    if what in ("safety", "monitor", "planner", "all"):
        _train_small(what, out, small_steps, stage_episodes, seed)
    if what in ("staged-policy", "all"):
        _train_staged_policy(out, staged_steps, staged_episodes, seed)
    if what in ("diffusion", "all"):
        _train_diffusion(
            out, episodes, TrainingConfig(steps=diffusion_steps, seed=seed, image_dropout=0.9, compiled=compiled), threads
        )
    if what in ("autoregressive", "all"):
        recipe = TrainingConfig(steps=autoregressive_steps, seed=seed, batch_size=64, image_dropout=0.85)
        _train_autoregressive(out, episodes, recipe, threads)
    if what not in ("policy", "judge", "all"):
        return
    texts = [task.instructions for task in TASKS.values()]
    words = instructions.vocabulary(text for task in texts for text in task)
    data = _demonstrations(out / "demonstrations", episodes, seed, threads)
    training = TrainingConfig(steps=steps, seed=seed, compiled=compiled)
    if what in ("policy", "all"):
        config = FlowPolicyConfig(
            state_size=STATE_SIZE,
            # Hand, gripper, workpiece and goal; the second copy (the previous step's) invites copying the last action.
            state_columns=(*range(18), 36, 37, 38),
            relative_pairs=((4, 0), (36, 4), (36, 0)),
            num_actions=len(ACTION_NAMES),
            action_names=ACTION_NAMES,
            cameras=tuple(CAMERAS),
            vocabulary=words,
            chunk_length=24,
            max_inference_delay_steps=12,
            noise_scale=0.0,  # the experts are functions of the state
        )
        log = _Log(out / POLICY, steps)
        policy = train_policy(config, data, texts, training, log)
        log.finish(bundle.save(out / POLICY, policy))
    if what in ("judge", "all"):
        log = _Log(out / JUDGE, judge_steps)
        judge_training = replace(training, steps=judge_steps, batch_size=96)
        judge = train_judge(JudgeConfig(cameras=tuple(CAMERAS), vocabulary=words), data, texts, judge_training, log)
        log.finish(bundle.save(out / JUDGE, judge))


def _train_on_recording(what: str, out: Path, dataset: Path, start: Path | None, steps: int, seed: int) -> None:
    """A policy goes on learning, from what robots lived through."""
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
    from ros2_rfm_serving.engines.embedded.training import train_policy
    from ros2_rfm_serving.shipped import shipped

    if what != "policy":
        raise typer.BadParameter(f"a data set of robots trains a policy: rfm train policy, not {what}")
    with needing("lerobot", "rfm train --dataset"):
        from ros2_rfm_serving.worlds.recorded import demonstrations, differences, opened
    folder = start or shipped("models", POLICY)
    network, _ = bundle.load(folder)
    if not isinstance(network, FlowPolicyNetwork):
        raise ConfigurationError("it is no policy", file=str(folder), key="--start", fix="name one of `rfm train policy`")
    data = opened(dataset)
    if found := differences(data.meta.features, network.config):
        fix = "train from another policy, with --start, or export other robots"
        raise ConfigurationError(f"it does not fit {folder}: {'; '.join(found)}", file=str(dataset), fix=fix)
    recorded = demonstrations(data, network.config.cameras)
    console.print(f"{dataset}: {len(recorded.demonstrations.state)} examples of {len(recorded.texts)} instructions")
    training = _going_on(steps, seed)
    log = _Log(out / f"{folder.name}_recorded", steps)
    texts = [(text,) for text in recorded.texts]
    policy = train_policy(network.config, recorded.demonstrations, texts, training, log, network)
    log.finish(bundle.save(log.folder, policy))


def _going_on(steps: int, seed: int) -> TrainingConfig:
    """Of a policy that knows something already."""
    from ros2_rfm_serving.engines.embedded.training import TrainingConfig

    return TrainingConfig(
        steps=steps,
        seed=seed,
        batch_size=64,
        learning_rate=5e-4,
        warm_up_steps=min(100, steps),
        image_dropout=0.75,
        log_every=min(100, steps),
    )


def _train_staged_policy(out: Path, steps: int, episodes: int, seed: int) -> None:
    """The shipped policy goes on learning, from the stages of the two-stage task."""
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
    from ros2_rfm_serving.engines.embedded.training import train_policy
    from ros2_rfm_serving.shipped import shipped
    from ros2_rfm_serving.worlds.metaworld import TASKS

    start, _ = bundle.load(shipped("models", POLICY))
    assert isinstance(start, FlowPolicyNetwork)
    data = _staged_demonstrations(out / "demonstrations", episodes, seed)
    log = _Log(out / STAGED_POLICY, steps)
    texts = [task.instructions for task in TASKS.values()]
    policy = train_policy(start.config, data, texts, _going_on(steps, seed), log, start)
    log.finish(bundle.save(out / STAGED_POLICY, policy))


def _train_diffusion(out: Path, episodes: int, training: TrainingConfig, threads: int) -> None:
    """The shipped policy's network learns to say the actions behind noise of any level, for DDIM from full noise."""
    from ros2_rfm_serving.engines.base import Predicts
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
    from ros2_rfm_serving.engines.embedded.training import train_policy
    from ros2_rfm_serving.shipped import shipped
    from ros2_rfm_serving.worlds.metaworld import TASKS

    start, _ = bundle.load(shipped("models", POLICY))
    assert isinstance(start, FlowPolicyNetwork)
    data = _demonstrations(out / "demonstrations", episodes, training.seed, threads)
    config = replace(
        start.config,
        predicts=Predicts.CLEAN.value,
        train_steps=100,
        num_steps=40,
        noise_scale=1.0,
        clean_limit=4.0,  # standard deviations; no demonstrated action is further out
    )
    log = _Log(out / DIFFUSION, training.steps)
    texts = [task.instructions for task in TASKS.values()]
    policy = train_policy(config, data, texts, training, log, start)
    log.finish(bundle.save(out / DIFFUSION, policy))


def _train_autoregressive(out: Path, episodes: int, training: TrainingConfig, threads: int) -> None:
    """What the shipped policy makes of its senses, and a decoder over binned actions, learn together."""
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
    from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyConfig
    from ros2_rfm_serving.engines.embedded.token_training import train_token_policy
    from ros2_rfm_serving.shipped import shipped
    from ros2_rfm_serving.worlds.metaworld import TASKS

    start, _ = bundle.load(shipped("models", POLICY))
    assert isinstance(start, FlowPolicyNetwork)
    data = _demonstrations(out / "demonstrations", episodes, training.seed, threads)
    log = _Log(out / AUTOREGRESSIVE, training.steps)
    texts = [task.instructions for task in TASKS.values()]
    policy = train_token_policy(TokenPolicyConfig.of_senses(start.config), data, texts, training, log, start)
    log.finish(bundle.save(out / AUTOREGRESSIVE, policy))


def _train_small(what: str, out: Path, steps: int, episodes: int, seed: int) -> None:
    """The models of the two-stage task."""
    from ros2_rfm_serving.engines.embedded.training import TrainingConfig

    training = TrainingConfig(steps=steps, seed=seed, batch_size=64, warm_up_steps=min(100, steps), log_every=min(100, steps))
    if what in ("planner", "all"):
        _train_planner(out, replace(training, steps=3 * steps, learning_rate=2e-3))
    if what in ("safety", "all"):
        _train_safety(out, _stage_frames(out / "demonstrations", episodes, seed), training)
    if what in ("monitor", "all"):
        _train_monitor(out, _stage_frames(out / "demonstrations", episodes, seed), training)


def _train_safety(out: Path, frames: Any, training: TrainingConfig) -> None:
    from ros2_rfm_serving.engines.embedded import bundle, instructions
    from ros2_rfm_serving.engines.embedded.networks import JudgeConfig
    from ros2_rfm_serving.engines.embedded.training import train_judge
    from ros2_rfm_serving.worlds.metaworld import CAMERAS
    from ros2_rfm_serving.worlds.stages import for_safety

    log = _Log(out / SAFETY, training.steps)
    words = instructions.vocabulary(SAFETY_PROMPTS)
    config = JudgeConfig(cameras=tuple(CAMERAS), vocabulary=words, verdicts=("safe", "unsafe"))
    judge = train_judge(config, for_safety(frames), [SAFETY_PROMPTS], training, log, _eyes())
    log.finish(bundle.save(out / SAFETY, judge))


def _train_monitor(out: Path, frames: Any, training: TrainingConfig) -> None:
    import numpy as np

    from ros2_rfm_serving.engines.embedded import bundle, instructions
    from ros2_rfm_serving.engines.embedded.networks import JudgeConfig
    from ros2_rfm_serving.engines.embedded.training import train_judge
    from ros2_rfm_serving.worlds.lessons import draw_monitor_prompt, staged_task
    from ros2_rfm_serving.worlds.metaworld import CAMERAS
    from ros2_rfm_serving.worlds.stages import STAGES, for_monitor

    log, rng = _Log(out / MONITOR, training.steps), np.random.default_rng(training.seed)
    prompts = [[draw_monitor_prompt(staged_task(rng), stage, rng) for _ in range(NUM_PROMPTS)] for stage in range(len(STAGES))]
    words = instructions.vocabulary(text for stage in prompts for text in stage)
    config = JudgeConfig(cameras=tuple(CAMERAS), vocabulary=words, max_words=112, reads_in_order=True)
    judge = train_judge(config, for_monitor(frames), prompts, training, log, _eyes())
    log.finish(bundle.save(out / MONITOR, judge))


def _train_planner(out: Path, training: TrainingConfig) -> None:
    import numpy as np

    from ros2_rfm_serving.engines.embedded import bundle, instructions
    from ros2_rfm_serving.engines.embedded.planner_network import PlannerConfig
    from ros2_rfm_serving.engines.embedded.planner_training import Lesson, train_planner
    from ros2_rfm_serving.worlds.lessons import SUBGOALS, draw_lesson
    from ros2_rfm_serving.worlds.metaworld import CAMERAS

    log, rng = _Log(out / PLANNER, training.steps), np.random.default_rng(training.seed)
    lessons = [Lesson(*draw_lesson(rng)) for _ in range(NUM_LESSONS + NUM_HELD_OUT)]
    words = instructions.vocabulary(lesson.prompt for lesson in lessons)
    config = PlannerConfig(cameras=tuple(CAMERAS), vocabulary=words, subgoals=SUBGOALS)
    planner = train_planner(config, lessons[NUM_HELD_OUT:], lessons[:NUM_HELD_OUT], training, log)
    log.finish(bundle.save(out / PLANNER, planner))


def _eyes() -> JudgeNetwork:
    """The shipped judge's convolutions know these cameras."""
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.engines.embedded.networks import JudgeNetwork
    from ros2_rfm_serving.shipped import shipped

    judge, _ = bundle.load(shipped("models", JUDGE))
    assert isinstance(judge, JudgeNetwork)
    return judge


def _stage_frames(folder: Path, episodes: int, seed: int) -> Any:
    """Collected once per number and seed; then read from disk."""
    from ros2_rfm_serving.worlds.stages import StageFrames, collect_stages

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"stages-{episodes}-{seed}.npz"
    if not file.exists():
        partial = file.with_suffix(".partial.npz")
        collect_stages(episodes, seed).save(str(partial))
        partial.replace(file)
        console.print(f"frames of the two-stage task: {episodes} episodes")
    return StageFrames.load(str(file))


def _staged_demonstrations(folder: Path, episodes: int, seed: int) -> Any:
    """Collected once per number and seed; then read from disk."""
    from ros2_rfm_serving.worlds.demonstrations import Demonstrations
    from ros2_rfm_serving.worlds.staged_demonstrations import RECIPE, collect_staged

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"staged-{episodes}-{seed}.npz"
    if not file.exists():
        partial = file.with_suffix(".partial.npz")
        collect_staged(replace(RECIPE, episodes_per_task=episodes, seed=seed)).save(str(partial))
        partial.replace(file)
        console.print(f"demonstrations of the two-stage task: {episodes} episodes")
    return Demonstrations.load(str(file))


def _demonstrations(folder: Path, episodes: int, seed: int, workers: int) -> Any:
    """Collected once per task, number and seed; then read from disk."""
    from ros2_rfm_serving.worlds.demonstrations import Demonstrations
    from ros2_rfm_serving.worlds.metaworld import TASKS

    folder.mkdir(parents=True, exist_ok=True)
    files = {task: folder / f"{task}-{episodes}-{seed}.npz" for task in TASKS}
    missing = [task for task, file in files.items() if not file.exists()]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_collect, task, episodes, seed, str(files[task])) for task in missing]
        for job in as_completed(jobs):
            console.print(f"demonstrations of {job.result()}: {episodes} episodes")
    return Demonstrations.join([Demonstrations.load(str(file)) for file in files.values()])


def _collect(task: str, episodes: int, seed: int, file: str) -> str:
    from ros2_rfm_serving.worlds.demonstrations import Recipe, collect

    partial = file + ".partial.npz"
    collect(task, Recipe(episodes_per_task=episodes, seed=seed)).save(partial)
    Path(partial).replace(file)
    return task


class _Log:
    """Training figures to the screen and to `training_log.csv`."""

    def __init__(self, folder: Path, steps: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.steps, self.start_s = folder, steps, time.monotonic()
        self._file = (folder / "training_log.csv").open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def __call__(self, row: dict[str, float]) -> None:
        elapsed_s = time.monotonic() - self.start_s
        row = {"elapsed_s": round(elapsed_s, 1), **{k: round(v, 6) for k, v in row.items()}}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, row)
            self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()
        left_s = elapsed_s * (self.steps / row["step"] - 1)
        figures = "  ".join(f"{k} {v:g}" for k, v in row.items() if k not in ("elapsed_s", "step"))
        console.print(f"{self.folder.name}: step {row['step']:.0f}/{self.steps}  {figures}  {left_s / 60:.1f} min left")

    def finish(self, content_hash: str) -> None:
        self._file.close()
        minutes = (time.monotonic() - self.start_s) / 60
        console.print(f"{self.folder}: {minutes:.1f} min, sha256 {content_hash[:12]}")
