"""LeRobot's own ACT and diffusion at toy size, served over DDS. Neither continues what a robot executes meanwhile: asynchronous
robots skip the rows that are over. ACT's robots share batches; diffusion remembers what it has seen, so its robots take turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine
from ros2_rfm_serving.robot.motion.action_queue import ActionQueue
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types import Conditioning, SessionSharing
from test.engines import tiny_lerobot as tiny
from test.engines.lerobot_rig import built
from test.ros.delayed_arms import ROBOTS, Arms, arms_of, get_what_they_would_get_alone, row_of

NODE = ("-c", "import test.engines.operators; from ros2_rfm_serving.ros import model_server_node as node; node.main()")
WHOLE = ("act", "diffusion")
SAME = 1e-4
EACH = 3
"""Answers of one episode, of which the later ones follow from the earlier"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LeRobotEngine]:
    return {kind: built(kind, tiny.save(kind, tmp_path_factory.mktemp(kind))) for kind in WHOLE}


@pytest.fixture(scope="module")
def arms(alone: dict[str, LeRobotEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arms]:
    from domain_coordinator import domain_id

    def entry(kind: str) -> str:
        path = alone[kind]._policy.checkpoint.options.path
        return f"{kind}: {{engine: lerobot, options: {{path: {path}, action_names: [{', '.join(tiny.NAMES)}]}}}}"

    with domain_id() as domain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        folder: Path = tmp_path_factory.mktemp("catalogue")
        with arms_of(folder, [entry(kind) for kind in WHOLE], NODE) as fleet:
            yield fleet


def test_robots_of_act_share_batches_and_skip_the_rows_that_are_over(arms: Arms, alone: dict[str, LeRobotEngine]) -> None:
    act = alone["act"]
    arms.place("act", 1, "fixed")
    for way in (Conditioning.GUIDED, Conditioning.PREFIX):
        refusal = arms.arrives("r1", act, way)
        assert not refusal.success and f"the robot asks for {way.value!r}, the model can do 'none'" in refusal.error_msg
    ways = get_what_they_would_get_alone(arms, act, SAME)
    assert set(ways.values()) == {Conditioning.NONE}
    for delay, robot in enumerate(ROBOTS):
        _, chunk = arms.chunks[robot][-1]
        assert chunk.inference_delay_steps == 0 and arms.asked[robot, chunk.id.sequence][0].inference_delay_steps == delay
        model, rows = convert.tensor_from(chunk.chunk_model), convert.tensor_from(chunk.chunk_robot)
        queue = ActionQueue(tiny.NUM_ACTIONS)
        queue.merge(model, rows, queue.steps_executed, 0.0)
        mark = queue.steps_executed
        for _ in range(delay):
            queue.pop()
        assert queue.merge(model, rows, mark, 0.0, real_delay=delay) == delay
        action, _ = queue.pop()
        assert action is not None and np.array_equal(action, rows[delay])


def test_robots_of_diffusion_are_served_one_after_the_other_each_from_what_it_has_seen_itself(
    arms: Arms, alone: dict[str, LeRobotEngine]
) -> None:
    diffusion, others = alone["diffusion"], []
    policy = diffusion._policy.checkpoint.policy
    assert diffusion.contract.serving is SessionSharing.EXCLUSIVE
    arms.place("diffusion", 2, "fixed")
    arms.chunks.clear()
    for robot in ROBOTS:
        answer = arms.arrives(robot, diffusion)
        assert answer.success and answer.max_sessions == 1, answer.error_msg
        refusal = arms.arrives(next(other for other in ROBOTS if other != robot), diffusion)
        assert not refusal.success and f"serves one session, {robot}'s" in refusal.error_msg
        while len(arms.chunks[robot]) < EACH:
            arms.is_answered(robot, Conditioning.NONE, diffusion)
        arms.close(robot)

        policy.reset()
        served = [chunk for _, chunk in arms.chunks[robot]]
        for chunk in served:
            assert chunk.served.batch_size == 1
            (theirs,) = diffusion.infer([row_of(*arms.asked[robot, chunk.id.sequence])])
            got = convert.tensor_from(chunk.chunk_robot)
            assert np.abs(got - theirs.chunk_robot).max() <= SAME * max(1.0, np.abs(theirs.chunk_robot).max())
        assert all(np.abs(got - other).max() > 100 * SAME for other in others)
        others.append(got)
        policy.reset()
        (forgetful,) = diffusion.infer([row_of(*arms.asked[robot, served[-1].id.sequence])])
        assert np.abs(got - forgetful.chunk_robot).max() > 100 * SAME, "what it saw before has no say"
    assert {robot for robot, chunks in arms.chunks.items() if chunks} == set(ROBOTS)
