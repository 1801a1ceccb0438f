"""`rfm simulate`: a factory in virtual time, under the schedule that a policy gives it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.cli.simulate_guests import USUAL, live, number, turnover_of, visit
from ros2_rfm_serving.cli.simulate_plan import Asked, Times, run
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import (
    Arrivals,
    Budget,
    CatalogueFile,
    FactoryFile,
    JsonFlag,
    Policy,
    Profiles,
    RateControl,
    Robots,
    Servers,
    load_inputs,
)

if TYPE_CHECKING:
    from ros2_rfm_serving.simulation import Crash, NetworkConditions, SimulationConditions

Seconds = Annotated[float, typer.Option(min=0.1, help="Virtual time to measure, after the warm-up")]
CrashSpecs = Annotated[
    list[str] | None,
    typer.Option("--crash", metavar="SERVER@SECONDS", help="A server dies then, and loads its model again; repeatable"),
]
NetworkSpec = Annotated[
    str | None,
    typer.Option(metavar="latency=MS,jitter=MS,loss=SHARE", help="Each way; or trace=FILE.csv with columns time_s,delay_ms"),
]
Hours = Annotated[
    float | None,
    typer.Option(min=0.1, max=1e4, help="So many hours of the scheduler alone, with guests, instead of seconds"),
]
GuestSpec = Annotated[
    str | None,
    typer.Option(
        metavar="per_hour=N,stay_min=MINUTES,silent=SHARE",
        help="Robots that come and go, and the scheduler; `silent`: say no goodbye",
    ),
]
ONE_PLAN = {"rate_control": "--rate-control", "arrivals": "--arrivals"}
AT_WORK = {"crash": "--crash", "network": "--network", "seconds": "--seconds", "warm_up": "--warm-up"}
UNUSED = {
    "hours": ({**AT_WORK, **ONE_PLAN}, "is of robots and servers at work, and --hours is the scheduler alone"),
    "guests": (ONE_PLAN, "is of one plan, and with --guests the scheduler makes many"),
}
"""Option -> (parameters without effect beside it, reason)."""


def simulate(
    context: typer.Context,
    file: FactoryFile,
    policy: Policy = "best",
    robots: Robots = None,
    servers: Servers = None,
    seconds: Seconds = 60.0,
    warm_up: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Before measuring")] = 5.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures")] = 0,
    rate_control: RateControl = None,
    arrivals: Arrivals = None,
    crash: CrashSpecs = None,
    network: NetworkSpec = None,
    hours: Hours = None,
    guests: GuestSpec = None,
    budget: Budget = None,
    json: JsonFlag = False,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
) -> None:
    """Runs a factory in virtual time: the robots and servers of the floor, emulated models, no images.

    The exit status is 1 when the policy places nothing.

    Examples:  rfm simulate config/rosa/p4.yaml --robots 64 --policy rosa --seconds 120 --seed 1

               rfm simulate my_factory.yaml --crash server_1@10 --network latency=5,jitter=2,loss=0.01

               rfm simulate config/rosa/p4.yaml --robots 24 --seconds 120 --guests per_hour=240,stay_min=1,silent=0.2

               rfm simulate config/rosa/p4.yaml --robots 40 --hours 24 --guests per_hour=12,stay_min=45,silent=0.1
    """
    check_used(context)
    inputs = load_inputs(file, profiles, catalogue, robots=robots, servers=servers)
    asked = Asked(inputs=inputs, seed=seed, policy=policy, work=budget, json=json)
    if hours is not None:
        live(asked, hours, turnover_of(guests or USUAL))
        return
    times, conditions = Times(seconds=seconds, warm_up_s=warm_up), conditions_of(crash or [], network)
    if guests is not None:
        visit(asked, times, conditions, turnover_of(guests))
    else:
        run(asked, times, conditions, rate_control, arrivals)


# --- what is asked ---------------------------------------------------------------------------------------------------------


def check_used(context: typer.Context) -> None:
    """Raise `ConfigurationError` for an option that has no effect beside another one."""
    for option, (parameters, problem) in UNUSED.items():
        if context.params[option] is None:
            continue
        for parameter, written in parameters.items():
            source = context.get_parameter_source(parameter)
            if source is not None and source.name == "COMMANDLINE":
                raise ConfigurationError(problem, key=written, fix=f"leave it out, or --{option}")


def conditions_of(crashes: list[str], network: str | None) -> SimulationConditions:
    """Parse the conditions. Raises: `ConfigurationError` naming the option and its format."""
    from ros2_rfm_serving.simulation import SimulationConditions

    return SimulationConditions(crashes=tuple(_crash(text) for text in crashes), network=_network(network) if network else None)


def _crash(text: str) -> Crash:
    from ros2_rfm_serving.simulation import Crash

    server, _, at = text.partition("@")
    at_s = number(at)
    if not server or not 0 <= at_s < math.inf:
        raise ConfigurationError(f"cannot be read: {text!r}", key="--crash", fix="write server_1@10")
    return Crash(server=server, at_s=at_s)


def _network(text: str) -> NetworkConditions:
    from ros2_rfm_serving.simulation import NetworkConditions, load_trace

    fix = "write latency=5,jitter=2,loss=0.01 (ms, ms, share), or trace=FILE.csv"
    values: dict[str, float] = {}
    trace: tuple[tuple[float, float], ...] = ()
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "trace" and value:
            trace = load_trace(Path(value))
        elif name in ("latency", "jitter", "loss") and name not in values and math.isfinite(number(value)):
            values[name] = number(value)
        else:
            raise ConfigurationError(f"cannot be read: {part!r}", key="--network", fix=fix)
    return NetworkConditions(
        latency_s=values.get("latency", 0.0) / 1e3,
        jitter_s=values.get("jitter", 0.0) / 1e3,
        loss=values.get("loss", 0.0),
        trace=trace,
    )
