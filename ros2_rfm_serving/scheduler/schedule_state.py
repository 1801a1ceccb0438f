"""State of the factory, its robots and the active schedule: changes, and their publication (ROSA §3.4.4).

Urgent changes are made at once, without a solver and without unnecessary moves. Whether another plan is needed, or would be worth
its cost, is evaluated in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ros2_rfm_serving.errors import ConfigurationError, PlannerError, RfmError
from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission_query import AdmissionOffers, AdmissionQuery, taken
from ros2_rfm_serving.scheduler.degraded_mode import bare, deserted
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.estimation import EstimateChange
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.infeasible import InfeasibleFleets
from ros2_rfm_serving.scheduler.migration import covers_again, gives_up, migration
from ros2_rfm_serving.scheduler.plan_job import PlanJob, PlanResult
from ros2_rfm_serving.scheduler.plan_service import Refit
from ros2_rfm_serving.scheduler.promises import broken, is_judged
from ros2_rfm_serving.scheduler.registry import RobotRegistry, newcomers, settled
from ros2_rfm_serving.scheduler.schedule_log import OperatorLog, ScheduleLog
from ros2_rfm_serving.scheduler.standby import uncovered
from ros2_rfm_serving.types import Schedule

MOST_EFFORT = 16
"""Largest multiple of one plan's work for the last attempt at a better one."""
PATIENT = 2
"""Number of obsolete plans for an order or a promise before all others wait for it."""
ATTEMPTS = 3
"""Attempts at a needed plan when the planner fails."""
JUDGED = 1
"""Queue evaluations per poll, 10 to 40 ms each."""
LOOKS_BETWEEN = 120
"""Polls until the planner is asked again after those attempts, one minute: a shortage of memory may be over."""
COVERED_LOOKS = 1200
"""Polls after a plan for the sake of cover until the next such plan: as long as a schedule is expected to last."""
UNEXPLAINED = (
    "no figure that plans are made with says why; declare services that take longer (planning.stragglers), or keep a margin "
    "(planning.slo_margin)"
)
STRAGGLING = "so many services take longer that no plan keeps it: the next percentile that can be kept is planned for"
MOST_CHANGES = 1000
"""Changes until the active fleet is rebuilt, which limits the history in the schedule log (see `ActiveFleet.anew`)."""
SAID = 100
"""Characters of an unknown name that are repeated in an answer."""
STAYS = "the schedule in force holds and gets more done than the one that was found: it stays"


