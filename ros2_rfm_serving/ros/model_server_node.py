"""One GPU, one model. Lifecycle: configure loads the model, activate serves, deactivate drains, cleanup frees it.

With `autostart` the node follows the schedule by itself: when it places a model here, that model is loaded and served.

Threads: the executor's thread takes messages and services; one worker thread owns the engine (`ModelServer.step`).
"""

from __future__ import annotations

import math
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos_overriding_options import QoSOverridingOptions
from rfm_serving import msg, srv

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.errors import BadMessageError, ModelError, RfmError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros import convert, qos
from ros2_rfm_serving.ros.infer_door import InferDoor
from ros2_rfm_serving.ros.runtime import clock, fleet_names, logged, parameter, run_node, share
from ros2_rfm_serving.ros.session_messages import contract_to, session_request_from
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Placement, Reply, Schedule

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
RETRY_PERIOD_S = 10.0
"""Before a model that could not be loaded is tried again."""


class ModelServerNode(LifecycleNode):
    def __init__(self) -> None:
        super().__init__("model_server")
        self._name = parameter(self, "server", "server_1", "Name of this server, as in the schedule")
        self._model = parameter(self, "model", "", "Model to serve whatever the schedule says; empty: follow the schedule")
        self._batch_size = parameter(self, "batch_size", 1, "Largest batch, with `model`")
        self._max_sessions = parameter(self, "max_sessions", 64, "Sessions admitted, with `model`")
        self._gpu_type = parameter(self, "gpu_type", "CPU", "GPU type of this machine, with `model`")
        self._config_folder = parameter(self, "config_folder", "", "Folder with profiles/; empty: the shipped one")
        self._models_folder = parameter(self, "models_folder", "", "Folder of model bundles; empty: the shipped one")
        self._threads = parameter(self, "threads", 1, "CPU threads of the engine")
        self._autostart = parameter(self, "autostart", True, "Configure and activate by itself")
        self._names = fleet_names(self)
        self._placement: Placement | None = None
        self._schedule_epoch = 0
        self._failed_s = 0.0
        self._server: ModelServer | None = None
        self._engine: Engine | None = None
        self._worker: _Worker | None = None
        self._state, self._detail = msg.ServerStatus.LOADING, "no model placed here yet"
        self._replies: dict[tuple[str, type], Any] = {}
        self._open_graph()
        if self._autostart and self._model:
            self._start_timer = self.create_timer(0.01, self._start_once)

    def _open_graph(self) -> None:
        name = self._names.server
        overridable = QoSOverridingOptions.with_default_policies()
        self._status = self.create_publisher(
            msg.ServerStatus, name(self._name, "status"), qos.SERVER_STATUS, qos_overriding_options=overridable
        )
        self.create_subscription(msg.Schedule, self._names.schedule, self._on_schedule, qos.SCHEDULE)
        self.create_subscription(
            msg.Observation,
            name(self._name, "observation"),
            self._on_observation,
            qos.OBSERVATION_RECEIVED,
            qos_overriding_options=overridable,
        )
        self.create_service(srv.OpenSession, name(self._name, "open_session"), self._on_open)
        self.create_service(srv.CloseSession, name(self._name, "close_session"), self._on_close)
        self.create_service(srv.ResetEpisode, name(self._name, "reset_episode"), self._on_reset)
        self.create_service(srv.DescribeServer, name(self._name, "describe"), self._on_describe)
        self._infer = InferDoor(self, name(self._name, "infer"), self._serving)
        self.create_timer(qos.STATUS_PERIOD_S, self._publish_status)

    # --- lifecycle ---

    @logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        placement = self._placement
        model = self._model or (placement.model if placement else "")
        if not model:
            self.get_logger().error("no schedule places a model here, and the parameter `model` is empty")
            return FAILURE
        self._set_state(msg.ServerStatus.LOADING, f"loading {model}")
        try:
            started_s = clock()
            self._engine = self._load(model, placement.gpu_type if placement and not self._model else self._gpu_type)
            self._engine.warm_up()
            self._server = self._serve_with(self._engine)
        except Exception as error:  # loading runs foreign code: out of memory, a missing driver
            self._engine = self._server = None
            self.get_logger().error(f"{model} cannot be loaded:\n{traceback.format_exc()}")
            self._failed_s = clock()
            self._set_state(msg.ServerStatus.FAILED, str(error) if isinstance(error, RfmError) else type(error).__name__)
            return FAILURE
        emulated = ", EMULATED" if self._engine.contract.emulated else ""
        self.get_logger().info(f"{model} ready in {clock() - started_s:.1f} s{emulated}")
        return SUCCESS

    def _serve_with(self, engine: Engine) -> ModelServer:
        placement = None if self._model else self._placement
        config = ServerConfig(
            name=self._name,
            batch_size=placement.batch_size if placement else self._batch_size,
            max_sessions=placement.max_sessions if placement else self._max_sessions,
            first_epoch=1 + secrets.randbelow(1 << 30),
        )
        return ModelServer(config, engine)

    @logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._server is not None
        self._worker = _Worker(self._server, self._publish, self.get_logger().error)
        self._set_state(msg.ServerStatus.READY, "")
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._set_state(msg.ServerStatus.DRAINING, "deactivated")
        self._stop_worker()
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._server = self._engine = None
        for publisher in self._replies.values():
            self.destroy_publisher(publisher)
        self._replies.clear()
        self._set_state(msg.ServerStatus.LOADING, "no model loaded")
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_worker()
        return SUCCESS

    def stop(self) -> None:
        """Before the process ends: finish the batch that runs, tell the robots."""
        self._set_state(msg.ServerStatus.DRAINING, "shutting down")
        self._stop_worker()

    def _start_once(self) -> None:
        self.destroy_timer(self._start_timer)
        self._load_and_serve()

    def _load_and_serve(self) -> None:
        if self._worker:
            self.trigger_deactivate()
        if self._server:
            self.trigger_cleanup()
        if self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def _load(self, model: str, gpu_type: str) -> Engine:
        config = Path(self._config_folder) if self._config_folder else share() / "config"
        entry = Catalogue.load(config / "profiles" / "models.yaml")[model]
        spec = EngineSpec(
            model=model,
            entry=entry,
            models_folder=Path(self._models_folder) if self._models_folder else share() / "models",
            profile=load_profiles(config / "profiles"),
            gpu_type=gpu_type,
            wait=time.sleep,
            threads=self._threads,
        )
        return build_engine(spec)

    def _stop_worker(self) -> None:
        if self._worker:
            self._worker.stop()
            self._worker = None
        self._infer.release()

    # --- what arrives ---

    def _on_schedule(self, message: Any) -> None:
        try:
            schedule = convert.schedule_from(message)
        except BadMessageError as error:
            self.get_logger().warning(f"refused a schedule: {error}")
            return
        if schedule.epoch < self._schedule_epoch:
            self.get_logger().warning(f"refused schedule {schedule.epoch}: {self._schedule_epoch} is in force")
            return
        retry = self._state == msg.ServerStatus.FAILED and clock() - self._failed_s > RETRY_PERIOD_S
        if schedule.epoch == self._schedule_epoch and not retry:
            return  # the scheduler repeats it
        self._schedule_epoch = schedule.epoch
        placement, before = schedule.placement_of(self._name), self._placement
        self._placement = placement
        if placement is None or self._model or not self._autostart:
            return
        if self._server is None or before is None or (before.model, before.gpu_type) != (placement.model, placement.gpu_type):
            self._load_and_serve()
        else:
            self._resize(self._server, placement)
        if self._server is not None:
            self._expect_robots(schedule, self._server)

    def _expect_robots(self, schedule: Schedule, server: ModelServer) -> None:
        """Writers to all robots that may turn to this server, be it as their standby: matched before the first reply is due."""
        for route in schedule.routes:
            if self._name in (route.server, route.standby):
                self._reply_publisher(route.robot, server.reply_kind(route.component))

    def _resize(self, server: ModelServer, placement: Placement) -> None:
        try:
            server.resize(placement.batch_size, placement.max_sessions)
        except ModelError as error:
            self.get_logger().error(f"{self._name} keeps its batch size: {error}")

    def _on_observation(self, message: Any) -> None:
        if self._server is None or self._worker is None:
            if self._server:
                self._server.refused["not_ready"] += 1
            return
        try:
            with self._server.counting_refusals():
                self._server.submit(convert.observation_from(message), clock())
            self._worker.wake()
        except BadMessageError as error:
            self.get_logger().warning(str(error), throttle_duration_sec=5.0)

    def _serving(self) -> tuple[ModelServer, Callable[[], None]] | None:
        return (self._server, self._worker.wake) if self._server and self._worker else None

    def _on_open(self, request: Any, response: Any) -> Any:
        if self._server is None or self._worker is None:
            return _refused(response, 200, f"{self._name} is not ready: {self._detail}")
        try:
            with self._server.counting_refusals():
                grant = self._server.open_session(session_request_from(request))
        except RfmError as error:
            self.get_logger().warning(f"session of {request.robot}/{request.component} refused: {error}")
            return _refused(response, error.code, str(error))
        self._reply_publisher(
            request.robot, self._server.reply_kind(request.component)
        )  # now, so that it is matched when the first reply is due
        response.success, response.session_epoch, response.warnings = True, grant.session_epoch, list(grant.warnings)
        snapshot = self._server.snapshot(clock())
        response.sessions, response.max_sessions = snapshot.sessions, snapshot.max_sessions
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
        if self._server and self._engine:
            contract_to(self._server.contract, response)
            response.max_batch_size = self._engine.max_batch_size
            response.sessions = self._server.session_names()
            response.max_sessions = self._server.snapshot(clock()).max_sessions
        return response

    # --- what leaves ---

    def _publish(self, replies: list[Reply]) -> None:
        """On the worker's thread."""
        for reply in replies:
            if self._infer.take(reply):
                continue
            try:
                self._reply_publisher(reply.id.robot, type(reply)).publish(convert.reply_to(reply))
            except RuntimeError as error:  # a full or broken writer must not keep the other robots from their replies
                assert self._server is not None
                self._server.refused["publish_failed"] += 1
                self.get_logger().warning(f"{reply.id.robot}: {error}", throttle_duration_sec=5.0)

    def _reply_publisher(self, robot: str, kind: type[Reply]) -> Any:
        message_type, topic = convert.REPLIES[kind]
        key = (robot, message_type)
        if key not in self._replies:
            self._replies[key] = self.create_publisher(message_type, self._names.robot(robot, topic), qos.REPLY_SENT)
        return self._replies[key]

    def _set_state(self, state: int, detail: str) -> None:
        self._state, self._detail = state, detail
        self._publish_status()

    def _publish_status(self) -> None:
        if self._server and self._server.last_engine_error:
            self.get_logger().error(f"the engine failed: {self._server.last_engine_error}", throttle_duration_sec=5.0)
        status = msg.ServerStatus(state=self._state, detail=self._detail, schedule_epoch=self._schedule_epoch)
        status.header.frame_id = self._name
        status.latency_p50_s = status.latency_p99_s = math.nan
        if self._server:
            contract, snapshot = self._server.contract, self._server.snapshot(clock())
            status.model, status.model_hash, status.emulated = contract.model, contract.model_hash, contract.emulated
            for name, value in vars(snapshot).items():
                setattr(status, name, convert.counters_to(value) if name == "refused" else value)
        self._status.publish(status)


class _Worker:
    """The thread that owns the engine."""

    def __init__(self, server: ModelServer, publish: Callable[[list[Reply]], None], log: Callable[[str], None]) -> None:
        self._server, self._publish, self._log = server, publish, log
        self._wake, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Waits for the batch that runs."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._stopping:
            if not self._server.has_waiting:
                self._wake.wait(timeout=1.0)
                self._wake.clear()
                continue
            try:
                self._publish(self._server.step(clock))
            except Exception:  # the thread must live: without it the server would take requests and answer none
                self._server.refused["worker_error"] += 1
                self._log(traceback.format_exc())


def _refused(response: Any, code: int, problem: str) -> Any:
    response.success, response.error_code, response.error_msg = False, code, problem
    return response


def main() -> None:
    run_node(ModelServerNode)


if __name__ == "__main__":
    main()
