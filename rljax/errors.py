"""Errors that end a command with a message to the user instead of a traceback."""

RELOCATE_HINT = "; if a path in a run's settings was moved, `rljax relocate RUN OLD NEW` records the new location"
"""The end of a message about a file or folder that does not exist."""


class InputError(ValueError):
    """Invalid input: a setting, a file, a reward function, or anything else that the user supplies.

    The message is one paragraph: the value, what was expected, and how to correct it. The command line prints it and exits with
    code 2.
    """

    exit_code = 2
    """Exit code of the command line."""


class ServerLostError(InputError):
    """A server that a run depends on did not answer in time; the run can be resumed once the server is back.

    It is an `InputError` so that the command line prints its message in the same way.
    """

    exit_code = 75
