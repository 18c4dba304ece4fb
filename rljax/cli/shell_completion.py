"""`rljax completion`: a script that lets a shell complete commands and flags."""

from dataclasses import dataclass
from typing import Literal

import tyro


@dataclass(frozen=True)
class Completion:
    """Print a script for tab completion of commands and flags.

    bash: rljax completion bash > ~/.local/share/bash-completion/completions/rljax

    zsh: rljax completion zsh > ~/.zfunc/_rljax (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)

    tcsh: rljax completion tcsh > ~/.rljax.tcsh (with `source ~/.rljax.tcsh` in ~/.tcshrc)
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "tcsh"]]
    """Shell that will run the script."""
