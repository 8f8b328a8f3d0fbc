"""The worker's heartbeats, and its watch on those of the gateways.

Owns when the worker beats and which gateways are silent. Runs on the event loop and the connection that carry frames,
so a beat that arrives proves that frames can arrive.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from shared import subjects, wire
from shared.bus import Bus, BusUnavailable
from shared.clock import Clock
from shared.silence import Silence
from worker.link.limits import LinkLimits

FORGET_AFTER = 4  # as a multiple of the silence after which a gateway's requests are aborted


class Beats:
    """`state()` makes the next beat; `heard(gateway, connection)` is called at each beat of a gateway."""

    def __init__(
        self,
        bus: Bus,
        worker: str,
        *,
        state: Callable[[], wire.WorkerBeat],
        heard: Callable[[str, int], None],
        limits: LinkLimits,
        clock: Clock,
    ) -> None:
        self._bus = bus
        self._worker = worker
        self._state = state
        self._heard = heard
        self._limits = limits
        self._clock = clock
        self._silence = Silence(limits.gateway_silence_s)

    async def start(self) -> None:
        await self._bus.subscribe(subjects.GATEWAY_BEATS, self._on_gateway_beat)
        await self._bus.subscribe(subjects.worker_beat_subject(self._worker), self._on_own_beat)

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await self.beat()
            await asyncio.sleep(self._limits.beat_s)

    async def beat(self) -> None:
        if self._bus.ready:  # not into the buffer of a lost connection, which would deliver outdated beats later
            with contextlib.suppress(BusUnavailable):
                await self._bus.publish(subjects.worker_beat_subject(self._worker), wire.encode(self._state()))

    async def reconnected(self) -> None:
        """An ensure hook for the bus: beats were missed, so no gateway counts as silent for it."""
        self._silence.reset()

    def alive(self, gateway: str) -> bool:
        """False only for a gateway whose beats should have been heard. One that was never heard is watched from now
        on.
        """
        now = self._clock.monotonic()
        self._silence.watch(gateway, now)
        return not self._silence.is_silent(gateway, now)

    def gateways(self) -> list[str]:
        """All gateways that are not silent."""
        silent = set(self._silence.silent(self._clock.monotonic()))
        return [gateway for gateway in self._silence.peers() if gateway not in silent]

    def forgotten(self) -> list[str]:
        """Gateways silent for so long that they will not come back. Each is returned once."""
        now = self._clock.monotonic()
        gone = [
            gateway
            for gateway in self._silence.silent(now)
            if self._silence.silent_s(gateway, now) > FORGET_AFTER * self._limits.gateway_silence_s
        ]
        for gateway in gone:
            self._silence.forget(gateway)
        return gone

    def _on_gateway_beat(self, _: str, data: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            beat = wire.decode(data, wire.GatewayBeat)
            self._silence.heard(beat.gateway, self._clock.monotonic())
            self._heard(beat.gateway, beat.connection)

    def _on_own_beat(self, _: str, __: bytes) -> None:
        self._silence.own_beat(self._clock.monotonic())
