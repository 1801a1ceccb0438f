"""Counters of refused messages: their meaning, their fix, and the number from which they are reported.

A robot, a server and the Zenoh door count refusals by name. The tables have an entry for each of these names, and a test compares
them with the code. `rfm why` and the web page both read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

FEWEST, MANY = 3, 20
"""Minimum refusals that are reported, in one observation of several seconds; `MANY` is for those that settle by themselves."""


@dataclass(frozen=True)
class RefusalCounter:
    meaning: str
    """Plural sentence about the refused messages and the reason, which can follow a number."""
    fix: str
    fewest: int = FEWEST
    """Refusals in one observation below which `rfm why` does not report them."""
    causes: tuple[str, ...] = ()
    """Causes of `rfm why` that name this counter, so that it gets no line of its own."""
    settles: bool = False
    """A reset, a restart or a new schedule causes some of these refusals; they need no action."""


Table = Mapping[str, RefusalCounter]

READINGS = "docs/reference/integrate.md, sections State and Cameras, says what a robot accepts; `rfm why` shows the offending value"
SLOW = (
    "either the server is slower than planned, or too many robots ask it, or the network loses messages: `rfm why` says which;"
    " docs/networks.md has profiles that bear loss"
)
SETTLES = "it settles by itself; where it goes on, two processes use one name: `rfm status` and the logs of both"
CLIENT = "mend the client that sends it: the protocol is in docs/gateway.md, and the server's log has the last error"
LOG = "the server's log has the traceback; mend the engine or the policy that it names"
CERTIFICATES = (
    "`rfm security check DIR` tells which certificate is wrong or has ended; issue it again (`rfm security rotate`), and copy each"
    " enclave to its machine: docs/security.md"
)
VERSIONS = "both sides need the same version of rfm_serving, and the door a current rmw_zenoh_cpp: docs/zenoh.md"
REQUESTS = "the last error names the value: correct the robot's file, or the client that sends the request"
FILES = "the model and the robot's file do not agree: `rfm check` compares them, and `rfm why` shows the offending value"
LIMITS = "compare units and limits of the robot's file with the model's actions; `rfm why` shows the offending value"
POSITION = "the joint states have to arrive and stand still before the first command; `rfm why` shows the offending joint"
LESS = "ask less often, or give more servers"
UNUSABLE_ACTIONS = "unusable actions"


def _settling(meaning: str, fix: str = SETTLES) -> RefusalCounter:
    return RefusalCounter(meaning, fix, MANY, settles=True)


def _each(names: Iterable[str], counter: RefusalCounter) -> dict[str, RefusalCounter]:
    return dict.fromkeys(names, counter)


def _in(causes: str | tuple[str, ...], fix: str, meanings: Mapping[str, str]) -> dict[str, RefusalCounter]:
    """Return counters that other causes name, from their meanings."""
    named = (causes,) if isinstance(causes, str) else causes
    return {name: RefusalCounter(meaning, fix, causes=named) for name, meaning in meanings.items()}


_BAD_SHAPE = RefusalCounter("arrays have another shape than the model or the robot expects", FILES)
_NON_FINITE = RefusalCounter("numbers are NaN or infinite", REQUESTS)
_BAD_IMAGE = RefusalCounter("images are broken, or their size does not fit their bytes", READINGS)
_LARGE_IMAGE = RefusalCounter("images are larger than is accepted", READINGS)

COMMON: Table = {
    "stale_epoch": _settling("messages belong to a session that is over"),
    "stale_episode": _settling("messages belong to an episode that is over"),
    "rival_schedule": RefusalCounter(
        "another scheduler publishes schedules as well",
        "a few after a restart are normal; otherwise stop one of the two schedulers: `rfm why` names both",
        causes=("two factories in one domain",),
        settles=True,
    ),
    "stale_schedule": _settling("schedules are older than the one in force"),
    "bad_schedule": RefusalCounter(
        "schedules cannot be used", "the scheduler is of another version, or somebody writes to /rfm/schedule"
    ),
    "untimely_schedule": _settling("schedules came for which no server vouches yet", CERTIFICATES),
    "unproven": RefusalCounter("messages have no valid signature", CERTIFICATES),
    "stale_status": _settling("statuses came again"),
    "untimely_status": _settling("statuses follow another scheduler"),
    "bad_message": RefusalCounter("messages cannot be read as what their topic carries", VERSIONS),
    "bad_name": RefusalCounter("names cannot be used", "a name has letters, digits and underscores, a letter first"),
    "bad_session": RefusalCounter("sessions were asked for with impossible values", "correct the value in the robot's file"),
}
"""Counters of robots and of servers."""

_READINGS: Table = {
    "bad_image": replace(_BAD_IMAGE, causes=("refused readings",)),
    "image_too_large": replace(_LARGE_IMAGE, causes=("refused readings",)),
    **_in(
        "refused readings",
        READINGS,
        {
            "bad_encoding": "images have an encoding that is not supported",
            "no_depth_range": "depth images came, and no depth range is declared for this camera",
            "bad_state": "messages of the state cannot be used",
            "incomplete_state": "messages of the state lack a joint or a part",
            "missing_field": "messages lack a field that the robot needs, such as velocities",
        },
    ),
    **_in(
        ("dead camera", "dead joint states", "old readings", "refused readings"),
        READINGS,
        {"old_observation": "readings were too old to be sent"},
    ),
    "sensor_skew": RefusalCounter(
        "control periods had readings that were taken too far apart",
        "let the cameras be as fast as the state, or raise `max_sensor_skew_s`; `rfm topic hz TOPIC` shows a rate",
    ),
}

_ACTIONS: Table = {
    "bad_shape": replace(_BAD_SHAPE, causes=(UNUSABLE_ACTIONS,)),
    "non_finite": replace(_NON_FINITE, causes=(UNUSABLE_ACTIONS,)),
    **_in(
        UNUSABLE_ACTIONS,
        FILES,
        {
            "wrong_actions": "chunks have other actions than the robot",
            "wrong_context": "chunks do not say which observations they were computed from",
            "unexpected_reply": "answers are of another kind than was asked for",
        },
    ),
    **_in(
        UNUSABLE_ACTIONS,
        LIMITS,
        {
            "out_of_limits": "actions are outside of the limits by more than the tolerance, and their chunks were refused",
            "gate_clamped": "chunks have too many actions that had to be clamped to the limits",
            "gate_jump": "chunks begin too far from the last command",
            "gate_velocity": "chunks are faster than the robot may move",
            "gate_acceleration": "chunks accelerate more than the robot may",
            "gate_jerk": "chunks have more jerk than the robot may have",
            "gate_workspace": "chunks leave the workspace",
            "gate_statistics": "chunks are unlike the actions of the demonstrations",
        },
    ),
    **_in(
        "unknown start",
        POSITION,
        {
            "position_unknown": "commands could not begin, since the robot's position is not known",
            "position_unsteady": "commands could not begin, since the robot was moving",
            "position_out_of_limits": "commands could not begin, since the robot stands outside of its limits",
        },
    ),
    "delay_not_bridged": RefusalCounter(
        "chunks came later than the model bridges",
        "lower the load or the network's delay, or use a model that bridges more steps: docs/rtc.md",
    ),
    "stale_action": RefusalCounter(
        "actions were older than `max_action_age_s` before they could be executed",
        "the servers are too slow for this robot: `rfm plan`, more servers, or a longer `max_action_age_s`",
    ),
    "sink_failed": RefusalCounter(
        "commands were lost in the robot's own sink", "its traceback is in the robot's log: mend `sink_class`"
    ),
}

_ANSWERS: Table = {
    **_in(
        ("lossy network", "overloaded server", "drifted profile"),
        SLOW,
        {
            "request_timeout": "requests had no answer in time",
            "late_answer": "answers came later than their SLO",
            "late_or_duplicate": "answers came after their request was given up, or twice",
            "lost_behind_the_door": "messages were lost between the Zenoh door and the server",
        },
    ),
    **_in(
        ("overloaded machine", "lossy network", "overloaded server"),
        SLOW,
        {"late_session": "answers to the opening of a session came too late"},
    ),
    "late_refetch": _settling("a server asked again for requests that were answered"),
    "episode_not_reset": RefusalCounter(
        "a server did not confirm a new episode", "the server is slow or gone: `rfm status`", settles=True
    ),
    **_in(
        "changed model",
        "bring back the model, or give the robot a new task: it has to be looked at first",
        {
            "wrong_model": "chunks are of another model than the session",
            "other_model": "a server has another model than the robot had before",
        },
    ),
    **_in(
        "refused session",
        FILES,
        {
            "other_actions": "the model has other actions than the robot's file",
            "other_rate": "the model's demonstrations ran at another rate than the robot",
            "not_pipelined": "the server opened a session that is not pipelined, and the robot asked for one that is",
        },
    ),
    "unknown_component": RefusalCounter(
        "answers are for a component that this robot does not have", "two robots use one name, or a server is of another version"
    ),
}

ROBOT: Table = {**COMMON, **_READINGS, **_ACTIONS, **_ANSWERS}

_REQUESTS: Table = {
    "unknown_session": _settling("requests have no session", "a robot that was cut off opens another by itself"),
    "stale_sequence": _settling("requests came twice or out of order"),
    **_in(
        "one robot asks too much",
        "send fewer requests, or raise the rate in the descriptor and plan again",
        {"over_quota": "a robot sent more requests than its quota allows"},
    ),
    "opens_over_quota": RefusalCounter("sessions were asked for too often", "look at the log of the robot that asks", fewest=1),
    "bad_shape": _BAD_SHAPE,
    "non_finite": _NON_FINITE,
    "bad_image": _BAD_IMAGE,
    "image_too_large": _LARGE_IMAGE,
    "bad_cameras": RefusalCounter(
        "requests have other cameras than the model", "name the model's cameras in `cameras` of the robot's file"
    ),
    "other_instruction": RefusalCounter(
        "requests have another instruction than the server's", "leave out `instruction` of the server, or give its task"
    ),
    "delay_too_long": RefusalCounter(
        "requests ask to bridge more steps than the model can", "lower the load, or use `conditioning: none`: docs/rtc.md"
    ),
    "image_too_costly": RefusalCounter(
        "images take too long to decode", "send a JPEG of one scan, or a smaller one (`max_image_size_px`)"
    ),
    "draining": _settling("requests came while the server ends", "nothing is to be done: robots turn to another server"),
    **_each(("session_ended", "robot_gone", "session_idle"), _settling("requests or sessions had nobody left")),
    "certificate_ended": RefusalCounter("sessions were closed because their robot's certificate ended", CERTIFICATES, fewest=1),
    "lost_on_the_way": RefusalCounter(
        "requests were sent and never arrived",
        "the network loses them, or they exceed the middleware's shared memory: smaller images, `config/dds/`, docs/networks.md",
        fewest=5,
        settles=True,
    ),
    **_each(("intake_full", "infer_full"), RefusalCounter("requests found no place", LESS)),
    "infer_over_quota": RefusalCounter("goals of `Infer` came too often", "ask less often, or raise `infer_rate_hz` of the server"),
}

_ENGINES: Table = {
    **_in(
        "unusable answers",
        "the model's answers are not what its catalogue entry promises: `rfm why` shows the last one",
        {
            "verdict_violation": "verdicts are none of those that the model may give",
            "plan_violation": "plans are not of the form that the model may give",
        },
    ),
    **_each(("engine_error", "worker_error"), RefusalCounter("the engine failed while it computed a batch", LOG, fewest=1)),
    "bad_output": RefusalCounter("the model's answers are no arrays of the right shape", LOG, fewest=1),
    "non_finite_output": RefusalCounter("the model answered with NaN or infinity", LOG, fewest=1),
    **_each(
        ("dispatch_error", "horizon_error", "intake_error"), RefusalCounter("requests failed inside the server", LOG, fewest=1)
    ),
    "publish_failed": RefusalCounter(
        "answers could not be published", "the middleware refused them: the server's log has the error", fewest=1
    ),
}

_GATEWAY: Table = {
    **_each(("contract", "capacity", "session"), RefusalCounter("gateway clients got no session", CLIENT, fewest=1)),
    **_each(
        ("bad_frame", "bad_dtype", "bad_array", "bad_keys", "frame_too_large", "gateway_error", "gateway_busy", "gateway_slow"),
        RefusalCounter("messages of gateway clients cannot be used", CLIENT, fewest=1),
    ),
    **_each(
        ("gateway_token", "gateway_revoked", "gateway_origin", "gateway_client_connections", "gateway_connections"),
        RefusalCounter("connections to the gateway were refused", "docs/gateway.md has tokens, origins and connections", fewest=1),
    ),
    **_each(
        ("gateway_no_answer", "gateway_no_reply", "gateway_chunks"),
        RefusalCounter("gateway clients got no answer", "the model failed or is too slow: the server's log", fewest=1),
    ),
    **_each(
        ("gateway_idle", "gateway_no_request"),
        _settling("gateway clients were idle", "nothing is to be done: they connect again"),
    ),
}

SERVER: Table = {**COMMON, **_REQUESTS, **_ENGINES, **_GATEWAY}

ZENOH_DOOR: Table = {
    **COMMON,
    **_each(
        ("bad_attachment", "bad_key", "bad_token", "foreign_type", "stale_hash"),
        RefusalCounter("messages from Zenoh cannot be read", VERSIONS, fewest=1),
    ),
    **_each(
        ("foreign_name", "name_taken", "unknown_robot", "too_many_robots"),
        RefusalCounter(
            "robots on Zenoh were refused", "each robot needs a name of its own that the door allows: docs/zenoh.md", fewest=1
        ),
    ),
    **_each(
        ("not_there", "service_not_there", "no_answer", "unpublished", "too_many_calls", "too_large"),
        RefusalCounter("messages from Zenoh found no receiver", "start the server, and see the limits in docs/zenoh.md", fewest=1),
    ),
}

COUNTERS: Table = MappingProxyType({**ZENOH_DOOR, **SERVER, **ROBOT})
"""Every counter by its name. A counter of both robots and servers has the same meaning and fix for both."""
