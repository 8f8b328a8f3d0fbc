import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import keys


def test_a_new_key_parses_to_what_is_stored_of_it() -> None:
    text, record = keys.generate("live")
    parsed = keys.parse(text)
    assert parsed is not None
    assert (parsed.env, parsed.public_id) == ("live", record.public_id)
    assert keys.verify(parsed, record.digest)
    assert text.startswith(f"fb-live-{record.public_id}-")
    assert text.endswith(record.last4)
    assert keys.record(text) == record


def test_nothing_that_is_stored_or_parsed_shows_the_secret() -> None:
    text, record = keys.generate("live")
    secret = text.split("-")[3][: keys.SECRET_LENGTH]
    assert secret not in repr(record)
    assert secret not in repr(keys.parse(text))


def test_keys_differ() -> None:
    assert len({keys.generate("live")[0] for _ in range(100)}) == 100


def test_another_secret_does_not_verify() -> None:
    parsed = keys.parse(keys.generate("live")[0])
    assert parsed is not None
    assert not keys.verify(parsed, keys.generate("live")[1].digest)


@given(st.data())
def test_any_one_character_changed_cut_or_added_is_refused(data: st.DataObject) -> None:
    text, _ = keys.generate("test")
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda character: character != text[place]))
    assert keys.parse(text[:place] + other + text[place + 1 :]) is None
    assert keys.parse(text[:place] + text[place + 1 :]) is None
    assert keys.parse(text[:place] + other + text[place:]) is None


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert keys.parse(text) is None
    assert keys.record(text) is None


def test_a_huge_text_is_refused_before_it_is_read() -> None:
    assert keys.parse("fb-live-" + "a" * 100_000) is None


@pytest.mark.parametrize("env", ["", "Live", "a-b", "ninechars"])
def test_an_environment_that_would_not_parse_is_refused(env: str) -> None:
    with pytest.raises(ValueError, match="environment"):
        keys.generate(env)


def test_a_renewed_key_has_the_same_public_id_and_another_secret() -> None:
    text, record = keys.generate("live")
    again, renewed = keys.renew("live", record.public_id)
    assert (renewed.env, renewed.public_id) == (record.env, record.public_id)
    assert renewed.digest != record.digest
    assert keys.parse(again) is not None
    assert again != text


def test_a_key_is_cut_to_its_public_id_wherever_it_stands() -> None:
    text, record = keys.generate("live")
    for told in (text, f"no tenant called {text}.", f'{{"a":"{text}","b":"{text[:-1]}"}}', text + "more", text[:40]):
        shown = keys.redact(told)
        assert record.public_id in shown
        assert text.split("-")[3][:8] not in shown
    assert keys.redact("fb-live and nothing else") == "fb-live and nothing else"
