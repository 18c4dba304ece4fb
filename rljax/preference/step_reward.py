"""The step reward named in the settings: a built-in step reward, a user's function, or a process reward model."""

from collections.abc import Callable, Sequence

from rljax.data.problem import Problem, chats_of
from rljax.data.tokenizer_note import MODEL_PREFIX
from rljax.parallel import mesh_of
from rljax.rewards import resolve
from rljax.rewards.steps import STEP_REWARDS
from rljax.settings.shared_groups import MeshConfig


def find_step_reward(name: str, problems: Sequence[Problem], *, devices: MeshConfig, dtype: str) -> Callable:
    """Return the step reward with this name.

    Args:
        name: one of `STEP_REWARDS`, `file.py:function`, or `model:FOLDER` for a process reward model.
        problems: the problems whose responses are judged; a process reward model reads their chats.
        devices: the settings of the mesh over which a process reward model is sharded.
        dtype: precision of a process reward model's matrix products.

    Raises:
        InputError: the step reward cannot be found, or the model in the folder does not judge steps.
    """
    if not name.startswith(MODEL_PREFIX):
        return STEP_REWARDS[name] if name in STEP_REWARDS else resolve(name)
    from rljax.preference.reward_model import make_step_reward  # noqa: PLC0415  most runs have no reward model

    return make_step_reward(name.removeprefix(MODEL_PREFIX), mesh_of(devices), chats=chats_of(problems), dtype=dtype)
