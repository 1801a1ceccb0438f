"""One robot: sensors in, commands out, the brain in between. Lifecycle; `ExecuteTask` is its door (`task_door.py`).

The control period follows the robot: a tick runs when the state arrives, so that the command answers the newest reading. When
no state comes, a timer ticks instead, so that watchdogs and tasks go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rfm_serving import msg, srv
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.robot import RobotBrain, RobotConfig, Sensors
from ros2_rfm_serving.ros import convert, qos
from ros2_rfm_serving.ros.runtime import clock, fleet_names, logged, parameter, run_node
from ros2_rfm_serving.ros.task_door import TaskDoor
from ros2_rfm_serving.types import (
    MAX_ENCODED_BYTES,
    EncodedImage,
    Schedule,
    SessionRequest,
    TaskOutcome,
    TaskPhase,
)

SUCCESS = TransitionCallbackReturn.SUCCESS
WINDOW_S = 5.0


class RobotNode(LifecycleNode):
    def __init__(self) -> None:
        super().__init__("robot")
        self._config = self._declare_config()
        self._task_name = parameter(self, "task", "", "Task class of this robot")
        self._instruction = parameter(self, "instruction", "", "System 1's instruction unless a goal brings its own")
        self._autostart = parameter(self, "autostart", True, "Configure and activate by itself")
        self._names = fleet_names(self)
        self._openers: dict[str, Any] = {}
        self._publishers_to: dict[str, Any] = {}
        self._made: list[tuple[Callable[[Any], Any], Any]] = []
        """What `configure` and the schedules after it made: how to destroy it, and it."""
        self._active = False
        self._attempts = 0
        self._attempt_of: dict[str, int] = {}
        if self._autostart:
            self._start_timer = self.create_timer(0.01, self._start_once)

    def _declare_config(self) -> RobotConfig:
        prompts = parameter(self, "component_prompts", [""], "component=prompt for each judging component")
        calls = parameter(self, "calls_per_action", [""], "component=calls per System 1 call, for System 2 and the like")
        return RobotConfig(
            name=parameter(self, "robot", self.get_namespace().rsplit("/", 1)[-1] or "robot", "Robot name, as in the schedule"),
            action_names=tuple(parameter(self, "action_names", ["delta_x"], "Action columns, in order: checked with the server")),
            cameras=tuple(parameter(self, "cameras", ["front"], "Camera names: topics camera/<name>/image/compressed")),
            state_size=parameter(self, "state_size", 39, "Length of the proprioceptive state"),
            control_rate_hz=parameter(self, "control_rate_hz", 20.0, "Control periods per second"),
            execution_horizon=parameter(self, "execution_horizon", 8, "Actions of a chunk to execute before the next takes over"),
            synchronous=parameter(self, "synchronous", False, "Hold while the next chunk is computed"),
            max_action_age_s=parameter(self, "max_action_age_s", 3.0, "No action from an older observation is executed"),
            max_observation_age_s=parameter(self, "max_observation_age_s", 0.5, "No request goes out with older readings"),
            verdict_votes=parameter(self, "verdict_votes", 2, "Equal verdicts in a row that end a task"),
            default_budget_s=parameter(self, "default_budget_s", 25.0, "Time for a task unless the goal says otherwise"),
            prompts=dict(p.split("=", 1) for p in prompts if "=" in p),
            calls_per_action={name: float(ratio) for name, _, ratio in (call.partition("=") for call in calls) if ratio},
        )

    # --- lifecycle ---

    @logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        config = self._config
        self._brain = RobotBrain(config)
        self._state: np.ndarray[Any, np.dtype[np.float32]] | None = None
        self._state_s = self._ticked_s = -1.0
        self._images: dict[str, tuple[EncodedImage, float]] = {}
        self._told_s = -1.0
        self._last_state_told: object = None
        name = self._names.robot
        self._command = self._publisher(Float64MultiArray, name(config.name, "command"), qos.COMMAND)
        self._status = self._publisher(msg.RobotStatus, name(config.name, "rfm/status"), qos.ROBOT_STATUS)
        self._subscribe(Float32MultiArray, name(config.name, "state"), self._on_state, qos.SENSOR)
        for camera in config.cameras:
            topic = name(config.name, f"camera/{camera}/image/compressed")
            self._subscribe(CompressedImage, topic, lambda m, c=camera: self._on_image(c, m), qos.SENSOR)
        self._subscribe(msg.Schedule, self._names.schedule, self._on_schedule, qos.SCHEDULE)
        self._subscribe(msg.ActionChunk, name(config.name, "rfm/action_chunk"), self._on_chunk, qos.REPLY)
        self._subscribe(msg.Judgement, name(config.name, "rfm/judgement"), self._on_judgement, qos.REPLY)
        self._subscribe(msg.Plan, name(config.name, "rfm/plan"), self._on_plan, qos.REPLY)
        self._door = TaskDoor(
            self,
            self._brain,
            task=self._task_name,
            instruction=self._instruction,
            action_name=name(config.name, "execute_task"),
            reset_name=name(config.name, "reset"),
            forget_readings=self._forget_readings,
        )
        self._made.append((TaskDoor.destroy, self._door))
        return SUCCESS

    @logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._active = self._door.open = True
        self._watchdog = self.create_timer(1.0 / self._config.control_rate_hz, self._on_watchdog)
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stops at once: the task ends, nothing is commanded any more."""
        self.destroy_timer(self._watchdog)
        self._close("the robot was deactivated")
        return SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        if self._door.busy:
            self.get_logger().warning("a task is still being told of its end; clean up again in a moment")
            return TransitionCallbackReturn.FAILURE
        for destroy, entity in self._made:
            destroy(entity)
        self._made.clear()
        self._publishers_to.clear()
        self._openers.clear()
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._close("the robot was shut down")
        return SUCCESS

    def stop(self) -> None:
        """Before the process ends: whoever gave a task is told."""
        self._close("the robot node was stopped")

    def _close(self, reason: str) -> None:
        if self._active:
            self._active = self._door.open = False
            self._door.end(TaskOutcome.SHUTDOWN, reason, clock())

    def _start_once(self) -> None:
        self.destroy_timer(self._start_timer)
        if self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def _publisher(self, *arguments: Any) -> Any:
        publisher = self.create_publisher(*arguments)
        self._made.append((self.destroy_publisher, publisher))
        return publisher

    def _subscribe(self, *arguments: Any, **more: Any) -> None:
        self._made.append((self.destroy_subscription, self.create_subscription(*arguments, **more)))

    def _client(self, *arguments: Any) -> Any:
        client = self.create_client(*arguments)
        self._made.append((self.destroy_client, client))
        return client

    # --- what arrives ---

    def _on_state(self, message: Any) -> None:
        state = convert.floats(message.data)
        if len(state) != self._config.state_size or not np.isfinite(state).all():
            self._brain.refused["bad_state"] += 1
            return
        self._state, self._state_s = state, clock()
        self._tick(self._state_s)

    def _on_image(self, camera: str, message: Any) -> None:
        if len(message.data) > MAX_ENCODED_BYTES:
            self._brain.refused["image_too_large"] += 1
            return
        self._images[camera] = (convert.image_from(camera, message), clock())

    def _on_schedule(self, message: Any) -> None:
        try:
            schedule = convert.schedule_from(message)
        except BadMessageError as error:
            self._brain.refused[error.kind] += 1
            self.get_logger().warning(f"refused a schedule: {error}")
            return
        if not self._brain.follow(schedule):
            self.get_logger().warning(f"refused schedule {schedule.epoch}: {self._brain.schedule_epoch} is in force")
            return
        self._connect(schedule)

    def _on_chunk(self, message: Any) -> None:
        try:
            self._brain.reply(convert.chunk_from(message), clock())
        except BadMessageError as error:
            self._brain.refused[error.kind] += 1

    def _on_judgement(self, message: Any) -> None:
        self._brain.reply(convert.verdict_from(message), clock())

    def _on_plan(self, message: Any) -> None:
        self._brain.reply(convert.plan_from(message), clock())

    def _on_server_status(self, message: Any) -> None:
        server, now_s = message.header.frame_id, clock()
        if message.state == msg.ServerStatus.LOADING:
            self._brain.server_loads(server, now_s)
        else:
            self._brain.server_seen(server, message.state == msg.ServerStatus.READY, now_s)

    def _on_watchdog(self) -> None:
        now_s = clock()
        if now_s - self._ticked_s > 2.0 / self._config.control_rate_hz:
            self._tick(now_s, may_act=False)

    # --- the control period ---

    def _tick(self, now_s: float, *, may_act: bool = True) -> None:
        if not self._active:
            return
        self._ticked_s = now_s
        tick = self._brain.tick(self._sensors(), now_s, may_act=may_act)
        if tick.command is not None:
            self._command.publish(Float64MultiArray(data=tick.command.astype(float).tolist()))
        for server, request in tick.requests:
            self._publishers_to[server].publish(convert.observation_to(request))
        for server, opening in tick.opens:
            self._open_session(server, opening)
        self._door.tend(now_s)
        self._tell(now_s)

    def _sensors(self) -> Sensors | None:
        if self._state is None or len(self._images) < len(self._config.cameras):
            return None
        return Sensors(
            state=self._state,
            state_s=self._state_s,
            images=tuple(self._images[camera][0] for camera in self._config.cameras),
            images_s=min(at_s for _, at_s in self._images.values()) if self._images else self._state_s,
        )

    def _forget_readings(self) -> None:
        """What was read before a reset says nothing about the scene after it."""
        self._state, self._images = None, {}

    # --- servers ---

    def _connect(self, schedule: Schedule) -> None:
        """All that it takes to turn to any server of this robot's routes, made ahead of need: discovery takes its time."""
        routes = schedule.routes_of(self._config.name).values()
        for server in {route.server for route in routes} | {route.standby for route in routes}:
            if not server or server in self._publishers_to:
                continue
            name = self._names.server
            self._publishers_to[server] = self._publisher(msg.Observation, name(server, "observation"), qos.OBSERVATION_SENT)
            self._openers[server] = self._client(srv.OpenSession, name(server, "open_session"))
            events = SubscriptionEventCallbacks(liveliness=lambda event, s=server: self._on_liveliness(s, event))
            self._subscribe(
                msg.ServerStatus, name(server, "status"), self._on_server_status, qos.SERVER_STATUS, event_callbacks=events
            )

    def _on_liveliness(self, server: str, event: Any) -> None:
        if event.alive_count == 0 and event.alive_count_change < 0:
            self._brain.server_lost(server, clock(), f"{server} is not alive")

    def _open_session(self, server: str, opening: SessionRequest) -> None:
        service = self._openers[server]
        if not service.service_is_ready():
            self._brain.session_refused(opening.component, server, "its services are not there yet", clock())
            return
        self._attempts += 1
        attempt = self._attempt_of[opening.component] = self._attempts
        future = service.call_async(convert.session_request_to(opening))
        future.add_done_callback(lambda done: self._on_session(opening.component, server, attempt, done.result()))

    def _on_session(self, component: str, server: str, attempt: int, answer: Any) -> None:
        now_s = clock()
        if self._attempt_of.get(component) != attempt:
            self._brain.refused["late_session"] += 1  # it answers an attempt that was given up
            return
        if answer is None or not answer.success:
            problem = answer.error_msg if answer else "no answer"
            self.get_logger().warning(f"{server} refuses a session for {component}: {problem}", throttle_duration_sec=5.0)
            self._brain.session_refused(component, server, problem, now_s)
            return
        for warning in answer.warnings:
            self.get_logger().warning(f"{server}/{component}: {warning}")
        try:
            grant = convert.grant_from(answer)
        except BadMessageError as error:
            self._brain.refused[error.kind] += 1
            self._brain.session_refused(component, server, str(error), now_s)
            return
        self._brain.session_opened(component, server, grant, now_s)

    # --- status ---

    def _tell(self, now_s: float) -> None:
        brain = self._brain
        told = (brain.state, brain.reason.split(" for ")[0], brain.task.phase if brain.task else TaskPhase.IDLE)
        if told == self._last_state_told and now_s - self._told_s < qos.STATUS_PERIOD_S:
            return
        if told[:2] != (self._last_state_told or ())[:2]:  # type: ignore[index]
            self.get_logger().info(f"{brain.state.name}{': ' if brain.reason else ''}{brain.reason}")
        self._last_state_told, self._told_s = told, now_s
        self._status.publish(self._status_message(now_s))

    def _status_message(self, now_s: float) -> Any:
        brain, run = self._brain, self._brain.task
        actions_hz, chunks_hz = brain.rates(WINDOW_S, now_s)
        round_trips_s = brain.round_trips_s or [float("nan")]
        status = msg.RobotStatus(
            state=int(brain.state),
            reason=brain.reason,
            phase=int(run.phase if run else TaskPhase.IDLE),
            task=self._task_name,
            instruction=brain.instruction,
            verdict=run.verdict if run else "",
            episode=brain.episode,
            schedule_epoch=brain.schedule_epoch,
            server=brain.system1_server,
            queue_depth=brain.queue_depth,
            staleness_s=brain.staleness_s,
            action_rate_hz=actions_hz,
            chunk_rate_hz=chunks_hz,
            window_s=WINDOW_S,
            round_trip_p50_s=float(np.quantile(round_trips_s, 0.5)),
            round_trip_p99_s=float(np.quantile(round_trips_s, 0.99)),
            held_ticks=brain.held_ticks,
            refused=convert.counters_to(brain.refused),
        )
        status.header.frame_id = self._config.name
        return status


def main() -> None:
    run_node(RobotNode)


if __name__ == "__main__":
    main()
