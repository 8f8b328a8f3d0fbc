"""Errors of the worker process; engine and model files have their own (`worker.engine.errors`, `worker.models.errors`).

WorkerError
└── CannotStart    the worker cannot serve as configured; one sentence for an operator
"""


class WorkerError(Exception):
    """Base."""


class CannotStart(WorkerError):
    """Raised before anything is announced to the fleet."""
