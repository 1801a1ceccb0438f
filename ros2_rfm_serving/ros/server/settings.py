"""Parameters of a model server, and the settings that follow from them."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rclpy.node import Node

from ros2_rfm_serving.dispatch import CONTINUOUS, DISPATCH_POLICIES, Dispatcher
from ros2_rfm_serving.dispatch import policy as dispatch_policy
from ros2_rfm_serving.dispatch.batching import BATCHINGS
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry
from ros2_rfm_serving.factory.cores import cores_of
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros.node.own_name import named
from ros2_rfm_serving.ros.node.parameters import NOTHING, Spec, Values, When
from ros2_rfm_serving.ros.node.runtime import share
from ros2_rfm_serving.server import ServerConfig, SessionRules
from ros2_rfm_serving.types import Placement

UNLIMITED = 65_535
"""Maximum rows of a batch where the engine alone has a limit."""
OVERFLOW_ROWS = 8
"""Rows of a batch for the overflow server; each needs a connection."""


@dataclass(frozen=True, kw_only=True)
class ServerParams:
    """Parameters as declared on the node; 0 means "none" where a number limits something."""

    server: str
    descriptor: str
    model: str
    batch_size: int
    max_sessions: int
    session_rate_hz: float
    image_width_px: int
    image_height_px: int
    gpu_type: str
    profiles_folder: Path
    models_folder: Path
    threads: int
    cores: str
    autostart: bool
    dispatch: str
    batching: str
    refetch_after_s: float
    overflow_url: str
    overflow_round_trip_s: float
    overflow_batches_in_flight: int
    overflow_token_env: str
    max_request_rate_hz: float
    request_burst: int
    absent_grace_s: float
    idle_timeout_s: float
    instruction: str
    strict_rate: bool
    check_parity: bool
    decode_threads: int
    infer_rate_hz: float
    infer_waiting: int
    hung_after_s: float
    load_timeout_s: float
    drain_timeout_s: float
    max_engine_errors: int

    def placed(self, placement: Placement | None) -> Placement | None:
        """Return the placement to serve: the parameter `model`, or else the given one of the schedule; None: nothing.
        An engine with continuous batching takes all waiting requests; in the schedule its batch size is 1."""
        if not self.model:
            continuous = placement is not None and placement.batching == CONTINUOUS
            return replace(placement, batch_size=UNLIMITED) if placement and continuous else placement
        return Placement(
            server=self.server,
            model=self.model,
            components=(),
            gpu_type=self.gpu_type,
            batching=CONTINUOUS if self.batching == CONTINUOUS else "fixed",
            batch_size=self.batch_size,
            max_sessions=self.max_sessions,
            predicted_p99_s=0.0,
        )

    def against(self, placement: Placement | None) -> str:
        """Return a description of what is served although the schedule places something else here; empty: they agree."""
        if not self.model or placement is None or placement.model == self.model:
            return ""
        return f"serves {self.model!r} as its parameter `model` says, and the schedule places {placement.model!r} here"

    def engine_spec(self, placement: Placement) -> EngineSpec:
        """Return the engine of a placement. Raises: `ModelError`, `ConfigurationError`, `ProfileError`."""
        profiles = self.profiles_folder
        return EngineSpec(
            model=placement.model,
            entry=Catalogue.load(profiles / "models.yaml")[placement.model],
            models_folder=self.models_folder,
            profile=load_profiles(profiles),
            gpu_type=placement.gpu_type,
            wait=time.sleep,
            threads=self.threads,
        )

    def overflow_spec(self, placement: Placement) -> EngineSpec | None:
        """Return the engine of the same model elsewhere (Kairos §3.2.3); None: nothing overflows."""
        if not self.overflow_url:
            return None
        connections = OVERFLOW_ROWS * self.overflow_batches_in_flight
        options = {"url": self.overflow_url, "token_env": self.overflow_token_env, "connections": connections}
        entry = CatalogueEntry(engine="remote", options=options)
        return replace(self.engine_spec(placement), entry=entry)

    def server_config(self, placement: Placement, max_sessions: int) -> ServerConfig:
        first_epoch = 1 + secrets.randbelow(1 << 30)
        config = ServerConfig(
            name=self.server,
            batch_size=placement.batch_size,
            max_sessions=max_sessions,
            first_epoch=first_epoch,
            profile_s=load_profiles(self.profiles_folder).batches_s(
                placement.model, placement.gpu_type, placement.batching, placement.batch_size
            ),
        )
        return self.ruled(config, placement)

    def ruled(self, config: ServerConfig, placement: Placement) -> ServerConfig:
        """Return the config with the rules that may change at run time. A placement planned for continuous batching keeps it."""
        return replace(
            config,
            dispatch=self.dispatch,
            batching=CONTINUOUS if placement.batching == CONTINUOUS else self.batching,
            refetch_after_s=self.refetch_after_s or math.inf,
            max_engine_errors=self.max_engine_errors,
            sessions=SessionRules(
                max_request_rate_hz=self.max_request_rate_hz or math.inf,
                burst=self.request_burst,
                absent_grace_s=self.absent_grace_s,
                idle_timeout_s=self.idle_timeout_s or math.inf,
                instruction=self.instruction,
                strict_rate=self.strict_rate,
            ),
        )


def _live(*arguments: Any, **more: Any) -> Spec:
    return Spec(*arguments, **more)._replace(when=When.ANY)


def _at_configure(*arguments: Any, **more: Any) -> Spec:
    return Spec(*arguments, **more)._replace(when=When.UNCONFIGURED)


SPECS = {
    "server": Spec("", "Name of this server, as in the schedule; it must be given"),
    "descriptor": Spec("", "SHA-256, hex, of what the descriptor says that this process was started from; empty: not known"),
    "autostart": Spec(True, "Configure and activate by itself"),
    "model": _at_configure("", "Model to serve whatever the schedule says; empty: follow the schedule"),
    "batch_size": _live(1, "Largest batch, with `model`", 1, UNLIMITED),
    "max_sessions": _live(0, "Sessions admitted, with `model`; 0: as many as the measured speed allows", 0, 1_000_000),
    "session_rate_hz": _at_configure(0.0, "Requests of one session that `max_sessions: 0` counts on; 0: two a chunk", 0.0, 1e6),
    "image_width_px": _at_configure(640, "Of the images that robots send, for what is measured before serving", 8, 8192),
    "image_height_px": _at_configure(480, "The same", 8, 8192),
    "gpu_type": _at_configure("CPU", "GPU type of this machine, with `model`"),
    "profiles_folder": _at_configure("", "Folder of profiles (CSV) and models.yaml; empty: the shipped one"),
    "models_folder": _at_configure("", "Folder of model bundles; empty: the shipped one"),
    "threads": _at_configure(1, "CPU threads of the engine", 1, 4096),
    "cores": Spec("", "Processor cores that the process keeps to, such as 0-3,8; empty: any"),
    "overflow_url": _at_configure("", "Another server of the model, for what this one cannot answer in time"),
    "overflow_round_trip_s": _at_configure(0.0, "Network's share of its latency", 0.0, 1e6),
    "overflow_batches_in_flight": _at_configure(2, "On their way there or back at once", 1, 8),
    "overflow_token_env": _at_configure("", "Environment variable with the token for it; empty: none"),
    "check_parity": _at_configure(False, "Compare the model with its reference, and do not serve if it differs"),
    "decode_threads": _at_configure(1, "Threads that decode camera images; large ones have as many of their own", 1, 256),
    "dispatch": _live("balanced", f"Whose request runs next: {', '.join(DISPATCH_POLICIES)}, or one that another package adds"),
    "batching": _live("fixed", "How many run together", choices=tuple(BATCHINGS)),
    "refetch_after_s": _live(0.0, "Older observations are asked for again if that costs nothing; 0: never", 0.0, 1e6),
    "max_request_rate_hz": _live(100.0, "Of a session at most, in a schedule twice its rate; 0: no limit", 0.0, 1e6),
    "request_burst": _live(20, "Requests of one session that may come at once", 1, 1_000_000),
    "infer_rate_hz": _live(2.0, "Goals of `infer` of one client; more is refused and counted; 0: no limit", 0.0, 1e6),
    "infer_waiting": _live(4, "Goals of `infer` at once, of all clients; more is refused and counted", 1, 100_000),
    "absent_grace_s": _live(10.0, "The session of a robot that left the graph is closed after this long", 0.0, 1e9),
    "idle_timeout_s": _live(600.0, "A session that asked for nothing is closed after this long; 0: never", 0.0, 1e9),
    "instruction": _live("", "The only instruction that is served, in sessions that open from then on; empty: any"),
    "strict_rate": _live(False, "Refuse robots with another control rate than the demonstrations'; else warn"),
    "hung_after_s": _live(10.0, "The process ends, to be started again, when a batch takes longer; 0: never", 0.0, 1e6),
    "load_timeout_s": _live(1800.0, "The process ends, to be started again, when a model takes longer to load; 0: never", 0.0, 1e6),
    "drain_timeout_s": _live(5.0, "For what runs and waits to be answered before the process or the model goes", 0.0, 1e6),
    "max_engine_errors": _live(10, "Batches without an answer in a row that end the process; 0: never", 0, 1_000_000),
}
SHORTEST_HUNG_S = 0.5
"""Minimum of `hung_after_s`: twice the possible delay of one poll of the engine, and more than any sound batch takes."""
FOLDERS = {"profiles_folder": "config/profiles", "models_folder": "models"}
"""Parameter -> folder of the shipped files."""

ENGINE_MARGIN_S = 1.0
"""Time that an engine may take beyond its own timeout."""


def hung_limit_s(hung_after_s: float, engine: Engine) -> float:
    """Return the time after which a batch counts as hung, s; 0: never. An engine with a timeout of its own gets that time twice:
    after it has given up a robot's request, it may immediately be asked for a blank one."""
    return max(hung_after_s, 2.0 * engine.timeout_s + ENGINE_MARGIN_S) if hung_after_s and engine.timeout_s else hung_after_s


