"""The interface to the price list: what a request may cost at most."""

import uuid
from typing import Protocol


class Pricer(Protocol):
    def ceiling_micro(self, model_id: uuid.UUID, plan_id: uuid.UUID, prompt_tokens: int, output_tokens: int) -> int:
        """Micro-units; 0 where no price holds."""
        ...
