"""The errors that end a command, each with one sentence for its user.

CommandError
├── DataDirectoryError   the data directory cannot be used as it is
├── AlreadyRunning       another `up` holds the data directory
├── PortTaken            somebody else listens on a port that was asked for
├── ChildFailed          a process of the stack ended, or did not become ready
└── NothingRunning       there is no `up` to talk to
"""


class CommandError(Exception):
    """A fault that the user can act on; the message is one sentence, printed without a traceback."""


class DataDirectoryError(CommandError):
    pass


class AlreadyRunning(CommandError):
    pass


class PortTaken(CommandError):
    pass


class ChildFailed(CommandError):
    pass


class NothingRunning(CommandError):
    pass
