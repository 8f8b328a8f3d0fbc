"""What a model folder says about text: end ids, special tokens, the bytes of tokens, and what is refused."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.unit.models.folder import BOS, EOS, VOCAB, Folder, byte_tokenizer, write_json, write_tokenizer
from worker.models.card import demo_model_path, read_card
from worker.models.errors import ModelFileError
from worker.models.first_space import skips_first_space
from worker.models.hf_tokens import token_bytes


@pytest.fixture
def folder(tmp_path):
    return Folder().write(tmp_path / "tiny")


def refusal(folder) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_card(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def ends(folder, *, config: object, generation: object = "no file") -> tuple[int, ...]:
    fields = json.loads((folder / "config.json").read_text()) | {"eos_token_id": config}
    write_json(folder / "config.json", fields)
    if generation != "no file":
        write_json(folder / "generation_config.json", {"eos_token_id": generation})
    card = read_card(folder)
    assert card.vocabulary.eos_ids == set(card.eos_ids)
    return card.eos_ids


def test_an_answer_ends_wherever_any_file_says_so(folder):
    assert ends(folder, config=5) == (1, 5)
    assert ends(folder, config=[5, 7]) == (1, 5, 7)
    assert ends(folder, config=None) == (1,)
    assert ends(folder, config=1, generation=[1, 9]) == (1, 9)
    assert ends(folder, config=5, generation=None) == (1, 5)


def test_the_tokenizers_own_end_is_the_first(folder):
    write_tokenizer(folder, eos_token="!")
    assert ends(folder, config=1) == (Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("!"), 1)


def test_an_id_that_no_vocabulary_reaches_is_refused_before_room_is_made_for_it(folder):
    fields = json.loads((folder / "tokenizer.json").read_text())
    fields["model"]["vocab"]["far"] = 2**32 - 2
    write_json(folder / "tokenizer.json", fields)
    assert "tokenizer.json: a token has the id 4294967294" in refusal(folder)


def test_a_folder_without_tokenizer_config(folder):
    (folder / "tokenizer_config.json").unlink()
    card = read_card(folder)
    assert (card.eos_ids, card.bos_id, card.add_bos, card.chat_template) == ((1,), None, False, None)
    assert card.special_ids == (0, 1)


@pytest.mark.parametrize("token", [-1, 128, 151_643])
def test_an_end_that_is_no_token_is_a_warning(folder, token):
    with pytest.warns(UserWarning, match=f"eos_token_id {token} is no token"):
        assert ends(folder, config=token) == (1,)


@pytest.mark.parametrize("value", ["1", 1.0, True, [1, None]])
def test_an_end_of_another_type_is_refused(folder, value):
    write_json(folder / "generation_config.json", {"eos_token_id": value})
    assert "generation_config.json: field eos_token_id" in refusal(folder)


def test_named_tokens_are_special_even_where_the_tokenizer_does_not_say_so(folder):
    write_tokenizer(folder, pad_token="!", unk_token="<nowhere>")
    card = read_card(folder)
    pad = Tokenizer.from_str(card.tokenizer_json.decode()).token_to_id("!")
    assert card.special_ids == (0, 1, pad)
    assert card.vocabulary.token_bytes(pad) == b""


def test_tokens_that_a_model_names_by_itself_are_special_too(folder):
    write_tokenizer(folder, extra_special_tokens={"image_token": "!", "audio_token": {"content": "#"}, "none": None})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert set(read_card(folder).special_ids) == {0, 1, tokenizer.token_to_id("!"), tokenizer.token_to_id("#")}


@pytest.mark.parametrize("key", ["extra_special_tokens", "additional_special_tokens"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_tokens_in_a_list_of_special_ones_are_special(folder, key, file):
    own = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    write_json(folder / file, own | {key: ["!", {"content": "#"}, "<absent>"]})
    card = read_card(folder)
    tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
    bang, hash_ = tokenizer.token_to_id("!"), tokenizer.token_to_id("#")
    assert set(card.special_ids) == {0, 1, bang, hash_}
    assert tokenizer.encode("#!").ids == [hash_, bang]


def test_older_folders_keep_added_tokens_in_a_file_of_their_own(folder):
    write_tokenizer(folder, vocab=100)
    write_json(folder / "added_tokens.json", {"<tool>": 100})
    card = read_card(folder)
    assert Tokenizer.from_str(card.tokenizer_json.decode()).encode("<tool>").ids == [100]
    assert card.vocabulary.token_bytes(100) == b"<tool>"
    write_json(folder / "added_tokens.json", {"<tool>": 101})
    with pytest.raises(ModelFileError, match="token 101"):
        read_card(folder)


def test_older_folders_name_their_tokens_in_a_file_of_their_own(folder):
    write_json(folder / "tokenizer_config.json", {"eos_token": "!"})
    write_json(folder / "special_tokens_map.json", {"bos_token": {"content": BOS}, "eos_token": EOS, "x": 1})
    card = read_card(folder)
    assert card.bos_id == 0
    assert card.vocabulary.token_bytes(card.eos_ids[0]) == b""
    assert card.eos_ids[0] == Tokenizer.from_str(card.tokenizer_json.decode()).token_to_id("!")


def test_added_tokens_that_are_not_special_have_text(folder):
    tokenizer = byte_tokenizer(vocab=100)
    tokenizer.add_tokens([AddedToken("<tool>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert read_card(folder).vocabulary.token_bytes(100) == b"<tool>"


def test_tokens_that_only_the_config_adds(folder):
    added = {"100": {"content": "<tool>"}, "101": {"content": "<|turn|>", "special": True}}
    write_tokenizer(folder, vocab=100, added_tokens_decoder=added)
    card = read_card(folder)
    assert Tokenizer.from_str(card.tokenizer_json.decode()).encode(f"<tool>{EOS}<|turn|>").ids == [100, 1, 101]
    assert [card.vocabulary.token_bytes(token) for token in (100, 101)] == [b"<tool>", b""]
    assert card.special_ids == (0, 1, 101)


def test_tokens_added_beyond_the_rows_stand_for_nothing(folder):
    added = {str(VOCAB + n): {"content": f"<pad{n}>", "special": True} for n in range(2)}
    write_tokenizer(folder, added_tokens_decoder=added, pad_token="<pad0>", eos_token="<pad1>")
    with pytest.warns(UserWarning, match=f"no rows for added tokens from {VOCAB} on"):
        card = read_card(folder)
    assert (card.vocab_size, len(card.vocabulary.tokens)) == (VOCAB, VOCAB)
    assert (card.eos_ids, card.special_ids) == ((1,), (0, 1))


def test_a_tokenizer_that_truncates_or_pads_does_not_here(folder):
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(folder / "tokenizer.json"))
    ours = Tokenizer.from_str(read_card(folder).tokenizer_json.decode())
    assert len(ours.encode("abcdefgh", add_special_tokens=False).ids) == 8


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"tokenizer.json": "{}"}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer.json": None}, "tokenizer.json: missing"),
        ({"tokenizer_config.json": "["}, "tokenizer_config.json: not JSON"),
        ({"tokenizer_config.json": "[" * 200_000}, "tokenizer_config.json: not JSON"),
        ({"tokenizer_config.json": '{"chat_template": 7}'}, "field chat_template is 7"),
        ({"tokenizer_config.json": '{"bos_token": 7}'}, "field bos_token is 7"),
        ({"tokenizer_config.json": '{"added_tokens_decoder": {"5": {"content": "x"}}}'}, "token 5 ('x')"),
        (
            {"tokenizer_config.json": '{"added_tokens_decoder": {"500": {"content": "<x>"}}}'},
            "token 500 ('<x>') is 128",
        ),
        ({"tokenizer_config.json": '{"added_tokens_decoder": {"x": {"content": "x"}}}'}, "'x' is no token id"),
        ({"tokenizer_config.json": '{"added_tokens_decoder": {"\u00b2": {"content": "x"}}}'}, "is no token id"),
        ({"tokenizer_config.json": f'{{"added_tokens_decoder": {{"{10**30}": {{"content": "x"}}}}}}'}, "no token id"),
        ({"tokenizer_config.json": '{"eos_token": "\\ud800"}'}, "tokenizer_config.json: not JSON"),
        ({"tokenizer_config.json": '{"chat_template": "\\ud800"}'}, "tokenizer_config.json: not JSON"),
        ({"chat_template.jinja": b"\xff"}, "chat_template.jinja: cannot be read"),
    ],
)
def test_damaged_files_are_named(folder, files, complaint):
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert complaint in refusal(folder)


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"x": 0}, unk_token="[UNK]"),
        models.WordPiece({"x": 0}, unk_token="[UNK]"),
        models.Unigram([("x", 0.0)]),
    ],
)
def test_a_tokenizer_without_a_token_for_what_it_does_not_know(folder, model):
    Tokenizer(model).save(str(folder / "tokenizer.json"))
    assert "tokenizer.json: cannot encode a text" in refusal(folder)


def test_several_templates_without_a_default_are_none(folder):
    write_tokenizer(folder, chat_template=[{"name": "rag", "template": "x"}])
    with pytest.warns(UserWarning, match="none of the chat templates is named default"):
        assert read_card(folder).chat_template is None


def test_two_tokens_in_front_of_a_prompt_are_refused(folder):
    tokenizer = byte_tokenizer()
    both = [(BOS, 0), (EOS, 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} {EOS} $A", special_tokens=both)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert "adds 2 tokens" in refusal(folder)


def test_an_end_behind_the_prompt_is_left_out(folder):
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert not read_card(folder).add_bos


def test_the_demo_models_tokenizer_in_a_folder_has_the_same_bytes():
    card = read_card(demo_model_path())
    tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
    assert token_bytes(tokenizer, "x") == card.vocabulary.tokens


def test_sentencepiece_and_words():
    pieces = {"<unk>": 0, "<0xE2>": 1, "\u2581he": 2, "llo": 3}
    tokenizer = Tokenizer(models.BPE(pieces, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend("\u2581")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    assert token_bytes(tokenizer, "x")[1:] == (b"\xe2", b" he", b"llo")
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    assert token_bytes(tokenizer, "x")[2:] == (b" he", b"llo")
    words = Tokenizer(models.WordLevel({"a": 0, "b": 3}, unk_token="a"))
    assert token_bytes(words, "x") == (b" a", b"", b"", b" b")


@pytest.mark.parametrize(
    ("decoder", "skips"),
    [
        (decoders.ByteLevel(), False),
        (decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()]), False),
        (decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]), True),
        (decoders.Metaspace(), True),
        (decoders.Metaspace(prepend_scheme="never"), False),
    ],
)
def test_whether_the_first_space_is_the_tokenizers_own(decoder, skips):
    tokenizer = Tokenizer(models.BPE({"\u0120he" if isinstance(decoder, decoders.ByteLevel) else "\u2581he": 0}, []))
    tokenizer.decoder = decoder
    assert tokenizer.decode([0]) == ("he" if skips else " he")
    assert skips_first_space(tokenizer, [b" he"]) == skips


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.Replace("x", " "), decoders.Metaspace("_")])
def test_a_decoder_that_puts_text_together_otherwise_is_refused(decoder):
    tokenizer = byte_tokenizer()
    tokenizer.decoder = decoder
    with pytest.raises(ModelFileError, match="x: not supported: decoder"):
        token_bytes(tokenizer, "x")
