"""One robot on the graph: sensors in, commands out, the decision core in between. It has no thread of its own, and its failures
affect no other robot.

The control period follows the robot (`tick: state`): a tick runs when the state arrives, so that the command answers the newest
reading, and a watchdog ticks when no state arrives. Or it follows a timer (`tick: timer`), with the newest available readings.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rfm_serving import msg
from sensor_msgs.msg import JointState

from ros2_rfm_serving.audit.chain import OPERATOR_COMMAND
from ros2_rfm_serving.audit.robots.recorded import RecordedBrain
from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.robot import RobotCore, Sensors
from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.command_problems import Stillness, chunk_problem, limits_problem, start_problem
from ros2_rfm_serving.robot.config import Trajectory
from ros2_rfm_serving.robot.proving import DryRun, command_scale
from ros2_rfm_serving.ros.node.audit import AuditTopic
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.node.doorkeeper import Doorkeeper
from ros2_rfm_serving.ros.node.orders import Gate
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.said import Speaker
from ros2_rfm_serving.ros.node.timers import Turn, turns_of
from ros2_rfm_serving.ros.robot.cameras import CameraSet
from ros2_rfm_serving.ros.robot.command_topic import CommandTopic
from ros2_rfm_serving.ros.robot.declared import TickSource
from ros2_rfm_serving.ros.robot.joints import FORMATS, StateReader
from ros2_rfm_serving.ros.robot.listening import Listening
from ros2_rfm_serving.ros.robot.reading_times import ReadingTimes, clock_problem, simulated_time_of
from ros2_rfm_serving.ros.robot.refusals import START, Refusals
from ros2_rfm_serving.ros.robot.servers import FAREWELL_S, HEARD, Servers
from ros2_rfm_serving.ros.robot.sessions import Sessions
from ros2_rfm_serving.ros.robot.settings import RobotSettings
from ros2_rfm_serving.ros.robot.silent_topics import SilentTopics
from ros2_rfm_serving.ros.robot.sinks import ChunkSink, DryRunSink, make_sink
from ros2_rfm_serving.ros.robot.status import Punctuality, Rhythm, diagnosis, status_message
from ros2_rfm_serving.ros.robot.task_door import PeoplesDoor, TaskDoor
from ros2_rfm_serving.ros.robot.vouched import UNVOUCHED
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.types import ActionChunk, Array, Reply, RobotState, TaskOutcome, TaskPhase
from ros2_rfm_serving.types.texts import shortened, without_numbers

T = TypeVar("T")
WATCHDOG_PERIODS = 2.0
"""Control periods without a new state after which the watchdog ticks."""


class RobotBody:
    """I/O of one robot.
    `destroy` undoes the constructor, `deactivate` undoes `activate`. Everything runs on `node`'s executor thread."""

    def __init__(
        self, node: Node, settings: RobotSettings, names: qos.Names, servers: Servers, report: Callable[[DiagnosticStatus], None]
    ) -> None:
        """Create all ROS entities. report: publishes diagnostics that have changed. Raises: `ConfigurationError`."""
        self.settings, self.name = settings, settings.config.name
        self._audit = AuditTopic(node, f"robot/{self.name}", names.robot(self.name, "rfm/audit"))
        self.brain: RobotCore = RecordedBrain(settings.config, self._audit.journal)
        self.errors = 0
        """Number of callbacks and control periods that failed."""
        self._node, self._names, self._servers, self._report = node, names, servers, report
        self._period_s = 1.0 / settings.config.control_rate_hz
        self._by_timer = settings.tick is TickSource.TIMER
        self.punctuality = Punctuality(self._period_s, on_grid=self._by_timer)
        self.rhythm = Rhythm(settings.config.control_rate_hz)
        self._dry_run = DryRun(settings.config.action_names) if settings.dry_run else None
        self._command_scale = command_scale(ActionColumns.of(settings.config), settings.speed_scale)
        """[A] factor of commands; None: 1."""
        self._active = self._drives = False
        self._timer: Turn | None = None
        self._ticked_s = self._told_s = -1.0
        self._listening = Listening(self.brain)
        self._silence = SilentTopics(node)
        self._stillness = Stillness(settings.config)
        self._chunk: ActionChunk | None = None
        """Last chunk that was received, usable or not."""
        self._last_refusals: dict[str, str] = {}
        """Counter of refused messages -> reason of the last refusal."""
        self._told: object = None
        self._sessions = Sessions(node, servers, self)
        verifier = servers.proofs.verifier
        doorkeeper = Doorkeeper(self.name, verifier) if verifier else None
        self._gate = Gate(node, self.name, doorkeeper, self._count_unproven)
        self._speaker = Speaker(self.name)
        self._door = self._make_door()
        self._made: list[tuple[Callable[[Any], Any], Any]] = []
        """(function that destroys an entity, the entity)."""
        try:
            self._make()
        except BaseException:
            self.destroy()
            raise

    def activate(self) -> None:
        self._active = self._door.open = True
        self._listening.begin()
        self.punctuality.restart()
        seconds = self._period_s if self._by_timer else WATCHDOG_PERIODS * self._period_s
        self._timer = turns_of(self._node).every(seconds, self._on_timer)
        self._command_topic.begin()

    def prepared(self, settings: RobotSettings) -> Callable[[], None]:
        """Return the function that applies other settings from the next control period on; they differ only in settings that may
        change. Raises: `ConfigurationError`; then nothing has changed."""
        change_brain = self.brain.prepared(settings.config)

        def apply() -> None:
            change_brain()
            self.settings, self._door.instruction = settings, settings.instruction
            self._command_scale = command_scale(ActionColumns.of(settings.config), settings.speed_scale)
            self._cameras.encode(settings.io.jpeg_quality, settings.io.max_image_size_px)

        return apply

    def deactivate(self, reason: str) -> None:
        """Stop at once: the task ends, and nothing more is commanded except a stand."""
        if self._active:
            self._active = self._door.open = False
            if self._timer is not None:
                self._timer.cancel()
            self._command_topic.end()
            self.safely(self._door.end, TaskOutcome.SHUTDOWN, reason, clock())
            self.stop()
            self._drives = False

    def destroy(self) -> None:
        """Close the sessions and destroy all entities; the client of the last task still receives its result."""
        self.deactivate("the robot is gone")
        self.safely(self._sessions.close_all)
        for destroy, entity in reversed(self._made):
            self.safely(destroy, entity)
        self._made.clear()
        if self._door.busy:  # its result is sent on the executor, after this
            turns_of(self._node).once(FAREWELL_S, self._door.destroy)
        else:
            self._door.destroy()

    def stop(self) -> None:
        """Bring the robot to a stand, where that takes a command. A robot that another controller drives is left alone."""
        if self._drives:
            self.safely(self._send_stop)

    def safely(self, callback: Callable[..., object], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception:
            self._failed()

    def diagnosis(self) -> DiagnosticStatus:
        now_s = clock()
        return self._diagnosis(self._status_message(now_s), now_s)

    def _diagnosis(self, status: Any, now_s: float) -> DiagnosticStatus:
        made = diagnosis(status, self.brain, self.punctuality, self.rhythm, self.errors, self._readings(now_s), now_s)
        made.values = [*made.values, *key_values(self._audit.values())]
        if self._refusals.lasting("", now_s) or self._refusals.lasting(START, now_s):
            made.level = max(made.level, DiagnosticStatus.WARN)
        if self.brain.schedule_follower.scheduler and self._servers.proofs.is_in_doubt(now_s):
            made.level, made.message = max(made.level, DiagnosticStatus.WARN), f"{made.message}; {UNVOUCHED}"
        if problem := self._command_topic.problem:
            made.level, made.message = max(made.level, DiagnosticStatus.WARN), f"{made.message}; {problem}"
        return made

    def _readings(self, now_s: float) -> dict[str, object]:
        """Return the diagnostics values of the readings: the age of each, s (inf: none was received), and its source."""
        reader, ages_s = self._reader, self._cameras.ages_s(now_s)
        found: dict[str, object] = {
            "max_observation_age_s": self.settings.config.max_observation_age_s,
            "state_age_s": now_s - reader.state_s,
            "state_topics": " ".join(reader.topics.values()),
            "state_problem": self._refusals.lasting("", now_s),
            "state_refused": self._refusals.num_messages(""),
            "state_last_problem": reader.last_problem,
            "command_topic": self._topic(self.settings.io.sink.topic),
            "command_problem": self._command_topic.problem,
        }
        found |= self._trial_values() | self._command_problems(now_s)
        for part, times in reader.times.items():
            found |= times.values(now_s) | {f"topic {part.value}": reader.topics[part]}
            found |= self._silences(times, reader.topics[part], self.settings.io.state.message_type(part), now_s)
        for camera in self.settings.io.cameras:
            found[f"image_age_s {camera.name}"] = ages_s[camera.name]
            found[f"image_topic {camera.name}"] = self._topic(camera.topic)
            found[f"image_problem {camera.name}"] = self._refusals.lasting(camera.name, now_s)
            found |= self._pictures[camera.name].values(now_s)
            found[f"image_refused {camera.name}"] = self._refusals.num_messages(camera.name)
            found |= self._silences(self._pictures[camera.name], self._topic(camera.topic), camera.message_type, now_s)
        return found

    def _trial_values(self) -> dict[str, object]:
        """Return what a dry run, or a reduced speed, adds to `/diagnostics`."""
        found: dict[str, object] = {}
        if trial := self._trial:
            found["trial"] = trial
        if self.settings.speed_scale != 1.0:
            found["speed_scale"] = self.settings.speed_scale
        return found | (self._dry_run.values() if self._dry_run else {})

    @property
    def _trial(self) -> str:
        """Description of a trial (dry run or reduced speed); empty: the robot works as declared."""
        if self._dry_run is not None:
            return "dry run: commands are not published"
        scale = self.settings.speed_scale
        return f"reduced speed: {scale:.0%} of what is declared" if scale != 1.0 else ""

    def _command_problems(self, now_s: float) -> dict[str, object]:
        """Return the diagnostics values of problems with actions and commands, and what a task waits for; only those that exist."""
        config = self.settings.config
        found = {
            "still_problem": self._stillness.problem,
            "chunk_problem": chunk_problem(self._chunk, config) if self._chunk is not None else "",
            "limits_problem": limits_problem(self._reader.positions, config),
            "reset_problem": self._door.waits_for,
            "start_problem": self._refusals.lasting(START, now_s),
            "command_rivals": self._command_topic.rivals,
            "clock_problem": clock_problem(self._node),
        }
        found |= {f"last {kind}": problem for kind, problem in self._last_refusals.items()}
        return {name: problem for name, problem in found.items() if problem}

    def _silences(self, times: ReadingTimes, topic: str, message_type: type, now_s: float) -> dict[str, object]:
        """Return why no message arrives on a sensor's topic, where the graph shows it."""
        silence = self._silence.of(topic, message_type, times.arrived_s, now_s)
        found = {"type_problem": silence.type_problem, "topic_problem": silence.topic_problem}
        return {f"{name} {times.name}": problem for name, problem in found.items() if problem}

    # --- what it is made of ---

    def _make(self) -> None:
        io, refused = self.settings.io, self.brain.refused
        self._keep(self._audit.open(), AuditTopic.close)  # created first, and so destroyed last
        self._cameras = CameraSet(io.cameras, refused, jpeg_quality=io.jpeg_quality, max_size_px=io.max_image_size_px)
        simulated, max_age_s = simulated_time_of(self._node), io.state.max_age_s
        self._reader = StateReader(io.state, refused, simulated=simulated, full_name=self._topic)
        self._refusals = Refusals(self.name, self._node.get_logger().warning)
        self._pictures = {
            camera.name: ReadingTimes(camera.name, max_age_s, by_arrival=camera.by_arrival, simulated=simulated)
            for camera in io.cameras
        }
        topic = self._topic(io.sink.topic)
        made = DryRunSink(self._dry_run) if self._dry_run else make_sink(self._node, io.sink, topic, refused)
        self._sink = self._keep(made, lambda sink: sink.close())
        watched = CommandTopic(self._node, self.name, topic, self._sink, io.sink, self._period_s)
        self._command_topic = self._keep(watched, CommandTopic.close)
        self._statuses = [self._status_to(self._node)]
        if self._servers.ends is not self._node:
            self._statuses.append(self._status_to(self._servers.ends))
        self._hear_sensors()
        for message_type, topic, read in HEARD:
            self._hear(
                message_type, topic, partial(self._on_reply, read), qos.REPLY, from_server=True, prove=self._servers.proofs.check
            )
        self._hear(msg.RequestId, "rfm/refetch", self._on_refetch, qos.REFETCH, from_server=True)
        door = PeoplesDoor(self._node, self.brain, self._topic, self._on_person, self._note_person, self._gate, self._door.cancel)
        self._keep(door, PeoplesDoor.destroy)

    def _status_to(self, ends: Any) -> Any:
        return self._keep(
            ends.create_publisher(msg.RobotStatus, self._topic("rfm/status"), qos.ROBOT_STATUS), ends.destroy_publisher
        )

    def _hear_sensors(self) -> None:
        state = self.settings.io.state
        if state.needs_array:
            self._hear(state.array_message, state.array_topic, partial(self._on_state, self._reader.take_array), qos.SENSOR)
        if state.needs_joints:
            self._hear(JointState, state.joint_topic, partial(self._on_state, self._reader.take_joints), qos.JOINTS)
        for part, topic in state.topics.items():
            if part in FORMATS:
                take = partial(self._on_state, partial(self._reader.take_part, part))
                self._hear(FORMATS[part].type, topic, take, qos.SENSOR)
        for camera in self.settings.io.cameras:
            self._hear(camera.message_type, camera.topic, partial(self._on_image, camera.name), qos.SENSOR)

    def _make_door(self) -> TaskDoor:
        return TaskDoor(
            self._node,
            self.brain,
            task=self.settings.task,
            instruction=self.settings.instruction,
            action_name=self._topic("execute_task"),
            reset_name=self._topic("reset"),
            forget_readings=self._forget_readings,
            stop=self.stop,
            heard=self._note_person,
            gate=self._gate,
            is_dry_run=self.settings.dry_run,
        )

    def _topic(self, leaf: str) -> str:
        """Return a topic of the robot; an absolute name stays unchanged."""
        return leaf if leaf.startswith("/") else self._names.robot(self.name, leaf)

    def _keep(self, entity: T, destroy: Callable[[T], object]) -> T:
        """Register an entity for `destroy`, and return it."""
        self._made.append((destroy, entity))
        return entity

    def _hear(
        self,
        kind: type,
        topic: str,
        callback: Callable[[Any], None],
        profile: QoSProfile,
        *,
        from_server: bool = False,
        prove: Callable[[Any, memoryview], object] | None = None,
    ) -> None:
        heard: Callable[[Any], None] = partial(self.safely, callback)
        if from_server:
            heard = self._servers.faults.passing(heard, Direction.DOWN)
            ends = self._servers.ends
            made = bounded.hear(ends, kind, self._topic(topic), heard, profile, self.refuse, prove=prove)
            self._keep(made, ends.destroy_subscription)
        else:
            made = self._node.create_subscription(kind, self._topic(topic), heard, profile)
            self._keep(made, self._node.destroy_subscription)

    # --- what arrives ---

    def _on_state(self, take: Callable[[Any, float], bool], message: Any) -> None:
        now_s = self._listening.now_s()
        came = take(message, now_s)
        self._refusals.note("", self._reader.problem, now_s, at_once=not self._reader.is_incomplete)
        if came:
            self.rhythm.came(now_s)
            if not self._by_timer and self.brain.is_period(now_s):
                self.tick(now_s)

    def _on_image(self, camera: str, message: Any) -> None:
        now_s = self._listening.now_s()
        self._cameras.take(camera, message, self._pictures[camera].taken_s(message, now_s))
        self._refusals.note(camera, self._cameras.problems.get(camera, ""), now_s)

    def _on_reply(self, read: Callable[[Any], Reply], message: Any) -> None:
        try:
            reply = read(message)
            self._chunk = reply if isinstance(reply, ActionChunk) else self._chunk
            self.brain.on_reply(reply, self._listening.now_s())
        except BadMessageError as error:
            self.refuse(error)

    def _count_unproven(self) -> None:
        self.brain.refused["unproven"] += 1

    def refuse(self, error: BadMessageError) -> None:
        """Count a message that cannot be used, and keep the reason."""
        self.brain.refused[error.kind] += 1
        self._last_refusals[error.kind] = shortened(str(error))

    def _on_refetch(self, message: Any) -> None:
        self.brain.request_refetch(convert.id_from(message))

    def _on_person(self) -> None:
        """React to an operator's pause, resume or abort at once, without waiting for the next tick."""
        now_s = clock()
        if self.brain.task is not None and self.brain.task.result is not None:  # the task was aborted
            self.stop()
        self._door.tend(now_s)
        self._tell(now_s)

    def _note_person(self, what: str, answer: str, done: bool) -> None:
        """Record an operator's command; ROS does not tell the caller's identity."""
        said = {"command": what, "operator": "", "answer": answer, "done": done}
        self._audit.journal.note(OPERATOR_COMMAND, clock(), lambda: said, urgent=True)

    def _sensors(self) -> Sensors | None:
        images, reader = self._cameras.images, self._reader
        if reader.state is None or images is None:
            return None
        received_s = self._cameras.received_s
        oldest_s, newest_s = min(received_s, default=reader.state_s), max(received_s, default=reader.state_s)
        return Sensors(
            state=reader.state,
            state_s=reader.state_s,
            images=images,
            images_s=oldest_s,
            skew_s=max(newest_s, reader.state_s) - min(oldest_s, reader.state_s),
            positions=reader.positions,
        )

    def _forget_readings(self) -> None:
        """Forget readings from before a reset, which say nothing about the scene after it."""
        self._reader.forget()
        self._cameras.forget()

    # --- the control period ---

    def tick(self, now_s: float, *, may_act: bool = True) -> None:
        """Run one control period.
        It never raises: a failing period stops the robot, is counted and logged, and the next one tries again."""
        if not self._active:
            return
        self._ticked_s = now_s
        if may_act:
            self.punctuality.ticked(now_s)
        try:
            self._tick(now_s, may_act)
        except Exception:
            self._failed()
            self.stop()
        if may_act:
            self.punctuality.durations.add(clock() - now_s)

    def _tick(self, now_s: float, may_act: bool) -> None:
        sensors = self._sensors()
        tick = self.brain.tick(sensors, now_s, may_act=may_act)
        if self.brain.obstacle:
            problem = start_problem(self.brain.obstacle, sensors.positions if sensors else None, self.brain.config)
            self._refusals.note(START, problem, now_s, at_once=False)
        elif self.brain.begins_action or self.brain.task is None:
            self._refusals.note(START, "", now_s)
        self._drives = tick.command is not None or self.brain.task is not None
        if tick.command is not None:
            self._sink.send(self._slowed(tick.command), self._period_s)
        self._note_motion(tick.command, sensors, now_s)
        self._send_trajectory(tick.trajectory)
        for server, request in tick.requests:
            self._servers.send(server, request)
        for server, opening in tick.opens:
            self._sessions.open(server, opening)
        for reset in tick.resets:
            self._sessions.reset(reset)
        self._door.tend(now_s)
        self._tell(now_s)
        self._audit.journal.tend(now_s)
        if not self._by_timer and (misfit := self.rhythm.news()):
            self._node.get_logger().warning(f"{self.name}: {misfit}")

    def _note_motion(self, command: Array | None, sensors: Sensors | None, now_s: float) -> None:
        """Compare the commands with the measured motion."""
        if not self.brain.executing or self._dry_run is not None:
            self._stillness.end()
        elif command is not None and sensors is not None:
            measured = sensors.positions if sensors.positions is not None else sensors.state
            self._stillness.note(command, measured, now_s)

    def _on_timer(self) -> None:
        now_s = self._listening.now_s()
        if self._by_timer:
            if self.brain.is_period(now_s):
                self.tick(now_s)
        elif now_s - self._ticked_s >= 0.75 * WATCHDOG_PERIODS * self._period_s:
            self.punctuality.restart()
            self.tick(now_s, may_act=False)

    def _slowed(self, command: Array) -> Array:
        """Return velocities and displacements reduced to `speed_scale`; limits of positions are reduced in the configuration."""
        return command if self._command_scale is None else command * self._command_scale

    def _send_stop(self) -> None:
        command = self.brain.stop_command()
        if command is not None:
            self._sink.send(command, self._period_s)
        self._send_trajectory(self.brain.stop_trajectory(clock()))

    def _send_trajectory(self, trajectory: Trajectory | None) -> None:
        if trajectory is not None:
            assert isinstance(self._sink, ChunkSink | DryRunSink), "another sink asks for no trajectories"
            self._sink.send_trajectory(trajectory)

    def _failed(self) -> None:
        """Count and log the exception that is being handled."""
        self.errors += 1
        self._node.get_logger().error(f"{self.name}: a callback failed:\n{traceback.format_exc()}", throttle_duration_sec=1.0)

    # --- its status ---

    def _tell(self, now_s: float) -> None:
        """Publish the status twice a second while it has a subscriber, and at once when it changes.
        A change of numbers within a text does not count."""
        brain = self.brain
        state, reason, phase = brain.state, brain.reason, brain.task.phase if brain.task else TaskPhase.IDLE
        told = (state, without_numbers(reason), phase, brain.paused, without_numbers(brain.stop_reason))
        changed = told != self._told
        if not changed and (now_s - self._told_s < qos.STATUS_PERIOD_S or not self._is_heard):
            return
        status = self._status_message(now_s)
        said = self._speaker.numbered(status)
        for publisher in self._statuses:
            publisher.publish(said)
        if changed:
            why = brain.stop_reason or reason
            needs_people = state is RobotState.DEAD or phase is TaskPhase.WAITING
            say = self._node.get_logger().warning if needs_people else self._node.get_logger().debug
            say(f"{self.name}: {state.name}, {phase.name.lower()}{': ' if why else ''}{why}")
            self._report(self._diagnosis(status, now_s))
        self._told, self._told_s = told, now_s

    @property
    def _is_heard(self) -> bool:
        return any(publisher.get_subscription_count() for publisher in self._statuses)

    def _status_message(self, now_s: float) -> Any:
        status = status_message(self.brain, self.settings.task, self.punctuality, now_s)
        status.reason = "; ".join(filter(None, [status.reason, *self._obstacles(now_s), self._trial]))
        return convert.stamped(status, self._node)

    def _obstacles(self, now_s: float) -> Iterator[str]:
        """Yield obstacles of the robot beyond those that its decision core reports."""
        for source in ("", START):
            yield self._refusals.lasting(source, now_s)
        for camera in self.settings.io.cameras:
            if problem := self._refusals.lasting(camera.name, now_s):
                yield f"camera {camera.name}: {problem}"
        times = {topic: self._reader.times[part] for part, topic in self._reader.topics.items()}
        times |= {self._topic(camera.topic): self._pictures[camera.name] for camera in self.settings.io.cameras}
        for topic, one in times.items():
            silence = self._silence.known(topic, one.arrived_s, now_s)
            yield silence.type_problem or silence.topic_problem
        yield self._door.waits_for
