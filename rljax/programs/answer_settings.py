"""Settings of the programs in which a model answers problems, defined once for the command line and Python."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import tyro

from rljax.errors import InputError
from rljax.settings.checks import check_seed, check_types
from rljax.text import did_you_mean

Kind = TypeVar("Kind", bound="AnswerSettings")
ChatSwitch = Annotated[bool | None, tyro.conf.arg(metavar="| --no-chat")]
"""Whether the chat template is on (`--chat`) or off (`--no-chat`); None leaves the choice to the run or model."""
MessagesSwitch = Annotated[bool | None, tyro.conf.arg(metavar="| --no-reward-messages")]
"""Whether conversations are passed to a reward as messages or as text (`--no-reward-messages`); None means as in the run."""
Quantization = Literal["int8", "nf4"] | None
"""Type to which an answering model's weights are quantized; None means no quantization."""

CacheDtype = Literal["int8"] | None
"""Type to which an answering model's cached keys and values are quantized; None means as in the run."""


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """Settings common to all programs in which a model answers problems."""

    dataset: str | None = None
    """Problems (file or hub id); by default the run's held-out problems, or its training problems if the command writes training
    data."""
    reward: str | None = None
    """Reward that judges the answers; by default the run's."""
    reward_messages: MessagesSwitch = None
    """Pass conversations to your own reward as lists of messages, or, with --no-reward-messages, as text. By default as in the
    run, or, if a model folder is used instead of a run, as lists of messages."""
    trust: bool = False
    """Execute the reward or environment that the run's config.json names, if it is code (file.py:NAME or module:NAME)."""
    accept_changes: bool = False
    """Open a run even if its held-out rows, reward, chat template or tokenizer have changed since the run was last started."""
    chat: ChatSwitch = None
    """Whether to format prompts with the tokenizer's chat template. By default as in the run, or, if a model folder is used
    instead of a run, only if its tokenizer has a template and the problems are conversations."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run to use."""
    quantize: Quantization = None
    """Quantize the weights to 8 bits (int8) or 4 bits (nf4): a quarter or an eighth of the memory of float32."""
    cache_dtype: CacheDtype = None
    """Quantize cached keys and values to 8 bits (int8); by default as in the run."""
    max_response_tokens: int | None = None
    """Maximum number of tokens in a response; by default the run's."""
    top_k: int | None = None
    """Sample only from the k most likely tokens."""
    top_p: float | None = None
    """Sample from the smallest set of most likely tokens whose total probability is at least this."""
    seed: int = 0
    """Random seed for sampling."""

    def check(self) -> None:
        """Reject values of the wrong type, and a seed that is out of range."""
        check_types(self)
        check_seed(self.seed)

    def _refuse_critic_with_quantized_policy(self, names: Iterable[str]) -> None:
        """Reject a critic if the policy is quantized: the critic was trained with the exact policy, and may share its layers."""
        if self.quantize is not None and "critic" in names:
            raise InputError(
                f"--quantize {self.quantize} quantizes the policy, but the critic was trained with exact weights; leave --quantize "
                "out, or name a reward model (model:FOLDER) in place of the critic."
            )


@dataclass(frozen=True, kw_only=True)
class BatchSettings(AnswerSettings):
    """Settings of the programs that answer problems in order, in batches."""

    limit: int | None = None
    """Answer only the first N problems."""
    batch: int = 256
    """Maximum number of answers that are sampled at once."""

    def check(self) -> None:
        """Reject numbers that are out of range."""
        super().check()
        check_positive_counts(limit=self.limit, batch=self.batch)


