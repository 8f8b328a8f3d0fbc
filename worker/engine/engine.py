"""The engine: requests go in, chunks and totals come out, step by step. One thread, no I/O, no clock.

Owns the live requests and their counts. The scheduler decides what runs, the runner computes and samples, the
detokenizer makes text; here a sampled token becomes a chunk, and a finished, failed or aborted request leaves.
Invariant: every request that `add` accepted leaves exactly once, through `_leave`, and holds nothing afterwards.

A step is launched (planned, packed, submitted to the runner) and landed (its tokens are read and processed). A runner
that computes while the host prepares is kept one step ahead: step N + 1 is launched before step N has landed, with the
tokens of N as inputs that only the device knows. Nothing else differs. A sequence that ends with N has a row in N + 1
that is ignored; what that row writes goes to blocks that only later steps can be given, and the runner computes steps
in order (docs/adr/0010).

A fault of one request ends only that request: a row that the runner reports ends its request, and a step that raises
ends the requests that were in it. All others go on. Nothing that such a request has computed is reused from the cache.
When the runner is broken, every request ends, since none can be computed any more.
"""

from collections import Counter, deque
from collections.abc import Iterable
from operator import attrgetter

from worker.engine.batch import Sampled, TokenLogprobs
from worker.engine.blocks import BlockPool
from worker.engine.config import EngineConfig
from worker.engine.detokenize import Detokenizer, compile_stop
from worker.engine.errors import DoesNotFit, InvalidRequest
from worker.engine.flight import Flight, Refused
from worker.engine.live import LiveRequest, Prompt
from worker.engine.packing import pack
from worker.engine.prefix import Chain, root
from worker.engine.request import EngineRequest, check_request
from worker.engine.results import (
    ChoiceChunk,
    EngineStats,
    Finish,
    RequestDone,
    RequestError,
    RequestTotals,
    StepResult,
    TokenLogprob,
)
from worker.engine.runner import Runner, RunnerBroken
from worker.engine.schedule import Schedule
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Account, Sequence, Status
from worker.engine.service import Service
from worker.engine.token_counts import TokenCounts
from worker.engine.vocabulary import Vocabulary

_account = attrgetter("account")


