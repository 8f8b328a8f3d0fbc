"""The errors with which the engine refuses a request. Errors of running requests come back in `StepResult` instead.

EngineError
├── InvalidRequest    malformed; whoever sent it should have refused it
└── DoesNotFit        sound, but longer than this engine can ever hold
"""


class EngineError(Exception):
    """Base. The message is one sentence, fit for the client."""


class InvalidRequest(EngineError):
    """Raised by `Engine.add` for a request that no engine could run."""


class DoesNotFit(EngineError):
    """Raised by `Engine.add` for a prompt that would leave no room for one output token even in an empty pool."""
