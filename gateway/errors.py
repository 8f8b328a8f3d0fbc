"""Every error of the gateway, and the HTTP answer that each becomes.

GatewayError
├── InvalidRequest          400  the client sent something that cannot be served
│   └── ContextTooLong      400  code context_length_exceeded
├── InvalidKey              401  unknown, malformed, revoked or expired key: one body for all
├── Forbidden               403  the key is good but may not do this
├── ModelNotFound           404  unknown, or not allowed to this key
├── ObjectNotFound          404  administration: there is nothing of that name
├── BodyTimeout             408  the client stopped sending its body
├── Conflict                409  administration: the name is taken, or the same call is being served
├── BodyTooLarge            413
├── UnsupportedMedia        415  the body is declared to be something else than JSON, or to be compressed
├── RateLimited             429  a bucket or cap has not enough; `retry_after_ms` None means never
├── BudgetExhausted         429  a budget of the day or month is spent: no use in trying again
├── QueueFull               429  too much of the tenant's or tier's waits already
├── ClientGone              499  the client hung up; nobody reads the answer, metrics and logs do
├── RequestFailed           500  the engine ended this request with an error
├── WorkerLost              502  the attempt was lost after it had started
├── Unavailable             503  overloaded, no worker, no NATS, no Postgres, draining
└── DeadlineExceeded        504  nobody could start it in time

`gateway.api.errors` is the only place that turns them into responses.
"""

from typing import ClassVar


class GatewayError(Exception):
    """An error with a message for the client. `status`, `type` and `code` are OpenAI's."""

    status: ClassVar[int] = 500
    retryable: ClassVar[bool | None] = None  # `retry` of one error overrides it
    type: str = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_ms: int | None = None,
        retry: bool | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.headers = headers or {}
        self.retry = self.retryable if retry is None else retry
        if code is not None:
            self.code = code

    @property
    def should_retry(self) -> bool | None:
        """The `x-should-retry` header: None leaves the decision to the client's own rules."""
        return self.retry


class InvalidRequest(GatewayError):
    status = 400
    type = "invalid_request_error"


class ContextTooLong(InvalidRequest):
    code = "context_length_exceeded"


class InvalidKey(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(GatewayError):
    status = 403
    type = "invalid_request_error"
    code = "insufficient_permissions"


class ModelNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class ObjectNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class BodyTimeout(GatewayError):
    status = 408
    retryable = True
    type = "invalid_request_error"
    code = "request_timeout"


class Conflict(GatewayError):
    status = 409
    type = "invalid_request_error"

    @property
    def should_retry(self) -> bool | None:
        return self.retry_after_ms is not None


class BodyTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnsupportedMedia(GatewayError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class RateLimited(GatewayError):
    """`kind` is what there is too much of: requests or tokens."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, kind: str, retry_after_ms: int | None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms, headers=headers)
        self.type = kind

    @property
    def should_retry(self) -> bool | None:
        return self.retry_after_ms is not None


class BudgetExhausted(GatewayError):
    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    @property
    def should_retry(self) -> bool | None:
        return False


class QueueFull(GatewayError):
    status = 429
    retryable = True
    type = "requests"
    code = "slow_down"


class ClientGone(GatewayError):
    status = 499
    type = "invalid_request_error"
    code = "client_closed_request"


class RequestFailed(GatewayError):
    """Not retryable: the tokens computed so far are billed, and the same input would most likely fail again."""

    retryable = False
    code = "engine_error"


class WorkerLost(GatewayError):
    status = 502
    code = "worker_lost"


class Unavailable(GatewayError):
    status = 503
    retryable = True
    code = "server_is_overloaded"


class DeadlineExceeded(GatewayError):
    status = 504
    retryable = True
    code = "deadline_exceeded"
