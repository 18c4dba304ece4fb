"""Do claims that were tested on tables of logits hold on a transformer, and two of them on SmolLM2?

The claims of experiments/claims train tables of logits, in which nothing learned on one prompt helps another. Here the same
claims are decided on the transformer of `ablation_tables.py`, whose runs are read and not repeated: five seeds of RL from one
base model, one learning rate for all arms, equal updates. The premise of each claim is checked on the same runs: if it was not
met there, the claim is not decided, whatever the difference. For the deviation (GRPO against Dr.GRPO) and for GSPO's ratio, the
page adds the same difference between runs of SmolLM2-135M-Instruct, from experiments/real/addition_on_cpu.json: a mean over
seeds, with an interval from three seeds on and a verdict from five on.

Command:

    python experiments/claims_on_transformer.py     (trains nothing: it reads committed JSON files)

It writes claims_on_transformer.json and claims_on_transformer.md.

Deviations from the papers: those of `ablation_tables.py` and of `experiments/real/addition_on_cpu.py`. The margins, the smallest
differences that would matter, are those of the claims on tables, or 0.01 in accuracy where there is none.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tyro
from ablation_tables import END, MEAN, at_equal_tokens, hash_of, values_of

from lab.claims import Arms, difference, difference_at_equal_success, find_claim_file, over_seeds, verdict_of
from lab.results import outcome_of, read_results
from lab.rows import rows_of, write_page
from rljax.book.claims import Interval, Verdict
from rljax.files import atomic_write

Rows = Sequence[Mapping[str, Any]]
Measure = Callable[[Rows], Sequence[float] | np.ndarray]
"""Rows of `ablation_tables.json` -> one number per seed."""


class TransformerClaim(NamedTuple):
    """A claim, and how the runs of `ablation_tables.py` decide it."""

    name: str
    """Short name on the page."""
    paper: str
    """Source of the claim, with its place."""
    text: str
    """The claim, in this project's words."""
    statistic: Measure
    """One number per seed; a higher one supports the claim more or, if `kind` is "equal", one nearer to 0."""
    unit: str
    """Description of the statistic, with its unit."""
    premise: str
    """What must be true of the runs for a fair test."""
    condition: Measure
    """A statistic whose interval must be above 0 for the premise to be met."""
    arms: tuple[str, ...]
    """Arms of `ablation_tables.py` that the statistic and the condition read."""
    small: str
    """Name of the same claim on tables of logits, a file of experiments/claims."""
    of_arms: Callable[[Arms], np.ndarray] | None = None
    """Statistic on the arms of the claim `small`; None: that claim's own statistic."""
    unlike: str = ""
    """Reason why the arms of `small` do not decide this claim; empty if they do."""
    margin: float = 0.01
    """Smallest size of the statistic that would matter."""
    small_margin: float = 0.01
    """Smallest size of `of_arms` that would matter."""
    kind: Literal["above", "equal"] = "above"
    """What the claim says about the statistic, as in `lab.claims.Claim`."""
    budget: str = "equal updates and trained responses"
    """Description of what is equal in all arms."""
    figures: Mapping[str, Measure] = {}
    """Other statistics that the page shows, by name; they do not decide the claim."""
    real: tuple[str, str] | None = None
    """Two arms of experiments/real/addition_on_cpu.json, which the page compares as well: the first minus the second."""


def runs_of(rows: Rows, arm: str) -> list[Mapping[str, Any]]:
    """Return the runs of an arm, in the order of their seeds."""
    return sorted((row for row in rows if row["arm"] == arm), key=lambda row: row["seed"])


def runs_for(claim: "TransformerClaim", rows: Rows) -> Rows:
    """Keep the runs of a claim's arms, with the seeds that all of them have."""
    seeds = set.intersection(*(set(values_of(rows, arm, END)) for arm in claim.arms))
    return [row for row in rows if row["arm"] in claim.arms and row["rate"] is None and row["seed"] in seeds]


def per_seed(rows: Rows, arm: str, read: Callable[[Mapping[str, Any]], float]) -> np.ndarray:
    """Read a number from the run of each seed of an arm."""
    return np.array([read(row) for row in runs_of(rows, arm)])


