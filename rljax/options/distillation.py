"""`--teacher`: a fixed model from a folder scores the responses, and distillation algorithms learn from its scores."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rljax.algorithms import Algorithm, Rollout
from rljax.data.tokenizer import CharacterTokenizer, HuggingFaceTokenizer, Tokenizer, has_tokenizer_files
from rljax.data.tokenizer_note import folder_tokenizer, read_note
from rljax.errors import InputError
from rljax.lazy import lazy_names
from rljax.models import Params, Policy, Scores, transformer_policy
from rljax.models.distribution_scores import apply_over_vocabulary
from rljax.models.huggingface import load_tensor, locate, read_config
from rljax.models.packed import scored_tokens, to_batch
from rljax.models.token_scores import choose_chunk, score_features
from rljax.models.value_model import HEAD
from rljax.parallel import policy_shardings, put
from rljax.records import required
from rljax.rollout import Layout
from rljax.training.config import TrainConfig
from rljax.training.rollout_data import FieldScore, scored_rows
from rljax.training.scoring import Forward, make_score, make_scores
from rljax.training.setup import Setup
from rljax.training.state import Frozen, Option

__getattr__ = lazy_names(__name__, renamed={"make_comparison": "make_forward"})[0]
NAME = "teacher"


class Teacher(NamedTuple):
    """A model that scores the tokens of another model, the student."""

    policy: Policy
    """The model; its size may differ from the student's."""
    params: Params
    """Parameters of the teacher, on the devices."""

    def make_logp(self, setup: Setup) -> FieldScore:
        """Build the function that scores a rollout with the teacher."""
        score = make_score(self.policy, setup.config.sampling.temperature)
        scores = make_scores(score, setup.mesh, scored_rows(setup))
        return lambda inputs: scores(self.params, inputs.sequences).logp


def install(setup: Setup) -> Setup:
    """Add the teacher if the algorithm learns from a teacher."""
    config, divergence = setup.config, setup.algorithm.teacher_divergence
    if setup.tokenizer is None:  # `rljax plan` has no tokenizer and does not load the teacher
        return setup
    teacher = make_teacher(setup.algorithm, config, setup.policy, setup.tokenizer, setup.mesh)
    if teacher is None:
        return setup
    setup = setup._replace(teacher=teacher).with_option(Option(NAME, measure=teacher_kl))
    if divergence is None:
        return setup
    forward = make_forward(
        setup.policy,
        teacher.policy,
        with_matched_tokens(divergence, np.tile(np.arange(setup.policy.vocab_size), (2, 1))),
        temperature=config.sampling.temperature,
        chunk=config.model.score_chunk,
        mesh=setup.mesh,
    )
    return setup._replace(forward=forward, frozen={**setup.frozen, NAME: teacher.params})


def with_matched_tokens(divergence: Callable[..., Array], matched: Int[np.ndarray, "2 M"]) -> Callable[..., Array]:
    """If a divergence function takes the ids of the tokens that two vocabularies share, bind these ids to its arguments.

    Args:
        divergence: (logits, teacher logits) -> divergence; it may also take the arguments `matched` and `teacher_matched`.
        matched: the student's ids and the teacher's ids of the M shared tokens.
    """
    if "matched" not in inspect.signature(divergence).parameters:
        return divergence
    return partial(divergence, matched=matched[0], teacher_matched=matched[1])


def teacher_kl(rollout: Rollout[np.ndarray], batch: object) -> dict[str, float]:
    """Estimate the divergence from the teacher: the mean of log π - log π_T over response tokens, in nats per token."""
    del batch
    if rollout.teacher_logp is None or rollout.policy_logp is None or not rollout.mask.any():
        return {}
    return {"teacher_kl": float((rollout.policy_logp - rollout.teacher_logp)[rollout.mask].mean())}


def make_forward(
    policy: Policy,
    teacher: Policy,
    divergence: Callable[[Array, Array], Float[Array, "..."]],
    *,
    temperature: float,
    chunk: int | None,
    mesh: Mesh,
) -> Forward:
    """Build the function that scores the response tokens and measures the divergence from the teacher's distributions.

    Each model's forward pass runs once, and both models' logits exist for only one chunk of tokens at a time. If the teacher has
    more logits than the policy, the extra tokens are left out of the teacher's distribution.

    Args:
        policy: the model being trained.
        teacher: the teacher; no gradient flows into it.
        divergence: (logits, teacher logits) -> divergence at each token.
        temperature: sampling temperature, used for both models.
        chunk: number of tokens whose logits are in a device's memory at once, for each model; None: `token_scores.default_chunk`.
        mesh: the devices.
    """
    own_features, other_features = (
        required(policy.features, "policy.features"),
        required(teacher.features, "teacher.features"),
    )
    chunk = choose_chunk(chunk, policy.vocab_size, mesh)

    def forward(params: Params, frozen: Frozen, part: Layout) -> tuple[Scores, dict[str, Array]]:
        packed = part.packed
        own, other = own_features(params, packed), other_features(jax.lax.stop_gradient(frozen[NAME]), packed)
        other = other._replace(head=other.head[: policy.vocab_size])
        tokens = scored_tokens(packed)
        scores = score_features(own, tokens, temperature=temperature, chunk=chunk, mesh=mesh)
        distances = apply_over_vocabulary(divergence, own, other, temperature=temperature, chunk=chunk, mesh=mesh)
        batched = Scores(*(to_batch(part, packed) for part in scores))
        return batched, {"teacher_divergence": to_batch(distances, packed)}

    return forward


