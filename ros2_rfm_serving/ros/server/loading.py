"""Loading of a model on a thread of its own: importing, reading and compiling take seconds, and the process stays responsive."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ros2_rfm_serving.dispatch import CONTINUOUS
from ros2_rfm_serving.engines.agreement import require_agreement, require_compared
from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.engines.registry import build_engine
from ros2_rfm_serving.engines.warmup import warm_up, warmup_request
from ros2_rfm_serving.errors import ModelError, RfmError
from ros2_rfm_serving.factory.catalogue import AT_START
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.engine_thread import closed
from ros2_rfm_serving.ros.server.settings import ServerParams
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.server.capacity import max_sessions
from ros2_rfm_serving.server.engine_queues import EngineConfig
from ros2_rfm_serving.server.rehearsal import step_costs
from ros2_rfm_serving.types import EngineReply, ModelContract, Placement

NEWS_PERIOD_S = 5.0
"""Minimum time between two progress messages: comparing a large model with its float64 reference takes minutes."""
LOOK_S = 0.2
"""Period of polling whether the previous model has ended."""
UNWANTED = "another model is placed here by now"


class Loaded(NamedTuple):
    server: ModelServer
    engine: Engine
    placement: Placement
    took_s: float


class Former(NamedTuple):
    """Previous work whose memory the next model needs."""

    threads: Sequence[threading.Thread] = ()
    hung_after_s: float = 0.0
    """Time for which the threads may continue; 0: any time."""
    loading: Loading | None = None
    """Loading of a model that was replaced before it had served."""


NOTHING = Former()


class Loading:
    """Loading of one placement. `outcome` is None until it is over."""

    def __init__(self, params: ServerParams, placement: Placement, log: Callable[[str], None], former: Former = NOTHING) -> None:
        self.placement, self._former = placement, former
        self._began_s = clock()
        self._unwanted = False
        self.wedged = False
        """The previous model does not end, so only a new process helps."""
        self.outcome: Loaded | str | None = None
        """The loaded model, or a public description of why there is none."""
        self._params, self._log = params, log
        self._doing, self._comparing, self._told_s = "reading it", "comparing it with its reference", self._began_s
        self._thread = threading.Thread(target=self._run, name="loading", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether loading is over."""
        self._thread.join(seconds)
        return self.outcome is not None

    def takes_s(self, now_s: float) -> float:
        """Return for how long it, or the loading that it waits for, has been in progress, s."""
        before = self._former.loading
        return max(now_s - self._began_s, before.takes_s(now_s) if before and before.outcome is None else 0.0)

    def news(self, now_s: float) -> str:
        """Return a progress message when one is due; empty: none is."""
        if self.outcome is not None or now_s - self._told_s < NEWS_PERIOD_S:
            return ""
        self._told_s = now_s
        return f"loading {self.placement.model}, for {self.takes_s(now_s):.0f} s so far: {self._doing}"

    def undo(self) -> None:
        """Cancel the loading; when this returns its memory is free."""
        self._unwanted = True
        self._thread.join()
        if isinstance(self.outcome, Loaded):
            for tier in range(self.outcome.server.num_queues):
                closed(self.outcome.server.engine(tier), self._log)
        self.outcome = UNWANTED

    def _run(self) -> None:
        started_s = clock()
        try:
            self._doing = "the model before is still at work"
            self._await_former()
            self._doing = "reading it"
            if self._unwanted:
                self.outcome = UNWANTED
                return
            spec = self._params.engine_spec(self.placement)
            engine = build_engine(spec)
            self._comparing = f"comparing it{_at(spec.entry.options)} with its reference"
            engine.on_check = self._checked
            server = self._served(engine, self._params.check_parity or spec.entry.parity == AT_START)
        except (Exception, SystemExit) as error:  # loading runs foreign code, which may be out of memory or lack a driver
            self._log(f"{self.placement.model} cannot be loaded:\n{traceback.format_exc()}")
            kind = type(error).__name__ if isinstance(error, RfmError) else "error"
            why = f": {error}" if isinstance(error, ModelError) and error.is_public else "; the server's log says why"
            self.outcome = f"{self.placement.model} cannot be loaded ({kind}){why}"
        else:
            self.outcome = Loaded(server, engine, self.placement, clock() - started_s)

    def _checked(self, parts: int, of: int) -> None:
        self._doing = f"{self._comparing}, {parts} of {of}"

    def _await_former(self) -> None:
        """Wait until the previous model has ended. Raises: `ModelError`."""
        if self._former.loading:  # for any time, because two at once may not fit
            self._former.loading.undo()
        waited_s, limit_s = 0.0, self._former.hung_after_s or math.inf  # time in which this process ran
        for thread in self._former.threads:
            while thread.is_alive() and waited_s < limit_s:
                thread.join(LOOK_S)
                waited_s += LOOK_S
        self.wedged = any(thread.is_alive() for thread in self._former.threads)
        if self.wedged:
            raise ModelError("the last batch of the model before does not end")

    def _served(self, engine: Engine, check_parity: bool) -> ModelServer:
        """Return the server of an engine, after parity check and warm-up. When anything raises, everything that was built is
        closed: otherwise the next attempt would find the GPU's memory occupied."""
        overflow: tuple[EngineConfig, ...] = ()
        try:
            if check_parity or engine.must_agree:
                self._doing = self._comparing
            if check_parity:
                require_compared(self.placement.model, engine, engine.check_parity())
            elif engine.must_agree:
                require_agreement(self.placement.model, engine)
            self._doing = "warming up"
            overflow = _overflow(self._params, self.placement, engine.contract, self._log)
            return _ready(engine, self._params, self.placement, overflow)
        except BaseException:
            for built in (engine, *(tier.engine for tier in overflow)):
                closed(built, self._log)
            raise


