"""Served architecture: clients in threads send camera images as JPEG to our server, whose own threads decode, batch and reply.

It has a robot's whole path except the network: `ModelServer` with its sessions and mailboxes, the thread that owns the engine
(`ros/server/engine_thread.py`) and threads that decode, as for clients of the websocket endpoint. No ROS is needed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from statistics import median

import numpy as np
import simplejpeg

from lab.benchmarks.continuous.live import arrivals
from lab.benchmarks.gpu import goals
from lab.benchmarks.gpu.child import Task
from lab.benchmarks.gpu.networks import engine_of, recorded
from lab.benchmarks.gpu.rows import Rows
from lab.benchmarks.gpu.speeds import IMAGE_PX, fitted_request
from ros2_rfm_serving.dispatch import CONTINUOUS, StepCosts
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import EngineError, ModelError, RfmError
from ros2_rfm_serving.ros.node.clock import clock
from ros2_rfm_serving.ros.server.engine_thread import EngineThreads
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.rehearsal import step_costs
from ros2_rfm_serving.types import SYSTEM1, EncodedImage, ModelContract, ObservationRequest, Reply, RequestId, SessionRequest

CLIENTS = 8
BATCHINGS = ("fixed", CONTINUOUS)
SIZES, TOY_SIZES = (1, 2, 4, 8), (1, 2, 4, 8)
DECODERS = 2
HALF = 0.5
REPLY_S = 60.0
"""Time after which a request without an answer is an error."""
KEYS = ("clients", "server", "tail")


@dataclass(frozen=True, kw_only=True)
class Extent:
    rounds: int
    seconds: float
    """Duration of each side in a round."""
    half_load_s: float


FULL, TOY = Extent(rounds=3, seconds=2.0, half_load_s=10.0), Extent(rounds=1, seconds=0.5, half_load_s=1.0)


@dataclass
class Seen:
    """Measurements of one kind of batching, per round."""

    alone_s: list[float] = field(default_factory=list)
    one_s: list[float] = field(default_factory=list)
    one_hz: list[float] = field(default_factory=list)
    all_hz: list[float] = field(default_factory=list)
    half_s: list[list[float]] = field(default_factory=list)
    """Latency of every request at half load."""


def run(task: Task, name: str) -> None:
    """Measure the missing ratios. Raises: `ModelError`."""
    rows, extent = task.rows(goals.FILE), TOY if task.is_toy else FULL
    missing = [batching for batching in BATCHINGS if not all(rows.has(architecture=name, ratio=key, case=batching) for key in KEYS)]
    if not missing:
        return
    engine = engine_of(name, task.machine.size, recorded(task.machine, TOY_SIZES if task.is_toy else SIZES))
    engine.warm_up()
    engine.clock = clock
    for done, batching in enumerate(missing):
        task.begin(done)
        _add(rows, name, batching, measured(engine, batching, extent))


def measured(engine: SteppingEngine, batching: str, extent: Extent) -> Seen:
    """Return the results of the engine alone, one client and eight clients, in turns, then of eight clients at half load.

    Raises: `EngineError` when a request is refused, not answered or answered with an error.
    """
    with Rig(engine, batching) as rig:
        seen = Seen()
        clients = [rig.client(f"client_{number}") for number in range(CLIENTS)]
        for _ in range(extent.rounds):
            seen.alone_s.append(rig.alone_s(extent.seconds))
            one_s, one_hz = rig.together(clients[:1], extent.seconds)
            _, all_hz = rig.together(clients, extent.seconds)
            seen.one_s.append(median(one_s))
            seen.one_hz.append(one_hz)
            seen.all_hz.append(all_hz)
        rate_hz, seconds = HALF * median(seen.all_hz), extent.half_load_s / extent.rounds
        seen.half_s = [rig.paced(clients, rate_hz, seconds) for _ in range(extent.rounds)]
    return seen


def _add(rows: Rows, name: str, batching: str, seen: Seen) -> None:
    p50_s, p99_s = np.quantile(np.concatenate(seen.half_s), [0.5, 0.99]).tolist()
    tails = [float(np.quantile(round_s, 0.99) / np.quantile(round_s, 0.5)) for round_s in seen.half_s]
    more = [all_hz / one_hz for all_hz, one_hz in zip(seen.all_hz, seen.one_hz, strict=True)]
    over_alone = [one_s / alone_s for one_s, alone_s in zip(seen.one_s, seen.alone_s, strict=True)]
    found = {
        "clients": ((median(seen.all_hz), median(seen.one_hz)), "requests/s", more, None),
        "server": ((1e3 * median(seen.one_s), 1e3 * median(seen.alone_s)), "ms", over_alone, None),
        "tail": ((1e3 * p99_s, 1e3 * p50_s), "ms", tails, p99_s / p50_s),
    }
    for key, (over, unit, of_rounds, value) in found.items():
        if not rows.has(architecture=name, ratio=key, case=batching):
            goals.add(rows, key, name, over, unit, batching, of_rounds=of_rounds, value=value)


class Rig:
    """Server in this process, until the end of the block."""

    def __init__(self, engine: SteppingEngine, batching: str) -> None:
        self._engine = engine
        self._blank = fitted_request(engine)
        costs = StepCosts()
        if batching == CONTINUOUS:
            costs = step_costs(engine, engine.max_batch_size, warmup_request(engine.contract, IMAGE_PX), clock)
        config = ServerConfig(
            name="bench", batch_size=engine.max_batch_size, max_sessions=CLIENTS, batching=batching, costs=costs, window_s=1.0
        )
        self.server = ModelServer(config, engine)
        self.clients: dict[str, Client] = {}
        self.threads = EngineThreads(self.server, self._deliver, lambda text: print(text, flush=True))
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *raised: object) -> None:
        self.decoders.shutdown()
        for thread in self.threads.stop():
            thread.join()

    def client(self, name: str) -> Client:
        self.clients[name] = Client(self, name)
        return self.clients[name]

    def _deliver(self, replies: Sequence[Reply], failed: Sequence[RequestId]) -> None:
        """Deliver replies on the engine's thread."""
        for reply in replies:
            self.clients[reply.id.robot].answers.put(reply)
        for request in failed:
            self.clients[request.robot].answers.put(EngineError(f"no answer: {'; '.join(self.server.problems.values())}"))

    def alone_s(self, seconds: float) -> float:
        """Return the median latency of the engine, on its own thread, without the server. Raises: `EngineError`."""
        taken_s, over = list[float](), SimpleQueue[BaseException | None]()

        def calls() -> None:
            try:
                until_s = clock() + seconds
                while not taken_s or clock() < until_s:
                    began_s = clock()
                    (answer,) = self._engine.infer([self._blank])
                    taken_s.append(clock() - began_s)
                    if isinstance(answer, ModelError):
                        raise answer
                over.put(None)
            except BaseException as error:  # the waiting thread raises it
                over.put(error)

        self.threads.call(calls)
        if (error := over.get(timeout=seconds + REPLY_S)) is not None:
            raise EngineError(f"the engine alone: {error}") from error
        return median(taken_s)

    def together(self, clients: Sequence[Client], seconds: float) -> tuple[list[float], float]:
        """Return latencies, and answers per second, of clients that send again once answered. Raises: `EngineError`."""
        began_s = clock()
        until_s = began_s + seconds

        def ask_again(client: Client) -> list[float]:
            taken_s = list[float]()
            while not taken_s or clock() < until_s:
                taken_s.append(client.ask())
            return taken_s

        found_s = _all([lambda client=client: ask_again(client) for client in clients])  # type: ignore[misc]
        return found_s, len(found_s) / (clock() - began_s)

    def paced(self, clients: Sequence[Client], rate_hz: float, seconds: float) -> list[float]:
        """Return latencies of clients with rates of their own, from the time when a request was due. Raises: `EngineError`."""
        asks = arrivals(len(clients), rate_hz, seconds, random.Random(1))
        began_s = clock()

        def ask_on_time(client: Client, due: Sequence[float]) -> list[float]:
            taken_s = list[float]()
            for at_s in due:
                time.sleep(max(0.0, began_s + at_s - clock()))
                client.ask()
                taken_s.append(clock() - began_s - at_s)
            return taken_s

        due = [[at_s for at_s, number in asks if number == i] for i in range(len(clients))]
        return _all([lambda client=c, own=own: ask_on_time(client, own) for c, own in zip(clients, due, strict=True)])  # type: ignore[misc]