def check_sizes(params: ServerParams, sizes: Set[str], max_batch_size: int) -> None:
    """Check new sizes of the loaded model. sizes: those of `batch_size` and `max_sessions` that would change. max_batch_size:
    the engine's. Raises: `ConfigurationError`."""
    if not params.model:
        raise ConfigurationError("counts only with `model`: the schedule says it", key=min(sizes), fix="call /rfm/replan")
    if "max_sessions" in sizes and not params.max_sessions:
        problem, fix = "0 needs the speed to be measured anew", "give a number, or deactivate the node and clean it up first"
        raise ConfigurationError(problem, key="max_sessions", fix=fix)
    if params.batch_size > max_batch_size:
        problem = f"{params.batch_size} is more than the {max_batch_size} that the engine can run"
        raise ConfigurationError(problem, key="batch_size", fix="give fewer")


def server_params(node: Node, changed: Mapping[str, Any] = NOTHING) -> ServerParams:
    """Return the parameters as declared on the node, or as they would be with `changed`. Raises: `ConfigurationError`."""
    values = Values(node, SPECS, changed=changed)
    read = {bool: values.flag, int: values.integer, float: values.number, str: values.text}
    fields: dict[str, Any] = {name: read[type(spec.default)](name) for name, spec in SPECS.items()}
    for name, shipped in FOLDERS.items():
        fields[name] = Path(fields[name]) if fields[name] else share() / shipped
    if 0.0 < fields["hung_after_s"] < SHORTEST_HUNG_S:
        raise values.wrong("hung_after_s", "would end a healthy process", f"give 0 or at least {SHORTEST_HUNG_S:g}")
    try:
        cores_of(fields["cores"])
    except ValueError as error:
        raise values.wrong("cores", str(error), "give some, such as 0-3,8") from None
    fields["server"] = named("server", fields["server"])
    Dispatcher(dispatch_policy(fields["dispatch"]), fields["batching"])  # checks that there is such a policy
    return ServerParams(**fields)
