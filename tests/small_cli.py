"""Run commands as a person types them, and return what they print or how they refuse."""

import re

from rljax.cli import main


def printed(capsys, *arguments) -> str:
    """Standard output of a command that succeeds."""
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys, message, *arguments) -> str:
    """The error message of a command that exits with status 2: one paragraph that matches `message`, without a traceback."""
    assert main(list(arguments)) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("rljax: "), error
    assert "\n" not in error
    assert "Traceback" not in error
    assert re.search(message, error), error
    return error
