"""`--teacher-spans` with `gkd`: full distributions of a teacher with another tokenizer (ULD, arXiv:2402.12030, and GOLD).

At the first token of a span (see `rljax.options.span_teacher`) student and teacher continue the same text, each with a token of its
own vocabulary. There the loss compares their distributions, with the part `teacher_divergence=sorted` (ULD) or `matched` (GOLD).
At a span's other tokens, the text so far ends inside a token of the other model, so they are not compared (distance 0).

The teacher reads each response once per rollout. Its last hidden states are stored, and each update computes its logits from them,
one chunk of tokens at a time.

Deviations: ULD compares the k-th tokens of both responses, even if different texts precede them. GOLD (TRL's `GOLDTrainer`)
multiplies the distribution of each span's first token by the probabilities of the later tokens, which are not used here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rljax.data.token_alignment import Span
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.lazy import lazy_names
from rljax.models import Features, Params, Scores
from rljax.models.axes import constrain_sharding
from rljax.models.distribution_scores import apply_over_vocabulary
from rljax.models.packed import scored_tokens, to_batch
from rljax.models.token_scores import LOGITS, choose_chunk, score_features
from rljax.options.distillation import NAME as TEACHER
from rljax.options.distillation import vocabulary, with_matched_tokens
from rljax.options.span_teacher import SpanTeacher, load_teacher, reencode
from rljax.parallel import put, replicated
from rljax.records import required
from rljax.rollout import Groups, Layout
from rljax.training.rollout_data import ScoredRollout, scored_rows
from rljax.training.scoring import Forward, compile_for_sequences
from rljax.training.setup import Setup
from rljax.training.state import Frozen, Option, TrainState

__getattr__ = lazy_names(__name__, renamed={"make_comparison": "make_forward"})[0]
NAME = "span_distributions"


class TeacherStates(NamedTuple):
    """The teacher's hidden states for the N responses of a rollout."""

    hidden: Float[Array | np.ndarray, "N T D"]
    """At each student token that begins a span, the last layer's state that predicts the span's first teacher token; else 0."""
    begins: Bool[Array | np.ndarray, "N T"]
    """Mask of the student's tokens at which a span begins."""


class TeacherReader:
    """Reads each rollout with the teacher, and keeps the teacher's states until the next rollout."""

    def __init__(self, setup: Setup, teacher: SpanTeacher):
        self._setup, self._teacher = setup, teacher
        features = required(teacher.policy.features, "teacher.policy.features")

        def hidden(params: Params, part: Layout) -> Float[Array, "B U D"]:
            return to_batch(features(params, part.packed).hidden, part.packed)

        self._hidden = compile_for_sequences(hidden, setup.mesh, scored_rows(setup))
        self._states: TeacherStates | None = None

    def read(self, groups: Groups) -> TeacherStates:
        """Read the responses of a rollout."""
        sequences, spans = reencode(self._setup, self._teacher.tokenizer, groups)
        length = groups.tokens.shape[-1]
        return align_states(np.asarray(self._hidden(self._teacher.params, sequences)), spans, length)

    def before_updates(self, state: TrainState, scored: ScoredRollout) -> TrainState:
        """Read a rollout before its updates; the state is unchanged."""
        self._states = put(self.read(scored.groups), replicated(self._setup.mesh))
        return state

    def data(self, step: int, update: int) -> TeacherStates:
        """Return the states of the last rollout that was read."""
        del step, update
        return required(self._states, "states of the teacher")


def install(setup: Setup) -> Setup:
    """Add the teacher and the comparison.

    Raises:
        InputError: the algorithm is not `gkd` with a distance between different vocabularies, the rollout has several mini-batches,
            or the teacher cannot be used.
    """
    config = setup.config
    divergence = required(setup.algorithm.teacher_divergence, "teacher_divergence")
    if setup.algorithm.needs("teacher_logp") or not any("teacher_divergence=" in part for part in config.algorithm.parts):
        raise InputError(
            f"teacher_spans: {config.algorithm.name} compares distributions over the same tokens; choose --algorithm gkd with "
            "--with teacher_divergence=matched (GOLD) or teacher_divergence=sorted (ULD), or choose on_policy_distillation."
        )
    if config.optimization.minibatches > 1:
        raise InputError(
            f"teacher_spans: with full distributions, an update uses the complete rollout, but minibatches is "
            f"{config.optimization.minibatches}; set --minibatches 1."
        )
    teacher = load_teacher(setup)
    if teacher is None:
        return setup
    matched = match_tokens(setup.tokenizer, teacher.tokenizer)
    forward = make_forward(setup, teacher, with_matched_tokens(divergence, matched))
    reader = TeacherReader(setup, teacher)
    setup = setup._replace(teacher=teacher, forward=forward, frozen={**setup.frozen, TEACHER: teacher.params})
    return setup.with_option(Option(NAME, data=reader.data, before_updates=reader.before_updates))


