"""Names of the classes whose values stand in recordings.

A name in a recording is part of its format: it stays when a class is renamed or moves to another module. A class that is recorded
for the first time gets a name here, which is the field's word for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ros2_rfm_serving.dispatch import StepCosts, history
from ros2_rfm_serving.robot import RobotConfig, Sensors, Tick, config, events, gate, limits, task, why
from ros2_rfm_serving.robot.conversation import flight, link
from ros2_rfm_serving.server import ServerConfig, SessionRules, core, engine_queues
from ros2_rfm_serving.server import events as server_events
from ros2_rfm_serving.server import horizon as horizons
from ros2_rfm_serving.types import (
    ActionChunk,
    Conditioning,
    EncodedImage,
    EnginePhases,
    EngineReply,
    ExecutionReport,
    Fallback,
    Guidance,
    HorizonRequest,
    InferenceRequest,
    JudgeVerdict,
    ModelContract,
    ObservationRequest,
    OutputKind,
    PipelineConfig,
    Placement,
    PrefixSchedule,
    RequestId,
    RobotState,
    Route,
    Schedule,
    ScheduleVerdict,
    ServingStats,
    SessionGrant,
    SessionRequest,
    SessionSharing,
    SubgoalPlan,
    TaskOutcome,
    TaskPhase,
)
from ros2_rfm_serving.types.admission import AdmissionRecord

ROBOT_EVENTS: Mapping[str, type] = MappingProxyType(
    {
        "ScheduleReceived": events.ScheduleReceived,
        "ServerStatusReceived": events.ServerStatusReceived,
        "ServerLoadingReceived": events.ServerLoadingReceived,
        "ServerProcessSeen": events.ServerProcessSeen,
        "ServerLost": events.ServerLost,
        "SessionOpened": events.SessionOpened,
        "SessionRefused": events.SessionRefused,
        "RefetchRequested": events.RefetchRequested,
        "EpisodeResetAnswered": events.EpisodeResetAnswered,
        "ReplyReceived": events.ReplyReceived,
        "ControlTick": events.ControlTick,
        "TaskStarted": events.TaskStarted,
        "TaskFinished": events.TaskFinished,
        "TaskCanceled": events.TaskCanceled,
        "ResetStarted": events.ResetStarted,
        "ResetFinished": events.ResetFinished,
        "StopRequested": events.StopRequested,
        "TrajectoryStopRequested": events.TrajectoryStopRequested,
        "PauseRequested": events.PauseRequested,
        "ResumeRequested": events.ResumeRequested,
        "AbortRequested": events.AbortRequested,
        "ConfigurationChanged": events.ConfigurationChanged,
        "CountsAdded": events.CountsAdded,
    }
)
"""Events of a robot."""

SERVER_EVENTS: Mapping[str, type] = MappingProxyType(
    {
        "SessionRequested": server_events.SessionRequested,
        "SessionClosed": server_events.SessionClosed,
        "DrainStarted": server_events.DrainStarted,
        "DrainCanceled": server_events.DrainCanceled,
        "QueueCleared": server_events.QueueCleared,
        "LivenessChecked": server_events.LivenessChecked,
        "EpisodeStarted": server_events.EpisodeStarted,
        "LimitsChanged": server_events.LimitsChanged,
        "ServerConfigurationChanged": server_events.ServerConfigurationChanged,
        "RatesScheduled": server_events.RatesScheduled,
        "AdmissionChecked": server_events.AdmissionChecked,
        "RequestReceived": server_events.RequestReceived,
        "RequestRejected": server_events.RequestRejected,
        "RequestEnqueued": server_events.RequestEnqueued,
        "RequestSuperseded": server_events.RequestSuperseded,
        "EnginePolled": server_events.EnginePolled,
        "BatchesPerceived": server_events.BatchesPerceived,
        "SolverStepPolled": server_events.SolverStepPolled,
        "RefetchPolled": server_events.RefetchPolled,
        "BatchEnded": server_events.BatchEnded,
        "AnswerReceived": server_events.AnswerReceived,
        "FiguresRequested": server_events.FiguresRequested,
    }
)
"""Events of a server."""

VALUES: Mapping[str, type] = MappingProxyType(
    {
        "Admission": AdmissionRecord,
        "Chunk": ActionChunk,
        "ChunkOrigin": why.Origin,
        "CommandLimits": limits.Limits,
        "CommandSource": why.By,
        "CommandType": config.CommandType,
        "Conditioning": Conditioning,
        "ConnectionConfig": config.LinkConfig,
        "ConnectionState": link.LinkState,
        "EncodedImage": EncodedImage,
        "EngineLimits": engine_queues.EngineLimits,
        "EnginePhases": EnginePhases,
        "EngineReply": EngineReply,
        "EpisodeReset": config.EpisodeReset,
        "ExecutionHorizon": HorizonRequest,
        "ExecutionReport": ExecutionReport,
        "FailSafeConfig": config.FailSafeConfig,
        "FallbackMotion": config.Motion,
        "FallbackStep": config.Rung,
        "Guidance": Guidance,
        "HorizonDecision": horizons.HorizonDecision,
        "InferenceRequest": InferenceRequest,
        "Interval": history.TimeInterval,
        "ModelContract": ModelContract,
        "ModelIdentity": link.ModelIdentity,
        "ObservationRequest": ObservationRequest,
        "OutputKind": OutputKind,
        "Pipelining": PipelineConfig,
        "Placement": Placement,
        "Plan": SubgoalPlan,
        "PrefixSchedule": PrefixSchedule,
        "QueueCompatibility": config.Compatibility,
        "RequestId": RequestId,
        "RequestInFlight": flight.InFlight,
        "RobotConfig": RobotConfig,
        "RobotState": RobotState,
        "Route": Route,
        "Schedule": Schedule,
        "ScheduleVerdict": ScheduleVerdict,
        "Sensors": Sensors,
        "Served": ServingStats,
        "ServerConfig": ServerConfig,
        "ServingMode": SessionSharing,
        "SessionGrant": SessionGrant,
        "SessionRequest": SessionRequest,
        "SessionRules": SessionRules,
        "SolverStepCosts": StepCosts,
        "SolverStepDecision": core.SolverStepDecision,
        "TaskFallback": Fallback,
        "TaskGoal": task.TaskGoal,
        "TaskOutcome": TaskOutcome,
        "TaskPhase": TaskPhase,
        "TaskPolicy": config.TaskPolicy,
        "TaskResult": task.TaskResult,
        "Tick": Tick,
        "Trajectory": config.Trajectory,
        "ValidationConfig": gate.GateConfig,
        "ValidationMode": gate.GateMode,
        "Verdict": JudgeVerdict,
    }
)
"""Parts of events, decisions, configurations and snapshots."""

RECORDED: Mapping[str, type] = MappingProxyType({**ROBOT_EVENTS, **SERVER_EVENTS, **VALUES})
