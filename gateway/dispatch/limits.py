"""The tunable numbers of dispatch, in one place. Seconds unless the name says otherwise."""

import msgspec


class DispatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    beat_s: float = 0.25
    worker_silence_s: float = 1.5  # a worker without a beat for so long, while our own come back, is lost
    nats_wait_s: float = 2.0  # a new request waits this long for NATS, then 503
    nats_outage_s: float = 10.0  # a running stream waits this long for NATS, then an error event
    repeat_s: float = 2.0  # after a reconnect workers have this long to repeat what did not arrive
    unseen_s: float = 2.0  # a job that has left its queue is lost if no worker accepts it in this time
    shed_early_s: float = 0.05  # how long before its deadline a job is taken back from its queue, to be refused in time
    no_worker_s: float = 5.0  # a queued job waits this long for any worker of its model, then 503
    cancel_repeat_s: float = 1.0  # cancels are at-most-once: repeated until the attempt has ended
    leave_wait_s: float = 1.0  # how long leaving a stream early waits for the worker's counts
    backlog_check_s: float = 5.0
    usage_drain_s: float = 5.0  # how long closing waits for acknowledgements of bills
    reader_bytes_max: int = 1024 * 1024  # buffered for one slow reader, after its chunks were merged
    attempts_max: int = 20_000  # open requests in one gateway