@dataclass(frozen=True, kw_only=True)
class EvalSettings(BatchSettings):
    """Settings of an evaluation."""

    environment: str | None = None
    """Environment that responds to the model's turns and judges them, as for `rljax train`; by default the run's."""
    environment_options: str | None = None
    """Arguments of the environment's class, as a JSON object."""
    right_above: float | None = None
    """An answer is right if its reward is above this. By default a verifier among the rewards decides (exact, math, ...; see
    rljax.rewards.verifier); without one, an answer is right if its reward is above 0."""
    tokenizer: str | None = None
    """Tokenizer for a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    samples: int = 1
    """Number of answers to each problem."""
    k: Sequence[int] | None = None
    """Values of k for pass@k and maj@k, at most --samples; by default the powers of two below --samples, and --samples itself."""
    choose: Sequence[str] = ()
    """Also report the accuracy of the answer that each of these choosers selects from k answers: verifier, votes, critic (of
    the run), model:FOLDER (a reward model)."""
    least_tokens: int | None = None
    """Continue an answer that ends before this many tokens (budget forcing): the text of --continuation replaces its end token."""
    continuation: str = "Wait"
    """With --least-tokens: the text that replaces the end token."""
    greedy: bool = False
    """Always take the most likely token. This is the default for a single answer without --temperature."""
    temperature: float | None = None
    """Sampling temperature; by default 1 if there are several answers to each problem."""
    stop: Sequence[str] | None = None
    """Texts that end an answer and are included in it; by default the run's."""
    stop_ids: Sequence[int] = ()
    """Ids of tokens that end an answer, in addition to those of the model and of the run."""
    by: Sequence[str] | None = None
    """Columns to group problems by; by default subject, type, level, difficulty and operands, if the data has them."""
    out: Path | None = None
    """File in which every answer is saved as it arrives, with a summary next to it. A name without a suffix is a folder for both.
    With --vote or --perturb, only the results are saved, in a JSON file, which must not exist yet."""

    def check(self) -> None:
        """Reject invalid values and combinations."""
        super().check()
        check_positive_counts(samples=self.samples)
        for number in self.k or ():
            if not 1 <= number <= self.samples:
                raise InputError(
                    f"--k {number} cannot be measured from --samples {self.samples}; it must be from 1 to {self.samples}."
                )
        if self.choose and self.samples == 1:
            raise InputError("--choose selects one of several answers, but there is only one; also give --samples.")
        self._refuse_critic_with_quantized_policy(self.choose)
        self._check_temperature()

    def _check_temperature(self) -> None:
        if self.greedy and self.temperature:
            raise InputError(f"--greedy and --temperature {self.temperature} contradict each other; give one of them.")
        if self.sampling_temperature == 0 and self.samples > 1:
            raise InputError(
                f"the {self.samples} greedy answers to a problem would all be the same; omit --samples, or sample them at "
                "a --temperature above 0."
            )
        if self.sampling_temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise InputError(
                "--top-k and --top-p apply to sampling, but greedy answers are not sampled; also give a --temperature above 0."
            )

    @property
    def sampling_temperature(self) -> float:
        """Temperature of the sampling; 0 is greedy.

        Example:
            >>> settings = EvalSettings(), EvalSettings(samples=4), EvalSettings(temperature=0.6)
            >>> [each.sampling_temperature for each in settings]
            [0.0, 1.0, 0.6]
        """
        if self.greedy:
            return 0.0
        return float(self.samples > 1) if self.temperature is None else self.temperature

    @property
    def measured_k(self) -> list[int]:
        """Values of k for pass@k and maj@k, in increasing order.

        Example:
            >>> EvalSettings(samples=6).measured_k, EvalSettings(samples=6, k=(5, 1)).measured_k
            ([1, 2, 4, 6], [1, 5])
        """
        powers = {*(2**i for i in range(self.samples.bit_length())), self.samples}
        return sorted(powers if self.k is None else set(self.k))

    @property
    def choosers(self) -> list[str]:
        """`choose` without repetitions, in order.

        Example:
            >>> EvalSettings(samples=2, choose=("votes", "critic", "votes")).choosers
            ['votes', 'critic']
        """
        return list(dict.fromkeys(self.choose))


