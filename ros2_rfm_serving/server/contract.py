"""Terms on which robot and model must agree before anything runs (Remote-RTC §8.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server import horizon
from ros2_rfm_serving.types import Conditioning, ModelContract, OutputKind, SessionRequest
from ros2_rfm_serving.types.contracts import agreed_conditioning
from ros2_rfm_serving.types.rate_mismatch import rate_mismatch_text

PREFIX = Conditioning.PREFIX


def check_values(request: SessionRequest) -> None:
    """Check the values of a request against limits of any contract. Raises: `BadMessageError` if one is impossible."""
    weight, rows = request.guidance.max_weight, request.guidance.execution_horizon
    if not (math.isfinite(weight) and weight > 0):
        raise BadMessageError("bad_session", f"guidance_max_weight is {weight:g}; it must be finite and above 0")
    if rows < 1:
        raise BadMessageError("bad_session", f"guidance_horizon is {rows}; it must be at least 1")
    if not (math.isfinite(request.slo_s) and request.slo_s >= 0):
        raise BadMessageError("bad_session", f"slo_s is {request.slo_s:g}; it must be finite, 0 for none")
    if request.pipelining and (problem := request.pipelining.problem):
        raise BadMessageError("bad_session", problem)


def differences(contract: ModelContract, request: SessionRequest, *, instruction: str, strict_rate: bool) -> list[str]:
    """Return the reasons why this robot cannot use this model, as messages; empty: there are none. instruction: the only one that
    is served here; empty: any. strict_rate: another control rate is a difference, not a warning."""
    pairs = [
        ("schema version", request.schema_version, contract.schema_version),
        ("cameras", tuple(sorted(_cameras_for(contract, request.cameras))), tuple(sorted(contract.cameras))),
        ("state size", request.state_size, contract.state_size),
        ("action names and order", request.action_names, contract.action_names),
    ]
    if request.expected_model_hash:
        pairs.append(("model hash", request.expected_model_hash, contract.model_hash))
    if instruction and request.instruction:
        pairs.append(("instruction", request.instruction, instruction))
    found = [f"{what}: the robot has {robot!r}, the model {model!r}" for what, robot, model in pairs if robot != model]
    agreed = agreed_conditioning(request.conditioning, contract)
    if agreed not in contract.conditionings:
        able = ", ".join(repr(conditioning.value) for conditioning in contract.conditionings)
        asked = agreed.value
        found.append(f"conditioning: the robot asks for {asked!r}, the model can do {able}; set `conditioning` in robot.yaml")
    if agreed is Conditioning.GUIDED and request.guidance.true_jacobian and not contract.true_jacobian:
        why = "it slows all robots of a batch, so the server has to allow it"
        fix = "set `guidance_true_jacobian: false` in robot.yaml, or `true_jacobian: true` in the model's options"
        found.append(f"guidance_true_jacobian: the robot asks for it, this model is served without; {why}; {fix}")
    if request.pipelining and not contract.pipelines:
        found.append("pipelining: the robot asks for it, this model answers one request of a robot after the other; leave it out")
    if request.num_steps and not 1 <= request.num_steps <= contract.max_num_steps:
        can = f"1 to {contract.max_num_steps}" if contract.max_num_steps else "its own number alone"
        found.append(f"num_steps: the robot asks for {request.num_steps} solver steps, the model takes {can}; 0 is its own number")
    if problem := horizon.check(request.horizon):
        found.append(problem)
    if strict_rate and (other := rate_mismatch_text(request.control_rate_hz, contract.control_rate_hz)):
        found.append(f"control rate: {other}")
    return found


def _cameras_for(contract: ModelContract, cameras: Sequence[str]) -> Sequence[str]:
    """Return the cameras of a robot that a model receives. A text model ignores those that it was not declared with."""
    if contract.output is OutputKind.ACTION_CHUNK or not set(contract.cameras) <= set(cameras):
        return cameras
    return [camera for camera in cameras if camera in contract.cameras]


def delay_envelope_steps(contract: ModelContract, conditioning: Conditioning) -> int:
    """Return the longest inference delay that the model can bridge and that leaves actions to execute."""
    if conditioning is PREFIX:
        return contract.max_inference_delay_steps
    return contract.chunk_length - 1 if contract.chunk_length else 0
