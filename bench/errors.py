"""The error that stops a benchmark."""


class BenchError(Exception):
    """The message is for the person who measures, and is printed without a traceback."""