class ScheduleState:
    """State of the active schedule. Every change is published at once; a refused request changes nothing."""

    def __init__(
        self,
        first: PlanResult,
        roster: RobotRegistry,
        publish: Callable[[Schedule, Factory], None],
        log: OperatorLog,
        book: ScheduleLog,
    ) -> None:
        """publish: function that publishes a schedule and its factory."""
        self.policy = first.policy
        """Policy of the next plan."""
        self.no_room: dict[str, str] = {}
        """Admitted robots that no schedule serves -> reason."""
        self._roster, self._publish_it, self._log, self._book = roster, publish, log, book
        self._stranded: dict[str, str] = {}
        """Declared robots whose server was lost and that are not reassigned: robot -> task."""
        self.seen: FactoryEstimates = first.seen
        """Observations that plans use, beside the descriptor and the profiles."""
        self._returned = False
        """Whether a server returned and waiting robots are assigned to it, some at each poll, even during a long planning job."""
        self._background: PlanJob | None = None
        """Plan to be made when no request waits for another one."""
        self._failures = 0
        """Consecutive failures of the planner; from `ATTEMPTS` on, with the polls since."""
        self._tried: tuple[object, ...] = ()
        """Schedule and robots of the last search for an assignment."""
        self.broken: tuple[str, ...] = ()
        """Texts on promises that the active schedule no longer keeps, as far as they were evaluated."""
        self._judged: ActiveFleet | None = None
        """Fleet that is fully judged."""
        self._changed: ActiveFleet | None = None
        """Active fleet that differs from its plan: only then does a broken promise need another plan."""
        self._overtaken = 0
        """Number of times that a needed plan was restarted, because the fleet had changed."""
        self._missed: tuple[str, ...] = ()
        self._uncovered: tuple[str, ...] = ()
        self._bared = False
        """Whether changed figures took a robot's cover and no plan was made since."""
        self._rests = 0
        """Polls until a plan is made for that alone."""
        self._changes = 0
        """Changes since the fleet was rebuilt."""
        self._fleet = first.fleet
        self._run(first.factory)
        for robot in first.fleet.robots:
            if robot.name not in self.declared:
                roster.inherit(robot.name, robot.task)
        book.planned(first, "the scheduler began")
        self._publish(first.fleet)
        self._look_further(first)
        if first.found:
            self._background = self._order(self.factory, first.fleet.robots, needed=False)

    @property
    def epoch(self) -> int:
        return self._fleet.schedule.epoch

    @property
    def fleet(self) -> ActiveFleet:
        return self._fleet

    @property
    def is_short(self) -> bool:
        """Return whether robots are stopped for want of a server."""
        stranded = any(self._fleet.task_of(robot) is None for robot in self._stranded)
        return stranded or deserted(self._fleet.schedule, self.seen.lost)

    # --- changes without a request ---

    def settle(self) -> None:
        """Follow the registry: leases end, and robots that a former scheduler admitted are found."""
        self._take_heart()
        self._cover_again()
        self.judge()
        planning, asking = self._needs_plan, self._background is not None and self._background.first is not None
        fleet, self.no_room = settled(
            self._fleet,
            self._expected,
            self.declared,
            planning=planning and not self._returned,
            asking=asking and not self._returned,
        )
        self._returned &= fleet is not self._fleet
        if fleet is not self._fleet:
            self._change(fleet, f"beside the robots of the descriptor: {', '.join(self._roster.tasks) or 'none'}")
        attempt = (self.epoch, *self.no_room)
        if self.no_room and not planning and attempt != self._tried:
            self._tried = attempt
            self._log.warning("; ".join(dict.fromkeys(self.no_room.values())) + ": planning the whole factory anew")
            self._background = self._asking(fleet)

    def see(self, finding: EstimateChange, refit: Refit) -> None:
        """Adapt to observations that differ from those of the plan. Urgent changes are made at once, without a solver; whether
        another plan is needed, or would be worth its cost, is evaluated in the background."""
        factory, before = self.factory, self._fleet
        waiting = newcomers(before, self._expected) if finding.back else []
        fleet, refused = seeing(before, factory, finding.seen, finding.lost, finding.back, refit, waiting)
        self._returned |= bool(finding.back) and any(fleet.task_of(robot.name) for robot in waiting)
        self._bared |= not finding.lost and len(bare(fleet)) > len(bare(before))
        self.seen, self._tried = finding.seen, ()
        self._impossible.forget()
        self._stranded |= {robot: self.declared[robot] for robot in refused if robot in self.declared}
        if again := sorted(fleet.restored & set(finding.back)):
            finding = finding._replace(words=f"{finding.words}: {', '.join(again)} as before the loss")
        self._log.warning(f"{finding.words}{''.join(f'; {why}' for why in dict.fromkeys(refused.values()))}")
        self._book.saw(finding, waiting, fleet)
        if fleet.schedule is before.schedule:
            self._fleet = fleet
        else:
            self._publish(fleet)
        robots = [*fleet.robots, *newcomers(fleet, self._expected)]
        self._changed = self._fleet
        self._overtake()
        if self.must_be_planned and fleet.schedule is before.schedule and not finding.lost and not finding.back:
            return  # figures of a large factory may change faster than it is planned
        order = self._asking(fleet)
        needed = bool(refused or order.first or deserted(fleet.schedule, self.seen.lost))
        self._background = replace(order, needed=needed) if robots else None
        self.judge()

    def tell(self, missed: tuple[str, ...]) -> None:
        """Log promises that are missed although the schedule holds by all figures: another plan would be the same."""
        if bool(missed) != bool(self._missed):
            why = STRAGGLING if self.seen.stragglers else UNEXPLAINED
            self._log.warning(f"{'; '.join(missed)}: {why}" if missed else "what is promised is in time again")
        self._missed = missed

    def judge(self) -> None:
        """Judge the active schedule, a few queue evaluations at a time, because those of a whole factory take seconds. A plan is
        needed where a promise is broken by observations, or since robots were admitted and released."""
        if self._judged is self._fleet:
            return
        self.broken = broken(self._fleet, JUDGED)
        self._judged = self._fleet if is_judged(self._fleet) else None
        if self.broken and self._changed is self._fleet:
            self._changed = None
            if not self._needs_plan:
                self._background = self._order(self.factory, [*self._fleet.robots, *newcomers(self._fleet, self._expected)])

    @property
    def is_unsure(self) -> bool:
        """Return whether the judgement of the active schedule is incomplete."""
        return self._judged is not self._fleet

    def _consider(self, order: PlanJob, made: PlanResult | AdmissionOffers | RfmError) -> None:
        """Change to a plan of the background if it is worth it."""
        self._failures, self._overtaken = self._failures + 1 if isinstance(made, PlannerError) else 0, 0
        if order.needed and 0 < self._failures < ATTEMPTS:
            self._background = order
        if isinstance(made, RfmError):
            self._impossible.note(order, made)
            self._bared = False
            self._log.warning(f"the factory could not be planned anew: {made}")
            return
        if order.epoch != self.epoch + 1:
            return
        if isinstance(made, AdmissionOffers):
            if order.seen == self.seen:
                self._let_in(order, made)
            else:  # the assignment is for a fleet that is observed otherwise now
                self._background = self._order(self.factory, order.robots)
            return
        move = migration(self._fleet, made.fleet.schedule, made.doing)
        covers = self._bared and not self._rests and covers_again(self._fleet, made, move)
        published = (order.needed and not self._stays(made)) or move.worth_it or covers
        told = (
            f"another schedule would gain {move.gained_actions:.0f} actions and lose {move.lost_actions:.0f} "
            f"({len(move.moved_servers)} servers and {len(move.moved_robots)} robots move): "
            + (("published" + ", for it covers more losses" * (covers and not move.worth_it)) if published else "not worth it")
        )
        self._log.info(told)
        self._book.planned(made, told, background=True, published=published)
        self._rests = COVERED_LOOKS if covers else self._rests
        self._bared = self._bared and bool(self._rests) and not published
        if published:
            self._publish(made.fleet)
            if order.seen != self.seen:
                self._background = self._order(self.factory, made.fleet.robots)
                return
        if order.needed or order.effort == 1 or move.gained_actions:
            self._look_further(made)

    def _let_in(self, order: PlanJob, answer: AdmissionOffers) -> None:
        """Admit the robots that fit; the others wait for a plan."""
        assert order.first
        fleet = taken(order.first, answer)
        self._change(fleet, f"there is room for {', '.join(robot.name for robot, _ in answer.found)}")
        rest = newcomers(fleet, self._expected)
        if rest or deserted(fleet.schedule, self.seen.lost):
            self._background = self._order(self.factory, [*fleet.robots, *rest])

    def _cover_again(self) -> None:
        """Plan for servers that lost their cover when such a plan was too recent."""
        self._rests = max(0, self._rests - 1)
        if self._bared and not self._rests and self._background is None and self._fleet.robots:
            self._background = self._order(self.factory, self._fleet.robots, needed=False)

    def _take_heart(self) -> None:
        """Count polls after repeated failures of the planner, and ask it again after a while if a promise still needs a plan."""
        self._failures += self._failures >= ATTEMPTS
        if self._failures > ATTEMPTS + LOOKS_BETWEEN:
            self._failures, self._tried = 0, ()
            if self._background is None and self.broken:
                self._background = self._order(self.factory, [*self._fleet.robots, *newcomers(self._fleet, self._expected)])

    def _look_further(self, made: PlanResult) -> None:
        """Continue a search that was cut short with twice the work when no other plan is wanted. An attempt that finds nothing
        better than the active schedule is the last."""
        if not made.complete and made.effort < MOST_EFFORT:
            order = self._order(self.factory, self._fleet.robots, needed=False)
            self._background = replace(order, effort=2 * made.effort)

    # --- parts ---

    def _run(self, factory: Factory) -> None:
        self.factory = factory
        self.declared = {robot.name: robot.task for robot in factory.robots}
        """Robot -> task."""
        self._impossible = InfeasibleFleets(factory)
        self._stranded = {robot: self.declared[robot] for robot in self._stranded if robot in self.declared}  # they go on waiting

    @property
    def _expected(self) -> dict[str, str]:
        """Return robot -> task for robots that are to be served beside the present ones."""
        self._stranded = {robot: task for robot, task in self._stranded.items() if self._fleet.task_of(robot) is None}
        return {**self._stranded, **self._roster.tasks}

    def _in_line(self, fleet: ActiveFleet, but: str = "") -> list[RobotEntry]:
        """Return robots that wait for a server and may fit another plan; they come before admission candidates."""
        waiting = newcomers(fleet, {robot: task for robot, task in self._expected.items() if robot != but})
        if waiting and self._impossible.why(self._order(self.factory, [*fleet.robots, *waiting])):
            return []
        return waiting

    def _check(self, name: str, task: str) -> None:
        if task not in self.factory.tasks:
            raise ConfigurationError(f"no task {task[:SAID]!r}; there are: {', '.join(self.factory.tasks)}")
        if (declared := self.declared.get(name, task)) != task:
            fix = "change the descriptor and call replan, or choose another name"
            raise ConfigurationError(
                f"robot {name!r} is declared for {declared!r}, not for {task!r}", file=self.factory.file, fix=fix
            )

    def _others(self, robot: str) -> ActiveFleet:
        return self._fleet if self._fleet.task_of(robot) is None else self._fleet.release(robot)

    def _enrol(self, robot: str, task: str) -> None:
        if robot not in self.declared:
            self._roster.admit(robot, task)

    def _order(self, factory: Factory, robots: Iterable[RobotEntry], *, needed: bool = True) -> PlanJob:
        previous = self._fleet.schedule
        return PlanJob(factory=factory, robots=tuple(robots), policy=self.policy, previous=previous, needed=needed, seen=self.seen)

    def _asking(self, fleet: ActiveFleet) -> PlanJob:
        """Return an order for robots that are to be served: an assignment beside the others, or a plan."""
        missing = newcomers(fleet, self._expected)
        first = AdmissionQuery(fleet, tuple(missing)) if missing else None
        return replace(self._order(self.factory, [*fleet.robots, *missing]), first=first)

    def _change(self, fleet: ActiveFleet, what: str) -> None:
        """Apply a local change; whether another schedule would be worth it is evaluated in the background."""
        self._log.info(what)
        self._book.changed(self._fleet, fleet, what)
        fleet = self._anew(fleet)
        self._publish(fleet)
        self._overtake()
        needed = self._needs_plan
        robots = [*fleet.robots, *newcomers(fleet, self._expected)] if needed else fleet.robots
        self._background = self._order(self.factory, robots, needed=needed) if robots else None
        self._changed = fleet
        self.judge()  # the floors of the remaining robots may be higher now

    def _anew(self, fleet: ActiveFleet) -> ActiveFleet:
        """Rebuild the fleet after `MOST_CHANGES`, but not while lost servers are remembered or none lives: a plan follows those."""
        self._changes += 1
        if self._changes < MOST_CHANGES or fleet.intact or fleet.restored or not any(h.lives for h in fleet.hosts.values()):
            return fleet
        self._changes, anew = 0, fleet.anew()
        self._book.changed(fleet, anew, "what came and went until now is told no more")
        return anew

    def _overtake(self) -> None:
        """Count that the needed plan that is being made has an obsolete fleet."""
        self._overtaken = self._overtaken + 1 if self._needs_plan else 0

    @property
    def must_be_planned(self) -> bool:
        """Return whether needed plans became obsolete often enough: admissions and figures then wait until one is made."""
        return self._needs_plan and self._overtaken >= PATIENT

    @property
    def _needs_plan(self) -> bool:
        """Return whether a plan is being made that a robot or a promise needs."""
        return self._background is not None and self._background.needed

    def _stays(self, planned: PlanResult) -> bool:
        """Return whether the active schedule is known to hold and a plan of the same factory and robots achieves less."""
        if planned.factory != self.factory or planned.seen != self.seen or deserted(self._fleet.schedule, self.seen.lost):
            return False
        if self._fleet.problem.seen != planned.fleet.problem.seen:  # the active schedule was made and judged by earlier figures
            return False
        return gives_up(self._fleet, planned.fleet, planned.doing) and not self.is_unsure and not self.broken

    def _go_over(self, planned: PlanResult, why: str) -> str:
        """Change to a plan of the whole factory, unless it is worse than the active schedule: then the reason is returned."""
        if self._stays(planned):
            self._log.info(f"{why}: {STAYS}")
            self._book.planned(planned, f"{why}: {STAYS}", published=False)
            if not self._needs_plan:
                self._background = None  # it would be this plan
                self._look_further(planned)
            return STAYS
        self._background, self._overtaken = None, 0
        once_declared = [robot for robot in planned.fleet.robots if robot.name in self.declared]
        self._run(planned.factory)
        self._roster.limit_to(planned.factory, once_declared)
        self._book.planned(planned, why)
        self._publish(planned.fleet)
        self._look_further(planned)
        return ""

    def _publish(self, fleet: ActiveFleet) -> None:
        self._fleet = fleet
        if fleet.uncovered != self._uncovered:
            self._uncovered = fleet.uncovered
            self._log.info(uncovered(fleet.uncovered) if fleet.uncovered else "a standby covers the loss of any server")
        self._publish_it(fleet.schedule, self.factory)
