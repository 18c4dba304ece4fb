"""The benchmark cases, implemented with rljax."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import workloads as work
from child import ParentChannel


def configuration(folder: Path, step: work.Step):
    """Build the settings of the RL step: GRPO without a reference, one update, nothing saved or evaluated between steps."""
    from rljax.training.config import TrainConfig  # noqa: PLC0415  the case "import" measures importing it
    from rljax.training.config.algorithm import factory_of  # noqa: PLC0415  as above

    config = TrainConfig.flat(
        model=str(folder),
        algorithm="grpo",
        algorithm_options={"beta": 0.0},
        prompts=step.prompts,
        group_size=step.group,
        max_prompt_tokens=step.prompt_tokens,
        max_response_tokens=step.limit,
        dtype="float32" if step.on_cpu else "bfloat16",
        remat=step.remat or ("none" if step.on_cpu else "full"),
        attention=step.attention,
        scan_layers=step.scan_layers,
        learning_rate=work.LEARNING_RATE,
        minibatches=1,
        microbatch_rows=step.microbatch,
        lora_rank=step.lora_rank,
        replicas=1,
        warm_start_steps=0,
        steps=10**6,
        run=tempfile.mkdtemp(prefix="rljax-", dir=folder) + "/run",
        eval_every=0,
        skip_first_eval=True,
        checkpoint_every=10**6,
        sample_every=0,
        quiet=True,
    )
    if factory_of(config.algorithm.name)(**config.algorithm.options).needs("ref_logp"):
        raise ValueError(
            f"the algorithm must not need a reference, because no peer computes one; got {config.algorithm.name}"
        )
    return config


def problems(step: work.Step):
    """Build training problems, and one held-out problem, which is never answered."""
    from rljax.data.problem import Problem  # noqa: PLC0415  as above

    made = [Problem(work.prompt(index, step), "") for index in range(step.prompts)]
    return made, made[:1]


class PacedTracker:
    """A tracker: a round begins when the parent requests it, and ends when the metrics of an RL step have been logged."""

    def __init__(self, parent: ParentChannel):
        self._parent = parent
        parent.wait()

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """End the round after an RL step, and begin the next; the first begins before training."""
        del phase, step  # nothing is evaluated, so every row is that of an RL step
        self._parent.done(
            sample_seconds=metrics["sample_seconds"],
            update_seconds=metrics["update_seconds"],
            response_length=metrics["response_length"],
        )
        self._parent.wait()

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Ignore the samples."""

    def close(self) -> None:
        """Do nothing: no file is open."""


def build_setup(folder: Path, step: work.Step):
    """Build the setup and the state of a run before its first step."""
    from rljax.training.lifecycle.initial_state import load_initial_state, state_after_warm_start  # noqa: PLC0415
    from rljax.training.parts.custom_parts import CustomParts  # noqa: PLC0415
    from rljax.training.setup import make_setup  # noqa: PLC0415

    setup = make_setup(configuration(folder, step), CustomParts(reward=work.reward, problems=problems(step)))
    return setup, state_after_warm_start(setup, load_initial_state(setup))


def rl_step(folder: Path, parent: ParentChannel) -> None:
    """Run complete steps of `train`: sample, judge, learn, log."""
    from rljax import train  # noqa: PLC0415  as above

    step = work.step_of(folder)
    train(configuration(folder, step), work.reward, problems=problems(step), trackers=[PacedTracker(parent)])


def make_update(folder: Path) -> Callable[[], None]:
    """Build a function that makes one update on responses of equal length; each call continues from the last call's state."""
    from rljax.rollout import Groups  # noqa: PLC0415
    from rljax.training.rl_phase import make_learner  # noqa: PLC0415
    from rljax.training.rollout_data import make_rollout_scorer  # noqa: PLC0415

    step = work.step_of(folder)
    setup, state = build_setup(folder, step._replace(limit=step.trained))
    score_rollout, learn = make_rollout_scorer(setup), make_learner(setup, state)
    groups: Groups = setup.train.generate(state.params, list(range(step.prompts)), step.group, jax.random.key(0))
    shape, random = groups.tokens.shape, np.random.default_rng(0)
    full_mask = np.ones(shape, bool)
    logp = np.full(shape, -np.log(step.vocabulary), np.float32)
    rollout = groups.rollout._replace(
        mask=full_mask,
        behaviour_logp=logp,
        policy_logp=logp,
        rewards=random.integers(0, 2, shape[:2]).astype(np.float32),
        truncated=np.ones(shape[:2], bool),
        valid=np.ones(shape[:2], bool),
    )
    tokens = random.integers(2, step.vocabulary, shape).astype(np.int32)
    groups = groups._replace(rollout=rollout, attention=full_mask, tokens=tokens)

    def update() -> None:
        nonlocal state
        state, _, _ = learn(state, score_rollout(state, groups))
        jax.block_until_ready(state)

    return update


