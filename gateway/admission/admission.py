"""Turns a well-formed request into one that a worker may run: finds the model, encodes the prompt, checks its size and
reserves its limits, in this order.

An `Admitted` request holds the exact token ids that the model will read, and a reservation in every limit. Whoever
receives it must settle it exactly once. A refused request has reserved nothing. Knows neither HTTP nor NATS.
"""

import math
import secrets
import uuid
from collections.abc import Callable

import msgspec

from gateway.admission import ratelimit
from gateway.admission.entitlement import Entitlement, Entitlements
from gateway.admission.generation import Generation
from gateway.admission.limiter import NOTHING, Decision, Demand, Limiter, Metric, Used
from gateway.admission.pricer import Pricer
from gateway.admission.served_models import ServedModel, ServedModels
from gateway.errors import GatewayError, InvalidRequest, ModelNotFound, Unavailable
from gateway.metrics import Metrics
from gateway.protocols import Fleet, Principal
from shared import wire
from shared.traceparent import Context

RETRY_AFTER_MS = 2_000
SEED_BITS = 63


class Admitted(msgspec.Struct, frozen=True):
    request_id: uuid.UUID
    model_id: uuid.UUID
    plan_id: uuid.UUID
    job: wire.Job
    pool: str
    headers: dict[str, str]  # x-ratelimit-*, after the reservation


class Admission:
    def __init__(
        self,
        served_models: ServedModels,
        fleet: Fleet,
        limiter: Limiter,
        pricer: Pricer,
        metrics: Metrics,
        *,
        gateway_id: str,
        default_output: int,
        run_s: float,
    ) -> None:
        self._served_models = served_models
        self._fleet = fleet
        self._limiter = limiter
        self._pricer = pricer
        self._metrics = metrics
        self._gateway_id = gateway_id
        self._default_output = default_output
        self._run_ms = int(run_s * 1_000)
        self._entitlements = Entitlements()

    async def admit(
        self,
        principal: Principal,
        request_id: uuid.UUID,
        generation: Generation,
        *,
        wait_s: float,
        trace: Context,
        check: Callable[[wire.Job, str], None],
    ) -> Admitted:
        """Encode, check and reserve. `wait_s` is how long the job may stay in a queue, `trace` the span that it belongs
        to. `check` gets the job and its pool before anything is reserved, and may refuse it. Raises ModelNotFound,
        InvalidRequest, ContextTooLong, RateLimited, BudgetExhausted, Unavailable, and what `check` raises.
        """
        model, pool = self._find(principal, generation.model)
        entitlement = self._entitlements.of(principal, model)
        tokens_max = max(len(generation.prompts), 1) * generation.n * entitlement.sizes.context_max
        if known := self._limiter.refuses(entitlement.limits, tokens_max):
            raise self._refusal(known, 1)
        _check_ids(generation, model.card.vocab_size)
        prompts = await model.encoder.encode(generation)
        max_tokens = self._max_tokens(entitlement, generation, max(map(len, prompts)))
        _check_least(generation, max_tokens)
        output_tokens = len(prompts) * generation.n * max_tokens
        sampling = _sampling(generation, max_tokens, model.encoder.special_ids(generation.stop))
        job = self._job(entitlement, request_id, prompts, n=generation.n, sampling=sampling, wait_s=wait_s, trace=trace)
        check(job, pool)
        headers = await self._reserve(entitlement, request_id, sum(map(len, prompts)), output_tokens)
        return Admitted(request_id, entitlement.model_id, principal.plan_id, job, pool, headers)

    def started(self, admitted: Admitted) -> None:
        """A worker has accepted it."""
        self._limiter.started(admitted.request_id)

    async def settle(self, admitted: Admitted, prompt_tokens: int, completion_tokens: int) -> None:
        """Report what the request used, each prompt counted once. Of a request that no worker accepted, everything is
        refunded.
        """
        cost_micro = self._pricer.ceiling_micro(admitted.model_id, admitted.plan_id, prompt_tokens, completion_tokens)
        await self._limiter.settle(admitted.request_id, Used(prompt_tokens + completion_tokens, cost_micro))

    def _find(self, principal: Principal, name: str) -> tuple[ServedModel, str]:
        """The model and its pool. A model that the principal may not use is reported as unknown."""
        hidden = self._served_models.hides(principal.models, name)
        ready = None if hidden else self._fleet.find(name)
        model = None if ready is None else self._served_models.get(ready.digest)
        if ready is not None and model is not None:
            return model, ready.pool
        if ready is not None or (self._served_models.knows(name) and not hidden) or not self._fleet.models():
            raise Unavailable(f"No worker is ready for the model {_shown(name)}.", retry_after_ms=RETRY_AFTER_MS)
        raise ModelNotFound(f"The model {_shown(name)} does not exist or you have no access to it.", param="model")

    def _max_tokens(self, entitlement: Entitlement, generation: Generation, prompt_tokens: int) -> int:
        """The number of output tokens that each choice may have. Raises ContextTooLong, InvalidRequest."""
        allowed = entitlement.sizes
        max_tokens = allowed.output(generation, prompt_tokens, self._default_output)
        for metric in allowed.missed(generation, prompt_tokens):
            self._count(metric, "shadow")
        return max_tokens

    async def _reserve(
        self, entitlement: Entitlement, request_id: uuid.UUID, prompt_tokens: int, output_tokens: int
    ) -> dict[str, str]:
        """Reserve the most that the request can use in every limit, and return the rate-limit headers. Raises
        RateLimited, BudgetExhausted, Unavailable.
        """
        principal, model_id = entitlement.principal, entitlement.model_id
        demand = Demand(
            request_id=request_id,
            tenant_id=principal.tenant_id,
            api_key_id=principal.key_id,
            model_id=model_id,
            tokens=prompt_tokens + output_tokens,
            cost_micro=self._pricer.ceiling_micro(model_id, principal.plan_id, prompt_tokens, output_tokens),
            limits=entitlement.limits,
        )
        try:
            decision = await self._limiter.admit(demand)
        except BaseException:
            # The decision may have been made and its answer lost: an admission in doubt is given back.
            await self._limiter.settle(request_id, NOTHING)
            raise
        if decision.refused is not None:
            raise self._refusal(decision, demand.amount(decision.refused.metric))
        self._count_missed(decision)
        return ratelimit.headers(decision)

    def _refusal(self, decision: Decision, asked: int) -> GatewayError:
        assert decision.refused is not None
        self._count(decision.refused.metric, "enforce")
        self._count_missed(decision)
        return ratelimit.refusal(decision, asked)

    def _count_missed(self, decision: Decision) -> None:
        for metric in decision.missed:
            self._count(metric, "shadow")

    def _count(self, metric: Metric, mode: str) -> None:
        self._metrics.limits.labels(metric, mode).inc()

    def _job(
        self,
        entitlement: Entitlement,
        request_id: uuid.UUID,
        prompts: list[list[int]],
        *,
        n: int,
        sampling: wire.Sampling,
        wait_s: float,
        trace: Context,
    ) -> wire.Job:
        return wire.Job(
            request=str(request_id),
            attempt=1,
            gateway=self._gateway_id,
            tenant=entitlement.tenant,
            key=entitlement.key,
            model=entitlement.model.id,
            card=entitlement.model.digest,
            tier=entitlement.principal.tier,
            prompts=tuple(wire.pack_ids(prompt) for prompt in prompts),
            n=n,
            sampling=sampling,
            cache_salt=entitlement.cache_salt,
            wait_ms=math.ceil(wait_s * 1_000),
            run_ms=self._run_ms,
            traceparent=trace.header,
            tracestate=trace.state,
        )