class Client:
    """Client with one session and one request in flight, like a robot."""

    def __init__(self, rig: Rig, name: str) -> None:
        """Open a session. Raises: `RfmError` when it is refused."""
        self._rig, contract = rig, rig.server.contract
        self.answers: SimpleQueue[Reply | EngineError] = SimpleQueue()
        wanted = SessionRequest(
            robot=name,
            component=SYSTEM1,
            action_names=contract.action_names,
            cameras=contract.cameras,
            state_size=contract.state_size,
        )
        epoch = rig.server.open_session(wanted).session_epoch
        self._id = RequestId(robot=name, component=SYSTEM1, session_epoch=epoch, episode=1, sequence=0)
        self._images, self._state = pictures(contract), np.zeros(contract.state_size, np.float32)

    def ask(self) -> float:
        """Return the seconds from the request to its answer. Raises: `EngineError`."""
        self._id = replace(self._id, sequence=self._id.sequence + 1)
        observation = ObservationRequest(
            id=self._id, stamp_ns=0, instruction="put the part into the bin", state=self._state, images=self._images
        )
        began_s = clock()
        self._rig.decoders.submit(self._submit, observation, began_s)
        try:
            answer = self.answers.get(timeout=REPLY_S)
        except Empty:
            raise EngineError(f"no answer within {REPLY_S:.0f} s: {'; '.join(self._rig.server.problems.values())}") from None
        if isinstance(answer, EngineError):
            raise answer
        return clock() - began_s

    def _submit(self, observation: ObservationRequest, arrived_s: float) -> None:
        """Submit a request on a decoding thread."""
        try:
            self._rig.server.submit(observation, arrived_s)
        except RfmError as error:
            self.answers.put(EngineError(f"refused: {error}"))
        else:
            self._rig.threads.wake()


def pictures(contract: ModelContract) -> tuple[EncodedImage, ...]:
    """Return an image for each camera with realistic detail: edges, and sensor noise."""
    rng = np.random.default_rng(1)
    across = np.linspace(0, 255, IMAGE_PX[0])
    edges = np.where((across // 32) % 2 == 0, across, 255 - across)
    pixels = edges[None, :, None] * np.linspace(0.3, 1.0, IMAGE_PX[1])[:, None, None] + rng.normal(0, 4, (*IMAGE_PX[::-1], 3))
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels.clip(0, 255).astype(np.uint8)), quality=90)
    return tuple(EncodedImage(camera=camera, format="jpeg", data=data) for camera in contract.cameras)


def _all(works: Sequence[Callable[[], list[float]]]) -> list[float]:
    """Return the results of all works, each on a thread of its own. Raises: the error of the first one that fails."""
    with ThreadPoolExecutor(len(works), thread_name_prefix="client") as pool:
        return [seconds for each in [pool.submit(work) for work in works] for seconds in each.result()]