def gap(metric: str, arm: str, other: str) -> Measure:
    """Measure the difference of two arms in the accuracy at the end (`END`) or in the mean accuracy (`MEAN`)."""

    def measure(rows: Rows) -> list[float]:
        one, two = values_of(rows, arm, metric), values_of(rows, other, metric)
        return [one[seed] - two[seed] for seed in one]

    return measure


def gap_at_equal_tokens(arm: str, other: str) -> Measure:
    """Measure the difference of two arms in accuracy at the same number of sampled tokens."""

    def measure(rows: Rows) -> list[float]:
        found = at_equal_tokens(rows, [arm, other])[1]
        return [found[arm][seed] - found[other][seed] for seed in sorted(found[arm])]

    return measure


def entropy_gap(arm: str, other: str) -> Measure:
    """Measure the difference of two arms in entropy at equal accuracy; entropies and accuracies are means over five steps."""

    def measure(rows: Rows) -> np.ndarray:
        arms = {
            name: {
                "curve": np.stack([mean_of_fives(row["accuracy"]) for row in runs_of(rows, name)]),
                "entropy": np.stack([mean_of_fives(row["entropy"]) for row in runs_of(rows, name)]),
            }
            for name in (arm, other)
        }
        return difference_at_equal_success("entropy", arm, other)(arms)

    return measure


def mean_of_fives(values: Sequence[float]) -> np.ndarray:
    """Average each five consecutive values."""
    return np.reshape(values, (-1, 5)).mean(-1)


def above(arm: str, read: Callable[[Mapping[str, Any]], float], threshold: float) -> Measure:
    """Measure by how much a number read from an arm's runs exceeds a threshold."""
    return lambda rows: per_seed(rows, arm, read) - threshold


def mean_of(name: str) -> Callable[[Mapping[str, Any]], float]:
    """Return a function that averages a metric of a row over its steps."""
    return lambda row: float(np.mean(row[name]))


def uniform_groups_share(row: Mapping[str, Any]) -> float:
    """Return the mean fraction of groups that are all right or all wrong."""
    return float(np.mean(row["groups_all_right"]) + np.mean(row["groups_all_wrong"]))


def entropy_loss_share(row: Mapping[str, Any]) -> float:
    """Return the fraction of the first step's entropy that is lost by the last five steps."""
    return 1.0 - float(np.mean(row["entropy"][-5:])) / row["entropy"][0]


def wrong_length(row: Mapping[str, Any]) -> float:
    """Return the mean length of wrong held-out answers in the last evaluation, in characters."""
    return math.nan if row["wrong_length"] is None else row["wrong_length"]


def value_loss_reduction(row: Mapping[str, Any]) -> float:
    """Return the fraction of the critic's first loss that pretraining removes."""
    return 1.0 - row["value_loss"][-1] / row["value_loss"][0]


LADDER = {
    "overlong": ("+ overlong filtering", "naive GRPO"),
    "clip": ("+ clip-higher", "+ overlong filtering"),
    "soft": ("+ soft overlong", "+ clip-higher"),
    "token": ("+ token-level loss", "+ soft overlong"),
    "dynamic": ("+ dynamic sampling", "+ token-level loss"),
}
"""Neighboring rows of DAPO's table."""
UNEQUAL = "answers differ in length: standard deviation over mean, minus 0.1"
CUT_OFF = "share of responses cut off during training, minus 0.02"
AT_END = "accuracy at the end"

