"""Names of the classes whose values stand in recordings.

A name in a recording is part of its format: it stays when a class is renamed or moves to another module. A class that is recorded
for the first time gets a name here, which is the field's word for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ros2_rfm_serving.dispatch import StepCosts, history
from ros2_rfm_serving.robot import RobotConfig, Sensors, TickResult, chunk_validation, config, events, limits, task, why
from ros2_rfm_serving.robot.client import component_client, pending_requests
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
        "ServerLivenessReceived": events.ServerLivenessReceived,
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
        "ChunkOrigin": why.CommandOrigin,
        "CommandLimits": limits.MotionLimits,
        "CommandSource": why.CommandSource,
        "CommandType": config.CommandType,
        "Conditioning": Conditioning,
        "ConnectionConfig": config.ComponentClientConfig,
        "ConnectionState": component_client.ClientState,
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
        "ModelIdentity": component_client.ModelIdentity,
        "ObservationRequest": ObservationRequest,
        "OutputKind": OutputKind,
        "Pipelining": PipelineConfig,
        "Placement": Placement,
        "Plan": SubgoalPlan,
        "PrefixSchedule": PrefixSchedule,
        "QueueCompatibility": config.Compatibility,
        "RequestId": RequestId,
        "RequestInFlight": pending_requests.PendingRequest,
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
        "Tick": TickResult,
        "Trajectory": config.Trajectory,
        "ValidationConfig": chunk_validation.ChunkValidatorConfig,
        "ValidationMode": chunk_validation.ChunkValidatorMode,
        "Verdict": JudgeVerdict,
    }
)
"""Parts of events, decisions, configurations and snapshots."""

RECORDED: Mapping[str, type] = MappingProxyType({**ROBOT_EVENTS, **SERVER_EVENTS, **VALUES})
