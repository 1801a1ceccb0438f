"""One robot from near: what it was sent last, and what its cameras see. Taken from the graph only while a page shows it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from typing import Any, NamedTuple, Protocol

import numpy as np
import simplejpeg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server.images import check
from ros2_rfm_serving.types import Chunk, EncodedImage, Plan, Reply

DECISIONS, SPLITS = 20, 2000
"""Answers that are shown; chunks whose times are remembered."""
MAX_ACTIONS, MAX_ROWS = 16, 128
"""Of a chunk that is drawn."""
MAX_CHARACTERS = 300
MIN_SIDE_PX, QUALITY = 180, 75
"""Of a picture that is shown: JPEG scales by eighths for free, down to this height at least."""


class Offers(NamedTuple):
    """What a robot offers to those who give it work."""

    tasks: bool = False
    """`execute_task`."""
    reset: bool = False
    """`reset`: bring robot and workpiece to the start."""


class Looking(Protocol):
    """At robots, one by one. What is asked for is taken for a few seconds; whoever goes on looking asks again."""

    def closeup(self, robot: str) -> Closeup | None:
        """None: too many are looked at."""

    def cameras(self, robot: str) -> list[str]: ...

    def offers(self, robot: str) -> Offers: ...

    def picture(self, robot: str, camera: str) -> EncodedImage | None:
        """The newest; None: none yet, or too many are looked at. Raises: `BadMessageError` for a raw one that cannot be used."""


class Closeup:
    """Of one robot; written on one thread, read on another."""

    def __init__(self) -> None:
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)
        self._chunk: dict[str, Any] = {}
        self._splits: deque[tuple[float, float, float]] = deque(maxlen=SPLITS)
        """Of chunks: when it came, queue wait and inference, s."""

    def take(self, reply: Reply, now_s: float) -> None:
        if isinstance(reply, Chunk):
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
        """Puts its own queue waits and inferences in the place of its server's mean, in the seconds that it was looked at."""
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
    """A small JPEG. Raises: `BadMessageError` for what is no sound JPEG of a sensible size."""
    check(image)
    try:
        rows = simplejpeg.decode_jpeg(
            image.data, "RGB", fastdct=True, fastupsample=True, min_height=MIN_SIDE_PX, min_width=MIN_SIDE_PX, min_factor=1
        )
        return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(rows), quality=QUALITY, colorspace="RGB", fastdct=True))
    except ValueError as error:
        raise BadMessageError("bad_image", f"{image.camera}: {error}") from None


def _answer(reply: Reply) -> str:
    if isinstance(reply, Chunk):
        horizon, held = reply.execution_horizon, reply.inference_delay_steps
        return f"{len(reply.chunk_robot)} actions, horizon {horizon or 'all'}, {held} held fixed"
    if isinstance(reply, Plan):
        return "; then ".join(reply.subgoals) or "keeps its prompt"
    score = "" if math.isnan(reply.score) else f" {reply.score:.2f}"
    return f"{reply.verdict}{score} {reply.text}".strip()


def _drawn(chunk: Chunk, now_s: float) -> dict[str, Any]:
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
