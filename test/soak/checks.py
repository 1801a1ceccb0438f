"""What is asked of a soak afterwards: of its samples, and of its recording with the verbs that a user has for it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.log import ROBOT, AuditLog, Entry, Key, event_name, event_of, mapping, refusal_of
from ros2_rfm_serving.audit.robots.records import EXECUTES
from ros2_rfm_serving.audit.safety import AGE, CHUNK, FLIGHT, LIMITS, RAISED, SESSION, STANDING, chains
from test.shift.checks import Seen
from test.soak.faults import KILL, SLOW
from test.soak.serving import replaced_early, served, without_any
from test.soak.soak import Happened, Soaked

AFTER_S = 20.0
"""A fault's, until those whom it concerns work again: leases, a restart with its backoff, a model that loads, a task anew."""
BEFORE_S = 3.0
"""What was under way when it began."""
GIVEN_UP_S = 3.0
"""After it was asked, its robot has said so: none waits for longer than 2 s here (`link.request_timeout_s`, twice the SLO)."""
MOST_STILL_S = 30.0
"""Without an action, on a busy machine, though nothing befell it and its model was served: tasks end, and begin with a reset."""
MOST_UNSERVED_S = 120.0
"""Without any server that has its model: both were killed, start again and load, on a machine with much to do (docs/fleet.md)."""