def training_step(folder: Path, parent: ParentChannel) -> None:
    """Run updates on responses of equal length."""
    parent.run_rounds(make_update(folder))


def decode(lengths: list[int] | None, folder: Path, parent: ParentChannel) -> None:
    """Decode responses of these lengths, or all of the step's limit if None; no sampled token ends a response early."""
    from rljax.models.huggingface import load_params, read_config  # noqa: PLC0415
    from rljax.models.transformer_policy import transformer_policy  # noqa: PLC0415
    from rljax.parallel import make_mesh  # noqa: PLC0415
    from rljax.rollout import DecodingEngine, Request, Sampling  # noqa: PLC0415

    step = work.step_of(folder)
    wanted = [step.limit] * (step.prompts * step.group) if lengths is None else lengths
    config, mesh = read_config(folder, compute_dtype="float32" if step.on_cpu else "bfloat16"), make_mesh(1, 1)
    policy, params = transformer_policy(config, eos=work.EOS), load_params(folder, config)
    engine = DecodingEngine(policy.decoder, mesh, step.prompt_tokens, step.slots)
    requests = [
        Request(tuple(work.prompt_ids(index // step.group, step)), 0, index // step.group, Sampling(length, ()), index)
        for index, length in enumerate(wanted)
    ]

    def sample() -> None:
        responses = engine.generate(params, requests)
        lengths = [len(response.tokens) for response in responses]
        if lengths != wanted:
            raise ValueError(f"the responses must have {wanted} tokens, got {lengths}")

    parent.run_rounds(sample)


def log_probs(folder: Path, parent: ParentChannel) -> None:
    """Compute the gradient of the summed log-probabilities with respect to the hidden states and the head."""
    from rljax.models.token_scores import default_chunk, token_scores  # noqa: PLC0415

    del folder
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.normal(size=(1, work.SCORED, work.FEATURES)).astype(np.float32))
    head = jnp.asarray(random.normal(size=(work.VOCABULARY, work.FEATURES)).astype(np.float32) / 16)
    tokens = jnp.asarray(random.integers(0, work.VOCABULARY, (1, work.SCORED)).astype(np.int32))

    @jax.jit
    def gradient(hidden, head):
        def total(hidden, head):
            return token_scores(hidden, head, tokens, chunk=default_chunk(work.VOCABULARY))[0].sum()

        return jax.grad(total, (0, 1))(hidden, head)

    parent.run_rounds(lambda: jax.block_until_ready(gradient(hidden, head)))


def gae(folder: Path, parent: ParentChannel) -> None:
    """Compute advantages of rows of equal length."""
    from rljax.ops.gae import gae as advantages  # noqa: PLC0415

    del folder
    random = np.random.default_rng(0)
    rewards, values = (jnp.asarray(random.normal(size=(work.ROWS, work.STEPS)).astype(np.float32)) for _ in range(2))
    mask = jnp.ones((work.ROWS, work.STEPS), bool)
    compiled = jax.jit(partial(advantages, gamma=work.GAMMA, lambda_=work.LAMBDA))
    parent.run_rounds(lambda: [jax.block_until_ready(compiled(rewards, values, mask)) for _ in range(10)])


def import_library(folder: Path, parent: ParentChannel) -> None:
    """Import what a training script imports."""
    del folder
    parent.wait()
    from rljax import TrainConfig, train  # noqa: F401, PLC0415

    parent.done()


class TracedChannel(ParentChannel):
    """Wraps the channel to the parent, and records a profiler trace of the second round."""

    def __init__(self, parent: ParentChannel, folder: str):
        self._parent = parent
        self._folder = folder
        self._begun = 0

    def wait(self) -> None:
        """Wait for a round, and begin the trace of the second one."""
        self._parent.wait()
        self._begun += 1
        if self._begun == 2:
            jax.profiler.start_trace(self._folder)

    def done(self, **parts: float) -> None:
        """End the trace and the round."""
        if self._begun == 2:
            jax.profiler.stop_trace()
        self._parent.done(**parts)


def run_traced(case: Callable[[Path, ParentChannel], None], folder: Path, parent: ParentChannel) -> None:
    """Run a case, with a trace if the sizes name a folder for it."""
    trace = work.step_of(folder).trace
    case(folder, parent if trace is None else TracedChannel(parent, trace))


CASES = {
    "rl_step": partial(run_traced, rl_step),
    "first_step": rl_step,
    "training_step": partial(run_traced, training_step),
    "decode": partial(run_traced, partial(decode, None)),
    "decode_equal": partial(decode, work.EQUAL),
    "decode_spread": partial(decode, work.SPREAD),
    "log_probs": log_probs,
    "gae": gae,
    "import": import_library,
}
