"""How many tokens one request may read and write: the model's context, and the quotas on context and output. Pure."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission.generation import Generation
from gateway.admission.limiter import Limit, Metric
from gateway.errors import ContextTooLong, InvalidRequest


@dataclass(slots=True, frozen=True)
class Sizes:
    """`context_max` is the model's context, cut by quotas. `output_max` None: no quota on output."""

    context_max: int
    output_max: int | None
    shadows: tuple[Limit, ...]  # limits in shadow mode

    def output(self, generation: Generation, prompt_tokens: int, default_output: int) -> int:
        """The output tokens that each choice may have: what was requested, cut to the room that the prompt leaves.
        Raises ContextTooLong for a prompt that leaves no room and for a request of more than any prompt would leave;
        InvalidRequest for more than a quota on output allows.
        """
        asked = generation.max_tokens
        if prompt_tokens >= self.context_max:
            raise ContextTooLong(
                f"The context limit is {self.context_max} tokens, and the prompt alone has {prompt_tokens}.",
                param=generation.prompt_param,
            )
        if asked is not None and asked > self.context_max:
            raise ContextTooLong(
                f"The context limit is {self.context_max} tokens, but {asked} were requested for the output alone.",
                param=generation.max_tokens_param,
            )
        wanted = default_output if asked is None else asked
        if self.output_max is not None:
            if self.output_max == 0 or (asked or 0) > self.output_max:
                raise InvalidRequest(
                    f"The output limit is {self.output_max} tokens, but {wanted} were requested.",
                    param=generation.max_tokens_param,
                    code="invalid_value",
                )
            wanted = min(wanted, self.output_max)
        return min(wanted, self.context_max - prompt_tokens)

    def missed(self, generation: Generation, prompt_tokens: int) -> list[Metric]:
        """The limits in shadow mode that would have refused."""
        asked = generation.max_tokens or 0
        return [
            limit.metric
            for limit in self.shadows
            if limit.allowed is not None
            and (
                asked > limit.allowed
                or limit.allowed == 0
                or (limit.metric == "max_context" and prompt_tokens >= limit.allowed)
            )
        ]


def of(limits: Sequence[Limit], model_id: uuid.UUID, context_max: int) -> Sizes:
    """`context_max`: the model's own."""
    found = [limit for limit in limits if limit.concerns(model_id) and limit.metric in {"max_context", "max_output"}]
    enforced = [(limit.metric, limit.allowed) for limit in found if limit.enforced and limit.allowed is not None]
    return Sizes(
        context_max=min([context_max, *(allowed for metric, allowed in enforced if metric == "max_context")]),
        output_max=min((allowed for metric, allowed in enforced if metric == "max_output"), default=None),
        shadows=tuple(limit for limit in found if not limit.enforced),
    )
