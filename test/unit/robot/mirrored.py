"""A robot's core beside which others decide that go on from its snapshots, and must decide alike."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable
from typing import Any

import orjson

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.robot import RobotConfig, RobotCore, events
from test.unit.deep_equality import attributes, difference

CACHES = {
    ("Latencies", "_expected_s"): "is computed when it is asked for",
    ("TrajectoryPlanner", "_shaper"): "begins anew in each plan",
}
INPUTS: dict[str, type] = {
    "on_schedule": events.ScheduleReceived,
    "on_server_status": events.ServerStatusReceived,
    "on_server_loading": events.ServerLoadingReceived,
    "on_server_alive": events.ServerLivenessReceived,
    "on_server_lost": events.ServerLost,
    "on_session_opened": events.SessionOpened,
    "on_session_refused": events.SessionRefused,
    "request_refetch": events.RefetchRequested,
    "on_episode_reset": events.EpisodeResetAnswered,
    "on_reply": events.ReplyReceived,
    "tick": events.ControlTick,
    "start": events.TaskStarted,
    "finish": events.TaskFinished,
    "cancel": events.TaskCanceled,
    "reset_begins": events.ResetStarted,
    "reset_done": events.ResetFinished,
    "stop_command": events.StopRequested,
    "stop_trajectory": events.TrajectoryStopRequested,
    "pause": events.PauseRequested,
    "resume": events.ResumeRequested,
    "abort": events.AbortRequested,
}


def stored(value: object) -> Any:
    """What comes out of a file into which a value was written."""
    return codec.value(orjson.loads(orjson.dumps(codec.plain(value), option=orjson.OPT_SERIALIZE_NUMPY)))


class Mirror:
    """Of one core: a twin that is restored now and then, and is given each event as well."""

    def __init__(self, core: RobotCore, every: int = 40) -> None:
        """every: number of events from one twin to the next, on average."""
        self._core, self._every = core, every
        self._rng = random.Random(0)
        self._twin: RobotCore | None = None
        self._refused: dict[str, int] = {}
        self.is_busy = False
        """The core decides: what it tells itself is no event."""
        self.now_s = 0.0
        self.num_twins = self.num_decisions = 0

    def event(self, event: Any, now_s: float, decide: Callable[[], Any]) -> Any:
        if self.is_busy:
            return decide()
        self._count(now_s)
        self.now_s, self.is_busy = now_s, True
        try:
            answer = decide()
        finally:
            self.is_busy = False
        self._refused = dict(self._core.refused)
        if self._twin is not None:
            self.num_decisions += 1
            again = self._twin.handle(event, now_s)
            if not isinstance(event, events.TaskStarted):
                assert not (found := difference(answer, again)), (event, found)
        if self._rng.random() * self._every < 1.0:
            self.renew()
        return answer

    def renew(self) -> None:
        """Compare the twin with the core, and take another twin's place."""
        self._count(self.now_s)
        if self._twin is not None:
            assert not (found := unlike(self._core, self._twin)), found
        state, config = stored(self._core.snapshot()), stored(self._core.config)
        assert not (found := difference(state, self._core.snapshot())), found
        twin = RobotCore.from_state(config, state)
        assert not (found := unlike(self._core, twin)), found
        self._twin, self.num_twins = twin, self.num_twins + 1

    def _count(self, now_s: float) -> None:
        """Others count, too."""
        counts = {name: count - self._refused.get(name, 0) for name, count in self._core.refused.items()}
        if self._twin is not None and (counts := {name: count for name, count in counts.items() if count}):
            self._twin.handle(events.CountsAdded(counts), now_s)
        self._refused = dict(self._core.refused)


def unlike(core: RobotCore, twin: RobotCore) -> str:
    """Where a twin differs from its core; empty: nowhere."""
    bare = object.__new__(RobotCore)
    bare.__dict__.update({name: value for name, value in attributes(core).items() if name != "mirror"})
    return difference(bare, twin, CACHES)


class MirroredBrain(RobotCore):
    """See the module's docstring."""

    def __init__(self, config: RobotConfig) -> None:
        super().__init__(config)
        self.mirror = Mirror(self)

    def prepared(self, config: RobotConfig) -> Callable[[], None]:
        apply = super().prepared(config)
        return lambda: self.mirror.event(events.ConfigurationChanged(config), self.mirror.now_s, apply)


def _mirrored(name: str, kind: type) -> Callable[..., Any]:
    method = getattr(RobotCore, name)
    signature = inspect.signature(method)

    @functools.wraps(method)
    def given(core: MirroredBrain, *args: Any, **more: Any) -> Any:
        found = dict(signature.bind(core, *args, **more).arguments)
        del found["self"]
        now_s = found.pop("now_s", core.mirror.now_s)
        return core.mirror.event(kind(**found), now_s, lambda: method(core, *args, **more))

    return given


for _name, _kind in INPUTS.items():
    setattr(MirroredBrain, _name, _mirrored(_name, _kind))

__all__ = ["CACHES", "INPUTS", "Mirror", "MirroredBrain", "stored", "unlike"]
