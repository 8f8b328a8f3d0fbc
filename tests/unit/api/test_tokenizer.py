"""Prompts as the model reads them: the demo model's template and tokenizer against ids recorded from transformers."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gateway.admission.generation import Generation, Turn
from gateway.admission.tokenizer import INLINE_CHARS_MAX, PromptEncoder
from gateway.errors import ContextTooLong, InvalidRequest
from tests.cards import on_wire
from tests.scripted_gateway import executor
from tests.tiny_model import BOS, card
from worker.models.card import demo_model_path, read_card

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_golden.json").read_text())["cases"]


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with executor() as pool:
        yield pool


@pytest.fixture(scope="module")
def demo(threads: Executor) -> PromptEncoder:
    return PromptEncoder(on_wire(read_card(demo_model_path())), threads)


def chat(*turns: Turn) -> Generation:
    return Generation(model="m", turns=turns)


def prompts(*given: str | list[int]) -> Generation:
    return Generation(model="m", prompts=given)


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
async def test_the_demo_model_reads_what_transformers_would_give_it(demo: PromptEncoder, case: dict) -> None:
    turns = [Turn(message["role"], message["content"]) for message in case["messages"]]
    assert await demo.encode(chat(*turns)) == [case["prompt_ids"]]


async def test_a_long_prompt_is_encoded_alike_in_a_thread(threads: Executor) -> None:
    encoder = PromptEncoder(card(), threads)
    long = "x" * (INLINE_CHARS_MAX + 1)
    [ids] = await encoder.encode(prompts(long))
    assert len(ids) == len(long)
    assert [ids[:1]] == await encoder.encode(prompts("x"))


async def test_a_bare_prompt_gets_bos_where_the_model_wants_it(threads: Executor) -> None:
    plain, wanting = PromptEncoder(card(), threads), PromptEncoder(card(add_bos=True), threads)
    [ids] = await plain.encode(prompts("ab"))
    assert await wanting.encode(prompts("ab")) == [[BOS, *ids]]
    assert await wanting.encode(prompts("")) == [[BOS]]
    assert await wanting.encode(prompts([5, 6])) == [[5, 6]]


async def test_megabytes_are_refused_unread(demo: PromptEncoder) -> None:
    with pytest.raises(ContextTooLong, match="over"):
        await demo.encode(prompts("x" * 8_000_000))


@pytest.mark.parametrize("prompt", ["", [], [-1], [300], [1_000_000_000], [2**63], [2**65]])
async def test_a_prompt_without_tokens_or_with_foreign_ones(threads: Executor, prompt: str | list[int]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await PromptEncoder(card(), threads).encode(prompts("ok", prompt))
    assert refused.value.param == "prompt"


async def test_a_text_that_the_vocabulary_has_no_tokens_for(threads: Executor) -> None:
    words = Tokenizer(WordLevel({"a": 0}, unk_token="<unk>"))
    encoder = PromptEncoder(card(tokenizer=words.to_str().encode()), threads)
    assert await encoder.encode(prompts("a")) == [[0]]
    with pytest.raises(InvalidRequest, match="no tokens for this text") as refused:
        await encoder.encode(prompts("b"))
    assert refused.value.param == "prompt"


async def test_a_text_with_a_token_that_the_model_has_no_row_for(threads: Executor) -> None:
    [[last]] = await PromptEncoder(card(), threads).encode(prompts("x"))
    encoder = PromptEncoder(card(vocab_size=last), threads)
    assert await encoder.encode(prompts("w")) == [[last - 1]]
    with pytest.raises(InvalidRequest, match="does not know 'x'") as refused:
        await encoder.encode(prompts("wx"))
    assert refused.value.param == "prompt"


async def test_the_last_id_of_the_vocabulary_exists(threads: Executor) -> None:
    assert await PromptEncoder(card(), threads).encode(prompts([299])) == [[299]]


async def test_a_template_that_refuses_says_why(threads: Executor) -> None:
    encoder = PromptEncoder(card(chat_template="{{ raise_exception('roles must alternate') }}"), threads)
    with pytest.raises(InvalidRequest, match="roles must alternate") as refused:
        await encoder.encode(chat(Turn("user", "a")))
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9999999) %}{% endfor %}",
        "{{ messages[7].role }}",
        "{{ 1 // 0 }}",
        "{{ 1 + messages[0].role }}",
    ],
)
async def test_a_template_that_fails_on_these_messages_refuses_them(threads: Executor, template: str) -> None:
    encoder = PromptEncoder(card(chat_template=template), threads)
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        await encoder.encode(chat(Turn("user", "a")))


@pytest.mark.parametrize("template", ["{% for m in %}", "{{ a | no_such_filter }}", "{% generation %}"])
async def test_a_template_that_is_not_valid_leaves_completions(threads: Executor, template: str) -> None:
    encoder = PromptEncoder(card(chat_template=template), threads)
    with pytest.raises(InvalidRequest, match=r"not valid .* use /v1/completions"):
        await encoder.encode(chat(Turn("user", "a")))
    assert await encoder.encode(prompts("Hello")) == await PromptEncoder(card(), threads).encode(prompts("Hello"))


async def test_a_template_cannot_reach_out_of_its_sandbox(threads: Executor) -> None:
    encoder = PromptEncoder(card(chat_template="{{ messages.__class__.__mro__[1].__subclasses__() }}"), threads)
    with pytest.raises(InvalidRequest):
        await encoder.encode(chat(Turn("user", "a")))


async def test_a_model_without_a_template_has_no_chat(threads: Executor) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await PromptEncoder(card(chat_template=None), threads).encode(chat(Turn("user", "a")))
    assert refused.value.param == "model"


async def test_templates_may_use_what_publishers_use(threads: Executor) -> None:
    template = (
        "{%- for message in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{{ message | tojson }}{{ bos_token }}{{ strftime_now('%%') }}{% endfor %}"
    )
    encoder = PromptEncoder(card(chat_template=template), threads)
    rendered = '{"role": "user", "content": "é"}<s>%'
    assert await encoder.encode(chat(Turn("user", "a"), Turn("user", "é"))) == await encoder.encode(prompts(rendered))


async def test_a_long_text_leaves_the_event_loop_to_others(demo: PromptEncoder) -> None:
    """The tokenizer's thread must not hold the interpreter: another task has its turns in the meantime. Held, it gets
    one or two for each of the eight slices.
    """
    turns = 0
    encoding = asyncio.ensure_future(demo.encode(prompts(" " * 500_000)))
    while not encoding.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len((await encoding)[0]) > 6_000
    assert turns > 60


async def test_a_text_far_beyond_the_context_is_not_encoded_to_its_end(demo: PromptEncoder) -> None:
    text = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}" * 150_000  # 1.2 M tokens of very few characters each
    with pytest.raises(ContextTooLong) as caught:
        await demo.encode(prompts(text))
    counted = int(caught.value.message.rsplit(" ", 1)[1].rstrip("."))
    assert 8_192 <= counted < 600_000


async def test_a_text_of_very_long_tokens_is_counted_to_its_end(demo: PromptEncoder) -> None:
    """More characters than a slice, fewer tokens than the context."""
    [ids] = await demo.encode(prompts(" " * 200_000))
    assert len(ids) < 8_192


async def test_the_marks_of_what_the_assistant_said_are_passed_over(threads: Executor) -> None:
    plain = "{% set a = 1 %}{% for m in messages %}{{ m.content }}{{ a }}{% endfor %}"
    marked = plain.replace("{{ m.content }}", "{% generation %}{% set a = 2 %}{{ m.content }}{% endgeneration %}")
    turns = chat(Turn("user", "ab"), Turn("assistant", "cd"))
    want = await PromptEncoder(card(chat_template=plain), threads).encode(turns)
    assert await PromptEncoder(card(chat_template=marked), threads).encode(turns) == want


def test_special_tokens_are_known_by_their_names_alone(demo: PromptEncoder) -> None:
    names = ("<|im_start|>", "user", "<|im_start|>user", " <|im_end|>", "<|im_end|>")
    assert demo.special_ids(names) == (1, 2)
