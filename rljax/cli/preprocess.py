"""`rljax preprocess`: prepare a dataset for training."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from jaxtyping import Bool, Float32

from rljax.data.preprocess_options import Preprocess
from rljax.data.problem import Problem, reward_columns


def run_preprocess(command: Preprocess) -> int:
    """Write a dataset that is ready for training, and print how many rows were dropped and why."""
    from rich.console import Console  # noqa: PLC0415

    from rljax.data.prepared_folder import preprocess, report_table  # noqa: PLC0415
    from rljax.rewards import resolve  # noqa: PLC0415

    reward = resolve("exact" if command.reward is None else command.reward)
    prepared = preprocess(command, partial(_verify, reward, command.reward_messages))
    Console().print(report_table(prepared.report))
    print(f"Dataset: {command.output}")
    return 0


def _verify(
    reward: Callable, in_messages: bool, problems: Sequence[Problem], completions: Sequence[str]
) -> tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
    """Judge completions; return three arrays, with one entry per completion.

    They are the verifier's verdict (or the reward, if it is not a verifier), whether that value is valid, and whether the reward
    found no final answer in the completion.
    """
    from rljax.rewards.correctness import UNSTATED  # noqa: PLC0415
    from rljax.rewards.reward_scores import judge  # noqa: PLC0415

    prompts, chats = [problem.prompt for problem in problems], [problem.messages for problem in problems]
    columns = reward_columns(problems)
    scores = judge(reward, prompts, completions, columns, max_failure_share=0.0, chats=chats if in_messages else None)
    is_unread = scores.failed == UNSTATED
    if scores.correct is None:
        return scores.total, scores.valid, is_unread
    return scores.correct, scores.valid & ~np.isnan(scores.correct), is_unread
