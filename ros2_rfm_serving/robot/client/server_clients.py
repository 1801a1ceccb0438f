"""Clients of all components of one robot: routes, sessions, servers in use, and failover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from ros2_rfm_serving.robot.client.component_client import ClientState, ComponentClient, ModelIdentity, Overdue
from ros2_rfm_serving.robot.client.requests import session_request
from ros2_rfm_serving.robot.client.server_liveness import ServerLiveness
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.types import SYSTEM1, Schedule, SessionGrant, SessionRequest
from ros2_rfm_serving.types.desynchronisation import is_paced
from ros2_rfm_serving.types.rate_mismatch import rate_mismatch_fix, rate_mismatch_text
from ros2_rfm_serving.types.state import check_names, kept, restore, state_of

CLOSED = ClientState.CLOSED


class ServerClients:
    """Links of one robot. Failover is a table look-up (ROSA §3.4.4): when a link's server is lost and the other one of its route is
    ready, the link switches to that at once. It switches back when a newer schedule says so, or when that is lost and the first is
    back."""

    KEPT: ClassVar = kept("servers", "failovers", next_check_s="check_deadlines_s", components="_clients")

    def __init__(self, config: RobotConfig) -> None:
        self._config = config
        self._clients: dict[str, ComponentClient] = {}
        self.all: tuple[ComponentClient, ...] = ()
        """Links, System 1 first."""
        self.coupled: tuple[ComponentClient, ...] = ()
        """Links with a route whose calls are coupled to those of System 1."""
        self.system1: ComponentClient | None = None
        self.closed: tuple[ComponentClient, ...] = ()
        """Links without a session that is open or being opened."""
        self.mismatch = ""
        """How a server's model differs from the one that the robot has worked with; empty: none differs."""
        self.check_deadlines_s = -math.inf
        """Time before which `check_deadlines` finds nothing."""
        self.servers = ServerLiveness(config.server_timeout_s)
        self.failovers = 0

    def state(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return state_of(self, self.KEPT)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned. Raises: `RfmError` for names that are missing or unknown."""
        check_names(type(self).__name__, self.KEPT, state)
        self._clients.clear()
        for component in state["components"]:
            self._link(component)
        restore(self, self.KEPT, state)
        self._index()
        self._settle()
        self.check_deadlines_s = state["next_check_s"]

    def reconfigure(self, config: RobotConfig) -> None:
        """Apply another configuration. Open sessions stay, because nothing that they agreed upon may change."""
        self._config = config
        self.servers.reconfigure(config.server_timeout_s)
        for link in self.all:
            link.reconfigure(config.link)
            self._pipeline(link)
        self._settle()

    def get(self, component: str) -> ComponentClient | None:
        return self._clients.get(component)

    def _settle(self) -> None:
        """Update what follows from sessions and deadlines, after any of them may have changed."""
        self.closed = tuple([link for link in self.all if link.state is CLOSED])
        self.mismatch = next((link.mismatch for link in self.all if link.mismatch and link.route), "")
        self.check_deadlines_s = -math.inf

    def expect(self, client: ComponentClient) -> None:
        """Let `check_deadlines` check the link in time, after its deadline has changed."""
        self.check_deadlines_s = client.deadline_s if client.deadline_s < self.check_deadlines_s else self.check_deadlines_s

    # --- routes ---

    def follow(self, schedule: Schedule, now_s: float, *, newer: bool) -> None:
        routes = schedule.routes_of(self._config.name)
        for component in {**routes, **self._clients}:
            link = self._link(component)
            route = routes.get(component)
            stays = route is not None and link.server in (route.server, route.standby) and link.server
            home = route.server if route else ""
            back = not stays or (newer and home in self.servers.ready)
            link.follow(route, home if back else link.server, now_s, paced=not self._config.calls_per_action.get(component))
            if placement := schedule.placement_of(home):
                link.place(placement.model)
            for server in (route.server, route.standby) if route else ():
                if server:
                    self.servers.expect(server)
        self._index()
        for link in self.all:
            link.goal_coupled = link is self.system1 or link in self.coupled
            self._set_desynchronisation(link)
        self._settle()

    def _link(self, component: str) -> ComponentClient:
        """Return the link of a component, which is made if there is none."""
        link = self._clients.setdefault(component, ComponentClient(self._config.name, component, self._config.link))
        self._pipeline(link)
        return link

    def _index(self) -> None:
        """Update the tuples of links, after routes or links have changed."""
        self.all = tuple(sorted(self._clients.values(), key=lambda link: link.component != SYSTEM1))
        self.coupled = tuple(link for link in self.all if link.route and self._config.calls_per_action.get(link.component))
        self.system1 = self._clients.get(SYSTEM1)

    def _set_desynchronisation(self, client: ComponentClient) -> None:
        """Decide whether requests of a component may be sent later.

        Those of an obligation may, because no motion waits for them. Goal-coupled calls follow System 1, which must leave no gap in
        the motion: a robot that executes meanwhile, as often as its cap allows or as its actions end, needs chunks that last.
        Chunks that are appended, or trusted only as far as a server says, leave no reserve.
        """
        config = self._config
        if not client.goal_coupled:
            client.desynchronises, client.horizon_s, client.chunk_duration_s = True, 0.0, math.inf
            return
        horizon_s = config.execution_horizon / config.step_rate_hz
        paced = config.synchronous or is_paced(client.period_s, horizon_s)
        able = paced or (config.replace_queue and not config.horizon.policy)
        client.desynchronises = client is self.system1 and config.pipelining is None and able
        client.horizon_s = 0.0 if paced else horizon_s
        client.chunk_duration_s = math.inf
        if not config.synchronous and client.contract:
            client.chunk_duration_s = min(client.contract.chunk_length / config.step_rate_hz, config.max_action_age_s)

    def _pipeline(self, client: ComponentClient) -> None:
        """Set depth and frame of System 1. A frame lasts as long as the executed part of a chunk. Half a tick is subtracted for
        jitter where ticks are steps; elsewhere only rounding is allowed for."""
        config = self._config
        if config.pipelining is not None and client.component == SYSTEM1:
            jitter_s = (0.5 if config.tick_is_step else 0.05) / config.control_rate_hz
            client.pipeline(config.pipelining.depth, config.execution_horizon / config.step_rate_hz - jitter_s)

    def on_server_status(self, server: str, now_s: float) -> bool:
        """Note that a server is ready. Return whether it was not before."""
        new = self.servers.on_status(server, now_s)
        if new:
            for link in self.all:
                if link.server == server:
                    link.on_server_returned(now_s)
                self._fail_over(link)
            self._settle()
        check_s = self.servers.check_s
        self.check_deadlines_s = check_s if check_s < self.check_deadlines_s else self.check_deadlines_s
        return new

    def on_server_loading(self, server: str, now_s: float) -> bool:
        """Return whether a server that loads a model is waited for; otherwise it is lost."""
        self.check_deadlines_s = -math.inf
        return self.servers.on_loading(server, now_s)

    def on_server_alive(self, server: str, now_s: float) -> None:
        self.check_deadlines_s = -math.inf
        self.servers.on_alive(server, now_s)

    def on_server_lost(self, server: str, problem: str, now_s: float) -> None:
        self.servers.mark_lost(server)
        for link in self.all:
            if link.server == server:
                if link.state is not ClientState.CLOSED:
                    link.on_refused(problem, now_s)
                self._fail_over(link)
        self._settle()

    def _fail_over(self, client: ComponentClient) -> None:
        other = client.other
        if other in self.servers.ready and client.server in self.servers.lost:
            client.switch_to(other, f"{client.server} is lost, turning to {other}")
            self.failovers += 1

    # --- sessions ---

    def opens(self, now_s: float) -> tuple[tuple[str, SessionRequest], ...]:
        """Return (server, request) of each session to request now."""
        opens = []
        for link in self.closed:
            if link.server in self.servers.ready and link.wants_open(now_s):
                link.on_opening(now_s)
                pinned_hash = link.pinned.hash if link.pinned else ""
                opens.append((link.server, session_request(self._config, link.component, pinned_hash, link.slo_s)))
        if opens:
            self._settle()
        return tuple(opens)

    def on_session_opened(self, component: str, server: str, grant: SessionGrant, now_s: float) -> str:
        """Note a granted session. Return the counter to raise; empty: the session is accepted."""
        counter = self._opened(component, server, grant, now_s)
        self._settle()
        return counter

    def _opened(self, component: str, server: str, grant: SessionGrant, now_s: float) -> str:
        link = self._clients.get(component)
        if link is None or link.server != server or link.state is not ClientState.OPENING:
            return "late_session"
        if component == SYSTEM1 and grant.contract.action_names != self._config.action_names:
            link.on_refused(f"{server} serves other actions: {grant.contract.action_names}", now_s)
            return "other_actions"
        if component == SYSTEM1 and (problem := self._rate_mismatch(grant.contract.control_rate_hz)):
            link.on_refused(f"{server} serves {grant.contract.model}: {problem}", now_s)
            return "other_rate"
        if mismatch := link.differs(ModelIdentity(grant.contract.model, grant.contract.model_hash)):
            link.mismatch = mismatch
            link.on_refused(mismatch, now_s)
            return "other_model"
        if link.depth > 1 and not grant.contract.pipelines:
            link.on_refused(f"{server} takes no pipelined sessions", now_s)
            return "not_pipelined"
        link.on_opened(grant)
        self._set_desynchronisation(link)
        return ""

    def _rate_mismatch(self, demonstrated_hz: float) -> str:
        """Return why a model's motions are too fast or too slow for this robot, with the fix; empty: they are accepted."""
        config = self._config
        problem = "" if config.accept_other_rate else rate_mismatch_text(config.step_rate_hz, demonstrated_hz)
        if not problem:
            return ""
        interpolates = CommandType.DELTA not in (config.command_types or (config.command_type,))
        fix = rate_mismatch_fix(config.control_rate_hz, demonstrated_hz, interpolates=interpolates, accept="accept_other_rate")
        return f"{problem}; {fix}"

    def on_session_refused(
        self, component: str, server: str, problem: str, now_s: float, *, contract: bool = False, full: bool = False
    ) -> None:
        """Note a refused session. contract: the server cannot serve this robot; if it could before, its model has changed. full: it
        has no session left, so that the other server of the route is asked."""
        link = self._clients.get(component)
        if link and link.server == server and link.state is ClientState.OPENING:
            if contract and link.pinned:
                link.mismatch = f"{server} does not serve {component} any more as it did: {problem}"
            link.on_refused(f"{server} refuses: {problem}", now_s)
            if full and link.other in self.servers.ready:
                link.try_other_server(now_s)
            self._settle()

    def unpin(self) -> None:
        """Accept the current models in place of the pinned ones, on an operator's command."""
        for link in self.all:
            if link.mismatch:
                link.unpin()
        self._settle()

    # --- time ---

    def check_deadlines(self, now_s: float) -> list[tuple[ComponentClient, Overdue]]:
        """Count silent servers as lost. Return the links with an answer that is late or was given up; both may occur."""
        if now_s < self.check_deadlines_s:
            return []
        if now_s >= self.servers.check_s:
            for server in self.servers.silent(now_s):
                self.on_server_lost(server, f"{server} is silent for {self._config.server_timeout_s:g} s", now_s)
        overdue: list[tuple[ComponentClient, Overdue]] = []
        watch_s = self.servers.check_s
        for link in self.all:
            if now_s >= link.deadline_s:
                while now_s >= link.deadline_s and (found := link.check(now_s)) is not Overdue.NOTHING:
                    overdue.append((link, found))
                self._settle()
            watch_s = link.deadline_s if link.deadline_s < watch_s else watch_s
        self.check_deadlines_s = watch_s
        return overdue

    def next_open_s(self, client: ComponentClient) -> float:
        """Return when a closed link next requests a session."""
        return client.retry_s if client.server in self.servers.ready else math.inf
