"""Data types that all parts of the package share: frozen dataclasses over numpy, without I/O.

They have no behaviour beyond what follows from their data, except three rules that every process applies alike: which schedule is
active (`schedule_follower.py`), which robots are admitted (`admission.py`), and which process owns a name (`names.py`).

*Robot space* is what the robot executes; *model space* is what the policy was trained on (normalised). Arrays are float32 unless
stated otherwise. T is the chunk length in control steps, A the number of actions, S the state size.
"""

from __future__ import annotations

from ros2_rfm_serving.types.admission import (
    NOT_ADMITTED,
    AdmissionRecord,
)
from ros2_rfm_serving.types.arrays import (
    MAX_ENCODED_BYTES,
    MAX_INSTRUCTION_CHARACTERS,
    MONITOR,
    NO_ROWS,
    NO_UPDATES,
    NO_VALUES,
    PRECEDENCE,
    SAFETY,
    SCHEMA_VERSION,
    SYSTEM1,
    SYSTEM2,
    Array,
    Image,
    empty,
)
from ros2_rfm_serving.types.contracts import (
    MAX_ALPHA,
    MAX_STAGES,
    Conditioning,
    Guidance,
    HorizonRequest,
    ModelContract,
    OutputKind,
    PipelineConfig,
    PrefixSchedule,
    SessionGrant,
    SessionRequest,
    SessionSharing,
)
from ros2_rfm_serving.types.messages import (
    NO_PHASES,
    ActionChunk,
    EncodedImage,
    EnginePhases,
    EngineReply,
    ExecutionReport,
    InferenceRequest,
    JudgeVerdict,
    ObservationRequest,
    Reply,
    RequestId,
    ServingStats,
    SubgoalPlan,
)
from ros2_rfm_serving.types.names import (
    ClaimStage,
    NameClaim,
)
from ros2_rfm_serving.types.schedule import (
    Placement,
    Route,
    Schedule,
)
from ros2_rfm_serving.types.schedule_follower import (
    ScheduleFollower,
    ScheduleVerdict,
)
from ros2_rfm_serving.types.states import (
    Fallback,
    RobotState,
    ServerState,
    TaskOutcome,
    TaskPhase,
)

__all__ = [
    "MAX_ALPHA",
    "MAX_STAGES",
    "AdmissionRecord",
    "Array",
    "ActionChunk",
    "ClaimStage",
    "Conditioning",
    "EncodedImage",
    "EngineReply",
    "ExecutionReport",
    "Fallback",
    "ScheduleFollower",
    "Guidance",
    "ScheduleVerdict",
    "HorizonRequest",
    "Image",
    "InferenceRequest",
    "MAX_ENCODED_BYTES",
    "MAX_INSTRUCTION_CHARACTERS",
    "MONITOR",
    "ModelContract",
    "NOT_ADMITTED",
    "NO_PHASES",
    "NO_ROWS",
    "NO_UPDATES",
    "NO_VALUES",
    "PRECEDENCE",
    "NameClaim",
    "ObservationRequest",
    "OutputKind",
    "PipelineConfig",
    "Placement",
    "EnginePhases",
    "SubgoalPlan",
    "PrefixSchedule",
    "Reply",
    "RequestId",
    "RobotState",
    "Route",
    "SAFETY",
    "SCHEMA_VERSION",
    "SYSTEM1",
    "SYSTEM2",
    "Schedule",
    "ServingStats",
    "ServerState",
    "SessionSharing",
    "SessionGrant",
    "SessionRequest",
    "TaskOutcome",
    "TaskPhase",
    "JudgeVerdict",
    "empty",
]
