"""Inference with a learned reward model: scores of sequences, the model's folder, and reward functions built from the model.

The score of a response is the output of the model's head at the last token of prompt and response, including the end token. A
process reward model judges every step, at the last token of the separator that follows the step.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Float32, Int

from rljax.data.cells import Messages
from rljax.data.problem import Problem
from rljax.data.prompts import padded_length, prompt_tokens, response_tokens, right_pad
from rljax.data.tokenizer import Tokenizer
from rljax.data.tokenizer_note import REWARD_NOTE, Note, check_recordable, folder_tokenizer, read_note, save_tokenizer
from rljax.errors import InputError
from rljax.models import Params
from rljax.models.huggingface import locate
from rljax.models.language_model import hidden_states, positions_of
from rljax.models.model_folder import with_token_ids, write_model
from rljax.models.value_model import ValueModel, load_value_model, value_contents
from rljax.parallel import agree, fetch, put, put_rows, row_shards, shardings
from rljax.rewards.correctness import Failed
from rljax.text import one_line


class RewardModel(NamedTuple):
    """A reward model with its parameters and its tokenizer."""

    model: ValueModel
    """Decoder whose head has one output per token."""
    params: Params
    """Parameters of the model."""
    tokenizer: Tokenizer
    """Tokenizer of prompts and responses."""
    chat: bool
    """Whether prompts are formatted with the tokenizer's chat template."""
    step_separator: str | None = None
    """Text at the end of every step, for a process reward model; None: the model scores complete responses."""


def score_sequences(
    model: ValueModel, params: Params, tokens: Int[Array, "B S"], attention: Bool[Array, "B S"]
) -> Float[Array, "B"]:
    """Score complete sequences by the head's output at their last token.

    Args:
        model: a decoder whose head has one output per token.
        params: its parameters.
        tokens: prompts and responses, including the end token, `[B, S]`; padding may be anywhere.
        attention: mask of the slots that contain a token, `[B, S]`.

    Returns:
        Scores `[B]`, float32. The score of a row without a token has no meaning.

    Raises:
        ValueError: the model reads log-probabilities, which a reward model does not receive.
    """
    hidden = encode_sequences(model, params, tokens, attention)
    last = attention.shape[-1] - 1 - jnp.argmax(attention[:, ::-1], axis=-1)
    at_last = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
    return jnp.einsum("BD,D->B", at_last, params["head"][0].astype(hidden.dtype), preferred_element_type=jnp.float32)


def encode_sequences(
    model: ValueModel, params: Params, tokens: Int[Array, "B S"], attention: Bool[Array, "B S"]
) -> Float[Array, "B S D"]:
    """Compute the hidden states of complete sequences; arguments and errors are those of `score_sequences`."""
    if model.surprisal:
        raise ValueError(
            "model must read only text, but this model is a critic that reads log-probabilities; pass a reward model"
        )
    return hidden_states(model.trunk, params["trunk"], tokens, positions_of(attention), attention.astype(jnp.int32))


def sequence_tokens(
    prompt: str,
    response: str,
    tokenizer: Tokenizer,
    *,
    chat: bool,
    messages: Messages | None = None,
    columns: Mapping[str, object] = MappingProxyType({}),
) -> list[int]:
    """Convert a prompt and a response into the tokens to score; the response's end token comes last.

    Args:
        prompt: text of the prompt.
        response: text of the response.
        tokenizer: tokenizer of both texts.
        chat: whether the prompt is written with the tokenizer's chat template.
        messages: the messages of the prompt, if it is a chat.
        columns: columns of the prompt's dataset row; the chat template reads `tools` and `chat_template_kwargs`.

    Raises:
        InputError: the tokenizer cannot encode the text, or `chat` is set and the tokenizer has no template.

    Example:
        >>> from rljax.data.tokenizer import CharacterTokenizer
        >>> sequence_tokens("1+1=", "2", CharacterTokenizer("012+="), chat=False)
        [3, 5, 3, 6, 4, 1]
    """
    problem = Problem(prompt, "", response, columns, messages)
    return prompt_tokens(problem, tokenizer, chat=chat) + response_tokens(problem, tokenizer, chat=chat)[0]


