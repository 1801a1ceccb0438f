"""What is asked of the recordings, each with the verb that a user has for it, beside the account of what was true."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rosbags.highlevel import AnyReader

from ros2_rfm_serving.audit.bag import Bag
from test.recorded_faults.account import FLUSHED_S, FOUND_S, STATES, Account
from test.recorded_faults.listener import ROBOTS
from test.shift.checks import Seen

AROUND_S = 1.0
"""A status is published twice a second; a command may arrive late on a busy machine."""
NEAR_S = 0.5
"""A control period that is older is not compared with commands of its moment."""
Told = Mapping[str, Any]


class Checks:
    def __init__(self, rfm: Sequence[str], bags: Sequence[Path], account: Account) -> None:
        self._rfm, self._account = rfm, account
        self._bags = {bag: Bag(bag) for bag in bags}

    def all(self) -> Iterator[Seen]:
        for bag in self._bags:
            yield self.verified(bag)
            yield self.replayed(bag)
            yield self.mended(bag)
        yield self.complete()
        for number, (what, at_s) in enumerate(self._account.moments()):
            yield self.explained(what, ROBOTS[number % len(ROBOTS)], at_s)

    def verified(self, bag: Path) -> Seen:
        """Nothing was changed since; a recorder that was not killed leaves no open end."""
        code, told = self._json("audit", "verify", str(bag))
        if not told:
            return Seen(f"audit verify {bag.name}", f"exit {code}", False)
        closed = any(chain["writer"].startswith("recorder/") and chain["closed"] for chain in told["chains"])
        lost = sum(chain["lost"] for chain in told["chains"])
        open_ends = sum(flaw["open_end"] for flaw in told["flaws"])
        figures = f"exit {code}, {told['records']} records of {len(told['chains'])} chains, {told['messages']} messages; "
        figures += f"{len(told['flaws']) - open_ends} changes of records, {len(told['findings'])} of messages and files, "
        figures += f"{open_ends} open ends, {lost} records lost; recorder {'ended' if closed else 'killed'}"
        whole = all("cut off behind" in damage for damage in told["damages"]) and not (closed and told["damages"])
        good = not told["changed"] and whole and len(told["flaws"]) == open_ends and code == int(not closed)
        return Seen(f"audit verify {bag.name}", figures, good)

    def replayed(self, bag: Path) -> Seen:
        code, told = self._json("replay", str(bag))
        found = told.get("chains", [])
        different = [one["writer"] for one in found if one["difference"] or one["refused"]]
        figures = f"exit {code}, {sum(one['decisions'] for one in found)} decisions; differences: {different or 'none'}"
        return Seen(f"replay {bag.name}", figures, code == 0 and bool(found) and not different)

    def mended(self, bag: Path) -> Seen:
        """What `rfm record --recover` makes of a copy is a whole recording for other tools, and still as it was written."""
        copy = bag.parent.parent / "mended" / bag.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(bag, copy)
        done = self._run("record", "--recover", str(copy))
        _, told = self._json("audit", "verify", str(copy))
        with AnyReader([copy]) as reader:
            messages = sum(1 for _ in reader.messages())
        figures = f"exit {done.returncode}, {messages} messages for another reader, {told.get('records', 0)} records"
        good = done.returncode == 0 and bool(told) and not told["changed"] and not told["damages"] and messages > 0
        return Seen(f"record --recover {bag.name}", figures, good)

    def complete(self) -> Seen:
        """Each chunk that travelled is in a recording, unless no recorder was at work or its disk was full."""
        there = set()
        for bag in self._bags.values():
            for message in bag.messages("rfm_serving/msg/ActionChunk"):
                one = bag.read(message).id
                there.add((one.robot, (one.session_epoch, one.episode, one.sequence)))
        how = Counter[str]()
        for robot, key, at_s in self._account.chunks():
            recorded = (robot, key) in there
            how[
                "recorded" if recorded else "missing" if self._account.is_recorded(at_s) else "while nothing could be recorded"
            ] += 1
        figures = ", ".join(f"{count} {name}" for name, count in how.items())
        return Seen("chunks that travelled", figures, how["recorded"] > 0 and how["missing"] == 0)

    # --- moments ---

    def explained(self, what: str, robot: str, at_s: float) -> Seen:
        what = f"explain {robot} after {what}"
        bag = self._bag_at(at_s)
        at = datetime.datetime.fromtimestamp(at_s, datetime.timezone.utc).isoformat()
        done = self._run("audit", "explain", str(bag), "--robot", robot, "--at", at, "--json")
        if done.returncode:
            problem = self._refused(robot, at_s)
            return Seen(what, f"exit {done.returncode}: {done.stderr.strip()[-160:]}; {problem or 'rightly'}", not problem)
        told = json.loads(done.stdout)
        problems = [*self._not_as_written(told), *self._presences(told, at_s), *self._robot(told, robot, at_s)]
        return Seen(what, f"{told['headline'][:120]}; {'; '.join(problems) or 'as it was'}", not problems)

    def _bag_at(self, at_s: float) -> Path:
        """The recording that holds a moment, or the one that is nearest to it."""
        return min(self._bags, key=lambda bag: max(self._bags[bag].begins_ns / 1e9 - at_s, at_s - self._bags[bag].ends_ns / 1e9))

    def _refused(self, robot: str, at_s: float) -> str:
        """Why a moment should have been explained; empty: nothing could be known of it."""
        recorded = all(self._account.is_recorded(one_s) for one_s in (at_s - FLUSHED_S, at_s, at_s + FLUSHED_S))
        alive = self._account.was_surely_alive(robot, at_s - FOUND_S, at_s + FLUSHED_S)
        return "it ran and was recorded" if recorded and alive else ""

    def _not_as_written(self, told: Told) -> Iterator[str]:
        if told["not_as_written"]:
            yield f"said to be changed: {told['not_as_written'][0]}"

    def _presences(self, told: Told, at_s: float) -> Iterator[str]:
        """What is said of each process, beside its life."""
        for writer, fact in told["processes"]["presence"].items():
            name, presence = writer.partition("/")[2] or writer, fact["presence"]
            if writer.startswith(("recorder", "dashboard")):
                continue
            alive = self._account.alive(name, at_s)
            if presence in ("running", "silent") and alive is None:
                yield f"{name} is said to be {presence}, and was dead"
            gone = presence == "ended" or (presence == "without an end" and fact["certain"])
            if gone and self._account.was_alive_after(name, fact["begins_s"], at_s):
                yield f"{name} is said to be gone, and the process of those records ran"
            if presence in ("not recorded", "unknown") and self._is_long_recorded(name, at_s):
                yield f"{name} is said to be {presence}, and ran while a recorder was at work"

    def _is_long_recorded(self, name: str, at_s: float) -> bool:
        times_s = [at_s - FOUND_S, at_s, at_s + FLUSHED_S]
        return self._account.was_surely_alive(name, times_s[0], times_s[-1]) and all(map(self._account.is_recorded, times_s))

    def _robot(self, told: Told, robot: str, at_s: float) -> Iterator[str]:
        """Its command, its state, its schedule and its chunk, beside what travelled on the graph."""
        stamp_s = float(told["stamp_s"])
        if at_s - stamp_s > NEAR_S and self._is_long_recorded(robot, at_s):
            yield f"its control period is {at_s - stamp_s:.1f} s old, and it ran"
        around = stamp_s - AROUND_S, stamp_s + AROUND_S
        statuses = self._account.received("robot", robot, *around)
        state = told["robot"].get("state") if told["robot"]["certain"] else None
        names = {STATES[one["state"]] for one in statuses}
        if state is not None and names and state not in names:
            yield f"said to be {state}, and its statuses say {', '.join(sorted(names))}"
        command = values_of(told["command"].get("command"))
        sent = [one["values"] for one in self._account.received("command", robot, stamp_s - 0.05, stamp_s + AROUND_S)]
        if command and sent and not any(is_near(command, one) for one in sent):
            yield f"command {command} is none of {len(sent)} that it sent within {AROUND_S:g} s"
        yield from self._schedule(told, statuses)
        yield from self._chunk(told, robot)

    def _schedule(self, told: Told, statuses: Sequence[Told]) -> Iterator[str]:
        facts = told.get("schedule", {})
        named, followed = (facts.get("scheduler"), facts.get("epoch")), [(one["scheduler"], one["epoch"]) for one in statuses]
        if facts.get("known") and facts["certain"] and statuses and named not in followed:
            yield f"said to follow {named}, and its statuses say otherwise"

    def _chunk(self, told: Told, robot: str) -> Iterator[str]:
        facts = told["command"]
        if facts.get("source") != "step" or not (chunk := facts.get("chunk")):
            return
        key = [chunk["session_epoch"], chunk["episode"], chunk["sequence"]]
        came = [one for one in self._account.heard if one["what"] == "chunk" and one["whom"] == robot and one["key"] == key]
        if came and came[0]["server"] != chunk["server"]:
            yield f"its chunk is said to be of {chunk['server']}, and came from {came[0]['server']}"

    # --- parts ---

    def _json(self, *words: str) -> tuple[int, dict[str, Any]]:
        done = self._run(*words, "--json")
        try:
            return done.returncode, dict(json.loads(done.stdout))
        except ValueError:
            print(done.stdout + done.stderr)
            return done.returncode, {}

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._rfm, *words], capture_output=True, text=True, check=False)


def values_of(command: Any) -> list[float]:
    """Numbers of a recorded array; empty: there is none."""
    from ros2_rfm_serving.audit import codec

    return [] if command is None else [float(value) for value in codec.value(command)]


def is_near(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-5 for a, b in zip(one, other, strict=True))