def align_states(hidden: Float[np.ndarray, "N U D"], spans: Sequence[Sequence[Span]], length: int) -> TeacherStates:
    """Move the teacher's states to the tokens of the student at which spans begin.

    Args:
        hidden: the teacher's state before each of its own U response tokens.
        spans: the spans of each response.
        length: T, number of response slots of the student.

    Example:
        >>> hidden = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
        >>> states = align_states(hidden, [[Span((0, 2), (0, 1)), Span((2, 3), (1, 3))]], 4)
        >>> states.hidden.ravel().tolist(), states.begins[0].tolist()
        ([0.0, 0.0, 1.0, 0.0], [True, False, True, False])
    """
    count, _, width = hidden.shape
    moved, begins = np.zeros((count, length, width), hidden.dtype), np.zeros((count, length), bool)
    for row, found in enumerate(spans):
        ours, theirs = [span.ours[0] for span in found], [span.theirs[0] for span in found]
        moved[row, ours], begins[row, ours] = hidden[row, theirs], True
    return TeacherStates(moved, begins)


def match_tokens(tokenizer: Tokenizer, theirs: Tokenizer) -> Int[np.ndarray, "2 M"]:
    """Find the tokens that two vocabularies share: equal texts, and the end of a response.

    The space before a word is written as Ġ in some vocabularies and as ▁ in others; both count as the same text.

    Returns:
        The student's ids and the teacher's ids, each at most once.
    """
    own, others = plain_vocabulary(vocabulary(tokenizer)), plain_vocabulary(vocabulary(theirs))
    ends = tokenizer.eos_token_id, theirs.eos_token_id
    pairs = [(own[text], others[text]) for text in own.keys() & others.keys()]
    pairs = [pair for pair in pairs if pair[0] != ends[0] and pair[1] != ends[1]]
    return np.array(sorted([*pairs, ends]), np.int32).T


def plain_vocabulary(tokens: Mapping[Any, int]) -> dict[str, int]:
    """Write the space before a word as Ġ everywhere, and leave out texts that then belong to several tokens.

    Example:
        >>> plain_vocabulary({"▁the": 5, "Ġof": 6, "a": 7, "Ġa": 8, "▁a": 9})
        {'Ġthe': 5, 'Ġof': 6, 'a': 7}
    """
    found: dict[str, list[int]] = {}
    for text, token in tokens.items():
        found.setdefault(str(text).replace("▁", "Ġ"), []).append(token)
    return {text: ids[0] for text, ids in found.items() if len(ids) == 1}


def make_forward(setup: Setup, teacher: SpanTeacher, divergence: Callable[..., Array]) -> Forward:
    """Build the function that scores the response tokens, and compares the distributions where spans begin.

    Args:
        setup: the run.
        teacher: the teacher.
        divergence: (logits, teacher logits) -> distance at each token.
    """

    def distance(*logits: Float[Array, "N C _"]) -> Float[Array, "N C"]:
        # The vocabulary must not be sharded here: XLA cannot partition the gradients of sorts and gathers along it.
        return divergence(*(constrain_sharding(each, (*LOGITS[:2], "features"), setup.mesh) for each in logits))

    own_features = required(setup.policy.features, "policy.features")
    other_features = required(teacher.policy.features, "teacher.policy.features")
    chunk = choose_chunk(setup.config.model.score_chunk, setup.policy.vocab_size, setup.mesh)
    scoring = {"temperature": setup.config.sampling.temperature, "chunk": chunk, "mesh": setup.mesh}

    def forward(params: Params, frozen: Frozen, part: Layout) -> tuple[Scores, dict[str, Array]]:
        packed, responses = part.packed, jnp.asarray(part.responses)
        states: TeacherStates = jax.tree.map(lambda array: array[jnp.maximum(responses, 0)], frozen[NAME])
        own = own_features(params, packed)
        scores = score_features(own, scored_tokens(packed), **scoring)
        # only the head of the teacher's features is used, so the compiler removes the teacher's layers
        other: Features = jax.lax.stop_gradient(other_features(frozen[TEACHER], packed))
        pair = own._replace(hidden=to_batch(own.hidden, packed)), other._replace(hidden=states.hidden)
        distances = apply_over_vocabulary(distance, *pair, **scoring)
        both = Scores(*(to_batch(each, packed) for each in scores))
        return both, {"teacher_divergence": jnp.where(states.begins & (responses >= 0)[:, None], distances, 0.0)}

    return forward
