"""Forms of the Authorization header: schemes are case-insensitive, credentials are not, and nothing else opens."""

import secrets
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.api import Api, assert_error, raw_exchange, status_of


def models(api: Api, authorization: str | None) -> httpx.Response:
    headers = {} if authorization is None else {"Authorization": authorization}
    return api.client.get(api.base_url + "/models", headers=headers)


def raw_status(api: Api, *authorization: bytes) -> int:
    """The status for header values that httpx would not send, or would tidy up first."""
    host = urlsplit(api.base_url).netloc.encode()
    lines = [b"GET /v1/models HTTP/1.1", b"Host: " + host, *(b"Authorization: " + value for value in authorization)]
    return status_of(raw_exchange(api.base_url, b"\r\n".join(lines)))


@pytest.mark.parametrize("form", ["Bearer {k}", "bearer {k}", "BEARER {k}", "Bearer {k}   "])
def test_accepted_forms(api: Api, form: str) -> None:
    assert raw_status(api, form.format(k=api.key).encode()) == 200


@pytest.mark.parametrize("value", [b"", b"Bearer ", b"  "])
def test_nothing_after_the_scheme_is_no_key(api: Api, value: bytes) -> None:
    assert raw_status(api, value) == 401


@pytest.mark.parametrize("form", ["Bearer", "{k}", "Basic {k}", "Bearer {k},{o}", "Bearer {k} {o}", None])
def test_refused_forms(api: Api, other: Api, form: str | None) -> None:
    answer = models(api, form and form.format(k=api.key, o=other.key))
    error = assert_error(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert api.key not in answer.text


def test_a_changed_case_or_a_missing_letter_is_another_key(api: Api) -> None:
    last = api.key[-1]
    assert_error(models(api, f"Bearer {api.key[:-1]}{last.swapcase() if last.isalpha() else 'x'}"), 401)
    assert_error(models(api, f"Bearer {api.key.swapcase()}"), 401)
    assert_error(models(api, f"Bearer {api.key[:-1]}"), 401)


def test_two_headers_are_refused_in_both_orders(api: Api) -> None:
    good, bad = f"Bearer {api.key}".encode(), b"Bearer fb-test-" + secrets.token_hex(8).encode()
    for pair in ((good, bad), (bad, good), (good, good)):
        assert raw_status(api, *pair) in {400, 401}


def test_bytes_above_ascii_and_enormous_headers_are_refused(api: Api) -> None:
    assert raw_status(api, b"Bearer \xff\xfe" + api.key.encode()) == 401
    assert raw_status(api, b"Bearer " + b"k" * 100_000) in {400, 401, 431}
    api.probe()


def test_keys_in_the_query_do_not_count(api: Api) -> None:
    for name in ("api_key", "key"):
        assert_error(api.client.get(f"{api.base_url}/models?{name}={api.key}"), 401)


def test_authentication_comes_before_the_body(api: Api) -> None:
    answer = api.client.post(api.base_url + "/chat/completions", content=b"{not json")
    assert_error(answer, 401)
