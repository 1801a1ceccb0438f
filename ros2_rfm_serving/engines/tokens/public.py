"""Public contexts: [X_V, X_L, X_A] of a pipelined session, shared by all of its requests in flight (AURAS §4.2.2).

X_V and X_L belong to the session's newest observation; X_A are the newest tokens, whichever request generated them. A request is no
more than a position: a token that it generates there replaces an earlier one, and all requests see it from the next turn on. So the
decodes of all requests in flight are one computation (§4.2.3): a prefill of X_A, from which each takes the logits at its own
position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ros2_rfm_serving.engines.base import Cache, TokenModel, TokenSampling
from ros2_rfm_serving.engines.flow.frames import SessionKey, session_of
from ros2_rfm_serving.engines.flow.memory import in_batches
from ros2_rfm_serving.engines.tokens.generated_tokens import GeneratedTokens
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest


class BufferedObservation(NamedTuple):
    """Observation in a session's buffer."""

    place: int
    """Index of its keys and values in the cache."""
    request: InferenceRequest
    prefix: Array


@dataclass
class _Public:
    slot: int
    """Slot of the session's tokens, which also determines the two places of its contexts (double-buffered, §4.3.1)."""
    front: BufferedObservation
    """Observation that the session's requests read."""
    back: BufferedObservation
    """Newest observation, which the requests read in this frame or in the next one."""
    held: int = 0
    """Number of tokens that are given: those of the front's prefix."""
    position: dict[int, int] = field(default_factory=dict)
    """Position of the next token, by row in flight."""


class PublicContexts:
    """Public contexts of pipelined sessions.
    One thread makes all calls. A row is identified by the number that its server assigned."""

    def __init__(self, model: TokenModel, sampling: TokenSampling, num_sessions: int) -> None:
        self._model = model
        self._contexts, self._said = model.cache(2 * num_sessions), GeneratedTokens(model, sampling, num_sessions)
        self._free = list(range(num_sessions))
        self._sessions: dict[SessionKey, _Public] = {}
        self._session_of: dict[int, SessionKey] = {}

    def __contains__(self, row: object) -> bool:
        return row in self._session_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._session_of)

    def position(self, row: int) -> int:
        return self._sessions[self._session_of[row]].position[row]

    def enter(self, row: int, request: InferenceRequest, prefix: Array, context: Cache) -> None:
        """Begin a frame with this row: its context becomes public now, or with the next frame (`fetch_offset`)."""
        assert request.pipelining is not None
        key = session_of(request.id)
        public = self._sessions.get(key)
        if public is None:
            slot = self._free.pop()
            newest = BufferedObservation(2 * slot, request, prefix)
            public = self._sessions[key] = _Public(slot, newest, newest)
        else:
            newest = BufferedObservation(4 * public.slot + 1 - public.back.place, request, prefix)
        for own, seen in zip(self._contexts, context, strict=True):
            own[newest.place] = seen[0]
        front = newest if request.pipelining.fetch_offset == 0 else public.back
        public.front, public.back = front, newest
        self._said.begin(public.slot, front.request)
        public.held = self._said.set_prefix(public.slot, front.prefix)
        public.position[row] = 0
        self._session_of[row] = key

    def advance(self, rows: Collection[int]) -> dict[int, EngineReply | ModelError]:
        """Advance rows by one token each, and return the replies of those that are complete.

        There is one prefill for each session, and all of them share a batch. Raises: `OutOfMemoryError` if memory does not suffice
        for half a batch.
        """
        sessions: dict[SessionKey, list[int]] = {}
        for row in rows:
            sessions.setdefault(self._session_of[row], []).append(row)
        in_batches(self._prefill, list(sessions.items()), self._model.max_batch_size)
        done = [row for row in rows if self.position(row) == self._said.length]
        return {row: self._reply(self._sessions[self._session_of[row]]) for row in done}

    def _prefill(self, sessions: Sequence[tuple[SessionKey, Sequence[int]]]) -> list[None]:
        """Generate one token for each of these rows, in one batch."""
        known = [self._sessions[key] for key, _ in sessions]
        going = [(i, known[i].position[row]) for i, (_, rows) in enumerate(sessions) for row in rows]
        slots = [public.slot for public in known]
        before = self._said.before(slots, range(max(position for _, position in going) + 1))
        logits = self._model.generate(before, [0] * len(slots), self._fronts(known))
        if said := [(i, position) for i, position in going if position >= known[i].held]:
            which, positions = zip(*said, strict=True)
            self._said.choose([slots[i] for i in which], positions, logits[list(which), list(positions)])
        for public, (_, rows) in zip(known, sessions, strict=True):
            public.position.update({row: public.position[row] + 1 for row in rows})
        return [None] * len(sessions)

    def leave(self, row: int) -> None:
        """Remove a row. With its last row, a session loses its context."""
        key = self._session_of.pop(row)
        public = self._sessions[key]
        del public.position[row]
        if not public.position:
            del self._sessions[key]
            self._free.append(public.slot)

    def _fronts(self, known: list[_Public]) -> Cache:
        """Return the contexts that these sessions read: a view for one session, a copy for several.
        A copy suffices, as keys and values of the tokens are computed anew in each turn."""
        places = [public.front.place for public in known]
        index = slice(places[0], places[0] + 1) if len(places) == 1 else places
        return tuple(values[index] for values in self._contexts)

    def _reply(self, public: _Public) -> EngineReply | ModelError:
        reply = self._said.reply(public.slot, public.front.prefix)
        return reply if isinstance(reply, ModelError) else replace(reply, ended_with=public.front.request.id.sequence)