CLAIMS = (
    TransformerClaim(
        "clip-higher",
        "DAPO, arXiv:2503.14476, Section 3.1",
        "raising the upper clip from 0.2 to 0.28 keeps the entropy from collapsing",
        entropy_gap(*LADDER["clip"]),
        "entropy per token with 0.28, minus that with 0.2 at the same accuracy, nats",
        "entropy collapses with 0.2: share of it that is lost, minus a half",
        above(LADDER["clip"][1], entropy_loss_share, 0.5),
        LADDER["clip"],
        "clip_higher_entropy",
        figures={
            "accuracy at the end, 0.28 minus 0.2": gap(END, *LADDER["clip"]),
            "share of tokens clipped with 0.2": above(LADDER["clip"][1], mean_of("clipped"), 0.0),
        },
    ),
    TransformerClaim(
        "overlong filtering",
        "DAPO, arXiv:2503.14476, Section 3.4, Table 1",
        "leaving truncated responses out of the loss finishes ahead",
        gap(END, *LADDER["overlong"]),
        f"{AT_END}, truncated responses left out of the loss minus all responses",
        CUT_OFF,
        above(LADDER["overlong"][1], mean_of("truncated_share"), 0.02),
        LADDER["overlong"],
        "overlong_filter",
        figures={"mean accuracy, the same arms": gap(MEAN, *LADDER["overlong"])},
    ),
    TransformerClaim(
        "soft overlong punishment",
        "DAPO, arXiv:2503.14476, Section 3.4, Table 1",
        "a soft punishment of overlong responses finishes ahead of none",
        gap(END, *LADDER["soft"]),
        f"{AT_END}, with the punishment minus without",
        CUT_OFF,
        above(LADDER["soft"][1], mean_of("truncated_share"), 0.02),
        LADDER["soft"],
        "soft_overlong",
        figures={"mean accuracy, the same arms": gap(MEAN, *LADDER["soft"])},
    ),
    TransformerClaim(
        "token mean",
        "DAPO, arXiv:2503.14476, Section 3.3, Table 1",
        "a mean over tokens finishes ahead of a mean over responses",
        gap(END, *LADDER["token"]),
        f"{AT_END}, mean over tokens minus mean over each response",
        UNEQUAL,
        above(LADDER["token"][0], lambda row: row["spread"], 0.1),
        LADDER["token"],
        "dapo_ladder",
        difference("success", "token_level", "soft_overlong"),
        figures={"mean accuracy, the same arms": gap(MEAN, *LADDER["token"])},
    ),
    TransformerClaim(
        "dynamic sampling",
        "DAPO, arXiv:2503.14476, Section 3.2, Figure 6",
        "a step learns more if prompts without a signal are replaced",
        gap(MEAN, *LADDER["dynamic"]),
        "mean accuracy during training, with dynamic sampling minus without",
        "share of groups that are all right or all wrong, minus 0.1",
        above(LADDER["dynamic"][1], uniform_groups_share, 0.1),
        LADDER["dynamic"],
        "dynamic_sampling",
        margin=0.005,
        budget="equal updates and trained responses; sampled tokens are not equal",
        figures={
            "accuracy at equal sampled tokens, the same arms": gap_at_equal_tokens(*LADDER["dynamic"]),
            "accuracy at the end, the same arms": gap(END, *LADDER["dynamic"]),
        },
    ),
    TransformerClaim(
        "no deviation, no mean per response",
        "Dr.GRPO, arXiv:2503.20783, Section 3.2",
        "without GRPO's two biases (deviation, mean over each response), the accuracy is the same",
        gap(END, "Dr.GRPO", "naive GRPO"),
        f"{AT_END}, Dr.GRPO minus GRPO",
        UNEQUAL,
        above("naive GRPO", lambda row: row["spread"], 0.1),
        ("Dr.GRPO", "naive GRPO", "GRPO without deviation"),
        "length_bias",
        difference("success", "dr_grpo", "grpo"),
        margin=0.02,
        small_margin=0.02,
        kind="equal",
        figures={
            "accuracy at the end, GRPO without the deviation minus GRPO": gap(END, "GRPO without deviation", "naive GRPO")
        },
        real=("Dr.GRPO", "GRPO"),
    ),
    TransformerClaim(
        "longer wrong responses",
        "Dr.GRPO, arXiv:2503.20783, Sections 3.1 and 3.2, Figure 5",
        "wrong responses grow longer under GRPO than under Dr.GRPO",
        lambda rows: per_seed(rows, "naive GRPO", wrong_length) - per_seed(rows, "Dr.GRPO", wrong_length),
        "mean length of a wrong answer at the end, GRPO minus Dr.GRPO, characters",
        "share of answers that are still wrong at the end under GRPO, minus 0.05",
        lambda rows: [1 - value - 0.05 for value in values_of(rows, "naive GRPO", END).values()],
        ("Dr.GRPO", "naive GRPO"),
        "length_bias",
        margin=1.0,
    ),
    TransformerClaim(
        "decoupled GAE",
        "VAPO, arXiv:2504.05118, Table 1; VC-PPO, arXiv:2503.01491",
        "a lambda below 1 for the policy with 1 for the critic finishes ahead of 1 for both",
        gap(END, "VAPO", "VAPO without decoupled GAE"),
        f"{AT_END}, decoupled minus 1 for both",
        "0.95 to the power of the response length is below a half: 0.5 minus that",
        lambda rows: 0.5 - 0.95 ** per_seed(rows, "VAPO", mean_of("response_length")),
        ("VAPO", "VAPO without decoupled GAE"),
        "decoupled_lambda",
        figures={"mean accuracy, the same arms": gap(MEAN, "VAPO", "VAPO without decoupled GAE")},
    ),
    TransformerClaim(
        "length-adaptive lambda",
        "VAPO, arXiv:2504.05118, Section 4.2, Eq. 5, Table 1",
        "a lambda that grows with the length of a response finishes ahead of 0.95 for all responses",
        gap(END, "VAPO", "VAPO without length-adaptive GAE"),
        f"{AT_END}, lambda by length minus 0.95",
        UNEQUAL,
        above("VAPO", lambda row: row["spread"], 0.1),
        ("VAPO", "VAPO without length-adaptive GAE"),
        "lambda_of_length",
        figures={"mean accuracy, the same arms": gap(MEAN, "VAPO", "VAPO without length-adaptive GAE")},
    ),
    TransformerClaim(
        "value pretraining",
        "VC-PPO, arXiv:2503.01491, Abstract; VAPO, arXiv:2504.05118, Table 1",
        "pretraining the critic on additional rollouts learns more",
        gap(MEAN, "VAPO", "VAPO without value pretraining"),
        "mean accuracy during training, pretrained minus not",
        "share of the critic's loss that pretraining removes",
        above("VAPO", value_loss_reduction, 0.0),
        ("VAPO", "VAPO without value pretraining"),
        "value_pretraining",
        margin=0.005,
        budget="equal updates and trained responses; pretraining samples 10 rollouts more",
        figures={
            "accuracy at equal sampled tokens, the same arms": gap_at_equal_tokens("VAPO", "VAPO without value pretraining")
        },
    ),
    TransformerClaim(
        "GSPO's ratio",
        "GSPO, arXiv:2507.18071, Section 5.1",
        "one ratio and clip per response learns more than one per token",
        gap(MEAN, "GSPO", "naive GRPO"),
        "mean accuracy during training, GSPO minus GRPO, each with its own default clip range",
        "the clip is active: share of tokens clipped under GSPO, minus 0.01",
        above("GSPO", mean_of("clipped"), 0.01),
        ("GSPO", "naive GRPO"),
        "staleness_gepo",
        difference("area", "gspo, delay 8", "grpo, delay 8"),
        unlike="all responses have 6 tokens, the sampler is 8 steps old, and GSPO's clip range is not the paper's",
        figures={
            "accuracy at the end, the same arms": gap(END, "GSPO", "naive GRPO"),
            "share of tokens clipped under GSPO": above("GSPO", mean_of("clipped"), 0.0),
            "share of tokens clipped under GRPO": above("naive GRPO", mean_of("clipped"), 0.0),
        },
        real=("GSPO", "GRPO"),
    ),
)


