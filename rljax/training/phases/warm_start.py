"""The warm start: supervised training on demonstrations."""

import time

import jax

from rljax.data.prompts import PromptStream
from rljax.evaluation.greedy import evaluate
from rljax.parallel import put_rows
from rljax.records import required
from rljax.rollout import demonstrated, pack
from rljax.training.checkpoints.checkpoint import LAST, Checkpoint
from rljax.training.metrics import present
from rljax.training.monitoring.guard import skipped_in_a_row
from rljax.training.objective.anchor import make_pull
from rljax.training.objective.optimizer import learning_rate_of, warm_start_optimizer
from rljax.training.run import Run
from rljax.training.update import make_supervised_score, make_supervised_step


def warm_start(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """Train on demonstrations up to the step limit, or until held-out accuracy reaches its threshold."""
    config, setup = run.config, run.setup
    settings, demonstrations = config.warm_start, required(setup.demonstrations, "setup.demonstrations")
    if demonstrations.dropped:
        run.display.warning(f"{demonstrations.dropped} demonstrations are longer than their limit and were left out.")
    sequences = demonstrated(demonstrations)
    order = PromptStream(range(len(sequences.tokens)), seed=config.run.seed)
    score = make_supervised_score(setup.policy, config.sampling.temperature)
    state = checkpoint.state
    optimizer, pull = warm_start_optimizer(config), make_pull(config.algorithm.anchor)
    step = make_supervised_step(score, optimizer, state, setup.mesh, base=setup.base, pull=pull)
    run.display.phase("warm_start", settings.steps, done=int(state.warm_step))
    unsound = 0
    while int(state.warm_step) < settings.steps:
        run.display.activity("learning from demonstrations", compiles=True)
        start = time.monotonic()
        rows = order.indices(int(state.warm_step) * settings.batch, settings.batch)
        part = jax.tree.map(lambda array, rows=rows: array[rows], sequences)
        state, metrics = step(state, *put_rows(setup.mesh, (pack(part), part.attention)))
        checkpoint = checkpoint._replace(state=state)
        done = int(state.warm_step)
        numbers = present(metrics)
        numbers["learning_rate"] = required(learning_rate_of(state.opt_state), "opt_state.learning_rate")
        numbers["seconds"] = time.monotonic() - start
        run.log("warm_start", done, numbers)
        unsound = skipped_in_a_row(unsound, numbers["skipped_updates"])
        run.check_updates(checkpoint, unsound, "--warm-start-learning-rate")
        if settings.accuracy is not None and done % settings.eval_every == 0:
            run.display.activity("answering held-out problems", compiles=True)
            start = time.monotonic()
            accuracy = evaluate(setup.heldout, setup.whole(state.params)).metrics()["accuracy"]
            run.record("eval", 0, {"accuracy": accuracy, "seconds": time.monotonic() - start})
            run.display.evaluated(done, {"accuracy": accuracy})
            if accuracy >= settings.accuracy:
                break
        if done % config.run.checkpoint_every == 0 or run.saver.has_failed:
            run.save(LAST, checkpoint)
        run.stop_if_asked(checkpoint)
    return checkpoint
