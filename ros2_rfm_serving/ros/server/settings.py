"""The parameters of a model server, and what follows from them."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rclpy.node import Node

from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros.own_name import name_parameter
from ros2_rfm_serving.ros.runtime import parameter, share
from ros2_rfm_serving.server import ServerConfig, SessionRules
from ros2_rfm_serving.types import Placement

UNLIMITED = 65_535
"""Rows of a batch, where the engine alone says how many."""


@dataclass(frozen=True, kw_only=True)
class ServerParams:
    """As declared on the node; 0 stands for "none" where a number limits something."""

    server: str
    model: str
    batch_size: int
    max_sessions: int
    session_rate_hz: float
    gpu_type: str
    profiles_folder: Path
    models_folder: Path
    threads: int
    autostart: bool
    dispatch: str
    batching: str
    refetch_after_s: float
    overflow_url: str
    overflow_round_trip_s: float
    overflow_token_env: str
    max_request_rate_hz: float
    request_burst: int
    absent_grace_s: float
    idle_timeout_s: float
    instruction: str
    strict_rate: bool
    check_parity: bool
    decode_threads: int
    hung_after_s: float
    drain_timeout_s: float

    def placed(self, placement: Placement | None) -> Placement | None:
        """What to serve: the parameter `model`, or else what the schedule places here; None: nothing.

        An engine that batches continuously takes whatever waits; in the schedule its batch size is 1.
        """
        if not self.model:
            continuous = placement is not None and placement.batching == "continuous"
            return replace(placement, batch_size=UNLIMITED) if placement and continuous else placement
        return Placement(
            server=self.server,
            model=self.model,
            components=(),
            gpu_type=self.gpu_type,
            batching="fixed",
            batch_size=self.batch_size,
            max_sessions=self.max_sessions,
            predicted_p99_s=0.0,
        )

    def engine_spec(self, placement: Placement) -> EngineSpec:
        """Raises: `ModelError`, `ConfigurationError`, `ProfileError`."""
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
        """Of the same model elsewhere (Kairos §3.2.3); None: nothing overflows."""
        if not self.overflow_url:
            return None
        entry = CatalogueEntry(engine="remote", options={"url": self.overflow_url, "token_env": self.overflow_token_env})
        return replace(self.engine_spec(placement), entry=entry)

    def server_config(self, placement: Placement, max_sessions: int) -> ServerConfig:
        return ServerConfig(
            name=self.server,
            batch_size=placement.batch_size,
            max_sessions=max_sessions,
            dispatch=self.dispatch,
            batching=self.batching,
            refetch_after_s=self.refetch_after_s or math.inf,
            first_epoch=1 + secrets.randbelow(1 << 30),
            sessions=SessionRules(
                max_request_rate_hz=self.max_request_rate_hz or math.inf,
                burst=self.request_burst,
                absent_grace_s=self.absent_grace_s,
                idle_timeout_s=self.idle_timeout_s or math.inf,
                instruction=self.instruction,
                strict_rate=self.strict_rate,
            ),
        )


def declare(node: Node) -> ServerParams:
    """Raises: `ConfigurationError`, `BadMessageError` for a name that is none."""

    def value(name: str, default: Any, description: str) -> Any:
        return parameter(node, name, default, description)

    def folder(name: str, holds: str, shipped: str) -> Path:
        given = value(f"{name}_folder", "", f"Folder of {holds}; empty: the shipped one")
        return Path(given) if given else share() / shipped

    return ServerParams(
        server=name_parameter(node, "server"),
        model=value("model", "", "Model to serve whatever the schedule says; empty: follow the schedule"),
        batch_size=value("batch_size", 1, "Largest batch, with `model`"),
        max_sessions=value("max_sessions", 0, "Sessions admitted, with `model`; 0: as many as the measured speed allows"),
        session_rate_hz=value("session_rate_hz", 0.0, "Requests of one session that `max_sessions: 0` counts on; 0: two a chunk"),
        gpu_type=value("gpu_type", "CPU", "GPU type of this machine, with `model`"),
        profiles_folder=folder("profiles", "profiles (CSV) and models.yaml", "config/profiles"),
        models_folder=folder("models", "model bundles", "models"),
        threads=value("threads", 1, "CPU threads of the engine"),
        autostart=value("autostart", True, "Configure and activate by itself"),
        dispatch=value("dispatch", "best", "Whose request runs next: fifo, least_attained, wait_ratio, deadline, best"),
        batching=value("batching", "fixed", "How many run together: fixed, saturation, wait"),
        refetch_after_s=value("refetch_after_s", 0.0, "Older observations are asked for again if that costs nothing; 0: never"),
        overflow_url=value("overflow_url", "", "Another server of the model, for what this one cannot answer in time"),
        overflow_round_trip_s=value("overflow_round_trip_s", 0.0, "Network's share of its latency"),
        overflow_token_env=value("overflow_token_env", "", "Environment variable with the token for it; empty: none"),
        max_request_rate_hz=value("max_request_rate_hz", 100.0, "Of one session; more is refused and counted; 0: no limit"),
        request_burst=value("request_burst", 20, "Requests of one session that may come at once"),
        absent_grace_s=value("absent_grace_s", 10.0, "The session of a robot that left the graph is closed after this long"),
        idle_timeout_s=value("idle_timeout_s", 600.0, "A session that asked for nothing is closed after this long; 0: never"),
        instruction=value("instruction", "", "The only instruction that is served; empty: any"),
        strict_rate=value("strict_rate", False, "Refuse robots with another control rate than the demonstrations'; else warn"),
        check_parity=value("check_parity", False, "Compare the model with its reference, and do not serve if it differs"),
        decode_threads=value("decode_threads", 1, "Threads that decode camera images"),
        hung_after_s=value("hung_after_s", 10.0, "The process ends, to be started again, when a batch takes longer; 0: never"),
        drain_timeout_s=value("drain_timeout_s", 5.0, "For what runs and waits to be finished on SIGINT or SIGTERM"),
    )
