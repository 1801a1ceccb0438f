"""Conversion of a server's records into events of its decision core, and access to their parts."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping
from typing import Any

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.values import SERVER_EVENTS
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ServerCore, events
from ros2_rfm_serving.server.horizon import HorizonDecision, policy


def event_of(record: Mapping[str, Any]) -> tuple[events.Event, float]:
    """Return the event of a record, and its time in s on the server's clock; 0.0: it has none.
    Raises: `RfmError` when this version has no such event, or reads no such fields."""
    event: events.Event = codec.event(record["event"], SERVER_EVENTS, "servers")
    now_s = record.get("now_s", 0.0)
    if type(now_s) not in (int, float):
        raise RfmError(f"now_s is {now_s!r:.60}, and no time")
    return event, now_s


def decided_again(event: events.AnswerReceived, core: ServerCore, updates_digest: str) -> events.AnswerReceived:
    """Return an answer with the decision that its horizon policy makes from the recorded confidence.

    The recorded decision stays where another server made it, and where the policy failed, so that there is no confidence.
    Raises: `RfmError` for a batch that does not run.
    """
    answer, outlook = event.answer, event.horizon_decision
    if answer is None or not len(answer.chunk_robot) or answer.execution_horizon:
        return event
    if not outlook.confidence.size and (updates_digest or answer.confidence.size):
        return event
    horizon = core.work(event.batch).batch[event.position].request.horizon
    steps = 0
    if horizon.policy:
        steps = outlook.execution_horizon
        with contextlib.suppress(Exception):  # a policy may be foreign code; the server also went on without it
            steps = min(operator.index(policy(horizon.policy).rows(outlook.confidence, horizon)), len(answer.chunk_robot))
    return events.AnswerReceived(event.batch, event.position, answer, HorizonDecision(steps, outlook.confidence))


def image_digests(observation: Mapping[str, Any]) -> dict[str, str]:
    """Return camera -> SHA-256 of its image, of a recorded `ObservationRequest`. Raises: `LookupError` for any other value."""
    return {image["camera"]: codec.digest_of(image["data"]) for image in observation["images"]}
