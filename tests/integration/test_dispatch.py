"""A request from `open` to its bill, through a real nats-server and a real engine."""

import asyncio
import threading

import msgspec
import pytest

from gateway.dispatch.dispatcher import Dispatcher
from gateway.errors import BodyTooLarge, DeadlineExceeded, InvalidRequest, RequestFailed, Unavailable
from shared import subjects, wire
from shared.jobs import ensure_stream
from tests import services
from tests.integration.fleet import CONTEXT, PATIENCE_S, fleet, gateway, job, opened, read, ready, tokens, until, usage


async def test_answer_arrives_whole_and_is_billed(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        wanted = job(dispatcher, max_tokens=20, n=2)
        async with opened(dispatcher, wanted) as stream:
            chunks = await read(stream)
            assert stream.worker == worker.link.worker
        assert [chunk.seq for chunk in chunks] == list(range(1, 41))
        for choice in (0, 1):
            mine = [chunk for chunk in chunks if chunk.choice == choice]
            assert len(tokens(mine)) == 20
            assert [chunk.finish for chunk in mine] == [None] * 19 + ["length"]
        assert stream.end is not None
        assert (stream.end.outcome, stream.prompt_tokens, stream.completion_tokens) == ("finished", 5, 40)
        [event] = await usage(nats_server.url, expected=1)
        assert (event.request, event.attempt, event.final) == (wanted.request, 1, True)
        assert (event.finish, event.prompt_tokens, event.completion_tokens) == ("length", 5, 40)
        assert (event.tenant, event.key, event.model) == (wanted.tenant, wanted.key, wanted.model)
        assert dispatcher.open_attempts == 0
        await until(lambda: len(worker.link.custody.attempts) == 0)


async def test_the_bill_is_durable_before_the_end_is_seen(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await ready(dispatcher)
        jetstream = dispatcher.bus.jetstream()
        await jetstream.delete_stream(subjects.USAGE_STREAM)
        async with opened(dispatcher, job(dispatcher)) as stream:
            reading = asyncio.create_task(read(stream))
            await until(lambda: stream.completion_tokens == 10)
            await asyncio.sleep(0.3)
            assert stream.end is None
            await ensure_stream(dispatcher.bus, subjects.usage_stream())
            await reading
            assert (await jetstream.stream_info(subjects.USAGE_STREAM)).state.messages == 1


async def test_an_end_does_not_wait_for_ever_for_its_bill(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url, bill_timeout_s=0.3) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        await dispatcher.bus.jetstream().delete_stream(subjects.USAGE_STREAM)
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)
        assert worker.link.usage.pending == 1
        await ensure_stream(dispatcher.bus, subjects.usage_stream())
        assert len(await usage(nats_server.url, expected=1)) == 1


async def test_many_requests_share_steps_and_leave_nothing_behind(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url, step_slow_s=PATIENCE_S) as workers, gateway(nats_server.url) as dispatcher:
        go = threading.Event()
        worker = workers.start(sleep=lambda _: go.wait(PATIENCE_S))
        await ready(dispatcher)
        widths: list[int] = []
        worker.link.custody.on_step = lambda _: widths.append(worker.link.custody.stats.running)

        async def ask(number: int) -> int:
            wanted = job(dispatcher, tenant=f"t{number % 2}", tier=2 * (number % 2), max_tokens=10 + number)
            async with opened(dispatcher, wanted) as stream:
                return len(tokens(await read(stream)))

        asking = [asyncio.create_task(ask(number)) for number in range(40)]
        await until(lambda: len(worker.link.custody.attempts) == 40)  # during the first step
        go.set()
        lengths = await asyncio.gather(*asking)
        assert lengths == [10 + number for number in range(40)]
        assert max(widths) == 40
        await until(lambda: worker.link.custody.stats.blocks_free == worker.link.custody.stats.blocks_total)
        events = await usage(nats_server.url, expected=40)
        assert sum(event.completion_tokens for event in events) == sum(lengths)


async def test_the_same_seed_gives_the_same_tokens_in_any_company(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await ready(dispatcher)

        async def ask(seed: int) -> list[int]:
            async with opened(dispatcher, job(dispatcher, seed=seed, max_tokens=15)) as stream:
                return tokens(await read(stream))

        alone = await ask(7)
        crowd = await asyncio.gather(*(ask(7 if number == 3 else number + 100) for number in range(8)))
        assert crowd[3] == alone
        assert crowd[2] != alone


async def test_logprobs_travel_with_their_tokens(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, logprobs=2, max_tokens=3)) as stream:
            chunks = await read(stream)
        for chunk in chunks:
            assert chunk.logprobs is not None
            assert [entry.id for entry in chunk.logprobs] == wire.unpack_ids(chunk.ids)
            assert all(len(entry.top) == 2 for entry in chunk.logprobs)


async def test_a_prompt_that_can_never_fit_is_refused_on_entering(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(blocks=9)  # eight usable ones: 128 tokens
        await ready(dispatcher)
        with pytest.raises(InvalidRequest, match="128"):
            async with opened(dispatcher, job(dispatcher, prompt=200)):
                pytest.fail("entered")
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.prompt_tokens, event.completion_tokens, event.final) == ("error", 0, 0, True)


async def test_an_id_outside_the_vocabulary_ends_its_own_request_only(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=60)) as bystander:
            bad = msgspec.structs.replace(job(dispatcher), prompts=(wire.pack_ids([1, 999]),))
            with pytest.raises(InvalidRequest):
                async with opened(dispatcher, bad) as stream:
                    await read(stream)
            assert len(tokens(await read(bystander))) == 60


