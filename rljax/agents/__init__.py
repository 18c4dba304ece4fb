"""Built-in environments: dialogues with tools, small multi-turn games, and adapters for other packages.

Write your own as a class with `reset` and `step` (see `rljax.rollout.Environment`), or as a subclass of `ToolEnvironment` whose
`tools` are Python functions. `rljax train --environment file.py:Class` trains with it.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Adventure": "rljax.agents.adventure",
        "Calculator": "rljax.agents.tool_environment",
        "GuessingGame": "rljax.agents.games",
        "GymnasiumEnvironment": "rljax.agents.gymnasium",
        "Maze": "rljax.agents.games",
        "Nim": "rljax.agents.nim",
        "PythonInterpreter": "rljax.agents.interpreter",
        "SelfCorrection": "rljax.agents.self_correction",
        "Shop": "rljax.agents.shop",
        "TextSearch": "rljax.agents.text_search",
        "TextArenaEnvironment": "rljax.agents.textarena",
        "ToolEnvironment": "rljax.agents.tool_environment",
        "TrlEnvironment": "rljax.agents.trl",
        "VerifiersEnvironment": "rljax.agents.verifiers",
    },
)
