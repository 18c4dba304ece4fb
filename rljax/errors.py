"""Floor 0: the error that a person, not the program, has to correct."""


class InputError(ValueError):
    """The input cannot work: a setting, a file, a reward, a part that a person brought.

    The message is one paragraph: the value, what was expected, and what to do. The command line prints it and exits with code 2.
    """
