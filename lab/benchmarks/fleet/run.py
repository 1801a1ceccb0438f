"""One fleet of `rfm bench fleet`: start, operation, admissions, and the loss of its scheduler or of one of its servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lab.benchmarks.fleet import notes
from lab.benchmarks.fleet.crowd import ROBOTS, SCHEDULER, SERVER, Crowd
from lab.benchmarks.fleet.notes import Spread, firsts, most_at_once, spread
from ros2_rfm_serving.errors import RfmError

GUEST, ADMISSIONS, REPLANS = "guest", 5, 3
SETTLE_S = 2.0
LOOK_PERIOD_S = 0.25
WINDOW_S = 0.1
"""Window in which arrivals are counted."""
Say = Callable[[str], None]


class Cost(NamedTuple):
    """Cost of the processes of one kind."""

    rss_mb: float
    """Mean memory of a process."""
    cpu_share: float
    """Share of one core, over all of them."""
    cpu_ms: float
    """CPU time per answer."""


class Growth(NamedTuple):
    """Cost of a fleet of this size."""

    robots: int
    servers: int
    processes: int
    started: Spread
    """Time from the start of all processes, including interpreters, until each robot had its first answer."""
    joined: Spread
    """Ten robots that join when all others are at work: time from discovery on the graph until each has a session."""
    answers_hz: float
    asked_hz: float
    late: int
    streaming: int
    probe: Cost
    """Process of ten robots."""
    robots_rss_mb: float
    """Memory of all robots' processes, per robot."""
    robots_cpu_ms: float
    """CPU time of all robots' processes, per answer."""
    server: Cost
    scheduler: Cost
    admit: Spread
    """Admission of a robot: time from the call to the answer, which comes when all servers follow."""
    replan: Spread
    """Replanning of the whole factory, likewise."""


class Restart(NamedTuple):
    """Restart of the scheduler after SIGKILL."""

    robots: int
    followed: Spread
    """Time from its new process's start until each robot followed it."""
    moved: int
    """Robots that had another session afterwards."""
    answers_hz: float
    """Answers per second meanwhile."""
    refused: int
    """Messages that robots refused meanwhile, of all kinds, including schedules of the new scheduler before it is followed."""


class Failover(NamedTuple):
    """Loss of a server by SIGKILL."""

    sessions: int
    others: int
    """Servers that could replace it."""
    session: Spread
    """Time from the kill until each robot had a session again."""
    served: Spread
    """Time until each had its first answer from another server."""
    unserved: int
    most_at_once: int
    """Sessions opened within `WINDOW_S`."""
    refusals: dict[str, int]
    """Refusals by the other servers meanwhile: reason -> count."""
    arrivals_s: tuple[float, ...]
    """Time of each session after the kill."""


class Watcher(NamedTuple):
    """Operations of this process on the graph."""

    call: Callable[[str, str], float]
    """Call a service of the scheduler with a robot's name, and return the s until its answer."""
    refused: Callable[[], dict[str, int]]
    """Return refusals by all servers since their start."""
    sessions: Callable[[], dict[str, int]]
    """Return server -> its reported sessions."""
    spin: Callable[[float], None]


