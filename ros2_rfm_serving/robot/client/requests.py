"""Content of a request: the readings, and for System 1 the queued actions and a report on the executed ones."""

from __future__ import annotations

import math

from ros2_rfm_serving.robot.config import RobotConfig, Sensors
from ros2_rfm_serving.robot.motion.action_queue import ActionQueue
from ros2_rfm_serving.types import (
    NO_ROWS,
    NO_VALUES,
    SYSTEM1,
    Conditioning,
    ExecutionReport,
    HorizonRequest,
    ObservationRequest,
    RequestId,
    SessionRequest,
)

NONE, PREFIX = Conditioning.NONE, Conditioning.PREFIX
NO_REPORT = ExecutionReport()


def session_request(config: RobotConfig, component: str, pinned_hash: str = "", slo_s: float = math.inf) -> SessionRequest:
    """Return a robot's side of the contract for one component.

    pinned_hash: of the only model that it accepts; empty: any. slo_s: infinite: no SLO.
    """
    acts = component == SYSTEM1
    return SessionRequest(
        robot=config.name,
        component=component,
        action_names=config.action_names if acts else (),
        cameras=config.cameras,
        state_size=config.state_size if acts else 0,
        control_rate_hz=config.step_rate_hz if acts else 0.0,
        expected_model_hash=pinned_hash,
        conditioning=config.conditioning if acts and not config.synchronous else NONE,
        guidance=config.guidance,
        horizon=config.horizon if acts else HorizonRequest(),
        pipelining=config.pipelining if acts else None,
        num_steps=config.num_steps if acts else 0,
        slo_s=slo_s if slo_s < math.inf else 0.0,
    )


def thought_request(identity: RequestId, instruction: str, sensors: Sensors, now_s: float) -> ObservationRequest:
    """Return a request to a component that judges or plans."""
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
    """Return a request to System 1. delay_steps: to be executed before the answer; 0: the robot waits. guided_rows: rows of a
    guiding prefix, which may include queued actions beyond the delay."""
    delay = min(delay_steps, queue.depth)
    rows = 0 if conditioning is NONE else delay if conditioning is PREFIX else max(delay, guided_rows)
    model, robot = queue.left_over(rows)
    stamp_ns, state, images = int(now_s * 1e9), sensors.state, sensors.images
    return ObservationRequest(identity, stamp_ns, instruction, state, images, delay, model, robot, report, episode_start)
