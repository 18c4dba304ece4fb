"""Settings for training on preference pairs: of all kinds of training, of reward models, and of language models."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.settings.checks import check_at_least, check_numbers, check_positive, check_types
from rljax.settings.options import Options
from rljax.settings.shared_groups import AdamConfig, MeshConfig, NetworkConfig


@dataclass(frozen=True)
class _PairSettings:
    """Settings for the pairs, the training and the output."""

    dataset: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[DATASET]")] = None
    """JSONL / JSON / Parquet file, folder or hub id with the columns prompt (optional), chosen and rejected."""

    # --- model
    model: str | None = None
    """Folder or hub id of a language model to start from; without one, a small transformer with random weights."""
    tokenizer: str | None = None
    """'characters', 'bytes', a folder or a hub id; by default the model's own, or bytes without a model."""

    # --- pairs
    heldout_dataset: str | None = None
    """File or hub id of the held-out pairs; by default split from the dataset."""
    heldout_pairs: int = 256
    """Maximum number of held-out pairs; at most a tenth of the prompts are held out."""
    prompt_column: str | None = None
    """Column with the prompt; by default the first of prompt, question, problem and text that exists, else the common prefix
    of both responses."""
    chosen_column: str = "chosen"
    """Column with the preferred response."""
    rejected_column: str = "rejected"
    """Column with the other response."""
    on_error: Literal["fatal", "drop"] = "fatal"
    """What to do with an unusable row: end the run, or drop the row, count it and report it."""
    chat: bool = False
    """Format prompts with the tokenizer's chat template."""
    max_tokens: int = 1024
    """Maximum number of tokens of prompt, response and EOS; longer pairs are dropped, counted and reported."""

    # --- optimization
    epochs: int = 1
    """Number of passes over the pairs; more than a few cause overfitting."""
    steps: int | None = None
    """Number of updates; overrides epochs."""
    batch: int = 64
    """Number of pairs per update."""
    microbatch_pairs: int | None = None
    """Number of pairs whose activations are in memory at once; by default as many as have at most 16,384 tokens together."""
    learning_rate: float = 1e-5
    """Peak learning rate; a cosine schedule lowers the rate to a tenth of the peak."""
    learning_rate_warmup: int = 10
    """Number of updates over which the learning rate rises linearly."""

    # --- output and display
    output: str | None = None
    """Folder to write, which must not contain a model yet; by default runs/NAME-DATE-TIME."""
    name: str = "pairs"
    """Name of the run, for its folder."""
    seed: int = 0
    """Random seed for parameters, order and held-out pairs."""
    eval_every: int = 50
    """Number of updates between held-out evaluations; 0 evaluates only before and after training."""
    checkpoint_every: int = 50
    """Number of updates between checkpoints, from which an interrupted run resumes."""
    quiet: bool = False
    """Print a few plain lines instead of the live display."""


@dataclass(frozen=True)
class PairConfig(NetworkConfig, AdamConfig, MeshConfig, _PairSettings):
    """Settings common to all training on preference pairs."""

    def __post_init__(self):
        """Reject invalid values; the message names the setting and what to use instead."""
        check_types(self)
        check_numbers(self)
        for group in (NetworkConfig, AdamConfig, MeshConfig):
            group.__post_init__(self)
        names = ("heldout_pairs", "max_tokens", "epochs", "steps", "batch", "microbatch_pairs", "checkpoint_every")
        check_at_least(1, self, names)
        check_at_least(0, self, ["learning_rate_warmup", "eval_every", "seed"])
        check_positive(self, ["learning_rate"])
        if self.microbatch_pairs is not None and self.batch % self.microbatch_pairs:
            raise InputError(
                f"microbatch_pairs={self.microbatch_pairs} does not divide batch={self.batch}; choose a divisor."
            )

    def to_json(self) -> dict:
        """Return the settings as a dict for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RewardModelConfig(PairConfig):
    """Settings for training a reward model on preference pairs, or on solutions with labeled steps."""

    model: str | None = None
    """Folder or hub id of a language or reward model to start from; without one, a small transformer with random weights."""
    process: bool = False
    """Train a process reward model, which judges every step of a solution. A row has a prompt, `completions` (a list of steps) and
    `labels` (for each step true, false or a number from 0 to 1). Settings for pairs, such as batch, then apply to solutions."""
    step_separator: str | None = None
    """Text that ends each step; a process reward model judges the step at the end of this text. None means a newline. The text also
    splits responses into steps when the trained model judges them."""
    name: str = "reward-model"
    """Name of the run, for its folder."""

    def __post_init__(self):
        """Reject invalid values; the message names the setting and what to use instead."""
        super().__post_init__()
        if self.process and (self.chosen_column, self.rejected_column) != ("chosen", "rejected"):
            raise InputError(
                "chosen_column and rejected_column are for pairs, but process=True reads completions and labels; leave both "
                "columns out, or leave process out."
            )
        if not self.process and self.step_separator is not None:
            raise InputError(f"step_separator={self.step_separator!r} is for a process reward model; add process=True.")
        if self.step_separator == "":
            raise InputError("step_separator is empty; set it to the text that ends a step, for example a newline.")

    @property
    def separator(self) -> str:
        """Text after every step of a solution."""
        return "\n" if self.step_separator is None else self.step_separator


@dataclass(frozen=True)
class PreferenceConfig(PairConfig):
    """Settings for training a language model on preference pairs."""

    loss: str = "dpo"
    """'dpo', 'dpo_average' (length-normalized), 'rpo' (DPO plus imitation of the preferred response), 'hinge', 'apo_zero',
    'apo_down', 'cdpo' and 'robust_dpo' (both for partly wrong labels), 'ipo', 'ipo_average' (IPO on averages over the tokens),
    'rebel' (regresses on the column margin), 'kto', 'bco' (a classifier of wanted and unwanted responses), 'wpo' (DPO, weighted by
    how likely the policy is to generate the pair), 'simpo', 'alphapo' (SimPO with a differently shaped reward), 'cpo', 'tpo' and
    'tpo_average' (both imitate a third response, from the column that --gold-column names) or 'orpo'."""
    loss_options: Annotated[Options, tyro.conf.arg(name="loss-options")] = field(default_factory=dict)
    """Hyperparameters of the loss; the defaults follow its paper: `beta` for all but ipo, ipo_average, rebel and orpo, `epsilon`
    for cdpo and robust_dpo, `tau` for ipo and ipo_average, `eta` for rebel, `desirable_weight` and `undesirable_weight` for kto,
    `cap` for wpo (1 in its authors' code), `margin` for simpo, alphapo and tpo_average, `alpha` for alphapo, `coefficient` for rpo,
    cpo, tpo, tpo_average and orpo; e.g. `--loss simpo --loss-options beta=2.5 margin=1.4`."""
    gold_column: str = "reference"
    """Column with a third response to the prompt, better than the other two; only tpo and tpo_average read it."""
    learning_rate: float = 1e-6
    """Peak learning rate; the default suits DPO. A cosine schedule lowers the rate to a tenth of the peak. A small transformer with
    random weights needs a rate about 1000 times higher."""
    name: str = "preference"
    """Name of the run, for its folder."""
