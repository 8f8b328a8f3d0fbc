"""A model's card as its worker publishes it, for tests that have files and need no worker."""

from shared import wire
from worker.models.card import Card


def on_wire(card: Card) -> wire.ModelCard:
    return wire.ModelCard(
        name=card.name,
        pool="default",
        context_length=card.context_length,
        vocab_size=card.vocab_size,
        tokenizer=card.tokenizer_json,
        chat_template=card.chat_template,
        bos_id=card.bos_id,
        eos_ids=card.eos_ids,
        add_bos=card.add_bos,
        special_ids=card.special_ids,
        request_tokens_max=card.context_length,
    )
