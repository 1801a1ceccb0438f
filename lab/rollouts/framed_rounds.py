"""Rounds in frames: pipelined sessions of simulated arms in lockstep (AURAS §4.3); `rounds.py` runs those that wait for a chunk.

A round is a frame: every arm observes, every request in flight advances by one stage, and every arm executes the next few steps of
its answer, counted from the observation that the answer ended with. While a pipeline fills, the world stands still.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from ros2_rfm_serving.engines.base import Stepping
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EngineReply, InferenceRequest, PipelineConfig
from ros2_rfm_serving.worlds.metaworld import MetaworldArm
from ros2_rfm_serving.worlds.rounds import MAX_STEPS, Episode, Job, Stage


def run_frames(
    arms: Sequence[MetaworldArm],
    engine: Stepping,
    jobs: Iterable[Job],
    pipelining: PipelineConfig,
    *,
    steps_per_frame: int,
    noise: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> Iterator[Episode]:
    """Run all jobs, as many at once as there are arms of their task; a job's horizon is `steps_per_frame`, whatever it requests.

    Raises: `ModelError` when a chunk ends before the steps to be executed, and for features that the engine lacks.
    """
    pending, numbers = iter(jobs), count()
    free, busy = [_FramedStage(f"arm{i}", arm, noise, max_steps) for i, arm in enumerate(arms)], list[_FramedStage]()
    while True:
        while free and (job := next(pending, None)):
            free[-1].start(job)
            busy.append(free.pop())
        if not busy:
            return
        answers = _frame(engine, busy, numbers, pipelining)
        for stage in list(busy):
            stage.go_on(answers.get(stage), steps_per_frame)
            if stage.is_over:
                engine.leave(stage.in_flight)
                busy.remove(stage)
                free.append(stage)
                yield stage.episode()


def _frame(
    engine: Stepping, stages: Sequence[_FramedStage], numbers: Iterator[int], pipelining: PipelineConfig
) -> dict[_FramedStage, EngineReply]:
    """Run one frame of all arms as one batch. Raises: `ModelError`."""
    rows = {next(numbers): stage for stage in stages}
    for row, stage in rows.items():
        stage.in_flight.append(row)
    for error in engine.enter({row: stage.observe(pipelining) for row, stage in rows.items()}).values():
        raise error
    of_row = {row: stage for stage in stages for row in stage.in_flight}
    answers = {}
    while ready := engine.ready():
        for row, reply in engine.iterate(ready).items():
            if isinstance(reply, ModelError):
                raise reply
            of_row[row].in_flight.remove(row)
            answers[of_row[row]] = reply
    return answers


class _FramedStage(Stage):
    def __init__(self, robot: str, arm: MetaworldArm, noise: float, max_steps: int) -> None:
        super().__init__(arm, noise, max_steps)
        self._robot = robot

    def start(self, job: Job) -> None:
        super().start(job)
        self.in_flight: list[int] = []
        self._observed_at: list[int] = []
        """Sequence number -> control steps before the observation."""

    def observe(self, pipelining: PipelineConfig) -> InferenceRequest:
        self._observed_at.append(sum(self._executed))
        request = self.request()
        return replace(request, id=replace(request.id, robot=self._robot), pipelining=pipelining)

    def go_on(self, reply: EngineReply | None, steps: int) -> None:
        """Execute the steps of this frame. Raises: `ModelError` if the chunk has too few."""
        if reply is None:
            self._executed.append(0)
            return
        assert reply.ended_with is not None
        begun = self._observed_at[-1] - self._observed_at[reply.ended_with]
        if len(reply.chunk_robot) < begun + steps:
            raise ModelError(
                f"chunks of {len(reply.chunk_robot)} rows, of which {begun + steps} are needed: ask for fewer per frame"
            )
        self.act(reply.chunk_robot[begun : begun + steps])
