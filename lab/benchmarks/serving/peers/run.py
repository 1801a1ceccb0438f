"""One side of one peer: `run.py serve` or `run.py load`, in the peer's environment, without this package.

Every `peer_<name>.py` has `serve(infer, port, ready)`, which does not return, and `connect(port, observation)`, which returns a
function of one request; `infer` takes the states and the images of a batch. The model sleeps once per batch of any size, and
repeats the first two numbers of the state in its actions, so that a reply to another request is detected.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CHUNK, STATE_SIZE = (50, 14), 14
"""[T, A] of the actions."""
LOST_AFTER_S = 20.0
"""Time after which a client's last request counts as lost."""

Request = Callable[[Any], Any]
"""Function of a state [14] to actions [50, 14]."""


class SleepingModel:
    """Model with one sleep per batch, which favours batching."""

    def __init__(self, seconds: float, decodes: bool = False) -> None:
        self._seconds, self._decodes = seconds, decodes

    def __call__(self, states: Sequence[Any], images: Sequence[Sequence[Any]] = ()) -> list[Any]:
        """Return the actions. images: JPEGs of each request, in one batch with it."""
        if self._decodes:
            import simplejpeg

            for mine in images:
                for image in mine:
                    simplejpeg.decode_jpeg(image, colorspace="RGB", fastdct=True)
        time.sleep(self._seconds)
        return [repeated(state) for state in states]


def repeated(state: Any) -> Any:
    actions = np.zeros(CHUNK, np.float32)
    actions[0, :2] = state[:2]
    return actions


def dues(index: int, rate_hz: float) -> Iterator[float]:
    """Return a client's request times in s: once a period, with random delays up to half of one, equal in all systems."""
    drawn = random.Random(index)
    phase = drawn.random()
    return ((number + phase + 0.5 * drawn.random()) / rate_hz for number in itertools.count())


class Load:
    """Clients with a thread each that send again once answered, or at a rate."""

    def __init__(self, connect: Callable[[], Request], num_clients: int, rate_hz: float = 0.0) -> None:
        """rate_hz: of each client; 0: a client sends again once it is answered."""
        self._connect, self._rate_hz = connect, rate_hz
        self._connecting, self._connected = threading.Lock(), threading.Barrier(num_clients + 1)
        self._ends_s = self._begins_s = float("inf")
        self.samples: list[list[tuple[float, float, bool]]] = [[] for _ in range(num_clients)]
        """(time of the answer, latency, whether it answers the right request) in s, by client."""
        self.num_failed = 0
        self.left_out: list[float] = []
        """Times of due requests whose client still waited for the one before."""

    def run(self, warm_up_s: float, seconds: float) -> dict[str, Any]:
        """Return figures of the answers within `seconds`, which begin when all are connected and warm."""
        threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(len(self.samples))]
        for thread in threads:
            thread.start()
        self._connected.wait()
        time.sleep(warm_up_s)
        print("BEGIN", flush=True)
        self._begins_s = time.perf_counter()
        time.sleep(seconds)
        self._ends_s = time.perf_counter()
        print("END", flush=True)
        deadline_s = time.perf_counter() + LOST_AFTER_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.perf_counter()))
        within = [each for mine in self.samples for each in mine if self._begins_s <= each[0] <= self._ends_s]
        wrong = sum(not right for _, _, right in within)
        left_out = sum(self._begins_s <= due_s <= self._ends_s for due_s in self.left_out)
        latencies_s = [latency for _, latency, _ in within]
        return {"latencies_s": latencies_s, "wrong": wrong, "failed": self.num_failed, "left_out": left_out}

    def _client(self, index: int) -> None:
        try:
            with self._connecting:
                request = self._connect()
        except Exception:
            self._connected.abort()
            raise
        state = np.zeros(STATE_SIZE, np.float32)
        state[0] = index
        self._connected.wait()
        due_s = self._dues(index)
        while time.perf_counter() < self._ends_s:
            if self._rate_hz:
                time.sleep(max(0.0, next(due_s) - time.perf_counter()))
            state[1] += 1
            sent_s = time.perf_counter()
            try:
                actions = request(state)
            except Exception as error:  # of any type; one failed request is counted and does not end the run
                self.num_failed += 1
                print(f"a request failed: {error!r}", file=sys.stderr)
                time.sleep(0.1)
                continue
            answered_s = time.perf_counter()
            right = tuple(actions[0, :2]) == (state[0], state[1])
            self.samples[index].append((answered_s, answered_s - sent_s, right))
        if self._rate_hz:
            next(due_s)  # this counts requests that were due while it waited beyond the end

    def _dues(self, index: int) -> Iterator[float]:
        """Yield the next due times, and record those that have passed."""
        begin_s = time.perf_counter()
        for due_s in dues(index, self._rate_hz or 1.0):
            if begin_s + due_s >= time.perf_counter():
                yield begin_s + due_s
            else:
                self.left_out.append(begin_s + due_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("serve", "load"))
    parser.add_argument("peer")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--images", type=Path, required=True, help="folder with one JPEG per camera")
    parser.add_argument("--model-s", type=float, default=0.01)
    parser.add_argument("--decode", action="store_true", help="JPEGs, whole, before the model runs")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate-hz", type=float, default=0.0, help="of each client; 0: as soon as it is answered")
    arguments = parser.parse_args()
    peer = importlib.import_module(f"peer_{arguments.peer}")
    if arguments.what == "serve":
        peer.serve(SleepingModel(arguments.model_s, arguments.decode), arguments.port, lambda: print("READY", flush=True))
        return
    images = {file.stem: file.read_bytes() for file in sorted(arguments.images.glob("*.jpg"))}
    load = Load(lambda: peer.connect(arguments.port, images), arguments.clients, arguments.rate_hz)
    print(json.dumps(load.run(arguments.warm_up_s, arguments.seconds)), flush=True)


if __name__ == "__main__":
    main()