class Checks:
    def __init__(self, rfm: Sequence[str], bag: Path, soaked: Soaked) -> None:
        self._rfm, self._bag, self._soaked = rfm, bag, soaked
        self._replaced: set[Key] = set()

    def all(self) -> Iterator[Seen]:
        yield self.done()
        yield self.flat()
        yield self.verified()
        yield self.safe()
        yield self.replayed()
        log = AuditLog(Bag(self._bag).pages())
        yield self.accounted(log)
        yield self.worked(log)

    def done(self) -> Seen:
        counts = Counter(one.fault.kind for one in self._soaked.happened if not one.problem)
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        seconds = self._soaked.ended_s - self._soaked.began_s
        return Seen("faults", f"{told or 'none'} in {seconds:.0f} s; exit {self._soaked.exit_code}", self._soaked.exit_code == 0)

    def flat(self) -> Seen:
        lives = self._soaked.lives
        grown = [
            f"{one.name} {one.rss_mb[0]:.0f} to {one.rss_mb[1]:.0f} MB, {one.files[0]:.0f} to {one.files[1]:.0f} files"
            for one in lives
            if not one.is_flat
        ]
        most = max((after - before for before, after in (one.rss_mb for one in lives)), default=0.0)
        longest_s = max((one.seconds for one in lives), default=0.0)
        figures = f"{len(lives)} processes of up to {longest_s:.0f} s, most growth {most:.1f} MB; {'; '.join(grown) or 'all flat'}"
        return Seen("memory and files", figures, bool(lives) and not grown)

    def verified(self) -> Seen:
        code, told = self._json("audit", "verify", str(self._bag))
        lost = sum(chain["lost"] for chain in told.get("chains", []))
        flaws = len(told.get("flaws", []))
        figures = f"{told.get('records', 0)} records of {len(told.get('chains', []))} chains, {flaws} flaws, {lost} lost on the way"
        return Seen("audit verify", figures, code == 0 and bool(told))

    def safe(self) -> Seen:
        code, told = self._json("audit", "safety", str(self._bag))
        judged = told.get("judged", {})
        broken = Counter(one["rule"] for one in told.get("broken", []))
        figures = f"{sum(judged.values())} times asked, {sum(map(bool, judged.values()))} rules; broken: {dict(broken) or 'none'}"
        return Seen("audit safety", figures, code == 0 and all(judged.get(rule) for rule in ASKED))

    def replayed(self) -> Seen:
        code, told = self._json("replay", str(self._bag))
        found = told.get("chains", [])
        different = [one["writer"] for one in found if one["difference"] or one["refused"]]
        figures = f"{sum(one['decisions'] for one in found)} decisions of {len(found)} chains; differences: {different or 'none'}"
        return Seen("replay", figures, code == 0 and bool(found))

    def accounted(self, log: AuditLog) -> Seen:
        """Every request has an answer, or somebody says why not, or something befell the factory just then."""
        self._replaced = replaced_early(log)
        ends = Counter(self._end_of(log, key, entry, str(of["server"])) for key, (entry, of) in log.requests.items())
        figures = ", ".join(f"{count} {how}" for how, count in ends.most_common())
        return Seen("every request", figures, ends[UNEXPLAINED] == 0 and ends[ANSWERED] > 0)

    def worked(self, log: AuditLog) -> Seen:
        """Robots execute actions whenever nothing has befallen them for a while, and a server has their model."""
        still: list[str] = []
        executed, unserved_s = 0, 0.0
        for robot in log.robots:
            windows = served(log, self._soaked.models[robot])
            ticks = log.of(ROBOT + robot, "tick")
            rows_s = sorted(each.t_s for each in ticks if mapping(each.body.get("why")).get("source") in EXECUTES)
            executed += len(rows_s)
            marks = [self._soaked.began_s, *(at_s for at_s in rows_s if at_s > self._soaked.began_s), self._soaked.ended_s]
            for a, b in pairwise(marks):
                gone_s = without_any(a, b, windows)
                unserved_s = max(unserved_s, gone_s)
                if b - a - gone_s > MOST_STILL_S and not self._befell(a, b, robot, "foreman"):
                    still.append(f"{robot} {a - self._soaked.began_s:.0f} to {b - self._soaked.began_s:.0f} s")
        figures = f"{executed} actions; still for no reason: {', '.join(still) or 'never'}; no server for up to {unserved_s:.0f} s"
        return Seen("robots at work", figures, not still and executed > 0 and unserved_s <= MOST_UNSERVED_S)

    # --- parts ---

    def _end_of(self, log: AuditLog, key: Key, asked: Entry, server: str) -> str:
        if key in log.replies:
            return ANSWERED
        for writer in log.by_writer:
            if writer.startswith("server/"):
                if (request := log.about(writer, "request", key)) and refusal_of(request):
                    return "refused, and said so"
                if (reply := log.about(writer, "reply", key)) and reply.body.get("result") is None:
                    return "given up by the server, and said so"
        if key in self._replaced or self._is_superseded(log, key):
            return "replaced by a newer one"
        if self._befell(asked.t_s, asked.t_s, key.robot, server):
            return "befallen by a fault"
        if asked.t_s > self._soaked.ended_s - BEFORE_S or asked.t_s < self._soaked.began_s:
            return "before the beginning, or after the end"
        if self._was_abandoned(log, key, asked):
            return "given up by its robot, and said so"
        return UNEXPLAINED

    def _is_superseded(self, log: AuditLog, key: Key) -> bool:
        later = key._replace(sequence=key.sequence + 1)
        return any(
            (found := log.about(writer, "request", later)) is not None and found.body.get("result") is True
            for writer in log.by_writer
            if writer.startswith("server/")
        )

    def _was_abandoned(self, log: AuditLog, key: Key, asked: Entry) -> bool:
        """Counted by its robot: late, timed out; or its episode, its task or its session was over."""
        entries = next(run for run in chains(log.by_writer[asked.writer]) if run[0].run == asked.run)
        after = [one for one in entries if asked.t_s <= one.t_s <= asked.t_s + GIVEN_UP_S and one.kind in ("event", "transition")]
        counted = {name for one in after for name in mapping(event_of(one).get("counts"))}
        ended = {event_name(one) for one in after}
        return bool(counted & GIVEN_UP or ended & ENDED)

    def _befell(self, since_s: float, until_s: float, *whom: str) -> bool:
        """Something that concerns one of them: its process, or its world's; a robot's cut. A clock that was set, a full disk and a
        scheduler that is killed are nothing to anybody."""
        concerned = {*whom, *(f"{name}_world" for name in whom)}
        at = [
            (one.began_s, one.ended_s)
            for one in self._soaked.happened
            if one.fault.kind in (KILL, SLOW) and one.fault.whom in concerned and not one.problem
        ]
        at += [(begin_s, end_s) for name in whom for begin_s, end_s in self._soaked.cuts_s.get(name, ())]
        return any(begin_s - BEFORE_S <= until_s and since_s <= end_s + AFTER_S for begin_s, end_s in at)

    def _json(self, *words: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run([*self._rfm, *words, "--json"], capture_output=True, text=True, check=False)
        try:
            return done.returncode, dict(json.loads(done.stdout))
        except ValueError:
            print(done.stdout + done.stderr)
            return done.returncode, {}


ASKED = (AGE, CHUNK, FLIGHT, LIMITS, RAISED, SESSION, STANDING)
"""Rules that every recording has something to say about."""
ANSWERED, UNEXPLAINED = "answered", "UNEXPLAINED"
GIVEN_UP = {"request_timeout", "late_answer", "stale_episode"}
ENDED = {"TaskFinished", "TaskCanceled", "PauseRequested", "AbortRequested", "ServerLost", "ResetStarted"}


def happened_at(happened: Sequence[Happened], began_s: float) -> list[str]:
    """For people."""
    return [
        f"{one.began_s - began_s:6.1f} s  {one.fault.kind:5} {one.fault.whom or '(machine)'}"
        + (f", {one.fault.lasts_s:.1f} s" if one.fault.lasts_s else "")
        + (f", by {one.fault.by_s:.0f} s" if one.fault.by_s else "")
        + (f" ({one.problem})" if one.problem else "")
        for one in happened
    ]
