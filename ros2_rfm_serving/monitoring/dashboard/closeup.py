"""Details of one robot: its last answers and its camera images, which are subscribed only while a page shows them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from typing import Any, NamedTuple, Protocol

import numpy as np
import simplejpeg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server.images import check
from ros2_rfm_serving.types import ActionChunk, EncodedImage, Reply, SubgoalPlan

DECISIONS, SPLITS = 20, 2000
"""Number of answers that are shown, and of chunks whose times are remembered."""
MAX_ACTIONS, MAX_ROWS = 16, 128
"""Maximum actions and rows of a chunk that is drawn."""
MAX_CHARACTERS = 300
MIN_SIDE_PX, QUALITY = 180, 75
"""Minimum side and JPEG quality of a picture; JPEG scales by eighths at no cost, down to at least this side."""


class Offers(NamedTuple):
    """Services of a robot for operators."""

    tasks: bool = False
    """Action `execute_task`."""
    reset: bool = False
    """Service `reset`, which brings robot and workpiece to the start."""


class Looking(Protocol):
    """Subscriptions to robots, one by one. Each request keeps its data subscribed for a few seconds, so that a viewer repeats
    it."""

    def closeup(self, robot: str) -> Closeup | None:
        """Return the details of a robot; None: too many are subscribed."""

    def cameras(self, robot: str) -> list[str]: ...

    def offers(self, robot: str) -> Offers: ...

    def picture(self, robot: str, camera: str) -> EncodedImage | None:
        """Return the newest image; None: there is none yet, or too many are subscribed.
        Raises: `BadMessageError` for a raw image that cannot be used."""


class Closeup:
    """Details of one robot; one thread writes them, another reads them."""

    def __init__(self) -> None:
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)
        self._chunk: dict[str, Any] = {}
        self._splits: deque[tuple[float, float, float]] = deque(maxlen=SPLITS)
        """(arrival, queue wait, inference) of chunks, s."""

    def take(self, reply: Reply, now_s: float) -> None:
        if isinstance(reply, ActionChunk):
            self._chunk = _drawn(reply, now_s)
            self._splits.append((now_s, reply.served.queue_wait_s, reply.served.inference_s))
        self._decisions.append(
            {
                "at_s": now_s,
                "component": reply.id.component,
                "sequence": reply.id.sequence,
                "episode": reply.id.episode,
                "server": reply.server,
                "queue_s": _number(reply.served.queue_wait_s),
                "inference_s": _number(reply.served.inference_s),
                "batch": reply.served.batch_size,
                "answer": _answer(reply)[:MAX_CHARACTERS],
            }
        )

    def refine(self, history: dict[str, list[float | None]], now_s: float) -> None:
        """Replace the server's mean queue wait and inference by the robot's own values, for the seconds in which it was
        observed."""
        own: dict[int, list[tuple[float, float]]] = defaultdict(list)
        ago_s = [ago for ago in history.get("ago_s", []) if ago is not None]
        for at_s, queue_s, inference_s in list(self._splits):
            if 0 < (i := bisect_left(ago_s, at_s - now_s)) < len(ago_s):
                own[i].append((queue_s, inference_s))
        for i, splits in own.items():
            queue_s, inference_s = (sum(column) / len(splits) for column in zip(*splits, strict=True))
            history["queue_s"][i], history["inference_s"][i] = _number(queue_s), _number(inference_s)

    def view(self, now_s: float) -> dict[str, Any]:
        chunk, decisions = self._chunk, reversed(list(self._decisions))
        return {
            "chunk": {**chunk, "ago_s": round(now_s - chunk["at_s"], 2)} if chunk else None,
            "decisions": [{**decision, "ago_s": round(now_s - decision["at_s"], 2)} for decision in decisions],
        }


def thumbnail(image: EncodedImage) -> bytes:
    """Return a small JPEG. Raises: `BadMessageError` for a broken JPEG or one of an unreasonable size."""
    check(image)
    try:
        rows = simplejpeg.decode_jpeg(
            image.data, "RGB", fastdct=True, fastupsample=True, min_height=MIN_SIDE_PX, min_width=MIN_SIDE_PX, min_factor=1
        )
        return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(rows), quality=QUALITY, colorspace="RGB", fastdct=True))
    except ValueError as error:
        raise BadMessageError("bad_image", f"{image.camera}: {error}") from None


def _answer(reply: Reply) -> str:
    if isinstance(reply, ActionChunk):
        horizon, held = reply.execution_horizon, reply.inference_delay_steps
        return f"{len(reply.chunk_robot)} actions, horizon {horizon or 'all'}, {held} held fixed"
    if isinstance(reply, SubgoalPlan):
        return "; then ".join(reply.subgoals) or "keeps its prompt"
    score = "" if math.isnan(reply.score) else f" {reply.score:.2f}"
    return f"{reply.verdict}{score} {reply.text}".strip()


def _drawn(chunk: ActionChunk, now_s: float) -> dict[str, Any]:
    rows = np.asarray(chunk.chunk_robot, np.float64)[:MAX_ROWS, :MAX_ACTIONS]
    return {
        "names": [name[:MAX_CHARACTERS] for name in chunk.action_names[:MAX_ACTIONS]],
        "columns": _finite(rows.T),
        "confidence": _finite(np.asarray(chunk.confidence, np.float64)[:MAX_ROWS]),
        "horizon": chunk.execution_horizon,
        "delay": chunk.inference_delay_steps,
        "emulated": chunk.emulated,
        "at_s": now_s,
    }


def _finite(values: Any) -> Any:
    return [_finite(value) for value in values] if np.ndim(values) else _number(float(values))


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None
