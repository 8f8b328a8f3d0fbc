"""A model's card as its worker publishes it, for tests that have files and need no worker."""

from shared import wire
from worker.app import card_on_wire
from worker.models.card import Card


def on_wire(card: Card) -> wire.ModelCard:
    return card_on_wire(card, pool="default", tokens_max=card.context_length)
