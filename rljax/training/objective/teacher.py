"""The teacher of a distillation: another model, read from a folder, that scores the responses and never changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rljax.algorithms import Algorithm
from rljax.data.tokenizer import CharacterTokenizer, HuggingFaceTokenizer, Tokenizer, holds_tokenizer
from rljax.errors import InputError
from rljax.models import Packed, Params, Policy, Scores, transformer_policy
from rljax.models.huggingface import load_tensor, locate, read_config
from rljax.models.over_vocabulary import over_vocabulary
from rljax.models.packed import batched, scored_tokens
from rljax.models.token_scores import default_chunk, features_scores
from rljax.models.value_model import HEAD
from rljax.parallel import policy_shardings, put
from rljax.preference.note import folder_tokenizer, read_note
from rljax.records import documented, required
from rljax.training.config import TrainConfig


@documented
class Teacher(NamedTuple):
    """A model that judges the tokens of another."""

    policy: Policy
    """The model; it may be of another size than the student."""
    params: Params
    """Its parameters, on the devices."""


Comparison = Callable[[Params, Params | None, Packed], tuple[Scores, Float[Array, "B T"] | None]]
"""(parameters, the teacher's, packed rows) -> scores, and the divergence from the teacher; None where none is learned from."""


def make_comparison(
    policy: Policy,
    teacher: Policy,
    divergence: Callable[[Array, Array], Float[Array, "..."]],
    *,
    temperature: float,
    chunk: int | None,
    mesh: Mesh,
) -> Comparison:
    """Build the function that scores the response tokens and measures how far the teacher's distributions lie.

    Both models are read once. The logits of both exist for a chunk of tokens at a time. If the teacher has more logits than the
    policy, those of the tokens that the policy lacks are left out of its distribution.

    Args:
        policy: the model that is trained.
        teacher: the teacher; no gradient flows into it.
        divergence: (logits, teacher logits) -> divergence of each token.
        temperature: the sampling temperature, of both.
        chunk: tokens whose logits a device holds at once, for each model; None takes as many as make 160 MB.
        mesh: the devices.
    """
    own_features, other_features = (
        required(policy.features, "policy.features"),
        required(teacher.features, "teacher.features"),
    )
    chunk = default_chunk(policy.vocab_size) if chunk is None else chunk

    def compare(params: Params, judge: Params | None, packed: Packed) -> tuple[Scores, Float[Array, "B T"]]:
        own, other = own_features(params, packed), jax.lax.stop_gradient(other_features(judge, packed))
        other = other._replace(head=other.head[: policy.vocab_size])
        tokens = scored_tokens(packed)
        scores = features_scores(own, tokens, temperature=temperature, chunk=chunk, mesh=mesh)
        distances = over_vocabulary(divergence, own, other, temperature=temperature, chunk=chunk, mesh=mesh)
        return Scores(*(batched(part, packed) for part in scores)), batched(distances, packed)

    return compare


def make_teacher(
    algorithm: Algorithm, config: TrainConfig, policy: Policy, tokenizer: Tokenizer, mesh: Mesh
) -> Teacher | None:
    """Read the teacher of the settings; None if the algorithm learns from none.

    Args:
        algorithm: the record of functions; whether it learns from a teacher.
        config: the settings.
        policy: the student.
        tokenizer: the student's.
        mesh: its devices hold the teacher too.

    Raises:
        InputError: there is a teacher and no use for it or the reverse, the folder cannot be read, is not a language model, or its
            tokens are others.
    """
    name, source = config.algorithm.name, config.algorithm.teacher
    if not algorithm.needs("teacher_logp") and algorithm.teacher_divergence is None:
        if source is not None:
            raise InputError(
                f"{name} does not learn from a teacher, so teacher={source!r} cannot apply to it; leave it out, or choose "
                "on_policy_distillation or gkd."
            )
        return None
    if source is None:
        raise InputError(f"{name} learns from a teacher; give its model folder or hub id with --teacher.")
    folder = locate(source)
    if load_tensor(folder, HEAD) is not None:
        raise InputError(f"The teacher {source!r} is a reward model or a critic; give a language model.")
    shape = read_config(folder, compute_dtype=config.model.dtype)
    check_tokens(source, folder, shape.vocab_size, policy, tokenizer)
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    teacher = transformer_policy(shape, folder=folder, bos=bos, eos=eos, mesh=mesh, chunk=config.model.score_chunk)
    params = teacher.init(jax.random.key(0))  # which are the folder's, whatever the key
    return Teacher(teacher, put(params, policy_shardings(mesh, params, params, teacher.partition)))


def check_tokens(source: str, folder: Path, vocab_size: int, policy: Policy, tokenizer: Tokenizer) -> None:
    """Refuse a teacher whose token ids mean other tokens than the student's.

    Where the teacher's folder has a tokenizer, both must have the same tokens, and the teacher logits for all that the student can
    draw. Where it has none, the models must have logits for the same number of tokens.

    Args:
        source: the teacher as the settings name it.
        folder: its folder.
        vocab_size: number of its logits.
        policy: the student.
        tokenizer: the student's.

    Raises:
        InputError: the message names the teacher and the difference.
    """
    if read_note(folder) is None and not holds_tokenizer(folder):
        if vocab_size != policy.vocab_size:
            raise InputError(
                f"The teacher {source!r} has {vocab_size} tokens and the model {policy.vocab_size}; distillation needs the same "
                "vocabulary for both."
            )
        return
    theirs, ours = _tokens(folder_tokenizer(folder)), _tokens(tokenizer)
    others = sorted(map(str, {item[0] for item in set(theirs.items()) ^ set(ours.items())}))
    if others or vocab_size < policy.vocab_size:
        shown = (
            f"{len(others)} tokens differ, such as {others[0]!r}"
            if others
            else f"it has logits for {vocab_size} tokens, the model for {policy.vocab_size}"
        )
        raise InputError(
            f"The teacher {source!r} and the model do not have the same vocabulary: {shown}; distillation needs the same for both."
        )


def _tokens(tokenizer: Tokenizer) -> dict[Any, int]:
    """Token -> id, in a form in which two tokenizers can be compared."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.inner.get_vocab()
    if isinstance(tokenizer, CharacterTokenizer):
        return {character: place for place, character in enumerate(tokenizer.alphabet, 2)}
    return {f"{type(tokenizer).__name__}, {tokenizer.vocab_size} tokens": 0}
