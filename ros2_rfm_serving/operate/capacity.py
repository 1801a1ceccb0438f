"""Search by the solver for the number of GPUs for given robots, and of robots for given GPUs, for `rfm capacity`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.operate.inputs import Inputs
from ros2_rfm_serving.scheduler import Solution, plan_factory
from ros2_rfm_serving.scheduler.sizing import MOST, ModelLoad, Required, ThresholdSearch, demanding, model_loads, reached
from ros2_rfm_serving.simulation.trial import virtual_time_trial

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to one of the two questions."""

    of: str
    """`servers` or `robots`."""
    declared: int
    found: int | None
    trials: dict[int, bool]
    monotone: bool
    factory: Factory
    """The factory with the found number."""
    remote_rtc: float
    rosa: float
    """Results of the closed formulas."""


@dataclass(frozen=True, kw_only=True)
class Question:
    inputs: Inputs
    required: dict[str, Required]
    policy: str
    work: float | None
    """Budget of every plan."""
    rtt_s: float

    def servers(self, say: Say) -> Answer:
        """Return the smallest number of servers that serves the declared fleet."""
        first, *others = self.inputs.factory.server_cluster
        least = max(1, self.inputs.factory.standby.num_servers + 1 - sum(group.num_servers for group in others))
        loads = self.loads(self.inputs.factory)
        return self._answer(
            "servers", first.num_servers, (least, MOST["servers"]), self.inputs.factory.with_num_servers, say,
            sum(load.remote_rtc_servers for load in loads), sum(load.rosa_servers for load in loads),
        )  # fmt: skip

    def robots(self, say: Say) -> Answer:
        """Return the largest fleet that the declared servers serve."""
        factory = self.inputs.factory
        least = len(factory.robot_fleet)
        return self._answer(
            "robots", len(factory.robots), (least, MOST["robots"]), factory.with_num_robots, say,
            self._formula_robots(lambda load: load.remote_rtc_servers), self._formula_robots(lambda load: load.rosa_servers),
        )  # fmt: skip

    def solve(self, factory: Factory, *, policy: str | None = None) -> Solution:
        return plan_factory(
            factory,
            self.inputs.profile,
            self.inputs.catalogue,
            policy=policy or self.policy,
            work=self.work,
            explained=False,
            trial=virtual_time_trial(self.inputs.catalogue, self.inputs.profile),
        )

    def loads(self, factory: Factory) -> list[ModelLoad]:
        return model_loads(factory, self.inputs.profile, self.required, self.rtt_s)

    def _answer(
        self,
        of: str,
        declared: int,
        limits: tuple[int, int],
        sized: Callable[[int], Factory],
        say: Say,
        remote_rtc: float,
        rosa: float,
    ) -> Answer:
        def holds(number: int) -> bool:
            say(f"{number} {of}")
            return reached(self.solve(demanding(sized(number), self.required)), self.required)

        search = ThresholdSearch(holds, *limits, rising=of == "servers")
        search.run(declared)
        monotone = search.monotone(search.best())
        found = search.best()
        return Answer(
            of=of,
            declared=declared,
            found=found,
            trials=dict(sorted(search.trials.items())),
            monotone=monotone,
            factory=sized(found or declared),
            remote_rtc=remote_rtc,
            rosa=rosa,
        )

    def _formula_robots(self, servers_of: Callable[[ModelLoad], float]) -> float:
        """Return the largest fleet for which a formula requires no more than the declared servers."""
        factory = self.inputs.factory
        available = len(factory.servers) - factory.standby.num_servers

        def holds(number: int) -> bool:
            return sum(servers_of(load) for load in self.loads(factory.with_num_robots(number))) <= available

        least = len(factory.robot_fleet)
        return ThresholdSearch(holds, least, MOST["robots"], rising=False).run(len(factory.robots)) or math.nan
