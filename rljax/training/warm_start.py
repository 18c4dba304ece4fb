"""The supervised phase: imitate demonstrations."""

import time

from rljax.data.prompts import PromptStream
from rljax.parallel import put_rows
from rljax.evaluation.greedy import evaluate
from rljax.training.rollouts import demonstrated
from rljax.training.run import Run, policy_optimizer
from rljax.training.update import Sequences, make_supervised_step


def warm_start(run: Run) -> None:
    """Imitate demonstrations until the step limit, or until held-out accuracy reaches its threshold."""
    config, setup = run.config, run.setup
    optimizer, schedule = policy_optimizer(config, "warm_start")
    if setup.demonstrations.dropped:
        run.display.warning(f"{setup.demonstrations.dropped} demonstrations are longer than their limit and were left out.")
    demonstrations = demonstrated(setup.demonstrations)
    order = PromptStream(range(len(demonstrations.tokens)), seed=config.seed)
    step = make_supervised_step(run.scorer, optimizer, run.state, setup.mesh)
    run.display.phase("warm_start", config.warm_start_steps)
    while int(run.state.warm_step) < config.warm_start_steps:
        begun, done = time.monotonic(), int(run.state.warm_step)
        rows = order.indices(done * config.warm_start_batch, config.warm_start_batch)
        run.state, metrics = step(
            run.state, put_rows(setup.mesh, Sequences(demonstrations.tokens[rows], demonstrations.valid[rows]))
        )
        numbers = {name: float(value) for name, value in metrics.items()}
        numbers |= {"learning_rate": float(schedule(done)), "seconds": time.monotonic() - begun}
        run.trackers.log("warm_start", done + 1, numbers)
        run.display.update(done + 1, numbers)
        wanted = config.warm_start_accuracy
        if wanted is not None and (done + 1) % config.warm_start_eval_every == 0:
            accuracy = evaluate(setup.heldout, run.state.params).metrics()["accuracy"]
            run.trackers.log("eval", 0, {"accuracy": accuracy})
            run.display.message(f"Warm start step {done + 1}: held-out greedy accuracy {accuracy:.1%}.")
            if accuracy >= wanted:
                break
        run.stop_if_asked()