@dataclass(frozen=True)
class Decision:
    """Verdict of the runs on a claim, with its statistics."""

    verdict: Verdict
    """The verdict; "not decided" if the premise was not met."""
    statistic: Interval
    """Mean over seeds."""
    premise: Interval
    """Mean of the condition over seeds; met if its lower end is above 0."""
    figures: Mapping[str, Interval]
    """Other statistics."""


def decide(claim: TransformerClaim, rows: Rows) -> Decision:
    """Decide a claim from the rows of `ablation_tables.json`, which have at least one seed with all arms of the claim."""
    rows = runs_for(claim, rows)
    statistic, premise = over_seeds(claim.statistic(rows)), over_seeds(claim.condition(rows))
    verdict = verdict_of(statistic, kind=claim.kind, margin=claim.margin) if premise.low > 0 else "not decided"
    return Decision(verdict, statistic, premise, {name: over_seeds(of(rows)) for name, of in claim.figures.items()})


def verdict_on_tables(claim: TransformerClaim) -> tuple[Verdict, Interval]:
    """Return the verdict and the statistic on tables of logits, from the committed results of a claim."""
    page = find_claim_file(claim.small)
    results = read_results(page)
    if claim.of_arms is None:
        outcome = outcome_of(page, results)
        return outcome.verdict, outcome.statistic
    found = over_seeds(claim.of_arms(results.arms()))
    return "not decided" if claim.unlike else verdict_of(found, kind=claim.kind, margin=claim.small_margin), found