async def test_a_job_that_nobody_takes_ends_at_its_deadline(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(sequences_max=1)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as running:
            await running.next()
            with pytest.raises(DeadlineExceeded):
                async with opened(dispatcher, job(dispatcher, prompt=3), wait_s=0.5):
                    pytest.fail("entered")
        cancelled, shed = sorted(await usage(nats_server.url, expected=2), key=lambda event: -event.completion_tokens)
        assert cancelled.finish == shed.finish == "cancelled"
        assert (shed.prompt_tokens, shed.completion_tokens, shed.worker) == (0, 0, "")
        assert dispatcher.open_attempts == 0


async def test_a_request_that_runs_too_long_is_stopped_and_billed(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        got = 0
        with pytest.raises(DeadlineExceeded):
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT), run_s=0.3) as stream:
                while chunks := await stream.next():
                    got += len(tokens(chunks))
        [event] = await usage(nats_server.url, expected=1)
        assert got <= event.completion_tokens < CONTEXT - 10
        assert stream.completion_tokens == event.completion_tokens
        await until(lambda: worker.link.custody.stats.running == 0)


async def test_without_a_worker_a_request_is_refused_soon(nats_server: services.NatsServer) -> None:
    async with gateway(nats_server.url, no_worker_s=0.3) as dispatcher:
        with pytest.raises(Unavailable, match="worker"):
            async with opened(dispatcher, job(dispatcher)):
                pytest.fail("entered")
        [event] = await usage(nats_server.url, expected=1)
        assert (event.final, event.completion_tokens) == (True, 0)


async def test_a_job_larger_than_nats_allows_is_refused_before_anything_is_written(
    nats_server: services.NatsServer,
) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await ready(dispatcher)
        huge = msgspec.structs.replace(job(dispatcher), prompts=(b"\1\0\0\0" * 2_100_000,))
        with pytest.raises(BodyTooLarge):
            async with opened(dispatcher, huge):
                pytest.fail("entered")
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)
        assert dispatcher.bus.reconnects == 0


async def test_a_failing_step_ends_its_requests_with_an_error(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await ready(dispatcher)
        banned = tuple((token, -100.0) for token in range(1, 64))
        with pytest.raises(RequestFailed):
            async with opened(dispatcher, job(dispatcher, logit_bias=banned)) as stream:
                await read(stream)
        [event] = await usage(nats_server.url, expected=1)
        assert event.finish == "error"


async def test_two_gateways_each_get_their_own_answers(nats_server: services.NatsServer) -> None:
    async with (
        fleet(nats_server.url) as workers,
        gateway(nats_server.url) as one,
        gateway(nats_server.url) as two,
    ):
        worker = workers.start()
        await ready(one)
        await ready(two)

        async def ask(dispatcher, number: int) -> int:
            async with opened(dispatcher, job(dispatcher, max_tokens=10 + number)) as stream:
                return len(tokens(await read(stream)))

        asked = [(dispatcher, number) for number in range(10) for dispatcher in (one, two)]
        assert await asyncio.gather(*(ask(*each) for each in asked)) == [10 + number for _, number in asked]
        assert len(await usage(nats_server.url, expected=20)) == 20
        assert worker.link.outbox.dropped_total == 0


async def test_work_that_could_not_be_billed_is_not_begun(nats_server: services.NatsServer) -> None:
    async with (
        fleet(nats_server.url, bill_timeout_s=0.2) as workers,
        gateway(nats_server.url, backlog_check_s=0.05) as dispatcher,
    ):
        workers.start()
        await ready(dispatcher)
        jetstream = dispatcher.bus.jetstream()
        await jetstream.delete_stream(subjects.USAGE_STREAM)
        small = subjects.usage_stream()
        small.max_bytes = 2_000
        await jetstream.add_stream(small)
        with pytest.raises(Unavailable, match="Usage"):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    async with opened(dispatcher, job(dispatcher)) as stream:
                        await read(stream)
                    await asyncio.sleep(0.1)
        await jetstream.purge_stream(subjects.USAGE_STREAM)
        await until(lambda: not dispatcher._backlog.full)
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)


async def test_a_card_that_cannot_be_registered_yet_is_tried_again(nats_server: services.NatsServer) -> None:
    told: list[str] = []

    async def on_card(digest: str, card: wire.ModelCard) -> None:
        told.append(card.name)
        if len(told) == 1:
            raise ConnectionError("Postgres is away")

    async with fleet(nats_server.url) as workers, Dispatcher(nats_server.url, on_card=on_card) as dispatcher:
        workers.start()
        await ready(dispatcher)
        assert told == ["toy", "toy"]
