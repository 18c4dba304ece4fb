"""Run `rljax` commands with the arguments that a user would type, and return their output or error message."""

import re

from rljax.cli import main


def printed(capsys, *arguments) -> str:
    """Run a command that must succeed, and return its standard output."""
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys, message, *arguments) -> str:
    """Run a command that must exit with status 2 and print a one-line error that matches `message`; return the error."""
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("rljax: "), error
    assert "\n" not in error
    assert "Traceback" not in error
    assert re.search(message, error), error
    return error