def make_teacher(
    algorithm: Algorithm, config: TrainConfig, policy: Policy, tokenizer: Tokenizer, mesh: Mesh
) -> Teacher | None:
    """Load the teacher named in the settings; None if the algorithm does not learn from a teacher.

    Args:
        algorithm: the algorithm.
        config: the settings.
        policy: the student.
        tokenizer: tokenizer of the student.
        mesh: the devices of the student and the teacher.

    Raises:
        InputError: a teacher is set but not used, or needed but not set; its folder cannot be read or is not a language model;
            or its vocabulary differs from the student's.
    """
    name, source = config.algorithm.name, config.algorithm.teacher
    if not algorithm.needs("teacher_logp") and algorithm.teacher_divergence is None:
        if source is not None:
            raise InputError(
                f"{name} does not learn from a teacher, so teacher={source!r} has no effect; leave teacher out, or choose "
                "on_policy_distillation, gkd or minillm."
            )
        return None
    if source is None:
        raise InputError(f"{name} learns from a teacher; set its model folder or hub id with --teacher.")
    return load_second_model(source, config, policy, tokenizer, mesh)


def load_second_model(
    source: str, config: TrainConfig, policy: Policy, tokenizer: Tokenizer, mesh: Mesh, *, role: str = "teacher"
) -> Teacher:
    """Load a second model, which must share the policy's vocabulary.

    Args:
        source: model folder or hub id.
        config: the settings.
        policy: the policy.
        tokenizer: tokenizer of the policy.
        mesh: the devices of both models.
        role: what error messages call the second model, such as "teacher".

    Raises:
        InputError: the folder cannot be read, is not a language model, or has a different vocabulary.
    """
    folder = find_language_model(source, role)
    check_tokens(source, folder, read_config(folder).vocab_size, policy, tokenizer, role=role)
    return load_language_model(folder, config, mesh, bos=tokenizer.bos_token_id, eos=tokenizer.eos_token_id)


def find_language_model(source: str, role: str = "teacher") -> Path:
    """Return the folder of a language model.

    Raises:
        InputError: the folder does not exist, or contains a reward model or a critic.
    """
    folder = locate(source)
    if load_tensor(folder, HEAD) is not None:
        raise InputError(f"The {role} {source!r} is a reward model or a critic; choose a language model.")
    return folder


def load_language_model(folder: Path, config: TrainConfig, mesh: Mesh, *, bos: int | None, eos: int) -> Teacher:
    """Load a language model onto the devices; `bos` and `eos` are token ids of its tokenizer."""
    shape = read_config(folder, compute_dtype=config.model.dtype)
    teacher = transformer_policy(shape, folder=folder, bos=bos, eos=eos, mesh=mesh, chunk=config.model.score_chunk)
    params = teacher.init(jax.random.key(0))  # the parameters come from the folder, so the key does not matter
    return Teacher(teacher, put(params, policy_shardings(mesh, params, params, teacher.partition)))


def check_tokens(
    source: str, folder: Path, vocab_size: int, policy: Policy, tokenizer: Tokenizer, *, role: str = "teacher"
) -> None:
    """Reject a teacher whose token ids do not match the student's.

    If the teacher's folder has a tokenizer, both tokenizers must have the same tokens, and the teacher must have logits for all
    tokens that the student can sample. If the folder has none, both models must have the same number of logits.

    Args:
        source: name of the teacher in the settings.
        folder: folder of the teacher.
        vocab_size: number of logits of the teacher.
        policy: the student.
        tokenizer: tokenizer of the student.
        role: what error messages call the second model.

    Raises:
        InputError: the tokens differ; the message names the teacher and the difference.
    """
    if read_note(folder) is None and not has_tokenizer_files(folder):
        if vocab_size != policy.vocab_size:
            raise InputError(
                f"The {role} {source!r} has a vocabulary of {vocab_size} tokens, but the policy has {policy.vocab_size}; they must "
                "match."
            )
        return
    theirs, ours = vocabulary(folder_tokenizer(folder)), vocabulary(tokenizer)
    differing = sorted(map(str, {item[0] for item in set(theirs.items()) ^ set(ours.items())}))
    if differing or vocab_size < policy.vocab_size:
        difference = (
            f"{len(differing)} tokens differ, such as {differing[0]!r}"
            if differing
            else f"it has logits for {vocab_size} tokens, the policy for {policy.vocab_size}"
        )
        raise InputError(
            f"The {role} {source!r} and the policy do not have the same vocabulary: {difference}. They must match"
            + (" unless --teacher-spans is set." if role == "teacher" else ".")
        )


def vocabulary(tokenizer: Tokenizer) -> dict[Any, int]:
    """Map tokens to ids, to compare tokenizers. A tokenizer without a list of tokens gets one entry, which describes it."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.inner.get_vocab()
    if isinstance(tokenizer, CharacterTokenizer):
        return {character: index for index, character in enumerate(tokenizer.alphabet, 2)}
    return {f"{type(tokenizer).__name__}, {tokenizer.vocab_size} tokens": 0}
