"""One GPU, one model. Lifecycle: configure loads the model, activate serves, deactivate drains, cleanup frees it.

With `autostart` the node follows the schedule by itself: when it places a model here, that model is loaded and served.

Threads: the executor's takes messages and services and stays responsive whatever the others do; one loads (`loading.py`), some
decode images (`intake.py`), one owns the engine and publishes replies (`engine_thread.py`).
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos_overriding_options import QoSOverridingOptions
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, ModelError, RfmError
from ros2_rfm_serving.ros.following import describe, say
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics
from ros2_rfm_serving.ros.node.faulty import Faults
from ros2_rfm_serving.ros.node.own_name import claim
from ros2_rfm_serving.ros.node.parameters import declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names, logged, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.server.engine_thread import EngineThreads
from ros2_rfm_serving.ros.server.infer_door import InferDoor
from ros2_rfm_serving.ros.server.intake import Intake
from ros2_rfm_serving.ros.server.loading import Loaded, Loading, closed
from ros2_rfm_serving.ros.server.reply_topics import ReplyTopics
from ros2_rfm_serving.ros.server.settings import SPECS, ServerParams, server_params
from ros2_rfm_serving.ros.server.status import diagnosis, status_message
from ros2_rfm_serving.ros.server.websocket_settings import open_gateway
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.ros.wire.session_messages import contract_to, session_request_from
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import Following, Heard, Placement, Reply, RequestId, Schedule, ServerState

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
RETRY_PERIOD_S = 10.0
"""Before a model that could not be loaded is tried again."""
LOADING_PERIOD_S = 0.05
"""Of looking whether it is loaded."""
FROZEN_FACTOR = 3.0
"""Times `hung_after_s`: after this without a turn of the executor the interpreter itself is stuck."""
EXIT_HUNG = 70
BATCH_ENDS_S = 10.0
"""Given to the batch that runs when the node is deactivated."""
REFETCH_LOOKS = 4
"""At what waits, within the age at which an observation is stale."""


class ModelServerNode(LifecycleNode):
    def __init__(self, *, owns_process: bool = False) -> None:
        """owns_process: the node may end it when its engine hangs, so that whoever supervises it starts it again."""
        super().__init__("model_server")
        declared = declare(self, SPECS)
        self._params = server_params(self)
        self._name = self._params.server
        self._names = fleet_names(self)
        self._owns_process = owns_process
        self._placement: Placement | None = self._params.placed(None)
        self._following = Following()
        self._refused: Counter[str] = Counter()
        self._failed_s = 0.0
        self._loading: Loading | None = None
        self._loaded: Loaded | None = None
        self._intake: Intake | None = None
        self._worker: EngineThreads | None = None
        self._state, self._detail = ServerState.LOADING, "no model placed here yet"
        (self._own_name,) = claim(self, "server", [(self._name, self._names.server(self._name, "name"))])
        self._replies = ReplyTopics(self, self._names, Faults(self))
        self._refetch_timer: Any = None
        self._open_graph()
        Changes(self, declared, self._accept, configured=lambda: bool(self._loaded or self._loading))
        self._diagnostics = Diagnostics(self, lambda: (self._diagnosis(), self._own_name.diagnosis()))
        self._own_name.report = self._diagnostics.publish
        self._loading_timer = every(self, LOADING_PERIOD_S, self._look_at_loading)
        if self._params.autostart and self._params.model:
            self._load_and_serve()

    def _open_graph(self) -> None:
        name = self._names.server
        overridable = QoSOverridingOptions.with_default_policies()
        self._status = self.create_publisher(
            msg.ServerStatus, name(self._name, "status"), qos.SERVER_STATUS, qos_overriding_options=overridable
        )
        self.create_subscription(msg.Schedule, self._names.schedule, self._on_schedule, qos.SCHEDULE_HEARD)
        self.create_subscription(
            msg.Observation,
            name(self._name, "observation"),
            self._on_observation,
            qos.OBSERVATION_RECEIVED,
            qos_overriding_options=overridable,
            raw=True,
        )
        self.create_service(srv.OpenSession, name(self._name, "open_session"), self._on_open)
        self.create_service(srv.CloseSession, name(self._name, "close_session"), self._on_close)
        self.create_service(srv.ResetEpisode, name(self._name, "reset_episode"), self._on_reset)
        self.create_service(srv.DescribeServer, name(self._name, "describe"), self._on_describe)
        self._infer = InferDoor(self, name(self._name, "infer"), self._serving)
        self._gateway = open_gateway(self, self._serving, self._params.decode_threads)
        every(self, qos.STATUS_PERIOD_S, self._tend)
        self._time_refetches()

    # --- parameters ---

    def _accept(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        """What follows from other parameters, between two batches. Raises: `ConfigurationError`."""
        params = server_params(self, changed)
        sizes = changed.keys() & {"batch_size", "max_sessions"}
        if sizes:
            self._check_sizes(params, sizes)
        return functools.partial(self._take, params, resize=bool(sizes))

    def _check_sizes(self, params: ServerParams, sizes: Set[str]) -> None:
        """Raises: `ConfigurationError`."""
        if self._loading:
            raise ConfigurationError("cannot change while a model is being loaded", key=min(sizes), fix="try again in a while")
        if self._loaded is None:
            return
        if not params.model:
            raise ConfigurationError("counts only with `model`: the schedule says it", key=min(sizes), fix="call /rfm/replan")
        if "max_sessions" in sizes and not params.max_sessions:
            problem, fix = "0 needs the speed to be measured anew", "give a number, or deactivate the node and clean it up first"
            raise ConfigurationError(problem, key="max_sessions", fix=fix)
        if params.batch_size > self._loaded.engine.max_batch_size:
            problem = f"{params.batch_size} is more than the {self._loaded.engine.max_batch_size} that the engine can run"
            raise ConfigurationError(problem, key="batch_size", fix="give fewer")

    def _take(self, params: ServerParams, *, resize: bool) -> None:
        self._params = params
        if not self._loaded:  # the next one to be loaded
            self._placement = params.placed(self._following.schedule.placement_of(self._name) if self._following.schedule else None)
        elif self._server is not None:
            self._server.reconfigure(params.ruled(self._server.config))
            if resize:
                self._resize(self._server, self._worker, params.batch_size, params.max_sessions)
        self._time_refetches()

    def _time_refetches(self) -> None:
        """Looks for stale observations a few times within the time after which they are."""
        if self._refetch_timer is not None:
            self.destroy_timer(self._refetch_timer)
            self._refetch_timer = None
        if self._params.refetch_after_s:
            self._refetch_timer = every(self, max(self._params.refetch_after_s / REFETCH_LOOKS, 0.005), self._refetch)

    # --- lifecycle ---

    @logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        placement = self._placement
        if placement is None:
            self.get_logger().error("no schedule places a model here, and the parameter `model` is empty")
            return FAILURE
        faulthandler.cancel_dump_traceback_later()  # loading takes what it takes; the next look at the engine sets it again
        loading = self._loading if self._loading and _same_model(self._loading.placement, placement) else self._load(placement)
        while not loading.wait(qos.STATUS_PERIOD_S):
            self._publish_status()
        self._loading = None
        if not isinstance(loading.outcome, Loaded):
            self._failed_s = clock()
            self._set_state(ServerState.FAILED, str(loading.outcome))
            return FAILURE
        self._loaded = loading.outcome
        self._loaded.server.reconfigure(self._params.ruled(self._loaded.server.config))  # parameters may have changed meanwhile
        contract, sessions = self._loaded.server.contract, self._loaded.server.snapshot(clock()).max_sessions
        emulated = ", EMULATED" if contract.emulated else ""
        self.get_logger().info(f"{contract.model} ready in {self._loaded.took_s:.1f} s, for up to {sessions} sessions{emulated}")
        return SUCCESS

    @logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._server is not None
        log = self.get_logger().error
        self._worker = EngineThreads(self._server, self._publish, log)
        self._intake = Intake(self._server, self._worker.wake, self._complain, log, self._params.decode_threads)
        if self._following.schedule is not None:
            self._expect_robots(self._following.schedule, self._server)
        if self._placement is not None and not self._params.model:  # it may have grown while the model was loaded
            self._resize(self._server, self._worker, self._placement.batch_size, self._placement.max_sessions)
        self._set_state(ServerState.READY, "")
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._set_state(ServerState.DRAINING, "deactivated")
        self._stop_threads()
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        if self._loaded:
            closed(self._loaded.engine, self.get_logger().error)
        self._loaded = None
        self._replies.clear()
        self._set_state(ServerState.LOADING, "no model loaded")
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_threads()
        return SUCCESS

    def drain(self) -> None:
        """The process is about to end: no new sessions, no new requests; `drained` when what runs and waits is finished."""
        self._set_state(ServerState.DRAINING, "shutting down")
        if self._server:
            self._server.drain()
        self.drain_ends_s = clock() + self._params.drain_timeout_s

    @property
    def drained(self) -> bool:
        return self._worker is None or self._server is None or self._server.is_idle or clock() > self.drain_ends_s

    def stop(self) -> None:
        """Before the process ends."""
        faulthandler.cancel_dump_traceback_later()
        self._stop_threads(timeout_s=0.5)  # `drain` was the time to finish; a batch that still runs ends with the process
        if self._gateway:
            self._gateway.stop()
            self._gateway = None

    @property
    def _server(self) -> ModelServer | None:
        return self._loaded.server if self._loaded else None

    def _load(self, placement: Placement) -> Loading:
        self._set_state(ServerState.LOADING, f"loading {placement.model}")
        self._loading_timer.reset()
        return Loading(self._params, placement, self.get_logger().error)

    def _load_and_serve(self) -> None:
        """By itself: what was served ends, the new model is loaded beside the executor, then served."""
        placement = self._placement
        assert placement is not None
        if self._worker:
            self.trigger_deactivate()
        if self._loaded:
            self.trigger_cleanup()
        self._loading = self._load(placement)

    def _look_at_loading(self) -> None:
        if self._loading is None:
            self._loading_timer.cancel()
        elif self._params.autostart and self._loading.outcome is not None and self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def _stop_threads(self, timeout_s: float = BATCH_ENDS_S) -> None:
        if self._intake:
            self._intake.stop()
            self._intake = None
        if self._worker:
            self._worker.stop(timeout_s)
            self._worker = None
        self._infer.release()
        if self._gateway:
            self._gateway.release(self._detail)

    # --- what arrives ---

    def _on_schedule(self, message: Any) -> None:
        try:
            schedule = convert.schedule_from(message)
        except BadMessageError as error:
            self._refused[error.kind] += 1
            self.get_logger().warning(f"refused a schedule: {error}")
            return
        before = describe(self._following.schedule)
        heard = self._following.hear(schedule, clock())
        say(self, self._name, heard, schedule, before)
        if not heard.taken:
            self._refused[heard.value] += 1
            return
        retry = self._state == ServerState.FAILED and clock() - self._failed_s > RETRY_PERIOD_S
        if heard is not Heard.REPEATED or retry:
            self._follow(schedule)
            self._publish_status()  # the scheduler waits to hear that it is followed

    def _follow(self, schedule: Schedule) -> None:
        placement, before = self._params.placed(schedule.placement_of(self._name)), self._placement
        self._placement = placement
        if placement is None or self._params.model or not self._params.autostart:
            return
        present = before is not None and _same_model(before, placement)
        if present and self._server is not None and self._worker is not None:
            self._resize(self._server, self._worker, placement.batch_size, placement.max_sessions)
            self._expect_robots(schedule, self._server)
        elif not (present and self._loading):
            self._load_and_serve()

    def _expect_robots(self, schedule: Schedule, server: ModelServer) -> None:
        """Writers to all robots that may turn to this server, be it as their standby: matched before the first reply is due."""
        for route in schedule.routes:
            if self._name in (route.server, route.standby):
                self._replies.expect(route.robot, server.reply_kind(route.component))

    def _resize(self, server: ModelServer, worker: EngineThreads | None, batch_size: int, max_sessions: int) -> None:
        """On the engine's thread, if it runs: other batches may have to be compiled."""

        def resize() -> None:
            try:
                server.resize(batch_size, max_sessions)
            except ModelError as error:
                self.get_logger().error(f"{self._name} keeps its batch size: {error}")

        worker.call(resize) if worker else resize()

    def _on_observation(self, data: bytes) -> None:
        if self._intake is not None:
            self._intake.take(data)
        elif self._server:
            self._server.refused["not_ready"] += 1

    def _complain(self, error: BadMessageError) -> None:
        self.get_logger().warning(str(error), throttle_duration_sec=5.0)

    def _serving(self) -> tuple[ModelServer, Callable[[], None]] | None:
        """For the doors; None: nothing new is taken."""
        ready = self._state == ServerState.READY
        return (self._server, self._worker.wake) if ready and self._server and self._worker else None

    def _on_open(self, request: Any, response: Any) -> Any:
        if self._server is None or self._worker is None:
            return _refused(response, 200, f"{self._name} is not ready: {self._detail}")
        snapshot = self._server.snapshot(clock())
        response.sessions, response.max_sessions, response.load = snapshot.sessions, snapshot.max_sessions, snapshot.load
        try:
            with self._server.counting_refusals():
                grant = self._server.open_session(session_request_from(request))
        except RfmError as error:
            self.get_logger().warning(f"session of {request.robot}/{request.component} refused: {error}")
            return _refused(response, error.code, str(error))
        self._replies.expect(request.robot, self._server.reply_kind(request.component))
        response.success, response.session_epoch, response.warnings = True, grant.session_epoch, list(grant.warnings)
        response.sessions = len(self._server.session_names())
        return contract_to(grant.contract, response)

    def _on_close(self, request: Any, response: Any) -> Any:
        if self._server:
            self._server.close_session(request.robot, request.component, request.session_epoch)
        response.success = True
        return response

    def _on_reset(self, request: Any, response: Any) -> Any:
        if self._server is None:
            return _refused(response, 200, f"{self._name} is not ready: {self._detail}")
        try:
            self._server.reset_episode(request.robot, request.component, request.session_epoch, request.episode)
        except RfmError as error:
            return _refused(response, error.code, str(error))
        response.success = True
        return response

    def _on_describe(self, request: Any, response: Any) -> Any:
        if self._loaded and self._server:
            contract_to(self._server.contract, response)
            response.max_batch_size = self._loaded.engine.max_batch_size
            response.sessions = self._server.session_names()
            response.max_sessions = self._server.snapshot(clock()).max_sessions
        return response

    # --- what leaves ---

    def _publish(self, replies: list[Reply], failed: list[RequestId]) -> None:
        """On the engine's thread. A robot asks again by itself; who asked for one inference is told that it failed."""
        if failed:
            self._infer.fail(failed)
            if self._gateway:
                self._gateway.fail(failed)
        for reply in self._gateway.take(replies) if self._gateway else replies:
            if self._infer.take(reply):
                continue
            if problem := self._replies.send(reply):
                assert self._server is not None
                self._server.refused["publish_failed"] += 1
                self.get_logger().warning(problem, throttle_duration_sec=5.0)

    def _set_state(self, state: ServerState, detail: str) -> None:
        changed = state != self._state
        self._state, self._detail = state, detail
        self._publish_status()
        if changed:
            self._diagnostics.publish(self._diagnosis())

    def _tend(self) -> None:
        """Twice a second: is the engine alive, are the robots, and what everybody is told."""
        self._watch_engine()
        self._watch_life()
        if self._server:
            sessions = self._server.session_keys()
            unheard = self._replies.unheard(robot for robot, _ in sessions)
            absent = [key for key in sessions if key[0] in unheard]
            for (robot, component), why in self._server.collect_sessions(absent, clock()):
                self.get_logger().info(f"session of {robot}/{component} closed: {why}")
        self._publish_status()

    def _refetch(self) -> None:
        """Asks robots for newer observations in place of those that will be stale when they are used."""
        for request in self._server.refetches(clock()) if self._server else ():
            self._replies.ask_again(request)

    def _watch_engine(self) -> None:
        """A batch that does not end ends the process: its engine cannot be asked to stop."""
        if self._state == ServerState.HUNG and self._owns_process:
            faulthandler.dump_traceback(file=sys.stderr)
            os._exit(EXIT_HUNG)
        limit_s = self._params.hung_after_s
        if not limit_s:
            faulthandler.cancel_dump_traceback_later()
            return
        if self._owns_process:  # a thread of C that needs no interpreter, should that be stuck
            faulthandler.dump_traceback_later(FROZEN_FACTOR * limit_s, exit=True)
        if self._worker and self._worker.busy_s(clock()) > limit_s and self._state != ServerState.HUNG:
            self.get_logger().error(f"the engine has been busy with one batch for more than {limit_s:g} s")
            self._set_state(ServerState.HUNG, "the engine does not come back")

    def _watch_life(self) -> None:
        """An engine that has died in a process or a thread of its own: nobody waits until it has failed with a request."""
        if self._worker and self._loaded and self._loaded.engine.is_dead and self._state != ServerState.HUNG:
            self.get_logger().error("the engine is dead")
            self._set_state(ServerState.HUNG, "the engine is dead")

    def _publish_status(self) -> None:
        if self._own_name.lost:  # the status of that name is somebody else's
            return
        if self._server and self._server.last_engine_error:
            self.get_logger().error(f"the engine failed: {self._server.last_engine_error}", throttle_duration_sec=5.0)
        self._status.publish(convert.stamped(self._status_message(), self))

    def _status_message(self) -> Any:
        return status_message(self._name, self._state, self._detail, self._following, self._refused, self._server, clock())

    def _diagnosis(self) -> DiagnosticStatus:
        return diagnosis(self._status_message(), self._following, clock())


def _same_model(one: Placement, other: Placement) -> bool:
    return (one.model, one.gpu_type) == (other.model, other.gpu_type)


def _refused(response: Any, code: int, problem: str) -> Any:
    response.success, response.error_code, response.error_msg = False, code, problem
    return response


def main() -> None:
    run_node(functools.partial(ModelServerNode, owns_process=True), __doc__, SPECS)


if __name__ == "__main__":
    main()
