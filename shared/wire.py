"""Everything that travels over NATS, as msgspec Structs encoded to MessagePack arrays.

Fields are append-only: a new field goes last and has a default, so that an old reader skips it and a new
reader of an old message finds the default. Nothing here knows how a message is delivered.

Token ids travel as little-endian u32 bytes (`pack_ids`): 4 bytes an id, no Python integers in between.
"""

import sys
from array import array
from typing import Final, Literal, TypeVar

import msgspec

CancelReason = Literal["client", "duplicate", "deadline", "slow_reader", "shutdown"]
Finish = Literal["stop", "length"]
Outcome = Literal["finished", "cancelled", "error", "lost"]

ID_BYTES: Final = 4
_SWAP: Final = sys.byteorder == "big"


def pack_ids(ids: "list[int] | tuple[int, ...]") -> bytes:
    """Token ids, each 0 <= id < 2**32, as little-endian u32 bytes. Raises OverflowError outside that range."""
    packed = array("I", ids)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """The inverse of `pack_ids`. Raises ValueError if the length is not a multiple of 4."""
    packed = array("I")
    packed.frombytes(data)
    if _SWAP:
        packed.byteswap()
    return packed.tolist()


def packed_count(data: bytes) -> int:
    """How many ids were packed."""
    return len(data) // ID_BYTES


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Base of every wire Struct."""


class Sampling(Message, frozen=True):
    """How each choice of a request is sampled. The gateway has validated every field and filled every default."""

    max_tokens: int  # per choice, >= 1
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # in [0, 1]; 0 is the most likely token
    seed: int = 0  # 64 bits, drawn by the gateway when the client sent none
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias in [-100, 100])
    logprobs: int | None = None  # how many alternatives per token; 0 = the chosen one only; None = off
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # in [0, 1]
    presence_penalty: float = 0.0  # in [-2, 2], as the next
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # 0 < repetition_penalty <= 2
    min_tokens: int = 0  # per choice, <= max_tokens: no token ends the text before
    stop_token_ids: tuple[int, ...] = ()


class Job(Message, frozen=True):
    """One attempt at one HTTP request. Choice `c` continues prompt `c // n`; there are `len(prompts) * n`."""

    request: str  # UUIDv7, the response's x-request-id
    attempt: int  # 1, 2, ...
    gateway: str  # whose frame subject receives the answer
    tenant: str
    key: str
    model: str  # id of the row in `models`
    card: str  # digest of the model card that the prompts were encoded with
    tier: int  # 0 is the most urgent
    prompts: tuple[bytes, ...]  # packed ids, none empty
    n: int
    sampling: Sampling
    cache_salt: bytes
    wait_ms: int  # the worker may drop the job unstarted when it is this old
    run_ms: int  # the worker may stop it when it has run this long
    traceparent: str = ""  # of the span that this job is a part of: `shared.traceparent`
    tracestate: str = ""

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts, each counted once."""
        return sum(map(packed_count, self.prompts))


class Accepted(Message, frozen=True, tag="accepted"):
    """The worker has claimed (request, attempt) and owns it. Always seq 0."""

    request: str
    attempt: int


class TokenLogprob(Message, frozen=True):
    """Log-probabilities (nats) at one position, of the distribution that the token was drawn from."""

    id: int
    logprob: float
    text: bytes  # the token's own bytes, perhaps half a character
    top: tuple[tuple[int, float, bytes], ...] = ()  # (token id, logprob, bytes), most likely first


class Chunk(Message, frozen=True, tag="chunk"):
    """What one step added to one choice. `text` may be empty while `ids` is not (half a character, a possible
    stop string); text never travels without the ids that it belongs to or follows.
    """

    request: str
    attempt: int
    seq: int  # 1, 2, ... over all choices of the attempt
    choice: int
    ids: bytes
    text: str
    finish: Finish | None = None  # set on the last chunk of the choice
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per id when asked for


class End(Message, frozen=True, tag="end"):
    """The attempt is over; nothing follows. Sent after its usage event is durable (or after 5 s of trying)."""

    request: str
    attempt: int
    seq: int  # one above the last chunk's
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str | None = None  # stable code: does_not_fit, engine_error, card_mismatch, shutdown, device_failed
    message: str | None = None  # one sentence for the client