@dataclass(frozen=True, kw_only=True)
class SearchSettings(BatchSettings):
    """Settings of a search over reasoning steps."""

    value: str = "critic"
    """Model that gives steps and responses a value: critic (of the run), or model:FOLDER (a reward model)."""
    method: Literal["beam", "tree", "revision"] = "beam"
    """How to search. beam: the best prefixes of each depth are continued. tree: UCT, which continues prefixes by mean value and
    visit counts. revision: the answer is resampled from its weakest step, and the better version is kept."""
    samples: Sequence[int] = (4, 16)
    """Values of N, with one search for each. For beam, N is the number of steps sampled at a time per problem; for tree, the
    number of steps in total; for revision, the number of versions of the answer."""
    expand: int = 4
    """Number of continuations of each kept prefix; N / expand prefixes, at least 1, are kept. With --method tree, the maximum
    number of continuations of a prefix."""
    exploration: float = 0.5
    """With --method tree: weight c of the uncertainty c √(ln V / v) of a prefix with v visits, whose parent has V visits."""
    step_ends: Sequence[str] | None = None
    """Texts that end a step; by default those of the task's step reward, or the end of a line if the task has no step reward."""
    temperature: float = 1.0
    """Sampling temperature, above 0."""
    demonstrations: Path | None = None
    """JSONL file for the right answers that the searches found, as rows for `rljax train --dataset`; it must not exist yet. The
    problems are then the run's training problems, unless --dataset names others."""

    def check(self) -> None:
        """Reject values that are out of range."""
        super().check()
        if not self.samples or min(self.samples) < 1:
            raise InputError(f"--samples is {' '.join(map(str, self.samples))}; give numbers of at least 1.")
        check_positive_counts(expand=self.expand)
        check_temperature(self.temperature)
        self._refuse_critic_with_quantized_policy([self.value])
        if self.step_ends is not None and not (self.step_ends and all(self.step_ends)):
            raise InputError(
                f"--step-ends is {' '.join(map(repr, self.step_ends))}; give one or more texts, none of them empty, or leave "
                "it out."
            )
        if not 0 <= self.exploration < math.inf:
            raise InputError(f"--exploration is {self.exploration}; it must be at least 0.")


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(BatchSettings):
    """Settings for generating training data with a model, and for checking existing demonstrations (--clean)."""

    keep: Literal["verifier", "votes"] | None = None
    """Which responses to keep. verifier (default): right responses; with a step reward, every step must also be right. votes:
    responses with the most frequent answer to a problem; this answer then replaces the reference answer in the row."""
    most: int | None = None
    """Maximum number of kept responses per problem; by default 2."""
    similarity: float | None = None
    """Maximum similarity of two kept responses to a problem, from 0 to 1; by default 0.8."""
    step_reward: str | None = None
    """With --keep verifier: drop responses in which this step reward (equations, model:FOLDER, file.py:function) finds a false
    step. By default the step reward of the run, or of its task for the task's own problems; 'none' checks only final answers."""
    contradicted: Literal["drop", "replace"] | None = None
    """With --clean: drop a row whose answer the votes contradict (default), or replace its demonstration with a response that has
    the agreed answer."""
    agreement: float | None = None
    """With --keep votes or --clean: fraction of the responses to a problem that must have the same answer; by default 0.5."""
    samples: int = 8
    """Number of responses to each problem."""
    limit: int | None = None
    """Use only the first N problems; by default 256, or all rows with --clean."""
    temperature: float = 1.0
    """Sampling temperature, above 0."""

    def check(self) -> None:
        """Reject numbers that are out of range."""
        super().check()
        check_positive_counts(samples=self.samples, most=self.most)
        check_temperature(self.temperature)
        if self.similarity is not None and not 0 <= self.similarity <= 1:
            raise InputError(f"--similarity is {self.similarity}; it must be from 0 to 1.")
        if self.agreement is not None and not 0 < self.agreement <= 1:
            raise InputError(f"--agreement is {self.agreement}; it must be above 0 and at most 1.")


@dataclass(frozen=True, kw_only=True)
class PairSettings(AnswerSettings):
    """Settings for preference pairs from a policy's own responses."""

    prompts: int = 256
    """Number of problems to sample at random from the dataset."""
    samples: int = 8
    """Number of responses to each problem."""
    temperature: float = 1.0
    """Sampling temperature, above 0."""
    checkpoint: Literal["best", "last"] = "last"
    """Which checkpoint of the run to use."""

    def check(self) -> None:
        """Reject numbers that are out of range."""
        super().check()
        check_positive_counts(prompts=self.prompts, samples=self.samples)
        check_temperature(self.temperature)


def check_positive_counts(**numbers: float | None) -> None:
    """Reject numbers below 1; accept None.

    Raises:
        InputError: a number is below 1; the message names the option.
    """
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least 1.")


def check_temperature(temperature: float) -> None:
    """Reject a temperature that is infinite, NaN, or not above 0; at 0, all responses to a prompt would be identical.

    Raises:
        InputError: the temperature is rejected.
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"--temperature is {temperature}; responses are sampled at a finite temperature above 0.")


def refuse_options(settings: object, names: Iterable[str], applies: str) -> None:
    """Reject options that are set although they do not apply.

    Args:
        settings: a record of settings.
        names: names of options that must be None.
        applies: when the options apply, such as "with --clean".

    Raises:
        InputError: one of the options is set; the message names it.
    """
    for name in names:
        if getattr(settings, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} applies only {applies}; leave it out.")


def with_changes(settings: Kind, changes: Mapping[str, Any]) -> Kind:
    """Replace some fields of the settings, and check the result.

    Raises:
        InputError: a name is unknown, or a value is invalid, alone or with the others.

    Example:
        >>> with_changes(EvalSettings(), {"samples": 4}).samples
        4
    """
    if not isinstance(settings, AnswerSettings):
        raise InputError(f"settings is {settings!r:.80}; pass each setting by its name, such as samples=4.")
    hints = get_type_hints(type(settings))
    unknown = next((name for name in changes if name not in hints), None)
    if unknown is not None:
        raise InputError(f"There is no setting {unknown!r}{did_you_mean(unknown, hints)}")
    paths = {
        name: Path(value) for name, value in changes.items() if isinstance(value, str) and Path in get_args(hints.get(name))
    }
    settings = replace(settings, **{**changes, **paths})
    settings.check()
    return settings
