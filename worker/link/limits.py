"""The tunable numbers of the link, in one place. Seconds unless the name says otherwise."""

import msgspec


class LinkLimits(msgspec.Struct, frozen=True, kw_only=True):
    beat_s: float = 0.25
    roll_s: float = 1.0
    poll_s: float = 0.1  # how often the queues are looked at without a wake
    ensure_s: float = 10.0  # how often streams and cards in NATS are checked, besides after every connect
    gateway_silence_s: float = 5.0  # the requests of a gateway without a beat for so long are aborted and billed
    hesitate_s: float = 0.05  # how long a job that does not fit is left to other workers, and then between two tries
    bill_timeout_s: float = 5.0  # the end of an attempt waits this long for its usage event to be durable
    run_slack_s: float = 10.0  # beyond Job.run_ms; the gateway enforces the deadline, this is a safety net
    usage_drain_s: float = 10.0  # how long leaving waits for bills
    frame_bytes_max: int = 512 * 1024
    outbox_items_max: int = 100_000  # not yet handed to NATS; beyond it items are dropped and their attempts lost
    step_s_max: float = 60.0  # a step that takes longer counts as hung: the worker is unhealthy
    step_slow_s: float = 1.0  # a worker in a step that takes longer leaves new jobs to others until it ends
    reports_max: int = 64  # steps that the engine may be ahead of the event loop
    look_skips_max: int = 64  # jobs for another model card that one look passes over
