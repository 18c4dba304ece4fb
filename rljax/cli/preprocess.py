"""`rljax preprocess`: prepare a dataset for training."""

from functools import partial

from rljax.data.recipe import Preprocess


def run_preprocess(command: Preprocess) -> int:
    """Write a dataset that is ready for training, and print how many rows were dropped and why."""
    from rich.console import Console  # noqa: PLC0415

    from rljax.data.prepared_folder import preprocess, report_table  # noqa: PLC0415
    from rljax.rewards import resolve  # noqa: PLC0415
    from rljax.rewards.protocol import score  # noqa: PLC0415

    reward = resolve("exact" if command.reward is None else command.reward)
    prepared = preprocess(command, partial(score, reward, max_failure_share=0.0))
    Console().print(report_table(prepared.report))
    print(f"Dataset: {command.output}")
    return 0