class RollEntry(Message, frozen=True):
    """What a worker holds for a gateway: the last seq sent and the tokens generated so far."""

    request: str
    attempt: int
    seq: int
    tokens: int


class Roll(Message, frozen=True, tag="roll"):
    """All attempts that the worker holds for one gateway, once a second, on the frame subject itself so that it
    can never overtake the chunks.
    """

    entries: tuple[RollEntry, ...]


class Frame(Message, frozen=True):
    """All items of one step for one gateway, in order."""

    worker: str
    items: tuple[Accepted | Chunk | End | Roll, ...]


class Cancel(Message, frozen=True):
    """Gateway to worker: stop (request, attempt). Idempotent; unknown ids are ignored."""

    request: str
    attempt: int
    reason: CancelReason


class TierWork(Message, frozen=True):
    """The sequences of one tier in a worker."""

    tier: int
    running: int
    waiting: int  # claimed, and without a place


class WorkerLoad(Message, frozen=True):
    """How much a worker can still take, and how fast it is. A speed of 0 has not been measured."""

    places: int  # sequences that can run at once
    tokens_free: int  # of the KV pool, above the watermark
    tokens_held: int
    prompt_tokens_left: int  # of claimed jobs without a first token
    prompt_tokens_per_s: float  # in steps that compute prompts
    step_s: float  # recent time of a step, which gives each running sequence one token
    output_tokens_mean: float  # per finished sequence
    cached_share: float  # share of prompt tokens that the prefix cache had
    floor_share: float  # share of all service that each less urgent tier is owed
    tiers: tuple[TierWork, ...]


class WorkerBeat(Message, frozen=True):
    """Four times a second, from the event loop, on the connection that carries frames."""

    worker: str
    incarnation: str  # new at each process start
    pool: str
    model: str  # served name
    card: str  # digest in the object store
    ready: bool  # loaded, healthy, and claiming
    draining: bool
    running: int
    waiting: int
    blocks_free: int
    blocks_total: int
    step_age_ms: int  # since the engine last finished a step while it had work; 0 when idle
    healthy: bool = True  # False: its engine hangs in a step, and what it holds is lost
    load: WorkerLoad | None = None
    bills: int = 0  # usage events handed over since this process started, and their tokens
    billed_prompt_tokens: int = 0
    billed_completion_tokens: int = 0


class QueuedWork(Message, frozen=True):
    """What a tenant has waiting in one queue, of one gateway."""

    pool: str
    tier: int
    tenant: str
    requests: int
    sequences: int
    tokens: int  # of prompts


class GatewayBeat(Message, frozen=True):
    """Four times a second."""

    gateway: str
    incarnation: str
    connection: int = 0  # grows when the gateway's connection is made anew: what was sent meanwhile did not arrive
    queued: tuple[QueuedWork, ...] = ()  # not accepted yet by a worker; the largest entries if there are very many


class UsageEvent(Message, frozen=True):
    """The bill of one attempt. Key: (request, attempt)."""

    request: str
    attempt: int
    final: bool
    tenant: str
    key: str
    model: str
    tier: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    recomputed_tokens: int
    finish: str  # stop, length, mixed (choices differ), cancelled, error, lost
    ttft_ms: int | None
    total_ms: int
    worker: str
    gateway: str
    preemptions: int = 0  # how often its sequences gave way to others and were computed again


class ModelCard(Message, frozen=True):
    """All that a gateway needs to serve a model without its files."""

    name: str
    pool: str
    context_length: int  # tokens, prompt + output
    vocab_size: int  # rows of the logits
    tokenizer: bytes  # tokenizers JSON
    chat_template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool  # a bare prompt gets bos_id in front
    special_ids: tuple[int, ...]
    request_tokens_max: int  # prompt + output that the worker's KV pool can ever hold, <= context_length


T = TypeVar("T", bound=msgspec.Struct)

_encoder: Final = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode one message. Raises `msgspec.DecodeError` (or its ValidationError) for anything else."""
    return msgspec.msgpack.decode(data, type=kind)