def make_score(
    model: ValueModel, mesh: Mesh, *, rows: int = 32
) -> Callable[[Params, Sequence[Sequence[int]]], Float32[np.ndarray, "N"]]:
    """Compile a function that scores token lists of any number and length, with one program for each padded length.

    Args:
        model: a decoder whose head has one output per token.
        mesh: the devices; rows are sharded over them.
        rows: number of sequences per call, rounded up to a multiple of the number of devices; smaller batches are padded.

    Returns:
        `(params, token lists) -> scores`, in the order of the lists.
    """
    compute = in_padded_batches(jax.jit(partial(score_sequences, model)), mesh, rows=rows)
    return lambda params, sequences: np.array(compute(params, sequences), np.float32)


def in_padded_batches(
    compiled: Callable[[Params, Int[Array, "B S"], Bool[Array, "B S"]], Float[Array, "B *shape"]], mesh: Mesh, *, rows: int
) -> Callable[[Params, Sequence[Sequence[int]]], list[np.ndarray]]:
    """Apply a jitted function of padded rows to token lists of any number and length; the results keep their order.

    Args:
        compiled: `(params, tokens, attention) -> [B, ...]`; it is compiled once for each padded length.
        mesh: the devices; rows are sharded over them.
        rows: number of sequences per call, rounded up to a multiple of the number of devices; smaller batches are padded.
    """
    rows = -(-rows // row_shards(mesh)) * row_shards(mesh)

    def compute(params: Params, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        found: list[np.ndarray] = [np.zeros(())] * len(sequences)
        lengths = np.array([padded_length(len(tokens)) for tokens in sequences], int)
        for length in np.unique(lengths):
            indices = np.flatnonzero(lengths == length)
            for begin in range(0, len(indices), rows):
                part = indices[begin : begin + rows]
                filled = [sequences[index] for index in part] + [[]] * (rows - len(part))
                padded = right_pad(filled, int(length), pad_id=0)
                for index, result in zip(part, fetch(compiled(params, *put_rows(mesh, padded))), strict=False):
                    found[index] = np.asarray(result)  # `zip` drops the rows that only pad the batch
        return found

    return compute


def save_reward_model(folder: Path, trained: RewardModel) -> None:
    """Write a sequence-classification model, and a file that records its tokenizer and the format of its prompts.

    Args:
        folder: folder of the model; the files of an earlier model are overwritten.
        trained: the model with its parameters and its tokenizer, whose files are written too.

    Raises:
        InputError: the tokenizer has no name to record.
    """
    tokenizer = trained.tokenizer
    check_recordable(tokenizer)
    ends = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}
    contents = value_contents(trained.model, trained.params, **ends)
    config = with_token_ids(contents.config, **ends, pad=tokenizer.pad_token_id)
    write_model(folder, contents._replace(config=config))
    save_tokenizer(folder, REWARD_NOTE, tokenizer, chat=trained.chat, step_separator=trained.step_separator)


def load_reward_model(
    name_or_folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    chat: bool = False,
    dtype: str = "float32",
    remat: str = "none",
) -> RewardModel:
    """Read a reward model: one trained by rljax, or any sequence-classification model with one output.

    Args:
        name_or_folder: folder of the model, or a hub id.
        tokenizer: replaces the folder's own tokenizer.
        chat: for a model that rljax did not train, whether prompts are formatted with the chat template.
        dtype: precision of matrix products.
        remat: what layers recompute in the backward pass, one of `rljax.models.config.REMATS`.

    Raises:
        InputError: the folder contains no reward model, the head has several outputs, or the tokenizer does not fit the model.
    """
    folder = locate(str(name_or_folder))
    model, params = load_value_model(folder, compute_dtype=dtype, remat=remat)
    if model.size != 1:
        raise InputError(
            f"The model in {str(folder)!r} gives {model.size} numbers per token, but a reward model gives 1; it is a classifier "
            "or a critic. Choose the folder of a reward model."
        )
    if model.surprisal:
        raise InputError(
            f"The model in {str(folder)!r} is a critic that reads the policy's log-probabilities, but a reward model reads only "
            "text. Choose the folder of a reward model."
        )
    note = read_note(folder)
    found = folder_tokenizer(folder) if tokenizer is None else tokenizer
    check_vocabulary(found, folder, model, note)
    chat, separator = (chat, None) if note is None else (note.chat, note.step_separator)
    return RewardModel(model, params, found, chat, separator)


def check_vocabulary(tokenizer: Tokenizer, folder: Path, model: ValueModel, note: Note | None) -> None:
    """Reject a tokenizer whose vocabulary does not fit the model.

    Raises:
        InputError: the vocabularies differ; the message names both sizes.
    """
    size, model_size = tokenizer.vocab_size, model.trunk.config.vocab_size
    if note is not None and size != note.vocabulary:
        raise InputError(
            f"The reward model in {str(folder)!r} was trained on a vocabulary of {note.vocabulary} tokens, but the tokenizer has "
            f"{size}; leave the tokenizer out, so that the model's own ({note.tokenizer!r}) is used."
        )
    if size > model_size:
        raise InputError(
            f"The reward model in {str(folder)!r} has a vocabulary of {model_size} tokens, but the tokenizer has {size}; pass the "
            "tokenizer that belongs to the model."
        )


def make_reward_function(
    name_or_folder: str | Path,
    mesh: Mesh,
    *,
    tokenizer: Tokenizer | None = None,
    chat: bool = False,
    chats: Mapping[str, Messages] = MappingProxyType({}),
    rows: int = 32,
    dtype: str = "float32",
) -> Callable[..., list[float | Failed]]:
    """Make a reward function from a learned reward model.

    The reward model reads text, so the policy may have a different tokenizer. The end token is appended to every completion, even
    a truncated one. The offset of the scores is arbitrary, so it changes the results of every algorithm that does not compare
    responses to the same prompt. A process reward model scores a response by its worst step, from 0 to 1.

    Args:
        name_or_folder: folder of the reward model, or a hub id.
        mesh: the devices; the model and the rows are sharded over them.
        tokenizer: replaces the folder's own tokenizer.
        chat: for a model that rljax did not train, whether prompts are formatted with the chat template.
        chats: prompt as text -> its messages, for prompts that are chats of several messages.
        rows: number of responses scored at a time.
        dtype: precision of matrix products.

    Returns:
        `f(prompts, completions) -> scores`; `Failed` for a completion that the tokenizer cannot encode.

    Raises:
        InputError: as in `load_reward_model`.
    """
    trained = load_reward_model(name_or_folder, tokenizer=tokenizer, chat=chat, dtype=dtype)
    if trained.step_separator is not None:
        judge = make_step_judge(trained, mesh, rows=rows)

        def process_reward_model(prompts: Sequence[str], completions: Sequence[str]) -> list[float | Failed]:
            return [lowest_score(steps) for steps in judge(_problems(prompts, chats), completions)]

        process_reward_model.on_all_hosts = True  # the model is sharded over all hosts' devices
        return process_reward_model
    params = put(trained.params, shardings(mesh, trained.params))
    score = make_score(trained.model, mesh, rows=rows)

    def encode(prompt: str, completion: str) -> list[int] | Failed:
        try:
            return sequence_tokens(prompt, completion, trained.tokenizer, chat=trained.chat, messages=chats.get(prompt))
        except InputError as error:
            return Failed("raised", one_line(error))

    def reward_model(prompts: Sequence[str], completions: Sequence[str]) -> list[float | Failed]:
        agree("completions, which a reward model has to judge", repr([prompts, completions]))
        sequences = [encode(*pair) for pair in zip(prompts, completions, strict=True)]
        scores = iter(score(params, [tokens for tokens in sequences if not isinstance(tokens, Failed)]))
        return [tokens if isinstance(tokens, Failed) else float(next(scores)) for tokens in sequences]

    reward_model.on_all_hosts = True  # the model is sharded over all hosts' devices
    return reward_model


def split_steps(text: str, separator: str) -> list[tuple[int, str]]:
    """Divide a text into its steps, for a process reward model.

    Args:
        text: a response.
        separator: the text at the end of every step. Steps that consist of white space are left out.

    Returns:
        For each step, the index of the character after its end, and the step without its separator. The last step ends at the end
        of the text. A text without a step is a single empty step.

    Example:
        >>> split_steps("1+1=2;;2+1=3;", ";"), split_steps("", ";")
        ([(6, '1+1=2'), (13, '2+1=3')], [(0, '')])
    """
    steps, begin = [], 0
    for part in text.split(separator):
        end = min(begin + len(part) + len(separator), len(text))
        steps, begin = [*steps, (end, part)] if part.strip() else steps, end
    *others, (_, last) = steps or [(0, "")]
    return [*others, (len(text), last)]


def solution_tokens(
    problem: Problem, steps: Sequence[str], tokenizer: Tokenizer, *, chat: bool, separator: str
) -> tuple[list[int], list[int]]:
    """Convert a prompt and the steps of a response into tokens; every step is followed by the separator.

    Args:
        problem: the prompt.
        steps: the steps, without their separators.
        tokenizer: tokenizer of all texts; each step is encoded separately.
        chat: whether the prompt is written with the tokenizer's chat template.
        separator: the text at the end of every step.

    Returns:
        The tokens, and the index of the last token of each step's separator, where the model judges the step.

    Raises:
        InputError: the separator has no token, the tokenizer cannot encode a text, or it has no template and `chat` is set.

    Example:
        >>> from rljax.data.tokenizer import CharacterTokenizer
        >>> solution_tokens(Problem("1=", ""), ["1", "12"], CharacterTokenizer("12=;"), chat=False, separator=";")
        ([2, 4, 2, 5, 2, 3, 5], [3, 6])
    """
    end = tokenizer.encode(separator)
    if not end:
        raise InputError(
            f"the step separator {separator!r} has no token, so there is no token at which to judge a step; choose another "
            "separator."
        )
    tokens, ends = prompt_tokens(problem, tokenizer, chat=chat), []
    for step in steps:
        tokens = tokens + tokenizer.encode(step) + end
        ends.append(len(tokens) - 1)
    return tokens, ends


def step_logits(
    model: ValueModel, params: Params, tokens: Int[Array, "B S"], attention: Bool[Array, "B S"]
) -> Float[Array, "B S"]:
    """Compute the head's output at every token; arguments and errors are those of `score_sequences`."""
    hidden = encode_sequences(model, params, tokens, attention)
    return jnp.einsum("BSD,D->BS", hidden, params["head"][0].astype(hidden.dtype), preferred_element_type=jnp.float32)


def make_step_scores(
    model: ValueModel, mesh: Mesh, *, rows: int = 32
) -> Callable[[Params, Sequence[tuple[list[int], list[int]]]], list[Float[np.ndarray, "K"]]]:
    """Compile a function that scores solutions: `(params, [(tokens, ends), ...]) -> logits of each solution's steps`.

    Args:
        model: a decoder whose head has one output per token.
        mesh: the devices; rows are sharded over them.
        rows: number of solutions scored at a time.
    """
    compute = in_padded_batches(jax.jit(partial(step_logits, model)), mesh, rows=rows)

    def scores(params: Params, solutions: Sequence[tuple[list[int], list[int]]]) -> list[Float[np.ndarray, "K"]]:
        logits = compute(params, [tokens for tokens, _ in solutions])
        return [row[np.array(ends, int)] for row, (_, ends) in zip(logits, solutions, strict=True)]

    return scores


Steps = list[tuple[int, float]]
"""For each step of a response, the index of the character after its end, and the probability that the step is right."""


def make_step_judge(
    trained: RewardModel, mesh: Mesh, *, rows: int = 32
) -> Callable[[Sequence[Problem], Sequence[str]], list[Steps | Failed]]:
    """Make a function that judges the steps of responses with a process reward model.

    Args:
        trained: a process reward model; it reads text, so the policy may have a different tokenizer.
        mesh: the devices; the model and the rows are sharded over them.
        rows: number of responses scored at a time.

    Returns:
        `(problems, responses) -> steps of each response`, divided by `split_steps`; `Failed` for a response that the tokenizer
        cannot encode.

    Raises:
        InputError: the model was trained to score complete responses.
    """
    if trained.step_separator is None:
        raise InputError(
            "This reward model scores complete responses, not steps; train a process reward model with `rljax reward-model "
            "--process`, or use this model as --reward."
        )
    separator = trained.step_separator
    params = put(trained.params, shardings(mesh, trained.params))
    scores = make_step_scores(trained.model, mesh, rows=rows)

    def encode(problem: Problem, steps: Sequence[tuple[int, str]]) -> tuple[list[int], list[int]] | Failed:
        texts = [step for _, step in steps]
        try:
            return solution_tokens(problem, texts, trained.tokenizer, chat=trained.chat, separator=separator)
        except InputError as error:
            return Failed("raised", one_line(error))

    def judge(problems: Sequence[Problem], responses: Sequence[str]) -> list[Steps | Failed]:
        agree("responses, whose steps a reward model has to judge", repr([[p.prompt for p in problems], responses]))
        divided = [split_steps(response, separator) for response in responses]
        rows = [encode(*pair) for pair in zip(problems, divided, strict=True)]
        logits = iter(scores(params, [row for row in rows if not isinstance(row, Failed)]))

        def with_scores(steps: Sequence[tuple[int, str]]) -> Steps:
            right = jax.nn.sigmoid(next(logits)).tolist()
            return [(end, probability) for (end, _), probability in zip(steps, right, strict=True)]

        return [row if isinstance(row, Failed) else with_scores(steps) for row, steps in zip(rows, divided, strict=True)]

    return judge


def lowest_score(steps: Steps | Failed) -> float | Failed:
    """Score a response by its worst step (Math-Shepherd, arXiv:2312.08935, Section 3).

    Example:
        >>> lowest_score([(5, 0.9), (8, 0.25), (12, 0.5)])
        0.25
    """
    return steps if isinstance(steps, Failed) else min(score for _, score in steps)


def make_step_reward(
    folder: str, mesh: Mesh, *, chats: Mapping[str, Messages] = MappingProxyType({}), dtype: str = "float32"
) -> Callable[..., list[Steps]]:
    """Make a step reward from a process reward model: the probability that each step is right.

    Args:
        folder: folder of the model.
        mesh: the devices; the model and the rows are sharded over them.
        chats: prompt as text -> its messages, for prompts that are chats of several messages.
        dtype: precision of matrix products.

    Returns:
        `f(prompts, completions, **columns) -> [(end, probability), ...]` for each completion; it raises an `InputError` if the
        tokenizer cannot encode a completion.

    Raises:
        InputError: as in `load_reward_model` and `make_step_judge`.
    """
    judge = make_step_judge(load_reward_model(folder, dtype=dtype), mesh)

    def process_reward_model(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[Steps]:
        del columns
        judged = judge(_problems(prompts, chats), completions)
        failed = next((steps for steps in judged if isinstance(steps, Failed)), None)
        if failed is not None:
            raise InputError(f"a completion cannot be encoded: {failed.reason}")
        return [steps for steps in judged if not isinstance(steps, Failed)]

    process_reward_model.on_all_hosts = True  # the model is sharded over all hosts' devices
    return process_reward_model


def _problems(prompts: Sequence[str], chats: Mapping[str, Messages]) -> list[Problem]:
    """Convert each prompt to a problem, with its messages if the prompt is a chat of several messages."""
    return [Problem(prompt, "", messages=chats.get(prompt)) for prompt in prompts]
