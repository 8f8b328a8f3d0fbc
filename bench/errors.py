"""What stops a measurement."""


class BenchError(Exception):
    """The message is for the person who measures, and is printed without a traceback."""
