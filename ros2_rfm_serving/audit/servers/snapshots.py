"""All that a server's brain holds, at one instant. Who asks holds the server's lock for the time that a copy in memory takes."""

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
"""In place of a brain: why there is none in the recording."""


def copied(brain: ServerBrain) -> bytes:
    """For `written`: of no use to anybody else. Raises: whatever a policy does that cannot be copied."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, InferenceRequest: _of_request, Lane: _of_lane, Sessions: _of_sessions}
    pickler.dump(brain)
    return file.getvalue()


def written(copy: bytes) -> Any:
    """A copy that was made in this process, as `objects.py` writes it. Raises: `TypeError` for a policy that is not ours."""
    return objects.whole(pickle.loads(copy))


def _of_request(request: InferenceRequest) -> Any:
    how = (request.conditioning, request.guidance, request.horizon, request.pipelining, request.num_steps)
    told = (request.id, request.instruction, request.inference_delay_steps, len(request.prefix_model))
    return bare, (*told, *how, request.decoding_s)


def _of_lane(lane: Lane) -> Any:
    """Without its engine."""
    return _object(Lane, {**vars(lane), "engine": None, "running": None})


def _of_sessions(sessions: Sessions) -> Any:
    """Without those that have ended and of which engines are not told yet."""
    return _object(Sessions, {**vars(sessions), "_ended": []})


def _object(kind: type, state: dict[str, Any]) -> Any:
    return object.__new__, (kind,), state
