"""Conversion of sessions and contracts between OpenSession's and DescribeServer's messages and the classes of `types`.

Empty strings and zeros in a message mean the defaults of `Guidance`, `HorizonRequest` and `SessionRequest`; unknown values raise
`BadMessageError`.
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar

from rfm_serving import srv

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire.qos import NAME
from ros2_rfm_serving.types import (
    Conditioning,
    Guidance,
    HorizonRequest,
    ModelContract,
    OutputKind,
    PipelineConfig,
    PrefixSchedule,
    SessionGrant,
    SessionRequest,
    SessionSharing,
)
from ros2_rfm_serving.types.contracts import AUTO

Word = TypeVar("Word", bound=enum.Enum)
DEFAULTS, HORIZON = Guidance(), HorizonRequest()


def check_name(what: str, name: str) -> str:
    """Return a name from the network after which topics are named, if it is valid. Raises: `BadMessageError`."""
    if not NAME.fullmatch(name):
        raise BadMessageError("bad_name", f"{name[:100]!r} cannot name a {what}: letters, digits and underscores, a letter first")
    return name


def session_request_to(request: SessionRequest) -> Any:
    return srv.OpenSession.Request(
        schema_version=request.schema_version,
        robot=request.robot,
        component=request.component,
        action_names=list(request.action_names),
        cameras=list(request.cameras),
        state_size=request.state_size,
        control_rate_hz=request.control_rate_hz,
        expected_model_hash=request.expected_model_hash,
        conditioning=request.conditioning.value if request.conditioning else AUTO,
        guidance_schedule=request.guidance.schedule.value,
        guidance_max_weight=request.guidance.max_weight,
        guidance_horizon=request.guidance.execution_horizon,
        guidance_true_jacobian=request.guidance.true_jacobian,
        guidance_zero_padded=request.guidance.zero_padded,
        horizon_policy=request.horizon.policy,
        horizon_steps=request.horizon.steps,
        horizon_min_steps=request.horizon.min_steps,
        horizon_threshold=request.horizon.threshold,
        instruction=request.instruction,
        slo_s=request.slo_s,
        **_pipelining_to(request.pipelining),
        num_steps=request.num_steps,
    )


def session_request_from(message: Any) -> SessionRequest:
    """Convert a session request. Raises: `BadMessageError`."""
    return SessionRequest(
        schema_version=message.schema_version,
        robot=check_name("robot", message.robot),
        component=check_name("component", message.component),
        action_names=tuple(message.action_names),
        cameras=tuple(message.cameras),
        state_size=message.state_size,
        control_rate_hz=message.control_rate_hz,
        expected_model_hash=message.expected_model_hash,
        conditioning=None
        if message.conditioning == AUTO
        else _known("conditioning", Conditioning, message.conditioning or Conditioning.NONE.value),
        guidance=Guidance(
            schedule=_known("guidance_schedule", PrefixSchedule, message.guidance_schedule or DEFAULTS.schedule.value),
            max_weight=message.guidance_max_weight or DEFAULTS.max_weight,
            execution_horizon=message.guidance_horizon or DEFAULTS.execution_horizon,
            true_jacobian=message.guidance_true_jacobian,
            zero_padded=message.guidance_zero_padded,
        ),
        horizon=HorizonRequest(
            policy=message.horizon_policy,
            steps=message.horizon_steps,
            min_steps=message.horizon_min_steps or HORIZON.min_steps,
            threshold=message.horizon_threshold or HORIZON.threshold,
        ),
        instruction=message.instruction,
        slo_s=message.slo_s,
        pipelining=_pipelining_from(message),
        num_steps=message.num_steps,
    )


def _pipelining_to(pipelining: PipelineConfig | None) -> dict[str, Any]:
    if pipelining is None:
        return {}
    return {
        "pp_perception": pipelining.pp_perception,
        "pp_generation": pipelining.pp_generation,
        "pp_alpha": pipelining.alpha,
        "fetch_offset": pipelining.fetch_offset,
    }


def _pipelining_from(message: Any) -> PipelineConfig | None:
    """Convert the pipelining. Raises: `BadMessageError` when it is incomplete."""
    given = (message.pp_perception, message.pp_generation, message.pp_alpha, message.fetch_offset)
    if given == (0, 0, 0.0, 0):
        return None
    if not message.pp_perception:
        raise BadMessageError(
            "bad_session", "pp_perception is 0, not pipelined, and pp_generation, pp_alpha or fetch_offset is not"
        )
    return PipelineConfig(
        pp_perception=given[0],
        pp_generation=given[1],
        alpha=given[2],
        fetch_offset=given[3],
    )


def contract_to(contract: ModelContract, message: Any) -> Any:
    """Write a contract into the fields that OpenSession and DescribeServer share, and return the message."""
    message.schema_version = contract.schema_version
    message.model = contract.model
    message.model_hash = contract.model_hash
    message.emulated = contract.emulated
    message.output = contract.output.value
    message.action_names = list(contract.action_names)
    message.cameras = list(contract.cameras)
    message.state_size = contract.state_size
    message.chunk_length = contract.chunk_length
    message.trained_rate_hz = contract.control_rate_hz
    message.max_inference_delay_steps = contract.max_inference_delay_steps
    message.conditionings = [conditioning.value for conditioning in contract.conditionings]
    message.pipelines = contract.pipelines
    message.max_num_steps = contract.max_num_steps
    message.serving = contract.serving.value
    message.action_mean = list(contract.action_mean)
    message.action_std = list(contract.action_std)
    return message


def contract_from(message: Any) -> ModelContract:
    """Return the contract of OpenSession's or DescribeServer's response. Raises: `BadMessageError`."""
    return ModelContract(
        schema_version=message.schema_version,
        model=message.model,
        model_hash=message.model_hash,
        emulated=message.emulated,
        output=_known("output", OutputKind, message.output),
        action_names=tuple(message.action_names),
        cameras=tuple(message.cameras),
        state_size=message.state_size,
        chunk_length=message.chunk_length,
        control_rate_hz=message.trained_rate_hz,
        max_inference_delay_steps=message.max_inference_delay_steps,
        conditionings=tuple(_known("conditionings", Conditioning, word) for word in message.conditionings) or (Conditioning.NONE,),
        pipelines=message.pipelines,
        max_num_steps=message.max_num_steps,
        serving=_known("serving", SessionSharing, message.serving or SessionSharing.SHARED.value),
        action_mean=tuple(message.action_mean),
        action_std=tuple(message.action_std),
    )


def grant_from(message: Any) -> SessionGrant:
    """Convert a granted session. Raises: `BadMessageError`."""
    contract = contract_from(message)
    return SessionGrant(session_epoch=message.session_epoch, warnings=tuple(message.warnings), contract=contract)


def _known(field: str, words: type[Word], word: str) -> Word:
    """Return the member of an enum by its value. Raises: `BadMessageError`."""
    try:
        return words(word)
    except ValueError:
        known = ", ".join(repr(each.value) for each in words)
        raise BadMessageError("bad_session", f"{field}: {word[:100]!r} is none of {known}") from None
