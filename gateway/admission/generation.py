"""A request for generated text, from either endpoint: its form is checked, but not yet against a model."""

import msgspec


class Turn(msgspec.Struct, frozen=True):
    """One message of a chat, its content joined to one text."""

    role: str  # system, user or assistant
    content: str


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Either `turns` (a chat, one prompt) or `prompts` (texts, or token ids whose range is not checked yet)."""

    model: str
    turns: tuple[Turn, ...] = ()
    prompts: tuple[str | list[int], ...] = ()
    n: int = 1
    max_tokens: int | None = None  # None: the server's default, cut to the context
    max_tokens_param: str = "max_tokens"  # the field that the client set, for messages
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()  # not checked against the vocabulary yet
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()  # ids not checked against the vocabulary yet
    logprobs: int | None = None

    @property
    def prompt_param(self) -> str:
        return "messages" if self.turns else "prompt"
