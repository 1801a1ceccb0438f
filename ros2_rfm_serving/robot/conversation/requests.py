"""What goes into a request: the readings, and for System 1 the actions that are still queued and what became of the last ones."""

from __future__ import annotations

from ros2_rfm_serving.robot.config import Sensors
from ros2_rfm_serving.robot.motion.action_queue import ActionQueue
from ros2_rfm_serving.types import NO_ROWS, NO_VALUES, Conditioning, ExecutionReport, ObservationRequest, RequestId

NONE, PREFIX = Conditioning.NONE, Conditioning.PREFIX
NO_REPORT = ExecutionReport()


def thought_request(identity: RequestId, instruction: str, sensors: Sensors, now_s: float) -> ObservationRequest:
    """For those who judge or plan."""
    return ObservationRequest(identity, int(now_s * 1e9), instruction, NO_VALUES, sensors.images, 0, NO_ROWS, NO_ROWS, NO_REPORT)


def action_request(
    identity: RequestId,
    instruction: str,
    sensors: Sensors,
    queue: ActionQueue,
    *,
    delay_steps: int,
    conditioning: Conditioning,
    guided_rows: int,
    report: ExecutionReport,
    episode_start: bool,
    now_s: float,
) -> ObservationRequest:
    """For System 1. `delay_steps`: to be executed until the answer is there; 0: the robot waits. `guided_rows`: of a prefix that
    guides, what is queued beyond the delay too."""
    delay = min(delay_steps, queue.depth)
    rows = 0 if conditioning is NONE else delay if conditioning is PREFIX else max(delay, guided_rows)
    model, robot = queue.left_over(rows)
    stamp_ns, state, images = int(now_s * 1e9), sensors.state, sensors.images
    return ObservationRequest(identity, stamp_ns, instruction, state, images, delay, model, robot, report, episode_start)
