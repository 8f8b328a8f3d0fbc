"""The fleet as its beats show it: which workers live, which models they serve, and the models' cards.

Owns the last beat of each worker and the cards by digest. Knows no request. A worker is lost while it is silent, and
while it says that its engine hangs. Fetching a card is somebody else's work:
`missing` names those that are wanted, `put_card` brings them. Invariant: a model is listed only while a worker that
beats is ready to take work for it, and only once its card is here.
"""

from typing import Literal, get_args

import msgspec

from shared import wire
from shared.silence import Silence

WorkerState = Literal["ready", "unready", "draining", "hanging", "silent"]

FORGET_S = 60.0  # a silent worker's last beat is kept this long, for metrics


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for now."""

    name: str
    digest: str  # of its card: Job.card
    pool: str  # where its queues are


class FleetView:
    """Fed with beats; asked by admission, `/v1/models` and readiness."""

    def __init__(self, silence_s: float) -> None:
        self.silence = Silence(silence_s)
        self._beats: dict[str, wire.WorkerBeat] = {}
        self._lost: set[str] = set()
        self._cards: dict[str, wire.ModelCard] = {}

    # -- questions

    def models(self) -> list[ModelInfo]:
        """Models with a ready worker, by name."""
        names = sorted({beat.model for beat in self._ready()})
        return [info for name in names if (info := self.find(name)) is not None]

    def find(self, name: str) -> ModelInfo | None:
        """The model of that name with the most ready workers, should there be two revisions."""
        votes: dict[tuple[str, str], int] = {}
        for beat in self._ready():
            if beat.model == name:
                votes[beat.card, beat.pool] = votes.get((beat.card, beat.pool), 0) + 1
        if not votes:
            return None
        digest, pool = max(votes, key=lambda revision: (votes[revision], revision))
        return ModelInfo(name=name, digest=digest, pool=pool)

    def card(self, name: str) -> wire.ModelCard | None:
        info = self.find(name)
        return None if info is None else self._cards.get(info.digest)

    def workers(self) -> list[wire.WorkerBeat]:
        """The last beat of every worker that is not lost."""
        return [beat for worker, beat in self._beats.items() if worker not in self._lost]

    def last_beats(self) -> list[wire.WorkerBeat]:
        """Of every worker, lost ones included until they are forgotten."""
        return list(self._beats.values())

    def states(self) -> dict[str, int]:
        """How many workers are in which state."""
        counts: dict[str, int] = dict.fromkeys(get_args(WorkerState), 0)
        for beat in self._beats.values():
            counts[self._state(beat)] += 1
        return counts

    def serves(self, digest: str) -> bool:
        """Whether a living worker has this card, and may come to serve it if it does not yet."""
        return any(beat.card == digest and not beat.draining for beat in self.workers())

    def missing(self) -> set[str]:
        """Digests of cards that workers announce and that are not here."""
        return {beat.card for beat in self.workers()} - self._cards.keys()

    # -- events

    def on_beat(self, beat: wire.WorkerBeat, now: float) -> None:
        self.silence.heard(beat.worker, now)
        self._beats[beat.worker] = beat
        if beat.healthy:
            self._lost.discard(beat.worker)

    def put_card(self, digest: str, card: wire.ModelCard) -> None:
        self._cards[digest] = card

    def hanging(self) -> list[str]:
        """Workers whose last beat said that their engine hangs."""
        return [worker for worker, beat in self._beats.items() if not beat.healthy]

    def newly_lost(self, now: float) -> list[str]:
        """Workers that were lost since the last call. They stay so until they beat again and are healthy."""
        candidates = dict.fromkeys([*self.silence.silent(now), *self.hanging()])
        lost = [worker for worker in candidates if worker not in self._lost]
        self._lost.update(lost)
        for worker in list(self._lost):
            if self.silence.silent_s(worker, now) > FORGET_S:
                self._forget(worker)
        return lost

    def _state(self, beat: wire.WorkerBeat) -> WorkerState:
        if beat.worker in self._lost:
            return "silent" if beat.healthy else "hanging"
        if beat.draining:
            return "draining"
        return "ready" if beat.ready else "unready"

    def _ready(self) -> list[wire.WorkerBeat]:
        return [beat for beat in self.workers() if beat.ready and not beat.draining and beat.card in self._cards]

    def _forget(self, worker: str) -> None:
        self.silence.forget(worker)
        self._beats.pop(worker, None)
        self._lost.discard(worker)
        used = {beat.card for beat in self._beats.values()}
        for digest in self._cards.keys() - used:
            del self._cards[digest]
