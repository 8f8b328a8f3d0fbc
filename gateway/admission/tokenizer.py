"""From turns and texts to token ids, exactly as the model was trained to read them: template, then tokenizer.

Owns what a model card says about text. Knows no tenant and no limit. Long texts are encoded in a thread that does not
hold the interpreter lock, so that one long prompt does not stop every stream of the process.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

from tokenizers import Tokenizer

from gateway.admission.generation import Generation, Turn
from gateway.admission.passages import Passages
from gateway.admission.template import FAULTS, Template
from gateway.errors import ContextTooLong, InvalidRequest
from shared import wire

INLINE_CHARS_MAX = 1_000  # about 1 ms of encoding on the event loop
INLINE_TURNS_MAX = 32  # about 1 ms of rendering
REASON_CHARS_MAX = 300
SLICE_CHARS_PER_TOKEN = 8  # a text that fits the context is usually one slice, and is then encoded only once
PROBE = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for a client's text
CUT_TOKENS_MAX = 32  # how many tokens cutting a text within a word can add


class PromptEncoder:
    """Built once per model card; parsing the tokenizer's JSON takes about 0.1 s for 50 k tokens."""

    def __init__(self, card: wire.ModelCard, executor: Executor) -> None:
        self._card = card
        self._executor = executor
        self._tokenizer = Tokenizer.from_buffer(card.tokenizer)
        vocabulary = self._tokenizer.get_vocab()
        self._token_chars_max = max(map(len, vocabulary))
        self._specials = {self._token_text(token): token for token in card.special_ids}
        self._has_rowless = max(vocabulary.values()) >= card.vocab_size
        self._template, self._no_template = _compiled(card.chat_template)
        self._bos = self._token_text(card.bos_id)
        self._eos = self._token_text(card.eos_ids[0] if card.eos_ids else None)
        self._passages = self._learned()

    @property
    def context_max(self) -> int:
        """Tokens, prompt + output, that a worker can hold."""
        return min(self._card.context_length, self._card.request_tokens_max)

    def special_ids(self, names: Sequence[str]) -> tuple[int, ...]:
        """The special tokens with these names: they are in no answer's text."""
        return tuple(self._specials[name] for name in names if name in self._specials)

    async def encode(self, generation: Generation) -> list[list[int]]:
        """The ids of each prompt, never empty. Raises InvalidRequest."""
        few = len(generation.turns) <= INLINE_TURNS_MAX
        if few and sum(map(len, _texts(generation))) <= INLINE_CHARS_MAX:
            return self._encode(generation)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._encode, generation)

    def _encode(self, generation: Generation) -> list[list[int]]:
        if generation.turns:
            return [self._ids(self.render(generation.turns), "messages")]
        return [self._prompt(prompt) for prompt in generation.prompts]

    def _prompt(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            bos = self._card.bos_id
            prefix = [bos] if self._card.add_bos and bos is not None else []
            ids = prefix + self._ids(prompt, "prompt")
        else:
            ids = prompt
            if wrong := next((token for token in ids if not 0 <= token < self._card.vocab_size), None):
                limit = self._card.vocab_size
                raise InvalidRequest(f"Token id {wrong} is not in the vocabulary (0 to {limit - 1}).", param="prompt")
        if not ids:
            raise InvalidRequest("A prompt must have at least one token.", param="prompt")
        return ids

    def render(self, turns: Sequence[Turn]) -> str:
        """A chat as one prompt. Raises InvalidRequest."""
        if self._template is None:
            raise InvalidRequest(f"{self._no_template}; use /v1/completions.", param="model")
        try:
            return self._template.render(turns, bos_token=self._bos, eos_token=self._eos)
        except FAULTS as error:
            reason = (str(error) or type(error).__name__)[:REASON_CHARS_MAX]
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {reason}", param="messages"
            ) from None

    def _ids(self, text: str, param: str) -> list[int]:
        limit, tokens_min = self.context_max, self._tokens_min(text, param)
        if tokens_min >= limit:
            raise ContextTooLong(
                f"The context limit is {limit} tokens, and the prompt alone has over {tokens_min}.", param=param
            )
        ids = self._tokenize(text, param)
        if self._has_rowless and max(ids, default=0) >= self._card.vocab_size:
            raise InvalidRequest(f"The model does not know {self._token_text(max(ids))!r}.", param=param)
        return ids

    def _tokens_min(self, text: str, param: str) -> int:
        """A lower bound on the number of tokens in `text`. Stops counting beyond the context: megabytes that are
        refused anyway would keep a thread busy for seconds.
        """
        tokens_min = len(text) // self._token_chars_max
        slice_chars = SLICE_CHARS_PER_TOKEN * self.context_max
        if tokens_min >= self.context_max or len(text) <= slice_chars:
            return tokens_min
        counted = 0
        for start in range(0, len(text), slice_chars):
            counted += max(0, len(self._tokenize(text[start : start + slice_chars], param)) - CUT_TOKENS_MAX)
            if counted >= self.context_max:
                break
        return max(tokens_min, counted)

    def _tokenize(self, text: str, param: str) -> list[int]:
        encode = partial(self._encode_each, param=param)
        if self._passages is not None and len(text) <= INLINE_CHARS_MAX:
            return self._passages.ids(text, encode)
        [ids] = encode([text])
        return ids

    def _encode_each(self, texts: list[str], *, param: str) -> list[list[int]]:
        # The batch call releases the interpreter's lock and `encode` does not: 2.4 MB of emoji kept all streams of a
        # gateway waiting for 2.9 s, and 0.06 s this way.
        try:
            return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        except Exception as error:  # noqa: BLE001 - the library's own class, of a vocabulary that lacks a token for it
            raise InvalidRequest(f"The model has no tokens for this text ({error}).", param=param) from None

    def _learned(self) -> Passages | None:
        """The cache of the template's own passages, taken from a chat of one question. None if there can be none."""
        encode = partial(self._encode_each, param="messages")
        passages = Passages.of(self._card.tokenizer, encode)
        if passages is not None and self._template is not None:
            with contextlib.suppress(InvalidRequest):
                passages.learn(self.render([Turn("user", PROBE)]), encode, without=PROBE)
        return passages

    def _token_text(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.id_to_token(token) or ""


def _texts(generation: Generation) -> list[str]:
    texts = [turn.content for turn in generation.turns]
    return texts + [prompt for prompt in generation.prompts if isinstance(prompt, str)]


def _compiled(source: str | None) -> tuple[Template | None, str]:
    """The chat template, or the reason why there is none. Completions do not need one, so a bad template is no reason
    to refuse the model.
    """
    if source is None:
        return None, "This model has no chat template"
    try:
        return Template(source), ""
    except FAULTS as error:
        return None, f"This model's chat template is not valid ({str(error)[:REASON_CHARS_MAX]})"
