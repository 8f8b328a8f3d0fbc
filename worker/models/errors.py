"""The one error of this package."""


class ModelFileError(Exception):
    """A model file cannot be served: missing, damaged, incomplete, or of a kind that is not supported.

    The message is one sentence for an operator; it names the file and, where there is one, the tensor or field.
    """
