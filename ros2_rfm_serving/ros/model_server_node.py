"""One GPU, one model. Lifecycle: configure loads the model, activate serves, deactivate drains, cleanup frees it.

With `autostart` the node follows the schedule by itself: when a schedule places a model here, the node loads and serves it.

Threads: the executor's handles messages and services and stays responsive whatever the others do; one loads (`loading.py`), some
decode images (`intake.py`), one owns the engine and hands over replies (`engine_thread.py`, `delivery.py`), one watches
(`watchdog.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos_overriding_options import QoSOverridingOptions
from rfm_serving import msg

from ros2_rfm_serving.audit.servers.engines import described
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.factory.cores import cores_of
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.cores import keep_to
from ros2_rfm_serving.ros.node.faulty import Faults
from ros2_rfm_serving.ros.node.own_name import claim, say_lost
from ros2_rfm_serving.ros.node.parameters import declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names, logged, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.server.audit import ServerAudit
from ros2_rfm_serving.ros.server.doors import Doors
from ros2_rfm_serving.ros.server.loading import Former, Loaded, Loading
from ros2_rfm_serving.ros.server.openings import Openings
from ros2_rfm_serving.ros.server.people import open_to_people
from ros2_rfm_serving.ros.server.reply_topics import ReplyTopics
from ros2_rfm_serving.ros.server.robots import Robots
from ros2_rfm_serving.ros.server.schedules import Schedules
from ros2_rfm_serving.ros.server.services import Services
from ros2_rfm_serving.ros.server.serving import Serving
from ros2_rfm_serving.ros.server.settings import SPECS, ServerParams, check_sizes, hung_limit_s, server_params
from ros2_rfm_serving.ros.server.standing import Standing
from ros2_rfm_serving.ros.server.watchdog import EXIT_HUNG, Watchdog
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import Placement, Schedule, ServerState

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
RETRY_PERIOD_S = 10.0
"""Time before a model that failed to load is tried again."""
LOOK_PERIOD_S = 0.1
"""Period of polling the work in progress: a model that is loading, and requests that are drained."""
LAST_WORD_S = 0.5
"""Time for a batch that still runs when the process ends; `drain` was the time to finish."""


class ModelServerNode(LifecycleNode):
    stop_s = 20.0
    """Time that `stop` may take: engines need it to close."""

    def __init__(self, *, owns_process: bool = False) -> None:
        """Create the node.
        owns_process: it may end its process when the engine has become unusable; a supervisor starts it again."""
        super().__init__("model_server")
        declared = declare(self, SPECS)
        self._params = server_params(self)
        keep_to(cores_of(self._params.cores))
        self._name = self._params.server
        self._names = fleet_names(self, is_robots=False)
        self._owns_process = self.watches_interpreter = owns_process
        self._placement: Placement | None = self._params.placed(None)
        self._failed_s = 0.0
        self._loading: Loading | None = None
        self._work: Serving | None = None
        self._former = Former()
        self._draining = False
        """Draining is in progress: running and waiting requests are answered, then `_close` is called."""
        self._turning = False
        """The node changes to the model of its placement once the previous model's requests are answered."""
        self._ending = False
        self._own_names = claim(self, "server", [(self._name, self._names.server(self._name, "name"))])
        status = self._names.server(self._name, "status")
        self._audit = ServerAudit(self, self._name, self._names.server(self._name, "audit"))
        self._openings = Openings.of_process(self._name)
        self._standing = Standing(self, self._own_names[0], status, self._server, self._audit, self._openings)
        key_of = self._openings.reply_key if self._openings else lambda request: None
        self._topics = ReplyTopics(self, self._names, Faults(self), key_of)
        self._watchdog = Watchdog(self._on_hung, ends_process=owns_process)
        self._open_graph()
        open_to_people(self, self._name, self._names.server(self._name, "order"), self._standing.refused)
        Changes(self, declared, self._accept, configured=lambda: bool(self._work or self._loading))
        every(self, LOOK_PERIOD_S, self._look)
        if self._params.autostart and self._params.model:
            self._turn()

    def _open_graph(self) -> None:
        name = functools.partial(self._names.server, self._name)
        overridable = QoSOverridingOptions.with_default_policies()
        self._schedules = Schedules(self, self._names.schedule, self._name, self._standing, self._follow)
        self._askers = Robots(self, self._topics, self._schedules, self._openings, self._server)
        self.create_subscription(
            msg.Observation,
            name("observation"),
            self._on_observation,
            qos.OBSERVATION_RECEIVED,
            qos_overriding_options=overridable,
            raw=True,
        )
        standing = self._standing
        Services(self, name, lambda: self._work, lambda: standing.refusal, standing.following, self._topics, self._openings)
        self._doors = Doors(
            self, name("infer"), self._topics, self._standing, self._watchdog, lambda: self._work, lambda: self._params
        )
        every(self, qos.STATUS_PERIOD_S, self._tend)
        self._askers.refetch_after(self._params.refetch_after_s)

    def _server(self) -> ModelServer | None:
        """Return the server of the loaded model."""
        return self._work.server if self._work else None

    # --- parameters ---

    def _accept(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        """Validate changed parameters and return the function that applies them between two batches.
        Raises: `ConfigurationError`, also for what follows from other parameters."""
        params = server_params(self, changed)
        sizes = changed.keys() & {"batch_size", "max_sessions"}
        if sizes and self._loading:
            raise ConfigurationError("cannot change while a model is being loaded", key=min(sizes), fix="try again in a while")
        if sizes and self._work:
            check_sizes(params, sizes, self._work.server.max_batch_size)
        if self._work:
            self._work.server.check(params.ruled(self._work.server.config, self._ruling(params)))
        return functools.partial(self._take, params, resize=bool(sizes))

    def _take(self, params: ServerParams, *, resize: bool) -> None:
        self._params = params
        if self._work is None:  # they apply to the next model that is loaded
            schedule = self._standing.following.schedule
            self._placement = params.placed(schedule.placement_of(self._name) if schedule else None)
        else:
            server = self._work.server
            server.reconfigure(params.ruled(server.config, self._ruling(params)))
            if resize:
                self._work.resize(params.batch_size, params.max_sessions)
            if self._watchdog.watches:
                self._watch(self._work)
        self._askers.refetch_after(self._params.refetch_after_s)

    def _ruling(self, params: ServerParams) -> Placement:
        """Return the placement whose batching counts: the newest one, as these parameters modify it."""
        assert self._work is not None
        placed = params.placed(self._placement)
        return placed if placed is not None else self._work.placement

    # --- lifecycle ---

    @logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        placement = self._placement
        if placement is None:
            self.get_logger().error("no schedule places a model here, and the parameter `model` is empty")
            return FAILURE
        self._watchdog.rest()
        loading = self._loading if self._loading and _same_model(self._loading.placement, placement) else self._load(placement)
        while not loading.wait(qos.STATUS_PERIOD_S):
            if self._given_up(loading):
                return FAILURE
            self._standing.publish()
        self._loading = None
        if not isinstance(loading.outcome, Loaded):
            self._fail(str(loading.outcome), ends_process=loading.wedged)
            return FAILURE
        self._former = Former()
        self._take_over(loading.outcome)
        return SUCCESS

    def _take_over(self, loaded: Loaded) -> None:
        config = self._params.ruled(loaded.server.config, loaded.placement)  # parameters may have changed meanwhile
        loaded.server.reconfigure(config)
        log = self.get_logger()
        self._audit.follow(loaded.server, described(self._params.engine_spec(loaded.placement)))
        check = self._openings.check_observation if self._openings else lambda request, data: None
        self._work = Serving(loaded, self._doors.deliver, self._complain, log.error, self._params.decode_threads, check)
        contract, sessions = loaded.server.contract, loaded.server.snapshot(clock()).max_sessions
        emulated = ", EMULATED" if contract.emulated else ""
        log.info(f"{contract.model} ready in {loaded.took_s:.1f} s, for up to {sessions} sessions{emulated}")

    @logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._work is not None
        self._draining = False
        self._work.open()
        if self._placement is not None and not self._params.model:  # the placement may have grown while the model was loaded
            self._work.resize(self._placement.batch_size, self._placement.max_sessions)
        self._askers.expect(self._work.server)
        self._work.server.declare(self._schedules.rates_hz)
        self._watch(self._work)
        self._standing.become(ServerState.READY, "")
        return SUCCESS

    @logged
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._drain("deactivated")
        return SUCCESS

    @logged
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._end_work()
        self._topics.clear()
        self._standing.become(ServerState.LOADING, "no model loaded")
        return SUCCESS

    @logged
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._end_work()
        self._standing.become(ServerState.DRAINING, "shut down")
        return SUCCESS

    def drain(self) -> None:
        """Begin to drain before the process ends: no new sessions or requests.
        `drained` is true when the accepted ones are finished."""
        self._ending = True
        self._drain("shutting down")

    @property
    def drained(self) -> bool:
        return self._work is None or self._work.drained

    def stop(self) -> None:
        """Release everything before the process ends."""
        self._ending = True
        self._watchdog.stop()
        self._standing.end()
        ends_s = clock() + LAST_WORD_S
        self._end_work()
        for thread in self._former.threads:
            thread.join(max(0.0, ends_s - clock()))
        self._audit.close()
        self._doors.stop()
        say_lost(self, self._own_names)

    def _drain(self, why: str) -> None:
        """Accept nothing new; answer running and waiting requests within `drain_timeout_s`, without blocking the executor."""
        if self._standing.state != ServerState.FAILED:
            self._standing.become(ServerState.DRAINING, why)
        if self._work and (self._work.is_open or self._ending):
            self._work.drain(self._params.drain_timeout_s)
            self._draining = True

    def _close(self) -> None:
        """Refuse every request that is still unanswered, with a reply where possible."""
        self._draining = False
        self._watchdog.rest()
        if self._work and (num_refused := len(self._work.server.refuse_waiting())):
            self.get_logger().warning(f"{num_refused} requests were not answered within drain_timeout_s")
        self._doors.release()

    def _end_work(self) -> None:
        """End the work of the loaded model; its threads end after their current operation."""
        self._close()
        if self._work:
            limit_s = hung_limit_s(self._params.hung_after_s, self._work.engine)
            server, threads = self._work.server, self._work.end()
            self._standing.replace(server)
            self._former, self._work = Former(threads, limit_s), None
            if not self._ending:
                self._audit.follow(None, {})

    # --- by itself ---

    def _load(self, placement: Placement) -> Loading:
        self._standing.become(ServerState.LOADING, f"loading {placement.model}")
        return Loading(self._params, placement, self.get_logger().error, self._former._replace(loading=self._loading))

    def _look(self) -> None:
        """Poll the work in progress; the executor never blocks on it."""
        if self._draining and self._work and self._work.drained and not self._ending:
            self._close()
        if not self._params.autostart or self._ending:
            return
        if self._turning and not self._draining:
            self._turning = False
            self._turn()
        elif self._loading and self._loading.outcome is None:
            self._given_up(self._loading)
        elif self._loading:
            if self.trigger_configure() == SUCCESS:
                self.trigger_activate()
        elif self._standing.state == ServerState.FAILED and self._work is None and clock() - self._failed_s > RETRY_PERIOD_S:
            self._turning = True

    def _given_up(self, loading: Loading) -> bool:
        """Report progress of loading and return whether its time limit has passed.
        After the limit the process ends, because a loading thread cannot be stopped."""
        if news := loading.news(clock()):
            self.get_logger().info(news)
            self._standing.become(ServerState.LOADING, news)
        limit_s = self._params.load_timeout_s
        now_s = clock()
        if not 0.0 < limit_s < self._watchdog.ran_s(loading.takes_s(now_s), now_s):
            return False
        self._fail(f"{loading.placement.model} is not loaded after {limit_s:g} s (`load_timeout_s`)", ends_process=True)
        return True

    def _turn(self) -> None:
        """Load the placed model in a thread of its own and then serve it; the previous model has ended."""
        placement = self._placement
        if placement is None:
            return
        if self._work and _same_model(self._work.placement, placement):
            self.trigger_activate()
            return
        if self._work:
            self.trigger_cleanup()
        self._loading = self._load(placement)

    def _follow(self, schedule: Schedule) -> None:
        placement, before = self._params.placed(schedule.placement_of(self._name)), self._placement
        self._placement = placement
        self._standing.go_against(self._params.against(schedule.placement_of(self._name)))
        if self._work:
            self._work.server.declare(self._schedules.rates_hz)
        if placement is None or self._params.model or not self._params.autostart or self._ending:
            return
        present = before is not None and _same_model(before, placement)
        if present and self._work is not None and self._work.is_open:
            self._obey(self._work.server, placement)
            self._work.resize(placement.batch_size, placement.max_sessions)
            self._askers.expect(self._work.server)
        elif not (present and (self._loading or self._turning)):
            if self._work and self._work.is_open:
                self.trigger_deactivate()
            self._turning = True

    def _obey(self, server: ModelServer, placement: Placement) -> None:
        """Apply the batching of the new placement; log an error and keep the old one when it is invalid."""
        try:
            server.reconfigure(self._params.ruled(server.config, placement))
        except ConfigurationError as error:
            self.get_logger().error(f"the batching stays as it is: {error}")

    # --- what arrives ---

    def _on_observation(self, data: bytes) -> None:
        if self._work is not None:
            self._work.intake.take(data)

    def _complain(self, error: BadMessageError) -> None:
        self.get_logger().warning(str(error), throttle_duration_sec=5.0)

    # --- twice a second ---

    def _tend(self) -> None:
        """Check the engine, publish the status and collect absent robots; runs twice a second."""
        self._watchdog.beat()
        if self._work:
            self._judge(self._work)
        self._standing.publish()  # published even when the middleware calls below fail
        if self._work:
            self._askers.collect(self._work.server, self._params.absent_grace_s)

    def _judge(self, work: Serving) -> None:
        """Update the reported state: a server is not ready while it compiles for another batch size or fails."""
        if work.server.given_up:
            self._fail(work.server.given_up, ends_process=True)
        elif self._watchdog.hung:
            self._standing.become(ServerState.HUNG, f"{self._watchdog.hung} does not come back")
        elif work.is_open and work.threads.is_called:
            self._standing.become(ServerState.LOADING, "preparing batches of another size")
        elif work.is_open and self._standing.state != ServerState.READY:
            self._standing.become(ServerState.READY, "")

    def _fail(self, problem: str, *, ends_process: bool) -> None:
        """Enter the state FAILED. ends_process: only a new process can recover."""
        if self._standing.state != ServerState.FAILED:
            self.get_logger().error(problem)
        self._failed_s = clock()
        self._standing.become(ServerState.FAILED, problem)
        if self._work and self._work.is_open:
            self._work.drain(0.0)
            self._close()
        if ends_process and self._owns_process:
            raise SystemExit(EXIT_HUNG)

    def _watch(self, work: Serving) -> None:
        """Watch for hung batches: one that does not return ends the process, because an engine cannot be stopped."""
        limit_s = hung_limit_s(self._params.hung_after_s, work.engine)
        if limit_s > self._params.hung_after_s > 0.0:
            told = f"hung_after_s, {self._params.hung_after_s:g} s, is less than the engine's own timeout"
            self.get_logger().warning(f"{told}: a batch counts as hung after {limit_s:g} s")
        self._watchdog.watch(limit_s, {**work.watched, **self._doors.watched})

    def _on_hung(self, what: str) -> None:
        """Report a hung batch. Runs on the watchdog's thread, which ends the process soon."""
        self.get_logger().error(f"{what} has not come back for more than hung_after_s")
        if self.executor is not None:
            self.executor.create_task(self._tend)


def _same_model(one: Placement, other: Placement) -> bool:
    return (one.model, one.gpu_type) == (other.model, other.gpu_type)


def main() -> None:
    run_node(functools.partial(ModelServerNode, owns_process=True), __doc__, SPECS)


if __name__ == "__main__":
    main()
