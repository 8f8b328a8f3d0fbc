"""The step loop's body: requests in, chunks and totals out. Synchronous, one thread, no I/O, no clock.

Owns the requests that live and their counts. The scheduler decides who runs, the runner computes and samples, the
detokenizer makes text; here a sampled token becomes a chunk, and a finished, failed or aborted request leaves.
Invariant: every request that `add` took leaves exactly once, through `_leave`, and holds nothing afterwards.

One request's fault is its own: a row that the runner reports ends its request, and a step that raises ends the
requests that were in it. All others go on.
"""

from dataclasses import dataclass, field

from worker.engine.batch import Batch, Sampled, TokenLogprobs
from worker.engine.blocks import BlockPool, BlockTable
from worker.engine.config import EngineConfig
from worker.engine.detokenize import Detokenizer, compile_stop
from worker.engine.errors import DoesNotFit, InvalidRequest
from worker.engine.packing import pack
from worker.engine.request import EngineRequest, check_request
from worker.engine.results import (
    ChoiceChunk,
    EngineStats,
    Finish,
    RequestDone,
    RequestTotals,
    StepResult,
    TokenLogprob,
)
from worker.engine.runner import Runner
from worker.engine.scheduler import Scheduled, Scheduler
from worker.engine.sequence import Sequence
from worker.engine.vocabulary import Vocabulary


@dataclass(slots=True)
class _Live:
    """A request that the engine holds."""

    prompt_lens: list[int]
    n: int
    sequences: list[Sequence]
    unfinished: int
    started: set[int] = field(default_factory=set[int])  # prompts

    def totals(self) -> RequestTotals:
        return RequestTotals(
            prompt_tokens=sum(self.prompt_lens[prompt] for prompt in self.started),
            cached_tokens=0,
            completion_tokens=sum(sequence.num_generated for sequence in self.sequences),
        )