class Engine:
    """Call `add` and `abort` between steps, and `step` while there is work."""

    def __init__(
        self, runner: Runner, vocabulary: Vocabulary, config: EngineConfig, service: Service | None = None
    ) -> None:
        if config.block_size != runner.block_size or config.context_length > runner.context_length:
            raise ValueError(f"the runner has blocks of {runner.block_size} and a context of {runner.context_length}")
        self._runner = runner
        self._vocabulary = vocabulary
        self._token_bytes = vocabulary.token_bytes
        self._config = config
        self._service = service or Service()
        self._pool = BlockPool(runner.blocks_total)
        self._scheduler = Scheduler(config, self._pool, self._service)
        self._live: dict[str, LiveRequest] = {}
        self._accounts: dict[tuple[int, str], Account] = {}  # of tenants that have requests
        self._flights: deque[Flight] = deque()  # oldest first
        self._arrivals = 0
        self._preemptions = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated_tokens = 0

    @property
    def tokens_max(self) -> int:
        """Tokens that one sequence can ever hold, prompt and output together. One that would grow beyond the context
        or the whole pool ends here with `length`, whoever else runs.
        """
        return min(self._config.context_length, self._pool.usable * self._config.block_size)

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._flights)

    def add(self, request: EngineRequest) -> None:
        """Queue all choices of a request. Raises InvalidRequest, or DoesNotFit if it could never run."""
        if request.id in self._live:
            raise InvalidRequest("A request of this id is running.")
        check_request(request, self._runner.vocab_size)
        longest = max(len(prompt) for prompt in request.prompts)
        if longest >= self.tokens_max:
            raise DoesNotFit(
                f"The prompt has {longest} tokens; this worker holds {self.tokens_max}, prompt and output together."
            )
        tier, tenant = request.tier, request.tenant
        account = self._accounts.get((tier, tenant)) or Account(tier, tenant)
        sequences = self._sequences(request, account)
        prompts = [Prompt(len(prompt), known=len(prompt)) for prompt in request.prompts]
        # Every error of the request has been raised by now, before anything was changed.
        self._accounts[tier, tenant] = account
        account.requests += 1
        self._service.arrived(tier, tenant)
        self._live[request.id] = LiveRequest(account, request.n, prompts, sequences)
        for first in range(0, len(sequences), request.n):
            leader, *others = sequences[first : first + request.n]
            self._scheduler.add(leader, others)

    def abort(self, request_id: str) -> RequestTotals | None:
        """Drop a request and free its blocks at once. Returns its counts so far; None if it is unknown or has ended."""
        return self._leave(request_id) if request_id in self._live else None

    def step(self) -> StepResult:
        """Launch one step if there is one, and land all steps that the runner need not be ahead of. Does nothing
        without work.
        """
        result = StepResult()
        ahead = self._runner.steps_ahead if self._launch(result) else 0
        self._land_all_but(ahead, result)
        return result

    def record_time(self, step: StepResult, seconds: float) -> None:
        """The time that a step took, for planning the next ones."""
        self._scheduler.record_time(step.work, seconds)

    def stats(self) -> EngineStats:
        return EngineStats(
            blocks_total=self._pool.usable,
            blocks_free=self._pool.free_count,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            held=self._scheduler.held_count,
            preemptions_total=self._preemptions,
            prompt_tokens_total=self._prompt_tokens,
            generated_tokens_total=self._generated_tokens,
            cached_blocks=self._pool.cache.idle_count,
            prefix_hits_tokens_total=self._cached_tokens,
            tiers=self._scheduler.loads(),
        )

    def check_idle(self) -> None:
        """Assert that nothing is held any more. Valid while there is no work; cheap then."""
        assert not self._live
        assert not self._accounts
        assert not self._flights
        self._scheduler.check_idle()

    def check_integrity(self) -> None:
        """Assert that no block and no sequence is lost. Valid between any two calls; visits everything that is
        cached.
        """
        self._scheduler.check_integrity()
        unfinished = sum(live.unfinished for live in self._live.values())
        scheduler = self._scheduler
        assert unfinished == len(scheduler.running) + len(scheduler.waiting) + scheduler.held_count
        assert sum(account.requests for account in self._accounts.values()) == len(self._live)

    def _sequences(self, request: EngineRequest, account: Account) -> list[Sequence]:
        start = root(request.salt)
        stops = tuple(compile_stop(text) for text in request.sampling.stop)
        ends = frozenset(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            ends |= self._vocabulary.eos_ids
        sequences: list[Sequence] = []
        counts: TokenCounts | None = None
        for choice in range(len(request.prompts) * request.n):
            prompt = request.prompts[choice // request.n]
            if request.sampling.penalises and choice % request.n == 0:
                counts = TokenCounts(prompt)  # once for all choices: of thousands of tokens it takes milliseconds
            tokens_max = min(len(prompt) + request.sampling.max_tokens, self.tokens_max)
            sequences.append(
                Sequence(
                    request=request.id,
                    choice=choice,
                    account=account,
                    arrival=self._arrivals,
                    tokens=list(prompt),
                    prompt_len=len(prompt),
                    tokens_max=tokens_max,
                    sampling=request.sampling,
                    chain=Chain(start, self._config.block_size),
                    ends=ends,
                    text=Detokenizer(stops, skip_space=self._starts_text(prompt)),
                    seen=None if counts is None else counts.another(),
                )
            )
            self._arrivals += 1
        return sequences

    def _starts_text(self, prompt: Iterable[int]) -> bool:
        """Whether a space in front of the output is the tokenizer's own, since no visible text stands before it."""
        return self._vocabulary.skips_first_space and not any(map(self._token_bytes, prompt))

    def _note_started(self, admitted: list[Sequence], result: StepResult) -> None:
        for sequence in admitted:
            live = self._live[sequence.request]
            prompt = live.prompt_of(sequence)
            if prompt.started:
                continue
            if not live.started:
                result.started.append(sequence.request)
            if len(live.prompts) > 1 and not live.started:
                for number, other in enumerate(live.prompts):
                    other.known = self._scheduler.cached_tokens(live.sequences[number * live.n])
            prompt.start(sequence.num_computed)
            self._prompt_tokens += prompt.length
            self._cached_tokens += prompt.cached

    def _launch(self, result: StepResult) -> bool:
        """Whether another step was submitted to the runner."""
        plan = self._scheduler.schedule()
        self._preemptions += plan.preempted
        result.preemptions = plan.preempted
        self._note_started(plan.admitted, result)
        if self._flights and plan.awaits_tokens():
            self._land_all_but(0, result)
            plan.drop_finished()
        members = plan.sequences()
        if not members:
            return False
        batch, sampled = pack(plan, self._scheduler.tables, self._config.block_size)
        result.sequences, result.tokens = len(members), len(batch.ids)
        result.work = plan.work()
        self._charge(plan)
        self._scheduler.launch(plan)
        for row, sequence in enumerate(sampled):
            sequence.tokens.append(~row)
        try:
            step = self._runner.submit(batch)
        except Exception as error:  # noqa: BLE001 - whatever a runner raises ends this step's requests, not the engine
            step = Refused(error)
        self._flights.append(Flight(plan, batch, sampled, step))
        return not isinstance(step, Refused)

    def _land_all_but(self, ahead: int, result: StepResult) -> None:
        while len(self._flights) > ahead:
            self._land(self._flights.popleft(), result)

    def _land(self, flight: Flight, result: StepResult) -> None:
        try:
            sampled = flight.result()
        except RunnerBroken as error:
            result.failure = result.broken = error
            for request_id in list(self._live):
                self._fail(request_id, "The worker's device has failed.", result, "device_failed")
            return
        except Exception as error:  # noqa: BLE001 - see `_launch`
            result.failure = error
            for sequence in flight.plan.sequences():
                self._fail(sequence.request, "The engine failed while it computed this request.", result)
            return
        self._fail_bad_rows(flight.sampled, sampled, result)
        self._scheduler.advance(flight.plan)
        self._apply(flight, sampled, result)

    def _fail_bad_rows(self, sequences: list[Sequence], sampled: Sampled, result: StepResult) -> None:
        """Runs before anything of this step is published or sent."""
        for row, error in sampled.errors.items():
            self._fail(sequences[row].request, f"The engine could not sample: {error}.", result)
        vocab_size, ids = self._runner.vocab_size, sampled.ids
        if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
            return
        for sequence, token in zip(sequences, ids, strict=True):
            if not 0 <= token < vocab_size:
                self._fail(sequence.request, "The engine sampled a token outside the vocabulary.", result)

    def _charge(self, plan: Schedule) -> None:
        """Charge tenants for what this step computes for the first time, even if the step then fails."""
        outputs = Counter(map(_account, plan.decodes))
        inputs = Counter[Account]()
        for sequence, tokens in plan.chunks:
            end = sequence.num_computed + tokens
            live = self._live[sequence.request]
            live.recomputed += max(0, min(end, sequence.reached) - sequence.num_computed)
            prompt = live.prompt_of(sequence)
            inputs[sequence.account] += prompt.computed(sequence.num_computed, end)
            outputs[sequence.account] += end == len(sequence.tokens)
        weighted = self._service.weighted
        self._service.charge_all(
            (account.tier, account.tenant, weighted(input_tokens=inputs[account], output_tokens=outputs[account]))
            for account in inputs.keys() | outputs.keys()
        )

    def _apply(self, flight: Flight, sampled: Sampled, result: StepResult) -> None:
        finished = Status.FINISHED  # reading an enum's attribute costs as much as a call
        said = len(result.chunks)
        places = flight.sampled, flight.batch.samples
        for sequence, params, token, logprobs in zip(*places, sampled.ids, sampled.logprobs, strict=True):
            if sequence.status is finished:
                continue  # it ended with the previous step, or its request has left or failed
            try:
                chunk = self._accept(sequence, params.position, token, logprobs)
            except Exception as error:  # noqa: BLE001 - it ends this request alone
                result.failure = error
                self._fail(sequence.request, "The engine failed while it processed this request.", result)
                continue
            result.chunks.append(chunk)
            if chunk.finish is not None:
                self._finish(sequence, result)
        self._generated_tokens += len(result.chunks) - said

    def _accept(self, sequence: Sequence, position: int, token: int, logprobs: TokenLogprobs | None) -> ChoiceChunk:
        """Process a sampled token: its text, and whether it is the sequence's last."""
        assert sequence.tokens[position] < 0
        sequence.tokens[position] = token
        finish: Finish | None = None
        text = ""
        if token in sequence.ends:
            finish, text = "stop", sequence.text.finish()
        else:
            may_stop = position + 1 >= sequence.prompt_len + sequence.sampling.min_tokens
            text, stopped = sequence.text.push(self._token_bytes(token), may_stop=may_stop)
            if stopped:
                finish = "stop"
            elif position + 1 == sequence.tokens_max:
                finish, text = "length", text + sequence.text.finish()
        token_logprobs = None if logprobs is None else [self._token_logprob(token, logprobs)]
        return ChoiceChunk(sequence.request, sequence.choice, [token], text, finish, token_logprobs)

    def _token_logprob(self, token: int, logprobs: TokenLogprobs) -> TokenLogprob:
        top = tuple((other, logprob, self._token_bytes(other)) for other, logprob in logprobs.top)
        return TokenLogprob(token, logprobs.logprob, self._token_bytes(token), top)

    def _finish(self, sequence: Sequence, result: StepResult) -> None:
        self._release(sequence)
        live = self._live[sequence.request]
        live.unfinished -= 1
        if live.unfinished == 0:
            result.done.append(RequestDone(sequence.request, self._leave(sequence.request)))

    def _fail(self, request_id: str, message: str, result: StepResult, error: RequestError = "engine_error") -> None:
        live = self._live.get(request_id)
        if live is not None:
            result.done.append(RequestDone(request_id, self._leave(request_id), error, message))
            for sequence in live.sequences:
                self._pool.forget(sequence.chain.made())

    def _release(self, sequence: Sequence) -> None:
        sequence.forget_flight()
        self._scheduler.release(sequence)

    def _leave(self, request_id: str) -> RequestTotals:
        live = self._live.pop(request_id)
        for sequence in live.sequences:
            self._release(sequence)
        account = live.account
        account.requests -= 1
        if not account.requests:
            del self._accounts[account.tier, account.tenant]
            self._service.left(account.tier, account.tenant)
        return live.totals()
