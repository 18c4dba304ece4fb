"""Wrap programs that read standard input and print an answer, as in programming contests, for testing in the sandbox."""

from collections.abc import Sequence

from rljax.rewards.sandbox import Program

_WRAPPER = '''
import io, os, sys

_compiled = compile({program!r}, "<program>", "exec")


class _Stream(io.BytesIO):
    """A standard stream, which stays open when a wrapper around it is discarded."""

    def __init__(self, number, content=b""):
        super().__init__(content)
        self._number = number

    def fileno(self):
        return self._number

    def close(self):
        """Leave the stream open."""


def run_program(text):
    """Return what the program prints for this input."""
    streams, actions = (sys.stdin, sys.stdout), (os.read, os.write)
    data, printed = _Stream(0, text.encode()), _Stream(1)
    output = io.TextIOWrapper(printed, "utf-8", write_through=True)

    def open_stream(file, mode="r", *options, **named):
        if file not in (0, "/dev/stdin"):
            return open(file, mode, *options, **named)
        return data if "b" in mode else io.TextIOWrapper(data, "utf-8")

    def read(descriptor, count):
        return data.read(count) if descriptor == 0 else actions[0](descriptor, count)

    def write(descriptor, content):
        return printed.write(content) if descriptor == 1 else actions[1](descriptor, content)

    sys.stdin, sys.stdout = io.TextIOWrapper(data, "utf-8"), output
    os.read, os.write = read, write
    try:
        try:
            exec(_compiled, {{"__name__": "__main__", "exit": sys.exit, "quit": sys.exit, "open": open_stream}})
            if "threading" in sys.modules:
                threading = sys.modules["threading"]
                for thread in threading.enumerate():
                    if thread is not threading.current_thread() and not thread.daemon:
                        thread.join()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        sys.stdout.flush()
    finally:
        sys.stdin, sys.stdout = streams
        os.read, os.write = actions
    output.flush()
    return printed.getvalue().decode()
'''
_COMPARISON = '''
def same_output(printed, expected):
    """True if two outputs have the same words, ignoring case; numbers may differ by less than 1e-5."""
    if type(printed) is not str:
        return False
    words, wanted = printed.lower().split(), expected.lower().split()
    return len(words) == len(wanted) and all(map(same_word, words, wanted))


def same_word(word, wanted):
    if word == wanted:
        return True
    try:
        return "." in word + wanted and abs(float(word) - float(wanted)) < 1e-5
    except ValueError:
        return False
'''


def build_stdin_program(program: str, inputs: Sequence[str], outputs: Sequence[str]) -> Program:
    r"""Turn a program that reads standard input into a program with one sandbox test per input.

    The program runs once per input, in a process that sees the inputs but no expected output. The program passes a test if it
    ends without an error (`sys.exit(0)` is not an error) and prints the expected words. Whitespace and capitalization are
    ignored. Two words also match if at least one of them has a decimal point and they are numbers that differ by less than 1e-5.

    The program may read with `input`, `sys.stdin`, `open(0)`, `open("/dev/stdin")` and `os.read(0, n)`, and print with `print`,
    `sys.stdout` and `os.write(1, b)`. The process's real standard input is empty, and what it writes to the real
    standard output is ignored. A program therefore fails its tests if
    it opens them in another way (`io.open(0)`, `os.fdopen(0)`, `open(1, "w")`), asks for the size of its input
    (`os.fstat(0).st_size`), or prints in another process or at exit (`atexit`).

    Args:
        program: source code of the program.
        inputs: standard input for each test.
        outputs: expected output for each test.

    Returns:
        The program and its tests.

    Example:
        >>> len(build_stdin_program("print(int(input()) * 2)", ["1\n", "4\n"], ["2\n", "8\n"]).tests)
        2

    Source:
        CodeContests, Li et al., arXiv:2203.07814. The comparison follows `OutputsMatch` in their published tester, which compares
        integers exactly.
    """
    tests = (
        f"assert same_output(run_program({read!r}), {printed!r})" for read, printed in zip(inputs, outputs, strict=True)
    )
    return Program(code=_WRAPPER.format(program=program), tests=tuple(tests), setup=_COMPARISON)
