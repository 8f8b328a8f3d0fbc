"""What an engine streams is what the tokenizers library decodes: byte-level and SentencePiece vocabularies, special
tokens, byte fallback, a space at the start of the text, stop strings."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from worker.engine.batch import Batch, Sampled
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest, SamplingParams
from worker.models import sentencepiece
from worker.models.byte_level import _byte_of_character, bytes_of
from worker.models.first_space import skips_first_space
from worker.models.token_table import TokenTable

SPACE = sentencepiece.SPACE
BOS = "<s>"
PIECES = [BOS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "a", "b", f"{SPACE}a", f"{SPACE}{SPACE}"]
CHARACTERS = ["\u00e9", "\u4f60", "\U0001f600"]
LETTERS = {bytes_of(letter)[0]: letter for letter in map(chr, _byte_of_character())}


def special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken("<unk>", special=True)])
    return tokenizer


BYTE_LEVEL = Tokenizer(
    models.BPE({text: index for index, text in enumerate([BOS, "<unk>", *(LETTERS[byte] for byte in range(256))])}, [])
)
BYTE_LEVEL.decoder = decoders.ByteLevel()
BYTE_LEVEL = special(BYTE_LEVEL)
BYTE_TABLE = TokenTable((b"", b"", *(bytes([byte]) for byte in range(256))), frozenset())

SENTENCEPIECE = special(
    sentencepiece.build(PIECES, [-float(n) for n in range(len(PIECES))], unknown="<unk>", space_in_front=True)
)
PIECE_TABLE = TokenTable((b"", b"", *map(sentencepiece.bytes_of, PIECES[2:])), frozenset(), skips_first_space=True)


def fallback(character: str) -> list[int]:
    return [2 + byte for byte in character.encode()]


# Byte-level ids of bytes that make characters, half characters and what is no UTF-8 at all; and special tokens.
any_bytes = st.sampled_from([0, 0, *(2 + byte for byte in (b"a b\xc3\xa9\xe4\xbd\xa0\xf0\x9f\xff" + b"  "))])
byte_ids = st.lists(any_bytes, min_size=1, max_size=16)
# Pieces, special tokens, and characters in bytes, which may be cut at the end.
piece = st.sampled_from([[0], [258], [259], [260], [261], [262], *map(fallback, [*CHARACTERS, " "])])
piece_ids = st.lists(piece, min_size=1, max_size=8).map(lambda pieces: list(itertools.chain(*pieces)))


class Reciter:
    """A runner that says what it was given to say, whatever it reads."""

    block_size = 4
    blocks_total = 40
    context_length = 128
    steps_ahead = 0

    def __init__(self, output: list[int], *, after: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._output = output
        self._after = after

    def submit(self, batch: Batch) -> Sampled:
        ids = [self._output[params.position - self._after] for params in batch.samples]
        return Sampled(ids, [None] * len(ids))

    def close(self) -> None:
        pass


def recite(prompt: list[int], output: list[int], table: TokenTable, stop: tuple[str, ...] = ()) -> list[str]:
    """The texts of all chunks of an answer whose tokens are `output`."""
    runner = Reciter(output, after=len(prompt), vocab_size=table.vocab_size)
    engine = Engine(runner, table, EngineConfig(block_size=4, context_length=128, sequences_max=2))
    sampling = SamplingParams(max_tokens=len(output), stop=stop)
    engine.add(EngineRequest(id="r", prompts=(prompt,), n=1, sampling=sampling, tier=0, tenant="t", salt=b""))
    texts: list[str] = []
    while engine.has_work:
        result = engine.step()
        assert not [done for done in result.done if done.error]
        texts += [chunk.text for chunk in result.chunks]
    return texts


def test_whether_the_first_space_is_shown_is_the_decoders_matter() -> None:
    assert skips_first_space(SENTENCEPIECE, PIECE_TABLE.tokens)
    spaced = Tokenizer(models.BPE({"\u0120x": 0}, []))
    spaced.decoder = decoders.ByteLevel()
    assert not skips_first_space(spaced, [b" x"])


@given(output=byte_ids)
@settings(max_examples=150)
def test_byte_level_text_is_the_decoders_whatever_the_bytes(output) -> None:
    assert "".join(recite([2], output, BYTE_TABLE)) == BYTE_LEVEL.decode(output)


@given(prompt=piece_ids, output=piece_ids)
@settings(max_examples=150)
def test_sentencepiece_text_continues_the_prompt_as_one_decode_of_both_does(prompt, output) -> None:
    before, both = SENTENCEPIECE.decode(prompt), SENTENCEPIECE.decode(prompt + output)
    assert before + "".join(recite(prompt, output, PIECE_TABLE)) == both


@given(output=piece_ids)
@settings(max_examples=100)
def test_after_special_tokens_alone_the_first_space_is_not_shown(output) -> None:
    assert "".join(recite([0], output, PIECE_TABLE)) == SENTENCEPIECE.decode(output)


@given(output=piece_ids, cuts=st.lists(st.integers(0, 40), max_size=3))
@settings(max_examples=100)
def test_bytes_that_make_no_character_harm_nothing_around_them(output, cuts) -> None:
    """The library gives up a run of bytes for one that is wrong, which no stream could; SentencePiece does not."""
    for cut in cuts:
        output = output[: cut % len(output)] + output[cut % len(output) + 1 :] or output
    data = b"".join(map(PIECE_TABLE.token_bytes, output))
    assert "".join(recite([0], output, PIECE_TABLE)) == data.decode(errors="replace").removeprefix(" ")


@given(output=piece_ids, stop=st.text("ab \u00e9\u4f60", min_size=1, max_size=3))
@settings(max_examples=150)
def test_a_stop_string_cuts_what_the_decoder_says(output, stop) -> None:
    whole = SENTENCEPIECE.decode(output)
    assert "".join(recite([0], output, PIECE_TABLE, (stop,))) == whole.partition(stop)[0]


def test_what_was_said_is_whole_characters() -> None:
    texts = recite([2], [2 + byte for byte in "\u4f60a\U0001f600".encode()], BYTE_TABLE)
    assert texts == ["", "", "\u4f60", "a", "", "", "", "\U0001f600"]
