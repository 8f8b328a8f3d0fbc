"""The fleet as its heartbeats show it: which workers live, which models they serve, and the models' cards.

Owns the last beat of each worker, what has started and ended there since, and the cards by digest. Knows no request. A
worker counts as lost while it is silent, and while it says that its engine hangs. Does not fetch cards: `missing` names
those that are needed, `put_card` adds them. Invariant: a model is listed only while a living worker is ready to take
work for it, and only once its card is here.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from gateway.dispatch.forecast import Member
from gateway.dispatch.queues import NOTHING, Work, work_of
from shared import wire
from shared.silence import Silence

WorkerState = Literal["ready", "unready", "draining", "hanging", "silent"]

FORGET_S = 60.0  # a silent worker's last beat is kept this long, for metrics


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be requested now."""

    name: str
    digest: str  # of its card: Job.card
    pool: str  # where its queues are


@dataclass(slots=True)
class _SinceBeat:
    """What has started at a worker since its last beat, less what has ended, as far as this gateway knows."""

    work: Work = NOTHING
    ended: float = 0  # sequences that the beat counts
    _new: set[str] = field(default_factory=set[str])

    def accept(self, job: wire.Job) -> None:
        self.work += work_of(job)
        self._new.add(job.request)

    def end(self, job: wire.Job) -> None:
        work = work_of(job)
        if job.request not in self._new:
            work = Work(work.requests, work.sequences)  # the beat includes it, and its prompt was computed long ago
            self.ended += work.sequences
        self._new.discard(job.request)
        self.work -= work


class FleetView:
    """Updated by beats; read by admission, `/v1/models` and readiness."""

    def __init__(self, silence_s: float) -> None:
        self.silence = Silence(silence_s)
        self._beats: dict[str, wire.WorkerBeat] = {}
        self._lost: set[str] = set()
        self._cards: dict[str, wire.ModelCard] = {}
        self._since: dict[str, _SinceBeat] = {}
        self._ready_beats: list[wire.WorkerBeat] | None = None  # of workers that take work; None: to be recomputed
        self._models: dict[str, ModelInfo] | None = None  # that they serve, by name; None likewise

    # -- questions

    def models(self) -> list[ModelInfo]:
        """Models with a ready worker, by name."""
        return [model for _, model in sorted(self._served().items())]

    def find(self, name: str) -> ModelInfo | None:
        """The model of that name; of several revisions, the one with the most ready workers."""
        return self._served().get(name)

    def card(self, name: str) -> wire.ModelCard | None:
        info = self.find(name)
        return None if info is None else self._cards.get(info.digest)

    def workers(self) -> list[wire.WorkerBeat]:
        """The last beat of every worker that is not lost."""
        return [beat for worker, beat in self._beats.items() if worker not in self._lost]

    def members(self, digest: str, pool: str) -> list[Member]:
        """The workers that take jobs of this card from this pool's queues. Empty if one of them does not report its
        load: then no forecast for the pool is possible.
        """
        beats = [beat for beat in self._ready() if beat.card == digest and beat.pool == pool]
        found: list[Member] = []
        for beat in beats:
            if beat.load is None:
                return []
            since = self._since[beat.worker]
            found.append(Member(beat.load, since.work, since.ended))
        return found

    def last_beats(self) -> list[wire.WorkerBeat]:
        """Of every worker, lost ones included until they are forgotten."""
        return list(self._beats.values())

    def states(self) -> dict[str, int]:
        """How many workers are in which state."""
        counts: dict[str, int] = dict.fromkeys(get_args(WorkerState), 0)
        for _, state in self.known():
            counts[state] += 1
        return counts

    def known(self) -> list[tuple[wire.WorkerBeat, WorkerState]]:
        """The last beat of every worker that is remembered, and its state, by name."""
        return [(beat, self._state(beat)) for _, beat in sorted(self._beats.items())]

    def serves(self, digest: str) -> bool:
        """Whether a live worker has this card, ready or not."""
        return any(beat.card == digest and not beat.draining for beat in self.workers())

    def missing(self) -> set[str]:
        """Digests of cards that workers announce and that are not here."""
        return {beat.card for beat in self.workers()} - self._cards.keys()

    # -- events

    def on_beat(self, beat: wire.WorkerBeat, now: float) -> None:
        self.silence.heard(beat.worker, now)
        self._beats[beat.worker] = beat
        self._since[beat.worker] = _SinceBeat()
        if beat.healthy:
            self._lost.discard(beat.worker)
        self._changed()

    def accepted(self, worker: str, job: wire.Job) -> None:
        """The worker has accepted this job. Its next beat will include it."""
        if since := self._since.get(worker):
            since.accept(job)

    def ended(self, worker: str, job: wire.Job) -> None:
        """The job has ended at the worker."""
        if since := self._since.get(worker):
            since.end(job)

    def put_card(self, digest: str, card: wire.ModelCard) -> None:
        self._cards[digest] = card
        self._changed()

    def hanging(self) -> list[str]:
        """Workers whose last beat said that their engine hangs."""
        return [worker for worker, beat in self._beats.items() if not beat.healthy]

    def newly_lost(self, now: float) -> list[str]:
        """Workers lost since the last call. They stay lost until they beat again and are healthy."""
        candidates = dict.fromkeys([*self.silence.silent(now), *self.hanging()])
        lost = [worker for worker in candidates if worker not in self._lost]
        self._lost.update(lost)
        for worker in list(self._lost):
            if self.silence.silent_s(worker, now) > FORGET_S:
                self._forget(worker)
        self._changed()
        return lost

    def _state(self, beat: wire.WorkerBeat) -> WorkerState:
        if beat.worker in self._lost:
            return "silent" if beat.healthy else "hanging"
        if beat.draining:
            return "draining"
        return "ready" if beat.ready else "unready"

    def _ready(self) -> list[wire.WorkerBeat]:
        if self._ready_beats is None:
            self._ready_beats = [
                beat for beat in self.workers() if beat.ready and not beat.draining and beat.card in self._cards
            ]
        return self._ready_beats

    def _served(self) -> dict[str, ModelInfo]:
        if self._models is None:
            votes = Counter((beat.model, beat.card, beat.pool) for beat in self._ready())
            fewest_first = sorted(votes, key=lambda revision: (votes[revision], revision))
            self._models = {name: ModelInfo(name=name, digest=card, pool=pool) for name, card, pool in fewest_first}
        return self._models

    def _changed(self) -> None:
        """Drop what was derived from beats. Requests read it far more often than beats arrive."""
        self._ready_beats = None
        self._models = None

    def _forget(self, worker: str) -> None:
        self.silence.forget(worker)
        self._beats.pop(worker, None)
        self._lost.discard(worker)
        self._since.pop(worker, None)
        used = {beat.card for beat in self._beats.values()}
        for digest in self._cards.keys() - used:
            del self._cards[digest]