class Engine:
    """`add` and `abort` between two steps, `step` while there is work."""

    def __init__(self, runner: Runner, vocabulary: Vocabulary, config: EngineConfig) -> None:
        if config.block_size != runner.block_size or config.context_length > runner.context_length:
            raise ValueError(f"the runner has blocks of {runner.block_size} and a context of {runner.context_length}")
        self._runner = runner
        self._vocabulary = vocabulary
        self._config = config
        self._pool = BlockPool(runner.blocks_total)
        self._scheduler = Scheduler(config, self._pool)
        self._live: dict[str, _Live] = {}
        self._arrivals = 0
        self._preemptions = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0

    @property
    def tokens_max(self) -> int:
        """Tokens that one sequence can ever hold, prompt and output together. One that would grow beyond the context
        or the whole pool ends here with `length`, whoever else runs.
        """
        return min(self._config.context_length, self._pool.usable * self._config.block_size)

    @property
    def has_work(self) -> bool:
        return bool(self._live)

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
        sequences = self._sequences(request)
        lengths = [len(prompt) for prompt in request.prompts]
        self._live[request.id] = _Live(lengths, request.n, sequences, unfinished=len(sequences))
        for sequence in sequences:
            self._scheduler.add(sequence)

    def abort(self, request_id: str) -> RequestTotals | None:
        """Drop a request and free its blocks at once. Its counts until now; None if it is unknown or has ended."""
        return self._leave(request_id) if request_id in self._live else None

    def step(self) -> StepResult:
        """Run one step. Without work it does nothing."""
        plan = self._scheduler.schedule()
        self._preemptions += plan.preempted
        result = StepResult(preemptions=plan.preempted, sequences=len(plan.entries))
        if not plan.entries:
            return result
        self._note_started(plan.entries)
        batch, sequences = pack(plan.entries, self._config.block_size)
        result.tokens = len(batch.ids)
        try:
            sampled = self._execute(batch)
        except Exception as error:  # noqa: BLE001 - whatever a runner raises ends this step's requests, not the engine
            error.add_note(f"in a step of {result.sequences} sequences and {result.tokens} tokens")
            result.failure = error
            for entry in plan.entries:
                self._fail(entry.sequence.request, "The engine failed while it computed this request.", result)
            return result
        for entry in plan.entries:
            entry.sequence.num_computed += entry.tokens
        self._apply(sequences, sampled, result)
        return result

    def stats(self) -> EngineStats:
        return EngineStats(
            blocks_total=self._pool.usable,
            blocks_free=self._pool.free_count,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            preemptions_total=self._preemptions,
            prompt_tokens_total=self._prompt_tokens,
            generated_tokens_total=self._generated_tokens,
        )

    def check_integrity(self) -> None:
        """Asserts that no block and no sequence is lost. Holds between any two calls; run it when idle."""
        self._scheduler.check_integrity()
        unfinished = sum(live.unfinished for live in self._live.values())
        assert unfinished == len(self._scheduler.running) + len(self._scheduler.waiting)

    def _sequences(self, request: EngineRequest) -> list[Sequence]:
        stops = tuple(compile_stop(text) for text in request.sampling.stop)
        ends = frozenset(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            ends |= self._vocabulary.eos_ids
        sequences: list[Sequence] = []
        for choice in range(len(request.prompts) * request.n):
            prompt = request.prompts[choice // request.n]
            tokens_max = min(len(prompt) + request.sampling.max_tokens, self.tokens_max)
            sequences.append(
                Sequence(
                    request=request.id,
                    choice=choice,
                    tier=request.tier,
                    arrival=self._arrivals,
                    tokens=list(prompt),
                    prompt_len=len(prompt),
                    tokens_max=tokens_max,
                    sampling=request.sampling,
                    table=BlockTable(-(-tokens_max // self._config.block_size)),
                    ends=ends,
                    text=Detokenizer(stops),
                )
            )
            self._arrivals += 1
        return sequences

    def _note_started(self, entries: list[Scheduled]) -> None:
        for entry in entries:
            sequence = entry.sequence
            if sequence.started:
                continue
            sequence.started = True
            live = self._live[sequence.request]
            prompt = sequence.choice // live.n
            if prompt not in live.started:
                live.started.add(prompt)
                self._prompt_tokens += sequence.prompt_len

    def _execute(self, batch: Batch) -> Sampled:
        sampled = self._runner.execute(batch)
        if not len(sampled.ids) == len(sampled.logprobs) == len(batch.samples):
            raise RuntimeError(f"the runner sampled {len(sampled.ids)} tokens for {len(batch.samples)} rows")
        return sampled

    def _apply(self, sequences: list[Sequence], sampled: Sampled, result: StepResult) -> None:
        vocab_size = self._runner.vocab_size
        for row, (sequence, token) in enumerate(zip(sequences, sampled.ids, strict=True)):
            if sequence.request not in self._live:
                continue  # another row of this step has ended its request
            if row in sampled.errors:
                self._fail(sequence.request, f"The engine could not sample: {sampled.errors[row]}.", result)
            elif not 0 <= token < vocab_size:
                self._fail(sequence.request, "The engine sampled a token outside the vocabulary.", result)
            else:
                result.chunks.append(self._accept(sequence, token, sampled.logprobs[row]))
                if result.chunks[-1].finish is not None:
                    self._finish(sequence, result)

    def _accept(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> ChoiceChunk:
        """Append a token to its sequence: its text, and whether it is the last."""
        sequence.tokens.append(token)
        self._generated_tokens += 1
        finish: Finish | None = None
        text = ""
        if token in sequence.ends:
            finish, text = "stop", sequence.text.finish()
        else:
            text, stopped = sequence.text.push(self._vocabulary.token_bytes(token))
            if stopped:
                finish = "stop"
            elif len(sequence.tokens) == sequence.tokens_max:
                finish, text = "length", text + sequence.text.finish()
        told = None if logprobs is None else [self._tell(token, logprobs)]
        return ChoiceChunk(sequence.request, sequence.choice, [token], text, finish, told)

    def _tell(self, token: int, logprobs: TokenLogprobs) -> TokenLogprob:
        text_of = self._vocabulary.token_bytes
        top = tuple((other, logprob, text_of(other)) for other, logprob in logprobs.top)
        return TokenLogprob(token, logprobs.logprob, text_of(token), top)

    def _finish(self, sequence: Sequence, result: StepResult) -> None:
        self._scheduler.release(sequence)
        live = self._live[sequence.request]
        live.unfinished -= 1
        if live.unfinished == 0:
            result.done.append(RequestDone(sequence.request, self._leave(sequence.request)))

    def _fail(self, request_id: str, message: str, result: StepResult) -> None:
        if request_id in self._live:
            result.done.append(RequestDone(request_id, self._leave(request_id), "engine_error", message))

    def _leave(self, request_id: str) -> RequestTotals:
        live = self._live.pop(request_id)
        for sequence in live.sequences:
            self._scheduler.release(sequence)
        return live.totals()
