"""A pipelined robot as a user declares it: `rfm up`, a robot node and a model server, and what they say to each other (AURAS §4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from rfm_serving.msg import ActionChunk

from test.system.test_factory import client_of, rfm_up, working

FACTORY = """
server_cluster: {num_servers: 1, gpu_type: CPU, batching: continuous}
robot_fleet:
  - {task: push, num_robots: 1}
push:
  pipeline: {action_period_ms: 200}
  execution: {mode: async, pipelining: {pp_perception: 1, pp_generation: 2}}
  components:
    system1: {model: rfm/metaworld-flow, prompt: "push the puck to the green goal", slo_ms: 2000}
  world: {simulator: metaworld, task: push, control_rate_hz: 20, camera_rate_hz: 5, seed: 3000000}
"""


@pytest.mark.timeout(200)
def test_a_pipelined_robot_moves_by_chunks_that_ended_with_newer_observations(
    repository: Path, tmp_path: Path, ros_domain: int
) -> None:
    (tmp_path / "pipelined.yaml").write_text(FACTORY)
    chunks: list[ActionChunk] = []
    with (
        rfm_up(repository, tmp_path, str(tmp_path / "pipelined.yaml"), "--no-foreman", domain=ros_domain),
        client_of("push_1") as client,
    ):
        client.create_subscription(ActionChunk, "/push_1/rfm/action_chunk", chunks.append, 2)
        handle = client.send(reset=True, time_budget_s=100.0)
        client.wait(lambda: working(client) and len(chunks) > 5)
        client.wait(lambda: client.robot.oldest_staleness_s > client.robot.staleness_s > 0.0)
        ahead = {chunk.ended_with - chunk.id.sequence for chunk in chunks}
        assert 0 < max(ahead) and min(ahead) >= 0, "a row was given up, or ended with an older observation than it began with"
        cancelling = handle.cancel_goal_async()
        client.wait(cancelling.done)
