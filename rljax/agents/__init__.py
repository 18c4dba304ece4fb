"""Environments that come with the library: tools in a dialogue, and small worlds of several turns.

Write your own as a class with `reset` and `step` (`rljax.rollout.Environment`), or from `ToolEnvironment`, a list of Python
functions. `rljax train --environment file.py:Class` trains with it.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Adventure": "rljax.agents.adventure",
        "Calculator": "rljax.agents.tools",
        "GuessingGame": "rljax.agents.worlds",
        "GymnasiumEnvironment": "rljax.agents.gymnasium",
        "Maze": "rljax.agents.worlds",
        "Nim": "rljax.agents.nim",
        "PythonInterpreter": "rljax.agents.interpreter",
        "SelfCorrection": "rljax.agents.self_correction",
        "Shop": "rljax.agents.shop",
        "TextSearch": "rljax.agents.text_search",
        "TextArenaEnvironment": "rljax.agents.textarena",
        "ToolEnvironment": "rljax.agents.tools",
        "TrlEnvironment": "rljax.agents.trl",
        "VerifiersEnvironment": "rljax.agents.verifiers",
    },
)
