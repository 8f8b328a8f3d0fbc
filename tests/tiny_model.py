"""A model that a test can count with: one token a byte, after the two marks of its chat template."""

import uuid

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from shared import wire

MODEL = "tiny"
MODEL_ID = uuid.UUID(int=9)
POOL = "default"
CONTEXT = 512
BOS, EOS = 0, 1
SPECIALS = ("<s>", "</s>")
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def tokenizer() -> Tokenizer:
    """Ids 0 and 1 are the special tokens, then one id a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: index for index, text in enumerate([*SPECIALS, *alphabet])}
    built = Tokenizer(models.BPE(vocab, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return built


def card(**changes: object) -> wire.ModelCard:
    default = wire.ModelCard(
        name=MODEL,
        pool=POOL,
        context_length=CONTEXT,
        vocab_size=300,
        tokenizer=tokenizer().to_str().encode(),
        chat_template=TEMPLATE,
        bos_id=BOS,
        eos_ids=(EOS,),
        add_bos=False,
        special_ids=(BOS, EOS),
        request_tokens_max=CONTEXT,
    )
    return msgspec.structs.replace(default, **changes)


def chat_prompt_tokens(*contents: str, role: str = "user") -> int:
    """What the template and the tokenizer make of these messages, counted by hand."""
    return sum(len(f"_{role}\n{content}_".encode()) for content in contents) + len("_assistant\n")
