import pytest

from gateway import keys
from gateway.auth import authorization
from gateway.errors import InvalidKey

KEY = keys.generate("live")[0]
OTHER = keys.generate("live")[0]


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER {}", "Bearer {}   ", " Bearer   {}", "Bearer {}\t"])
def test_forms_that_are_accepted(form: str) -> None:
    assert authorization.key([form.format(KEY)]) == keys.parse(KEY)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [KEY],
        [f"Basic {KEY}"],
        [f"Bearer {KEY},{OTHER}"],
        [f"Bearer {KEY} {OTHER}"],
        [f"Bearer {KEY.swapcase()}"],
        [f"Bearer {KEY[:-1]}"],
        [f"Bearer\xa0{KEY}"],
        ["Bearer \xff\xfe"],
        ["Bearer " + "k" * 100_000],
        [f"Bearer {KEY}", f"Bearer {OTHER}"],
        ["Bearer nothing", f"Bearer {KEY}"],
        [f"Bearer {KEY}", f"Bearer {KEY}"],
    ],
)
def test_forms_that_are_refused(values: list[str]) -> None:
    with pytest.raises(InvalidKey) as refusal:
        authorization.key(values)
    assert refusal.value.headers["www-authenticate"] == "Bearer"
    assert KEY[10:] not in refusal.value.message
