"""Floor 0: what is raised when the person, not the program, has to mend something."""


class InputError(ValueError):
    """A value that a person gave cannot be used.

    The message is one paragraph that names the value and the mend; the command line prints it and exits with code 2.
    """
