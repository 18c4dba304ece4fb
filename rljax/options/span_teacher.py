"""`--teacher-spans`: a teacher with a different tokenizer, compared with the student on spans of text.

The teacher reads the prompt and the text of the response in its own tokens. A span is a minimal piece of text that both
tokenizers divide into complete tokens. Each student token t in a span s gets the span's log-ratio as its advantage ::

    A_t = Σ_{k ∈ s_T} log π_T(k) - Σ_{k ∈ s} log π(o_k)

where s_T are the teacher's tokens in the span. On average, REINFORCE then follows the gradient of the reverse KL between the
span's distributions, as if the span were a single token. A span of one token in both tokenizers gives
`rljax.ops.distillation.teacher_log_ratio`. The end of a response is a span of its own. A token in no span has advantage 0. The
metric `teacher_kl` counts a span once for each of the student's tokens in it.

Source: the alignment of GOLD (TRL's `GOLDTrainer`), which compares full distributions; see `rljax.options.span_distributions`. Here
the sampled response estimates the divergence, as in `on_policy_distillation`, so only sampled tokens are compared, and no
distribution of the teacher is stored.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from rljax.data.prompts import left_pad, padded_length, prompt_tokens, right_pad
from rljax.data.token_alignment import Span, align, token_ends
from rljax.data.tokenizer import Tokenizer
from rljax.data.tokenizer_note import folder_tokenizer
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.options.distillation import NAME, find_language_model, load_language_model, teacher_kl
from rljax.rollout import Groups, Sequences, sequences_of
from rljax.training.rollout_data import FieldScore, ScoreInputs, scored_rows
from rljax.training.scoring import make_score, make_scores
from rljax.training.setup import Setup
from rljax.training.state import Option


class SpanTeacher(NamedTuple):
    """A teacher with its own tokenizer."""

    policy: Policy
    """The model."""
    params: Params
    """Parameters of the model, on the devices."""
    tokenizer: Tokenizer
    """Tokenizer of the model."""

    def make_logp(self, setup: Setup) -> FieldScore:
        """Build the function that scores a rollout: the student's log-probability plus the log-ratio of the token's span."""
        scores = make_scores(make_score(self.policy, setup.config.sampling.temperature), setup.mesh, scored_rows(setup))

        def logp(inputs: ScoreInputs) -> Float32[np.ndarray, "N T"]:
            own = np.asarray(inputs.groups.rollout.policy_logp).reshape(inputs.sequences.tokens.shape)
            sequences, spans = reencode(setup, self.tokenizer, inputs.groups)
            theirs = np.asarray(scores(self.params, sequences).logp)
            rows = [add_span_ratios(*row) for row in zip(own, theirs, spans, strict=True)]
            return np.stack(rows)

        return logp


def install(setup: Setup) -> Setup:
    """Add the teacher."""
    if not setup.algorithm.needs("teacher_logp"):
        raise InputError(
            f"teacher_spans is for on_policy_distillation and gkd, but the algorithm is {setup.config.algorithm.name}; choose one "
            "of these two algorithms, or leave teacher_spans out."
        )
    teacher = load_teacher(setup)
    return setup if teacher is None else setup._replace(teacher=teacher).with_option(Option(NAME, measure=teacher_kl))


def load_teacher(setup: Setup) -> SpanTeacher | None:
    """Load the teacher and its tokenizer; None in a plan, which leaves the teacher out.

    Raises:
        InputError: no teacher other than the model itself is set, the teacher cannot be loaded, or the run has an environment.
    """
    config = setup.config
    source = config.algorithm.teacher
    if source is None or source == "self":
        raise InputError(
            f"teacher_spans needs another model as the teacher, but teacher is {source!r}; set --teacher to a model folder or hub "
            "id, or leave teacher_spans out."
        )
    if config.reward.environment:
        raise InputError(
            "teacher_spans compares the text of one response, but the responses of an environment have several turns; leave out "
            "either teacher_spans or the environment."
        )
    if setup.tokenizer is None:
        return None
    folder = find_language_model(source)
    theirs = folder_tokenizer(folder)
    model = load_language_model(folder, config, setup.mesh, bos=theirs.bos_token_id, eos=theirs.eos_token_id)
    return SpanTeacher(*model, theirs)


def reencode(setup: Setup, tokenizer: Tokenizer, groups: Groups) -> tuple[Sequences, list[list[Span]]]:
    """Re-encode prompts and responses with the teacher's tokenizer.

    Args:
        setup: the run.
        tokenizer: the teacher's tokenizer.
        groups: the rollout.

    Returns:
        The teacher's sequences, and the spans of each response. A response whose text the teacher's tokenizer changes has no spans.

    Raises:
        InputError: the teacher's tokenizer changes the texts of all responses, or cannot encode a text.
    """
    problems, ends = setup.train.prompts.problems, set(setup.train.sampling.eos_ids)
    size, chat = groups.tokens.shape[1], setup.config.model.chat
    by_group = [[] if index < 0 else prompt_tokens(problems[index], tokenizer, chat=chat) for index in groups.prompt_ids]
    rows: list[list[int]] = []
    spans: list[list[Span]] = []
    changed = 0
    sequences = sequences_of(groups)
    for tokens, attention in zip(sequences.tokens, sequences.attention, strict=True):
        ours = tokens[attention].tolist()
        ended = bool(ours) and ours[-1] in ends
        body = ours[:-1] if ended else ours
        text = setup.tokenizer.decode(body)
        theirs = tokenizer.encode(text)
        same = tokenizer.decode(theirs) == text
        changed += not same
        found = align(token_ends(setup.tokenizer.decode, body), token_ends(tokenizer.decode, theirs)) if same else []
        end = [Span((len(body), len(body) + 1), (len(theirs), len(theirs) + 1))] if ended and same else []
        rows.append([*theirs, *[tokenizer.eos_token_id] * ended])
        spans.append([*found, *end])
    if changed == len(rows):
        raise InputError(
            f"The tokenizer of the teacher {setup.config.algorithm.teacher!r} changes every response when it encodes and decodes "
            "it, so no span of text can be compared; choose another teacher."
        )
    prompt_length, length = (padded_length(max(map(len, lists))) for lists in (by_group, rows))
    prompts = left_pad([by_group[row // size] for row in range(len(rows))], prompt_length, tokenizer.pad_token_id)
    return Sequences(*prompts, *right_pad(rows, length, tokenizer.pad_token_id)), spans


def add_span_ratios(
    own: Float[np.ndarray, "T"], theirs: Float[np.ndarray, "U"], spans: list[Span]
) -> Float32[np.ndarray, "T"]:
    """Add the log-ratio of each token's span to the token's log-probability.

    Args:
        own: log-probabilities under the student.
        theirs: log-probabilities of the teacher's tokens.
        spans: the spans; a token outside all spans stays unchanged.

    Example:
        >>> add_span_ratios(np.array([-1.0, -2.0, -1.0]), np.array([-1.0, -4.0]), [Span((0, 2), (0, 1))]).tolist()
        [1.0, 0.0, -1.0]
    """
    added = np.array(own, np.float32)
    for (begin, end), (first, last) in spans:
        added[begin:end] += theirs[first:last].sum() - own[begin:end].sum()
    return added
