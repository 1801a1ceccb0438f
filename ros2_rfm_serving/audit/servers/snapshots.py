"""State of a server's brain at one instant; the server's lock is held only for a copy in memory."""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

from ros2_rfm_serving.audit.servers import objects
from ros2_rfm_serving.dispatch.waiting import bare
from ros2_rfm_serving.server import ServerBrain
from ros2_rfm_serving.server.sessions import Sessions
from ros2_rfm_serving.server.tiers import Lane
from ros2_rfm_serving.types import InferenceRequest

UNRECORDED = "unrecorded"
"""Key of the reason why the recording has no brain."""


def copied(brain: ServerBrain) -> bytes:
    """Return a copy for `written` alone. Raises: any error of a policy that cannot be copied."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, InferenceRequest: _of_request, Lane: _of_lane, Sessions: _of_sessions}
    pickler.dump(brain)
    return file.getvalue()


def written(copy: bytes) -> Any:
    """Return a copy that was made in this process, in the form of `objects.py`. Raises: `TypeError` for a foreign policy."""
    return objects.whole(pickle.loads(copy))


def _of_request(request: InferenceRequest) -> Any:
    how = (request.conditioning, request.guidance, request.horizon, request.pipelining, request.num_steps)
    told = (request.id, request.instruction, request.inference_delay_steps, len(request.prefix_model))
    return bare, (*told, *how, request.decoding_s)


def _of_lane(lane: Lane) -> Any:
    """Return the reduced lane without its engine."""
    return _object(Lane, {**vars(lane), "engine": None, "running": None})


def _of_sessions(sessions: Sessions) -> Any:
    """Return the reduced sessions without ended ones that were not yet reported to engines."""
    return _object(Sessions, {**vars(sessions), "_ended": []})


def _object(kind: type, state: dict[str, Any]) -> Any:
    return object.__new__, (kind,), state
