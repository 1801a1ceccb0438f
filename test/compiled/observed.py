"""All that can be seen of factories in virtual time from outside, after each event: as text, compiled or interpreted.

`python -m test.compiled.observed` prints a digest of each factory. Compiled code calls itself where nobody can listen; that is
why this looks at what is left after each event, in place of noting calls as `test/unit/simulation/decisions.py` does.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ros2_rfm_serving import compiled

if TYPE_CHECKING:
    from ros2_rfm_serving.simulation.robot import SimulatedRobot
    from ros2_rfm_serving.simulation.simulate import Simulation
    from ros2_rfm_serving.simulation.simulated_server import SimulatedServer


def looks_of(robot: SimulatedRobot) -> str:
    brain, task = robot.brain, robot.brain.task
    links = [
        (
            link.component,
            link.server,
            link.state.name,
            link.epoch,
            link.ready_s,
            link.deadline_s,
            link.next_send_s,
            link.unanswered_s,
        )
        for link in brain._clients.all
    ]
    done = (task.phase.name, task.executed_steps, task.held_steps, task.waiting_steps) if task else ()
    why = brain.why._replace(limited_from=None)
    counts = (sorted(brain.refused.items()), brain.failovers, brain.held_ticks, sorted(brain.fallbacks.items()))
    figures = [(name, each.late, each.round_trips.counts, each.round_trips.sum) for name, each in brain.figures.items()]
    return f"{brain.state.name} {brain.reason} {brain.queue_depth} {brain.episode} {why} {done} {links} {counts} {figures}"


def doings_of(host: SimulatedServer) -> str:
    tally = host.tally
    return f"{host.num_held} {tally.busy_s!r} {len(tally.latencies_s)} {tally.latencies_s[-9:]}"


class Observer:
    """What `simulate` does, looked at after each event; only what has changed is kept."""

    def __init__(self) -> None:
        self.seen = hashlib.sha256()
        self.events = self.changes = 0

    def simulate(self, *factory: Any, seconds: float, warm_up_s: float, seed: int, conditions: Any) -> object:
        from ros2_rfm_serving.profiles import Profile
        from ros2_rfm_serving.simulation.simulate import Simulation
        from ros2_rfm_serving.simulation.timing import Timing
        from ros2_rfm_serving.simulation.world import World

        schedule, plant, catalogue = factory
        timing = Timing(catalogue=catalogue, profile=Profile({}))
        world = World(seed=seed, warm_up_s=warm_up_s, conditions=conditions)
        simulation = Simulation(schedule, plant, timing, world)
        last: dict[str, str] = {}
        world.events.run(seconds + warm_up_s, lambda now_s: self._look(simulation, last, now_s), every_s=0.0)
        return simulation.report(seconds)

    def _look(self, simulation: Simulation, last: dict[str, str], now_s: float) -> None:
        self.events += 1
        for robot in simulation._robots.values():
            self._note(robot.name, looks_of(robot), last, now_s)
        for host in simulation._hosts.values():
            self._note(host.name, doings_of(host), last, now_s)

    def _note(self, name: str, looks: str, last: dict[str, str], now_s: float) -> None:
        if last.get(name) != looks:
            last[name] = looks
            self.changes += 1
            self.seen.update(f"{now_s!r} {name} {looks}\n".encode())


def observed() -> dict[str, str]:
    from test.unit.simulation.decisions import runs

    found = {}
    for name in runs():
        observer = Observer()
        report = runs(observer.simulate)[name]()
        observer.seen.update(str(report).encode())
        found[name] = f"{observer.events} {observer.changes} {observer.seen.hexdigest()}"
    return found


if __name__ == "__main__":
    used = compiled.use()
    print(json.dumps({"compiled": used, **observed()}, indent=1))
