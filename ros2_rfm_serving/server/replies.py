"""Conversion of an engine's answer to one request into the reply that its component expects."""

from __future__ import annotations

from ros2_rfm_serving.dispatch import WaitingRequest
from ros2_rfm_serving.server.horizon import HorizonDecision
from ros2_rfm_serving.types import (
    MAX_INSTRUCTION_CHARACTERS,
    SYSTEM2,
    ActionChunk,
    Conditioning,
    EngineReply,
    InferenceRequest,
    JudgeVerdict,
    ModelContract,
    OutputKind,
    Reply,
    ServingStats,
    SubgoalPlan,
)

ACTION_CHUNK, PREFIX = OutputKind.ACTION_CHUNK, Conditioning.PREFIX


def reply_kind(contract: ModelContract, component: str) -> type[Reply]:
    """Return the class of the replies to a component: a text model plans for System 2 and judges for other components."""
    if contract.output is ACTION_CHUNK:
        return ActionChunk
    return SubgoalPlan if component == SYSTEM2 else JudgeVerdict


def reply_of(
    server: str,
    contract: ModelContract,
    waiting: WaitingRequest,
    answer: EngineReply,
    served: ServingStats,
    outlook: HorizonDecision,
    held: InferenceRequest,
) -> Reply:
    """Return the reply to a waiting request.
    held: the request whose prefix constrained the last solver steps; in a pipelined session, that of the newest observation."""
    kind = reply_kind(contract, waiting.request.id.component)
    if kind is ActionChunk:
        return _chunk(server, contract, waiting, answer, served, outlook, held)
    if kind is SubgoalPlan:
        return _plan(server, contract, waiting, answer, served)
    return JudgeVerdict(
        waiting.request.id,
        waiting.stamp_ns,
        server,
        contract.model_hash,
        answer.verdict,
        answer.score,
        answer.text,
        served,
        contract.emulated,
    )


def _chunk(
    server: str,
    contract: ModelContract,
    waiting: WaitingRequest,
    answer: EngineReply,
    served: ServingStats,
    outlook: HorizonDecision,
    held: InferenceRequest,
) -> ActionChunk:
    request = waiting.request
    delay_steps = min(held.inference_delay_steps, len(held.prefix_model)) if held.conditioning is PREFIX else 0
    return ActionChunk(
        request.id,
        waiting.stamp_ns,
        server,
        contract.model_hash,
        contract.action_names,
        answer.chunk_model,
        answer.chunk_robot,
        outlook.confidence,
        outlook.execution_horizon,
        delay_steps,
        served,
        contract.emulated,
        answer.ended_with if request.pipelining else None,
    )


def _plan(server: str, contract: ModelContract, waiting: WaitingRequest, answer: EngineReply, served: ServingStats) -> SubgoalPlan:
    """Return a plan with one subgoal per line of the text."""
    lines = (line.strip() for line in answer.text.splitlines())
    return SubgoalPlan(
        id=waiting.request.id,
        stamp_ns=waiting.stamp_ns,
        server=server,
        model_hash=contract.model_hash,
        subgoals=tuple(line[:MAX_INSTRUCTION_CHARACTERS] for line in lines if line),
        text=answer.text,
        served=served,
        emulated=contract.emulated,
    )
