"""A server's core beside which others decide that continue from its snapshots, and must decide alike."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import orjson

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.servers.witness import DRAIN, INPUTS, Note
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ModelServer, ServerCore
from test.unit.deep_equality import difference

CACHES = {
    ("InferenceRequest", "images"): "decide nothing, and are not kept",
    ("InferenceRequest", "state"): "decides nothing, and is not kept",
    ("InferenceRequest", "prefix_model"): "counts by its length alone, which the snapshot has",
    ("InferenceRequest", "prefix_robot"): "decides nothing, and is not kept",
    ("EngineQueue", "engine"): "a restored core has none",
    ("EngineQueue", "running"): "is what calls the engine",
    ("ServiceTimes", "_saturations"): "are computed when they are asked for",
    ("ServerSessions", "_ended"): "are sessions that an engine may forget, which decides nothing",
    ("TaskLengths", "_left"): "is computed when it is asked for",
}


def stored(value: object) -> Any:
    """What comes out of a file into which a value was written."""
    return codec.value(orjson.loads(orjson.dumps(codec.plain(value), option=orjson.OPT_SERIALIZE_NUMPY)))


class Mirror:
    """Stands in place of one core; a twin that is restored now and then is given each event as well."""

    def __init__(self, core: ServerCore, every: int = 40) -> None:
        """every: number of events from one twin to the next, on average."""
        self.core, self._every = core, every
        self._rng = random.Random(0)
        self._twin: ServerCore | None = None
        self.num_twins = self.num_decisions = 0
        self.num_restored: Counter[str] = Counter()
        for name in (*INPUTS, DRAIN):
            setattr(self, name, partial(self._decided, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def _decided(self, name: str, *args: Any) -> Any:
        call = Note(0.0, name, args, None, 0.0)
        event, now_s = call.event, call.now_s or 0.0
        if self._twin is not None:
            self._twin.faults[:] = self.core.faults
        answer, error = _outcome(lambda: getattr(self.core, name)(*args))
        if self._twin is not None:
            self.num_decisions += 1
            twin = self._twin
            again, other_error = _outcome(lambda: twin.handle(event, now_s))
            assert repr(error) == repr(other_error), event
            assert not (found := difference(answer, again, CACHES)), (event, found)
            assert self._twin.faults == self.core.faults and self._twin.poll_at_s == self.core.poll_at_s, event
        if self._rng.random() * self._every < 1.0:
            self.renew()
        if error is not None:
            raise error
        return answer

    def renew(self) -> None:
        """Compare the twin with the core, and take another twin's place."""
        if self._twin is not None:
            assert not (found := self.unlike(self._twin)), found
        state = stored(self.core.state())
        assert not (found := difference(state, self.core.state())), found
        twin = ServerCore.from_state(*stored((self.core.config, self.core.contract, self.core.limits)), state)
        assert not (found := self.unlike(twin)), found
        self._twin, self.num_twins = twin, self.num_twins + 1
        self.num_restored.update(
            waiting=len(self.core.mailboxes),
            running=sum(not lane.is_idle for lane in self.core.queues),
            rows=sum(len(lane.view.in_flight.rows) for lane in self.core.queues if lane.view.in_flight is not None),
            of_ended_sessions=len(state["ended_histories"]),
            replies=len(state["ended_batches"]),
        )

    def unlike(self, twin: ServerCore) -> str:
        """Return where a twin differs from the core; empty: nowhere."""
        twin.faults[:] = self.core.faults
        return difference(self.core, twin, CACHES) or difference(self.core.state(), twin.state())


def _outcome(decide: Callable[[], Any]) -> tuple[Any, RfmError | None]:
    try:
        return decide(), None
    except RfmError as error:
        return None, error


def mirrored(server: ModelServer, every: int = 40) -> Mirror:
    """Put a mirror in place of the core of a server."""
    made: list[Mirror] = []

    def put(core: ServerCore) -> ServerCore:
        made.append(Mirror(core, every))
        return cast(ServerCore, made[0])

    server.record_calls(put)
    return made[0]


__all__ = ["CACHES", "Mirror", "mirrored", "stored"]
