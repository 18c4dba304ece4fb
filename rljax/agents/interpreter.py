"""Python as a tool: the policy's code runs in the sandbox, and its variables persist throughout an episode."""

from rljax.agents.tool_environment import ToolEnvironment
from rljax.rewards.sandbox import Limits, text_of

_PROGRAM = """
import ast, io, random, sys, traceback


def run(cell, namespace):
    tree = ast.parse(cell, "<cell>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), namespace)
    value = None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    if value is not None:
        print(repr(value))


def explain(error):
    text = "".join(traceback.format_exception_only(error)).strip()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<cell>"]
    return f"{text} (line {lines[-1]})" if lines else text


def output():
    namespace, streams, printed = {"__name__": "__main__"}, (sys.stdout, sys.stderr), io.StringIO()
    random.seed(0)
    for cell in CELLS:
        sys.stdout = sys.stderr = printed = io.StringIO()
        try:
            run(cell, namespace)
        except BaseException as error:
            printed.write(explain(error))
        finally:
            sys.stdout, sys.stderr = streams
    return printed.getvalue()
"""


class PythonInterpreter(ToolEnvironment):
    """An environment whose only tool runs Python code.

    Each call first runs the code of the episode's earlier calls again, discards its output, and then runs the new code. Variables
    therefore persist although no process runs between calls, and a resumed run continues exactly as before. The limits apply to all
    of this code together; the code of a call that exceeds them, or ends the process, is left out of later calls.

    Args:
        reward: see `ToolEnvironment`.
        max_turns: see `ToolEnvironment`.
        seconds: time limit of a call.
        megabytes: memory limit of a call.

    Example:
        >>> state, text = PythonInterpreter().python("x = 6", None)
        >>> PythonInterpreter().python("x * 7", state)[1]
        '42'
    """

    at_once = 16  # fewer concurrent calls than the default, because each starts a process

    def __init__(self, reward: str = "exact", max_turns: int = 6, seconds: float = 5.0, megabytes: int = 512):
        self.limits = Limits(seconds=seconds, memory_bytes=megabytes * 2**20)
        self.tools = (self.python,)
        super().__init__(reward, max_turns)

    def python(self, code: str, episode_state: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
        """Run Python code; return what it prints, and the value of its last line. Variables are kept between calls.

        Args:
            code: the code, for example "x = 12\\nx ** 2".
            episode_state: code of the earlier calls.
        """
        earlier = episode_state or ()
        output = text_of(f"CELLS = {(*earlier, code)!r}\n{_PROGRAM}", "output", self.limits)
        if output.ended != "done":
            return earlier, f"Error: {output.reason}."
        return (*earlier, code), output.text.rstrip() or "(no output)"