class Run:
    def __init__(self, crowd: Crowd, watcher: Watcher, say: Say, patience_s: float) -> None:
        """patience_s: limit for the start of a whole fleet."""
        self._crowd, self._watcher, self._say, self._patience_s = crowd, watcher, say, patience_s

    def start(self) -> tuple[Spread, Spread]:
        """Start the fleet, and return (started, joined)."""
        crowd, began_s = self._crowd, time.monotonic()
        crowd.start_scheduler()
        for server in crowd.servers:
            crowd.start_server(server)
        crowd.start_others()
        num_others = crowd.shape.robots - len(crowd.probe)
        if num_others:
            self._until(lambda: self._answered(began_s) >= num_others, f"{num_others} robots start", began_s)
        at_work = dict(self._times("answered", began_s))
        crowd.start_probe()
        self._until(lambda: self._answered(began_s) >= crowd.shape.robots, "ten more join", time.monotonic())
        if not num_others:
            at_work = self._times("answered", began_s)
        (probe,) = crowd.notes("probe")
        active_s = next(note.at_s for note in probe if note.what == "active")
        joined = [at_s - active_s for at_s in firsts(probe, "session", began_s).values()]
        return spread(at_s - began_s for at_s in at_work.values()), spread(joined)

    def measure(self, seconds: float, started: Spread, joined: Spread) -> Growth:
        crowd, watcher = self._crowd, self._watcher
        self._say("they work")
        watcher.spin(SETTLE_S)
        before, counted, begin_s = crowd.usage(), notes.total(crowd.notes()), time.monotonic()
        of_probe = notes.total(crowd.notes("probe")).answers
        watcher.spin(seconds)
        after, total, took_s = crowd.usage(), notes.total(crowd.notes()), time.monotonic() - begin_s
        of_probe = notes.total(crowd.notes("probe")).answers - of_probe
        answers = total.answers - counted.answers
        if not answers or not of_probe:
            raise RfmError(f"no robot was answered within {seconds:g} s")

        def cost(names: Sequence[str], num_answers: int) -> Cost:
            cpu_s = sum(after[name].cpu_s - before[name].cpu_s for name in names)
            rss_mb = sum(after[name].rss_mb for name in names) / len(names)
            return Cost(rss_mb, cpu_s / took_s, 1e3 * cpu_s / num_answers)

        all_robots = crowd.of_kind(ROBOTS)
        admit, replan = self._admissions()
        return Growth(
            robots=crowd.shape.robots,
            servers=crowd.shape.servers,
            processes=crowd.num_processes,
            started=started,
            joined=joined,
            answers_hz=answers / took_s,
            asked_hz=crowd.shape.robots * crowd.shape.request_rate_hz,
            late=total.late - counted.late,
            streaming=total.streaming,
            probe=cost(["probe"], of_probe),
            robots_rss_mb=sum(after[name].rss_mb for name in all_robots) / crowd.shape.robots,
            robots_cpu_ms=cost(all_robots, answers).cpu_ms,
            server=cost(crowd.of_kind(SERVER), answers),
            scheduler=cost(crowd.of_kind(SCHEDULER), answers),
            admit=admit,
            replan=replan,
        )

    def restart_scheduler(self, seconds: float) -> Restart:
        crowd = self._crowd
        before, begin_s = notes.total(crowd.notes()), time.monotonic()
        killed_s = crowd.kill("scheduler")
        self._watcher.spin(1.0)
        started_s = time.monotonic()
        crowd.start_scheduler()
        self._until(lambda: len(self._times("follows", started_s)) >= crowd.shape.robots, "the scheduler is followed", started_s)
        self._watcher.spin(seconds)
        after = notes.total(crowd.notes())
        return Restart(
            robots=crowd.shape.robots,
            followed=spread(at_s - started_s for at_s in self._times("follows", started_s).values()),
            moved=len(self._times("session", killed_s)),
            answers_hz=(after.answers - before.answers) / (time.monotonic() - begin_s),
            refused=after.refused - before.refused,
        )

    def kill_server(self) -> Failover:
        """Kill the server with the most sessions."""
        crowd, watcher = self._crowd, self._watcher
        sessions = watcher.sessions()
        victim = max(sessions, key=lambda server: sessions[server])
        served = self._served_by(victim)
        refused = watcher.refused()
        killed_s = crowd.kill(victim)
        self._until(lambda: served <= self._times("answered", killed_s).keys(), "all are served again", killed_s, fails=False)
        watcher.spin(SETTLE_S)
        again = {robot: at_s for robot, at_s in self._times("answered", killed_s).items() if robot in served}
        opened = {robot: at_s for robot, at_s in self._times("session", killed_s).items() if robot in served}
        now = watcher.refused()
        arrivals_s = tuple(sorted(at_s - killed_s for at_s in opened.values()))
        return Failover(
            sessions=len(served),
            others=len(crowd.servers) - 1,
            session=spread(arrivals_s),
            served=spread(at_s - killed_s for at_s in again.values()),
            unserved=len(served - again.keys()),
            most_at_once=most_at_once(arrivals_s, WINDOW_S),
            refusals={kind: num - refused.get(kind, 0) for kind, num in now.items() if num > refused.get(kind, 0)},
            arrivals_s=arrivals_s,
        )

    # --- parts ---

    def _admissions(self) -> tuple[Spread, Spread]:
        """Measure admissions and replans in the running fleet."""
        call = self._watcher.call
        self._say("robots come and go")
        admitted = []
        for i in range(ADMISSIONS):
            admitted.append(call("admit", f"{GUEST}_{i + 1}"))
            call("release", f"{GUEST}_{i + 1}")
        return spread(admitted), spread(call("replan", "") for _ in range(REPLANS))

    def _served_by(self, server: str) -> set[str]:
        """Return the robots whose last session is with a server."""
        last: dict[str, str] = {}
        for of in self._crowd.notes():
            last |= {note.robot: note.whom for note in of if note.what == "session"}
        return {robot for robot, whom in last.items() if whom == server}

    def _times(self, what: str, since_s: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for of in self._crowd.notes():
            found |= firsts(of, what, since_s)
        return found

    def _answered(self, since_s: float) -> int:
        return len(self._times("answered", since_s))

    def _until(self, condition: Callable[[], bool], what: str, since_s: float, *, fails: bool = True) -> None:
        """Wait for a condition. Raises: `RfmError` when it does not hold within `patience_s`."""
        while not condition():
            self._crowd.check()
            if time.monotonic() - since_s > self._patience_s:
                if fails:
                    raise RfmError(f"not within {self._patience_s:g} s: {what}; the logs say why")
                return
            self._say(f"{what}: {time.monotonic() - since_s:.0f} s")
            self._watcher.spin(LOOK_PERIOD_S)


def as_json(found: Any) -> dict[str, Any]:
    return {key: value._asdict() if hasattr(value, "_asdict") else value for key, value in found._asdict().items()}
