"""Rollouts of a policy in process, in lockstep with the simulator: the reference for the same policy served over the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import InferenceRequest, RequestId, empty
from ros2_rfm_serving.worlds.base import FRAME_EVERY, SimulatedRobot


@dataclass(frozen=True)
class Episode:
    seed: int
    success: bool
    steps: int


def run_episodes(
    arm: SimulatedRobot,
    engine: Engine,
    instruction: str,
    seeds: list[int],
    *,
    execute: int = 8,
    max_steps: int = 300,
    progress: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """Run one episode per seed, and return them.

    The arm stands still during inference: it executes `execute` actions of a chunk, observes, infers, and continues.
    """
    episodes = []
    for number, seed in enumerate(seeds):
        arm.reset(seed)
        images = dict(arm.render())
        step = sequence = 0
        while step < max_steps and not arm.success:
            sequence += 1
            request = InferenceRequest(
                id=RequestId(robot="in_process", component="system1", session_epoch=1, episode=number, sequence=sequence),
                instruction=instruction,
                state=arm.state,
                images=images,
                inference_delay_steps=0,
                prefix_model=empty(0, 0),
            )
            (reply,) = engine.infer([request])
            if isinstance(reply, ModelError):
                raise reply
            for action in reply.chunk_robot[:execute]:
                arm.step(action)
                step += 1
                if step % FRAME_EVERY == 0:
                    images = dict(arm.render())
                if arm.success or step >= max_steps:
                    break
        episodes.append(Episode(seed, arm.success, step))
        progress(episodes[-1])
    return episodes
