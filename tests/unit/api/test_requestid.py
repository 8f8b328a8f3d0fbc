"""What a client calls its request: noted as it is if it is harmless, never taken for ours."""

import pytest

from gateway.api.requestid import client_id, request_id


@pytest.mark.parametrize(
    ("sent", "noted"),
    [
        ([b"run-7.Z_9"], "run-7.Z_9"),
        ([b"a" * 128], "a" * 128),
        ([b"a" * 129], None),
        ([b""], None),
        ([b"a b"], None),
        ([b"a\n"], None),
        ([b"\xe9"], None),
        ([b"a", b"a"], None),
        ([], None),
    ],
)
def test_a_client_s_id(sent: list[bytes], noted: str | None) -> None:
    scope = {"headers": [(b"x-request-id", value) for value in sent], "state": {}}
    assert client_id(scope) == noted
    assert str(request_id(scope)) != noted
    assert request_id(scope) == request_id(scope)
