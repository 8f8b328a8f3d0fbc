"""Builds a `tokenizers` JSON from the vocabulary in a GGUF file, and the bytes of each token.

Byte-level BPE (`tokenizer.ggml.model = gpt2`) with the pre-tokenizers in PRE_TOKENIZERS, and SentencePiece BPE
(`llama`, see `sentencepiece`). Others are refused: a wrong split gives fluent text from wrong ids. Knows no chat
template and no model.
"""

from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from worker.models import byte_level, sentencepiece
from worker.models.errors import ModelFileError
from worker.models.gguf_file import GgufFile

PRE, UNKNOWN, TYPES = "tokenizer.ggml.pre", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.token_type"
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # GGUF's token types; 2 is unknown, 5 unused
TEXT = (NORMAL, USER_DEFINED, BYTE)
END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# Tokens that end a text or a turn. Many files name only one of theirs, and some converters mark them as ordinary
# tokens, so they are recognised by name, as in llama.cpp.
ENDS = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"}
)

# From the published models' tokenizer files: how text is split before merges apply.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")  # digits one by one
TEKKEN_UPPER, TEKKEN_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{TEKKEN_UPPER}*{TEKKEN_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{TEKKEN_UPPER}+{TEKKEN_LOWER}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _split(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def cut() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return cut


LLAMA3 = ("llama-bpe", "llama3", "llama-v3")  # one tokenizer's names
QWEN2 = ("qwen2", "deepseek-r1-qwen")
PRE_TOKENIZERS = {
    "smollm": _smollm,
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "tekken": _split(TEKKEN_SPLIT),
    **dict.fromkeys(LLAMA3, _split(LLAMA3_SPLIT)),
    **dict.fromkeys(QWEN2, _split(QWEN2_SPLIT)),
}
COMPOSED_FIRST = QWEN2  # text is NFC-normalized before it is split
WHOLE_WORDS_FIRST = (*LLAMA3, "tekken")  # a word that is a token is used without applying merges


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of `file`. It adds no special token by itself. Raises ModelFileError."""
    tokens, types = token_table(file)
    tokenizer = _sentencepiece(file, tokens) if is_sentencepiece(file) else _byte_level(file, tokens)
    added = [(text, kind) for text, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text, kind in added if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text, kind in added if kind == USER_DEFINED])
    if tokenizer.get_vocab_size() != len(tokens):
        msg = f"{file.path}: metadata field tokenizer.ggml.tokens repeats a token"
        raise ModelFileError(msg)
    return tokenizer


def is_sentencepiece(file: GgufFile) -> bool:
    """Raises ModelFileError where the tokenizer is neither of the two kinds."""
    kind = file.require("tokenizer.ggml.model", str)
    if kind not in ("gpt2", "llama"):
        msg = f"{file.path}: tokenizer model {kind!r} is not supported, only 'gpt2' and 'llama'"
        raise ModelFileError(msg)
    return kind == "llama"


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = file.require(PRE, str) if PRE in file.metadata else "missing"
    if pre not in PRE_TOKENIZERS:
        msg = f"{file.path}: pre-tokenizer {pre!r} is not supported, only {', '.join(PRE_TOKENIZERS)}"
        raise ModelFileError(msg)
    merges = [_pair(merge) for merge in file.items("tokenizer.ggml.merges", str)]
    vocab = {text: index for index, text in enumerate(tokens)}
    try:
        model = models.BPE(vocab, merges, fuse_unk=False, ignore_merges=pre in WHOLE_WORDS_FIRST)
    except Exception as error:  # the library raises a bare Exception when a merge names an unknown token
        msg = f"{file.path}: metadata field tokenizer.ggml.merges does not fit the tokens ({error})"
        raise ModelFileError(msg) from error
    tokenizer = Tokenizer(model)
    if pre in COMPOSED_FIRST:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = file.items("tokenizer.ggml.scores", (float, int))
    if len(scores) != len(tokens):
        msg = f"{file.path}: {len(tokens)} tokens but {len(scores)} scores in tokenizer.ggml"
        raise ModelFileError(msg)
    unknown = file.require(UNKNOWN, int) if UNKNOWN in file.metadata else 0
    if not 0 <= unknown < len(tokens):
        msg = f"{file.path}: metadata field {UNKNOWN} is {unknown}"
        raise ModelFileError(msg)
    prefix = file.flag("tokenizer.ggml.add_space_prefix", default=True)
    return sentencepiece.build(tokens, scores, unknown=tokens[unknown], space_in_front=prefix)


def token_table(file: GgufFile) -> tuple[list[str], list[int]]:
    """The text and the type of each token id; what ends a text is of type CONTROL, whatever the file says."""
    tokens = file.items("tokenizer.ggml.tokens", str)
    types = file.items(TYPES, int) if TYPES in file.metadata else [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        msg = f"{file.path}: {len(tokens)} tokens but {len(types)} token types in tokenizer.ggml"
        raise ModelFileError(msg)
    ends = {value for key in END_KEYS if isinstance(value := file.metadata.get(key), int)}
    ends.update(token for token, text in enumerate(tokens) if text in ENDS)
    return tokens, [CONTROL if token in ends else kind for token, kind in enumerate(types)]


def token_bytes(file: GgufFile) -> list[bytes]:
    """The bytes that each token id stands for; empty for special, unknown and unused ones."""
    tokens, types = token_table(file)
    if is_sentencepiece(file):
        return [sentencepiece.bytes_of(text) if kind in TEXT else b"" for text, kind in zip(tokens, types, strict=True)]
    return [_bytes_of(text, kind) for text, kind in zip(tokens, types, strict=True)]


def _bytes_of(text: str, kind: int) -> bytes:
    if kind == USER_DEFINED:
        return text.encode()
    return byte_level.bytes_of(text) if kind == NORMAL else b""
