"""What is asked of the recording of a shift, each with the verb that a user has for it."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from test.shift.incidents import Moment

INFERRED = ("batches", "rows", "same", "unrecorded", "skipped", "on_edge")


class Seen(NamedTuple):
    what: str
    figures: str
    good: bool


class Checks:
    """Of one recording. Each check raises nothing: what failed says so in its figures."""

    def __init__(self, rfm: Sequence[str], bag: Path) -> None:
        self._rfm, self._bag = rfm, bag

    def all(self, moments: Sequence[Moment]) -> Iterator[Seen]:
        yield self.verified()
        with ThreadPoolExecutor(2) as pool:
            yield from pool.map(self.explained, moments)
        yield self.replayed()
        yield self.inferred()
        yield self.reported(moments)

    def verified(self) -> Seen:
        code, told = self._json("audit", "verify", str(self._bag))
        if not told:
            return Seen("audit verify", f"exit {code}", False)
        lost = sum(chain["lost"] for chain in told["chains"])
        figures = f"{told['records']} records of {len(told['chains'])} chains, {len(told['flaws'])} flaws, {lost} lost on the way"
        writers = {chain["writer"].partition("/")[0] for chain in told["chains"]}
        return Seen("audit verify", figures, code == 0 and lost == 0 and writers >= WRITERS)

    def explained(self, moment: Moment) -> Seen:
        """When all is well a robot may be between two tasks: then it is asked about what follows."""
        what, seen = f"audit explain, {moment.what}", ""
        for late_s in (0.0, 0.25, 0.5, 1.0) if EXPLAINED[moment.what] is _executed else (0.0,):
            at = datetime.datetime.fromtimestamp(moment.stamp_s + late_s, datetime.timezone.utc).isoformat()
            code, told = self._json("audit", "explain", str(self._bag), "--robot", moment.robot, "--at", at)
            seen = f"{moment.robot}: {told['headline']}" if told else f"exit {code}"
            if told and EXPLAINED[moment.what](told):
                return Seen(what, seen, True)
        return Seen(what, seen, False)

    def replayed(self) -> Seen:
        code, told = self._json("replay", str(self._bag))
        if not told:
            return Seen("replay", f"exit {code}", False)
        chains = told["chains"]
        decisions, seconds = (sum(one[key] for one in chains) for key in ("decisions", "seconds"))
        different = [one["writer"] for one in chains if one["difference"] or one["refused"] or one["skipped"]]
        speed = f"{seconds:.0f} s of brains in {told['took_s']:.1f} s ({seconds / told['took_s']:.0f} times real time)"
        figures = f"{decisions} decisions of {len(chains)} chains, {speed}, differences: {', '.join(different) or 'none'}"
        return Seen("replay", figures, code == 0 and decisions > 0 and not different)

    def inferred(self) -> Seen:
        code, told = self._json("replay", str(self._bag), "--infer")
        if not told:
            return Seen("replay --infer", f"exit {code}", False)
        counts = {key: sum(one[key] for one in told["chains"]) for key in INFERRED}
        figures = ", ".join(f"{count} {key}" for key, count in counts.items())
        figures += f", alone off by {max(one['alone'] for one in told['chains']):.2g}, {told['took_s']:.0f} s"
        return Seen("replay --infer", figures, code == 0 and counts["rows"] > 0 and counts["rows"] == counts["same"])

    def reported(self, moments: Sequence[Moment]) -> Seen:
        """The page names whom something befell, and comes alone."""
        file = self._bag.with_name("report.html")
        done = self._run("audit", "report", str(self._bag), "-o", str(file))
        page = file.read_text(encoding="utf-8") if done.returncode == 0 else ""
        good = all(moment.robot in page for moment in moments) and "pause" in page and "<script" not in page
        return Seen("audit report", f"{len(page.encode()) / 1e6:.1f} MB", good)

    def exported(self, python: Path, repository: Path) -> Seen:
        """python: of an environment that has LeRobot."""
        command = [str(python), "-W", "ignore", "-m", "test.shift.exported", str(self._bag), str(self._bag.with_name("dataset"))]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
        if done.returncode:
            return Seen("export, loaded by LeRobot", done.stderr[-400:], False)
        told = json.loads(done.stdout.splitlines()[-1])
        figures = ", ".join(f"{count} {what}" for what, count in told.items())
        return Seen("export, loaded by LeRobot", figures, told["frames"] >= told["frames of a chunk"] > 0)

    # --- parts ---

    def _json(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Exit code, and what was said; empty: it was no JSON."""
        done = self._run(*words, "--json")
        try:
            return done.returncode, dict(json.loads(done.stdout))
        except ValueError:
            print(done.stdout + done.stderr)
            return done.returncode, {}

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._rfm, *words], capture_output=True, text=True, check=False)


# --- what an explanation has to say ---

WRITERS = {"robot", "server", "scheduler", "recorder", "dashboard"}
CHAIN = ("robot", "sensors", "request", "network", "server", "model", "chunk", "command")
"""Parts that are known whenever a row is executed."""

Told = Mapping[str, Any]


def _executed(told: Told) -> bool:
    return all(told[part]["known"] for part in CHAIN) and told["command"].get("step") is not None


def _held(told: Told, part: str, words: str) -> bool:
    return told["command"].get("step") is None and words in json.dumps(told[part])


EXPLAINED: Mapping[str, Callable[[Told], bool]] = {
    "all is well": _executed,
    "a server is killed": lambda told: _held(told, "events", "server_lost"),
    "a robot is paused": lambda told: _held(told, "people", "pause"),
    "a network is cut": lambda told: told["command"].get("step") is None,
    "all is well again": _executed,
}
