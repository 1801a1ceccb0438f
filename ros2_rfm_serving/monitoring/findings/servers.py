"""Causes in a server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ros2_rfm_serving.monitoring.board import RobotRow, ServerRow
from ros2_rfm_serving.monitoring.findings.finding import Finding
from ros2_rfm_serving.monitoring.findings.look import Diagnosis, Look, answers, grown, mean
from ros2_rfm_serving.monitoring.metrics.health import SILENT_AFTER_S

READY = "ready"
HUNG_AFTER_S = 3.0
"""Minimum time without an answer while requests wait, s, or `HUNG_FACTOR` predicted latencies if that is longer."""
HUNG_FACTOR = 3.0
GREEDY = 5
"""Minimum requests of one session beyond its quota; fewer may be a burst."""
DRIFT, PADDED, LEAST_DRIFT_S = 1.5, 1.2, 0.005
"""Minimum ratio of an engine's time to the profile at the same batch size, its ratio to a full batch, and its excess, s."""
BUSY, HALF_BUSY = 0.9, 0.5
"""Loads from which requests accumulate, and from which an engine's speed matters."""
QUEUED = 1.5
"""Mean queue wait, in inferences, from which a server is overloaded. One inference is normal: a request waits for half or all of
the running batch."""
LATE, FEWEST_LATE = 0.05, 3
"""Minimum share and number of late answers."""
UNUSABLE, FEWEST_ANSWERS = 0.2, 3
"""Share of a text model's answers that are invalid, and their minimum number. With fewer answers in the observation, those since
the server's start count."""


def gone(look: Look) -> Iterator[Finding]:
    for server, rows in look.servers.items():
        silent_s = look.silent_s(server, rows)
        again = sum(after.served < before.served for before, after in pairwise(rows))
        if silent_s > SILENT_AFTER_S:
            silent = f"no status was received from {server} for {silent_s:.1f} s; a server publishes one twice a second"
            yield _gone(server, silent, *["the scheduler plans without it"] * (server in look.lost_servers))
        elif again:
            yield _gone(server, f"the counters of {server} began again at zero: its process was restarted meanwhile")


def _gone(server: str, *evidence: str) -> Finding:
    mend = f"start {server} (`rfm up` does), or check the end of its log and its machine: its robots continue by themselves"
    return Finding(cause="server gone", about=server, evidence=evidence, mend=mend)


def not_loaded(look: Look) -> Iterator[Finding]:
    for server, rows in look.servers.items():
        if rows and rows[-1].state == "failed":
            yield Finding(
                cause="model not loaded",
                about=server,
                evidence=(f"{server} reports: {rows[-1].detail}",),
                mend="correct what the message names, in models.yaml or in the model's folder; the server tries again every 10 s",
            )


def hung(look: Look) -> Iterator[Finding]:
    for server, rows in look.servers.items():
        if evidence := _hung(look, server, rows):
            yield Finding(
                cause="hung engine",
                about=server,
                evidence=(evidence,),
                mend=f"restart {server}; with `hung_after_s` it ends by itself, logs its stacks, and is restarted by `rfm up`",
            )


def _hung(look: Look, server: str, rows: list[ServerRow]) -> str:
    """Return the evidence of a hung engine; empty: there is none."""
    if said := [row.detail for row in rows if row.state == "hung"]:
        return f"{server} reports: {said[-1]}"
    if not rows or any(row.state != READY for row in rows) or grown(rows, lambda row: row.served):
        return ""
    unanswered_s, asked = rows[-1].seen_s - rows[0].seen_s, grown(rows, lambda row: row.superseded)
    waits = sum(row.waiting > 0 for row in rows) > len(rows) / 2
    if not (waits or asked) or unanswered_s < max(HUNG_AFTER_S, HUNG_FACTOR * _predicted_s(look, server)):
        return ""
    waiting = max(row.waiting for row in rows)
    return f"{server} is ready and up to {waiting} requests wait, but none was answered for {unanswered_s:.1f} s"


def _predicted_s(look: Look, server: str) -> float:
    """Return the predicted 99th percentile of the latency, arrival to reply; 0: unknown."""
    placements = [schedule.placement_of(server) for schedule in look.current_schedules]
    return max((placement.predicted_p99_s for placement in placements if placement), default=0.0)


def greedy(look: Look) -> Iterator[Finding]:
    for server in look.servers:
        said = look.diagnoses.get(f"{server}: server", [])
        for session, count in said[-1].named("over_quota").items() if said else ():
            more = count - said[0].named("over_quota").get(session, 0.0)
            if more >= GREEDY:
                yield _greedy(server, session, more, look.seconds)


def _greedy(server: str, session: str, more: float, seconds: float) -> Finding:
    robot = session.partition("/")[0]
    return Finding(
        cause="one robot asks too much",
        about=robot,
        concerns=(server,),
        evidence=(
            f"{server} refused {more:.0f} requests of {session} in {seconds:.1f} s (over_quota)",
            "a robot may send twice the requests that its schedule allows, and no client may exceed max_request_rate_hz",
        ),
        mend=f"stop or correct the client that uses the name {robot}; to plan for more: `action_period_ms`, then `rfm/replan`",
    )