def compare_on_smollm2(claim: TransformerClaim, rows: Rows) -> dict[str, Any] | None:
    """Compare two arms of SmolLM2 in held-out accuracy at the end; None if the claim has no such arms.

    Args:
        claim: the claim, which names the arms.
        rows: the runs of experiments/real/addition_on_cpu.json. Only seeds that both arms have are compared.
    """
    if claim.real is None:
        return None
    one, two = ({row["seed"]: [*row["accuracy"].values()][-1] for row in rows if row["arm"] == arm} for arm in claim.real)
    found = over_seeds([one[seed] - two[seed] for seed in sorted(one.keys() & two.keys())], fewest=3)
    verdict = verdict_of(found, kind=claim.kind, margin=claim.margin)
    clipped = [share for row in rows if row["arm"] == claim.real[0] for share in row["clipped"] if share is not None]
    return {
        "arms": list(claim.real),
        "verdict": verdict,
        "statistic": as_json(found),
        "clipped": float(f"{np.mean(clipped):.3g}"),
    }


def agreement_of(one: Verdict, other: Verdict) -> str:
    """Describe whether two verdicts agree.

    Example:
        >>> agreement_of("holds here", "holds here"), agreement_of("holds here", "not decided")
        ('agree', 'open')
    """
    if "not decided" in {one, other}:
        return "open"
    return "agree" if one == other else "disagree"


def summary(rows: Rows, real: Rows) -> list[dict[str, Any]]:
    """Collect what the page shows, as JSON; claims without runs are left out."""
    found = []
    for claim in (claim for claim in CLAIMS if runs_for(claim, rows)):
        decision, (verdict, statistic) = decide(claim, rows), verdict_on_tables(claim)
        found.append(
            {
                "claim": claim.name,
                "paper": claim.paper,
                "text": claim.text,
                "budget": claim.budget,
                "unit": claim.unit,
                "margin": claim.margin,
                "kind": claim.kind,
                "tables": {
                    "claim": claim.small,
                    "verdict": verdict,
                    "statistic": as_json(statistic),
                    "unlike": claim.unlike,
                },
                "transformer": {
                    "verdict": decision.verdict,
                    "statistic": as_json(decision.statistic),
                    "premise": claim.premise,
                    "premise_statistic": as_json(decision.premise),
                    "figures": {name: as_json(interval) for name, interval in decision.figures.items()},
                },
                "agreement": agreement_of(verdict, decision.verdict),
                "smollm2": compare_on_smollm2(claim, real),
            }
        )
    return found


def as_json(interval: Interval) -> dict[str, float | int | None]:
    """Convert an interval to JSON, with four significant digits."""
    ends = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: float(f"{end:.4g}") if math.isfinite(end) else None for name, end in ends.items()} | {
        "seeds": interval.seeds
    }


def text_of(stored: Mapping[str, Any]) -> str:
    """Format an interval from JSON."""
    if stored["low"] is None:
        return f"{stored['value']:.3g}"
    return f"{stored['value']:.3g} ({stored['low']:.3g} to {stored['high']:.3g})"