def _at(options: Mapping[str, Any]) -> str:
    """Return the requested precision as text."""
    return f" at {options['dtype']}" if options.get("dtype") else ""


def _overflow(
    params: ServerParams, placement: Placement, contract: ModelContract, log: Callable[[str], None]
) -> tuple[EngineConfig, ...]:
    """Return the overflow tier; empty when it is unavailable, which costs speed and nothing else.
    Raises: `ModelError` when it serves another model."""
    spec = params.overflow_spec(placement)
    if spec is None:
        return ()
    engine: Engine | None = None
    try:
        engine = build_engine(spec)
        engine.warm_up()
    except ModelError as error:
        log(f"serving without overflow: {error}")
        if engine is not None:
            closed(engine, log)
        return ()
    if engine.contract != contract.for_remote_engine:
        closed(engine, log)
        raise ModelError(f"{params.overflow_url} serves {engine.contract.model!r}, or not as this server does {contract.model!r}")
    return (_elsewhere(engine, params),)


def _elsewhere(engine: Engine, params: ServerParams) -> EngineConfig:
    """Return the tier of a remote engine; batches in flight share its connections."""
    batches = min(params.overflow_batches_in_flight, engine.max_batch_size)
    rows = engine.max_batch_size // batches
    return EngineConfig(engine=engine, batch_size=rows, batches_in_flight=batches, round_trip_s=params.overflow_round_trip_s)


def _ready(engine: Engine, params: ServerParams, placement: Placement, overflow: tuple[EngineConfig, ...]) -> ModelServer:
    """Warm up, rehearse and measure the engine, and return its server. Raises: `ModelError`."""
    batch_size = min(placement.batch_size, engine.max_batch_size)
    engine.prepare(batch_size)
    engine.warm_up()
    engine.clock = clock
    size_px = (params.image_width_px, params.image_height_px)
    answer = warm_up(engine, batch_size, size_px)
    sessions = placement.max_sessions or max_sessions(
        engine.contract, _service_s(engine, batch_size, size_px), batch_size, rate_hz=params.session_rate_hz
    )
    config = params.server_config(placement, sessions)
    config = replace(config, num_updates=_num_updates(answer), max_concurrent=engine.max_concurrent)
    if config.batching == CONTINUOUS and isinstance(engine, Stepping):
        blank = warmup_request(engine.contract, size_px, encoded=engine.takes_encoded)
        config = replace(config, costs=step_costs(engine, batch_size, blank, clock))
    return ModelServer(config, engine, *overflow)


def _num_updates(answer: EngineReply | None) -> int | None:
    """Return the number of solver updates; None: a text model, or a remote server that applies horizon policies itself."""
    return None if answer is None or len(answer.confidence) else len(answer.updates)


def _service_s(engine: Engine, batch_size: int, size_px: tuple[int, int]) -> float:
    """Return the duration of one full batch, the shortest of three, s."""
    blank = [warmup_request(engine.contract, size_px, encoded=engine.takes_encoded)] * batch_size
    fastest_s = math.inf
    for _ in range(3):
        begun_s = clock()
        engine.infer(blank)
        fastest_s = min(fastest_s, clock() - begun_s)
    return fastest_s