def unusable(look: Look) -> Iterator[Finding]:
    for server in look.servers:
        evidence = [found for kind in ("verdict", "plan") if (found := _unusable(look, server, kind))]
        if evidence:
            yield Finding(
                cause="unusable answers",
                about=server,
                evidence=tuple(evidence),
                mend="see `constraint`, `max_tokens`, `chat_template_kwargs`, `verdicts` of the model: docs/reference/engines.md",
            )


def _unusable(look: Look, server: str, kind: str) -> str:
    """Return the number of a server's invalid verdicts or plans with the last one, as text; empty: they are few."""
    said = look.diagnoses.get(f"{server}: server", [])
    if not said or not said[-1].values.get(f"last {kind}_violation"):
        return ""
    wrong_now, all_now = _answers_in(said[-1], kind)
    wrong_before, all_before = _answers_in(said[0], kind)
    wrong, asked = wrong_now - wrong_before, all_now - all_before
    if not wrong > 0:  # none recently, a restart of its process, or invalid figures
        return ""
    if asked < FEWEST_ANSWERS:
        wrong, asked = wrong_now, all_now
    if wrong < asked and (wrong < FEWEST_ANSWERS or wrong < UNUSABLE * asked):
        return ""
    counted = (
        f"each of {asked:.0f} {kind}s of {server} is" if wrong >= asked else f"{wrong:.0f} of {asked:.0f} {kind}s of {server} are"
    )
    what = "a violation" if wrong >= asked else "violations, the last one"
    return f"{counted} {what}: {said[-1].values[f'last {kind}_violation']}"


def _answers_in(said: Diagnosis, kind: str) -> tuple[float, float]:
    """Return a server's violations since its start, and all its answers of that kind."""
    wrong, answered = (said.number(key) if key in said.values else 0.0 for key in (f"refused {kind}_violation", f"answered {kind}"))
    return wrong, answered + (wrong if kind == "plan" else 0.0)  # refused plans are not counted as answers


def drifted(look: Look) -> Iterator[Finding]:
    for server, rows in look.servers.items():
        said = look.diagnoses.get(f"{server}: server", [])
        # Each report is a mean over about the last second, so that a briefly busy machine alone is no slower engine.
        if not said or not all(map(_is_slower, said)) or not _matters(look, server, rows):
            continue
        size, measured_s, profiled_s = said[-1].values.get("drift_rows", ""), *_drift_s(said[-1])
        if mean(rows, "inference_s") > PADDED * profiled_s:  # otherwise batches of that size were slow once, and did not run since
            yield Finding(
                cause="drifted profile",
                about=server,
                evidence=(
                    f"batches of {size} take {1e3 * measured_s:.0f} ms on {server}, and {1e3 * profiled_s:.0f} ms in the profile",
                    f"{server} is busy {rows[-1].load:.0%} of the time",
                    "the schedule is planned from the profile, so it promises more than the engine delivers",
                ),
                mend="check what else uses that machine or GPU; if nothing does, run `rfm profile` again, and then `rfm/replan`",
            )


def _drift_s(said: Diagnosis) -> tuple[float, float]:
    """Return measured and profiled time of the batch size that differs most; NaN: there is no profile."""
    return said.number("drift_measured_s"), said.number("drift_profiled_s")


def _is_slower(said: Diagnosis) -> bool:
    measured_s, profiled_s = _drift_s(said)
    return measured_s > max(DRIFT * profiled_s, PADDED * said.number("drift_full_s"), profiled_s + LEAST_DRIFT_S)


def _matters(look: Look, server: str, rows: list[ServerRow]) -> bool:
    """Return whether a slower engine has consequences; with time to spare it keeps every deadline."""
    late, asked = late_answers([look.robots[robot] for robot in look.robots_of(server)])
    return bool(rows) and (rows[-1].load > HALF_BUSY or late >= max(FEWEST_LATE, LATE * asked))


def overloaded(look: Look) -> Iterator[Finding]:
    for server, rows in look.servers.items():
        if not rows or rows[-1].load < BUSY:
            continue
        wait_s, inference_s = mean(rows, "queue_wait_s"), mean(rows, "inference_s")
        late, asked = late_answers([look.robots[robot] for robot in look.robots_of(server)])
        if wait_s > QUEUED * inference_s or late >= max(FEWEST_LATE, LATE * asked):
            yield Finding(
                cause="overloaded server",
                about=server,
                evidence=(
                    f"{server} is busy {rows[-1].load:.0%} of the time and serves {rows[-1].sessions} sessions",
                    f"requests wait {1e3 * wait_s:.0f} ms for {1e3 * inference_s:.0f} ms of inference",
                    f"{late:.0f} of {asked:.0f} answers to its robots were late",
                ),
                mend="stop unplanned clients; otherwise add servers or remove robots: `rfm capacity`, `rfm plan --compare`",
            )


def late_answers(robots: list[list[RobotRow]]) -> tuple[float, float]:
    """Return (late or abandoned answers, all answers)."""
    late = sum(grown(rows, answers(lambda one: one.late)) for rows in robots)
    return late, late + sum(grown(rows, answers(lambda one: one.in_time)) for rows in robots)