def _sampling(generation: Generation, max_tokens: int, stopping: tuple[int, ...]) -> wire.Sampling:
    """`stopping`: tokens that are told to end the answer by their names."""
    return wire.Sampling(
        max_tokens=max_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        seed=secrets.randbits(SEED_BITS) if generation.seed is None else generation.seed % 2**64,
        stop=generation.stop,
        ignore_eos=generation.ignore_eos,
        logit_bias=generation.logit_bias,
        logprobs=generation.logprobs,
        top_k=generation.top_k,
        min_p=generation.min_p,
        presence_penalty=generation.presence_penalty,
        frequency_penalty=generation.frequency_penalty,
        repetition_penalty=generation.repetition_penalty,
        min_tokens=generation.min_tokens,
        stop_token_ids=generation.stop_token_ids + stopping,
    )


def _check_ids(generation: Generation, vocab_size: int) -> None:
    biased = [token for token, _ in generation.logit_bias]
    for param, ids in (("logit_bias", biased), ("stop_token_ids", generation.stop_token_ids)):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(f"Token id {token} is not in the vocabulary.", param=param, code="invalid_value")


def _check_least(generation: Generation, max_tokens: int) -> None:
    if generation.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {generation.min_tokens}, and the output may have {max_tokens} tokens.",
            param="min_tokens",
            code="invalid_value",
        )


def _shown(name: str) -> str:
    return f"`{name if len(name) <= 80 else name[:80] + '…'}`"