def report(found: Sequence[Mapping[str, Any]]) -> str:
    """Format the page below its caption in Markdown."""
    counts = {kind: sum(row["agreement"] == kind for row in found) for kind in ("agree", "disagree", "open")}
    lines = [
        f"Of {len(found)} claims, tables and transformer agree on {counts['agree']} and disagree on {counts['disagree']}; "
        f"{counts['open']} are open, because at least one of the two does not decide them.",
        *missing_text(found),
        "",
        "| claim | tables of logits | transformer | premise on the transformer | seeds | both |",
        f"|{' --- |' * 6}",
    ]
    for row in found:
        tables, large = row["tables"], row["transformer"]
        lines.append(
            f"| {row['claim']} | {tables['verdict']}: {text_of(tables['statistic'])} "
            f"| {large['verdict']}: {text_of(large['statistic'])} | {premise_text(large['premise_statistic'])} "
            f"| {large['statistic']['seeds']} | {row['agreement']} |"
        )
    for row in found:
        lines += ["", *claim_section(row)]
    return "\n".join(lines) + "\n"


def premise_text(stored: Mapping[str, Any]) -> str:
    """Describe whether a premise was met."""
    if stored["low"] is None:
        return "too few seeds"
    return "met" if stored["low"] > 0 else "not met"


def missing_text(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the claims whose runs are missing; return no lines if no runs are missing."""
    names = [claim.name for claim in CLAIMS if claim.name not in {row["claim"] for row in found}]
    return ["", f"Not run yet: {', '.join(names)}; `python experiments/ablation_tables.py` continues."] if names else []


def claim_section(row: Mapping[str, Any]) -> list[str]:
    """Format the details of a claim in Markdown."""
    large, tables = row["transformer"], row["tables"]
    bound = "within" if row["kind"] == "equal" else "above"
    lines = [
        f"## {row['claim']}",
        "",
        f"{row['paper']}: {row['text']}.",
        "",
        f"- Transformer: {large['verdict']}. {text_of(large['statistic'])}: {row['unit']}; the claim asks for {bound} "
        f"{row['margin']:g}.",
        f"- Budget: {row['budget']}; one learning rate for all arms.",
        f"- Premise: {large['premise']}: {text_of(large['premise_statistic'])}.",
        f"- Tables of logits (`rljax claims {tables['claim']}`): {tables['verdict']}, {text_of(tables['statistic'])}"
        f"{', because ' + tables['unlike'] if tables['unlike'] else ''}.",
    ]
    lines += [f"- {name[0].upper()}{name[1:]}: {text_of(interval)}." for name, interval in large["figures"].items()]
    if (real := row["smollm2"]) is not None:
        arm, other = real["arms"]
        lines.append(
            f"- SmolLM2-135M-Instruct on sums (real/addition_on_cpu.md): {real['verdict']}. {text_of(real['statistic'])}, "
            f"{real['statistic']['seeds']} seeds: held-out accuracy at the end, {arm} minus {other}. {arm} clips "
            f"{100 * real['clipped']:.2g} % of the tokens."
        )
    return lines


CAPTION = (
    "claims on tables of logits, and the same claims on a transformer of 0.1 million parameters (five seeds of RL from one base "
    "model, 95 % t intervals). A verdict needs the premise of the claim, measured on the same runs; otherwise the claim is not "
    "decided."
)
FOLDER = Path(__file__).resolve().parent


def read_inputs() -> tuple[Rows, Rows]:
    """Read the rows of `ablation_tables.json` and of the runs of SmolLM2."""
    real = json.loads((FOLDER / "real" / "addition_on_cpu.json").read_text(encoding="utf-8"))
    return rows_of(FOLDER / "ablation_tables.json", hash_of), real


def main() -> None:
    """Write the summary and the page."""
    found = summary(*read_inputs())
    text = ",\n".join(f" {json.dumps(row)}" for row in found)
    atomic_write(FOLDER / "claims_on_transformer.json", f"[\n{text}\n]\n".encode())
    write_page(FOLDER / "claims_on_transformer", "python experiments/claims_on_transformer.py", CAPTION, report(found))


if __name__ == "__main__":
    tyro.cli(main)
