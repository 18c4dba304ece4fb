"""The pages of claims: what was claimed, and what small experiments say, sorted by verdict, and a page for each."""

from collections.abc import Mapping
from pathlib import Path

from book_site.book import HIDDEN
from book_site.docstrings import escaped, table
from rljax.book.claim_picture import draw_all
from rljax.book.claim_results import Outcome, outcome_of, read_results
from rljax.book.claims import VERDICTS, Page, Verdict, claim_files, read_page

MEANING: dict[Verdict, str] = {
    "holds here": "The 95 % interval lies on the claim's side, beyond the smallest size that would matter.",
    "contradicted": "The interval lies on the other side, beyond that size. A larger model may still bear it out.",
    "not seen at this scale": "The interval ends below the smallest size that would matter.",
    "not decided": "The interval is too wide to tell, or the experiment is no fair test: its page says which.",
}
INTRODUCTION = """(page-claims)=
# Claims of papers, put to the test

{count} claims about algorithms, each decided by its own experiment in `experiments/claims/`. In most of them a
policy is a table of logits on a small world of tokens, under the library's losses, advantages and weights. So an
experiment takes seconds, arms train on the same worlds from the same seeds, and pass rates are exact.
What depends on a network does not show: features that prompts share, a large vocabulary, a capacity that runs out.
**A verdict is about these worlds.**

## In ten lines

{summary}

```{{image}} claims.png
:alt: the statistic of every claim with its interval, under the verdicts
```

Each statistic is divided by the smallest size that would matter, which bounds the grey band; beyond it the axis is logarithmic.
Squares are claims that two things are equal.

## How they are decided

Where algorithms want different learning rates, each side searches its own on other seeds, often with a verifier that errs on
one response in 20. The others share one learning rate.

A claim's statistic is one number a seed, with Student's t interval over the seeds; `rljax claims NAME` prints the rule for all.
About one interval in twenty misses its true value by chance. What was chosen after results had been seen is under "pilot".
{again} claims, not decided with 16 seeds, have results of 64 others. To learn more or faster is a higher mean pass rate during
training, to end better a higher one at the end. All took {minutes:.0f} minutes on two cores, without the trainer's experiments.

When there were 61, each with 16 seeds, 43 were run again (2026-11-23): verdicts were the same, statistics within 0.00001.

    rljax claims cispo               # its setting, deviations from the paper, all numbers
    rljax claims --rerun cispo"""
SUMMARY: dict[str, dict[str, str]] = {
    "Many updates on a rollout": {
        "cispo": "CISPO learns faster than a clip",
        "sapo": "SAPO's gate ends better than a clip",
        "gmpo_stability": "GMPO ends better than GRPO with large steps",
        "dppo": "DPPO's bound learns more than a clip",
    },
    "Which prompts": {
        "dynamic_sampling": "replacing groups without a signal learns more",
        "difficulty_window": "prompts of intermediate difficulty teach more",
        "group_size": "groups of 8 end better than groups of 2",
    },
    "Baseline and scale within a group": {
        "zscore_rloo": "leave-one-out learns more than z-scores",
        "batch_deviation": "the batch's deviation learns more than the group's",
        "rank_outliers": "ranks lose less to outliers than z-scores",
        "hierarchical_kinds": "a baseline by kind of problem learns more than the prompt's",
    },
    "A critic or none": {
        "rloo_ppo": "RLOO ends better than PPO",
        "value_pretraining": "a pretrained critic beats one with biased values",
        "lambda_of_length": "lambda by length ends better than 0.95",
        "distributional_critic": "a distribution learns more than a number",
    },
    "Length of responses": {
        "length_bias": "wrong responses grow longer under GRPO than under Dr.GRPO",
        "soft_overlong": "a soft punishment of overlong responses ends better than none",
        "length_shaped": "the length-shaped reward spares difficult problems",
    },
    "Entropy": {
        "entropy_term": "an entropy term of 0.01 ends better than none",
        "clip_higher_entropy": "clip-higher keeps the entropy up",
        "clip_cov": "Clip-Cov ends better than GRPO",
    },
    "Distance from the reference": {
        "kl_in_reward": "k1 in the reward ends better than k3 in the loss",
        "k3_gradient": "the gradient of k3 in the loss is biased",
    },
    "A sampler with old weights or other rounding": {
        "truncated_weights": "truncated weights end better than none",
        "masked_weights": "a mask ends better than a cap",
        "staleness_gepo": "a delay costs GEPO less than GRPO",
        "bounded_ratio": "a ratio within a factor of ten ends better",
    },
    "pass@k": {
        "pass_at_k_after_rl": "RL raises pass@1 and lowers pass@256",
        "pkpo_pass_at_k": "training for pass@8 raises it more than training for pass@1",
        "max_rl_pass_at_16": "MaxRL has a better pass@16 than RLOO",
    },
    "Whole recipes": {
        "dapo_ladder": "DAPO's parts help in the order of its table",
        "vapo_parts": "VAPO's parts matter in the order of its table",
        "lite_ppo": "Lite PPO ends better than DAPO",
    },
}
"""Question -> claim -> the claim in a few words; the verdict beside them is that of the results."""


def claims_pages() -> dict[str, str]:
    """A page for each claim, and the index, in which every claim stands under its verdict."""
    pages = [read_page(file) for file in claim_files().values()]
    outcomes = [outcome_of(page, read_results(page)) for page in pages]
    both = list(zip(pages, outcomes, strict=True))
    verdicts = {page.name: found.verdict for page, found in both}
    minutes = sum(found.minutes for found in outcomes)
    again = sum(page.claim.first_look is not None for page in pages)
    text = [INTRODUCTION.format(count=len(pages), again=again, minutes=minutes, summary=summary(verdicts))]
    for verdict in VERDICTS:
        rows = [_row(page, found) for page, found in both if found.verdict == verdict]
        if rows:
            heads = ("claim", "mean (95 % interval)", "experiment")
            text.append(f"## {verdict.capitalize()}\n\n{MEANING[verdict]}\n\n{table(heads, rows)}")
    text.append(HIDDEN.format("\n".join(f"claims/{page.name}" for page in pages)))
    return {"claims": "\n\n".join(text)} | {f"claims/{page.name}": _page(page, found) for page, found in both}


def claims_picture(file: Path) -> None:
    """Draw the intervals of all claims."""
    pages = [read_page(claim) for claim in claim_files().values()]
    draw_all(pages, [outcome_of(page, read_results(page)) for page in pages], file)


def summary(verdicts: Mapping[str, Verdict]) -> str:
    """A line for each question: its claims in a few words, under their verdicts."""
    lines = []
    for question, claims in SUMMARY.items():
        parts = []
        for verdict in VERDICTS:
            here = [f"{escaped(words)} ({_link(name)})" for name, words in claims.items() if verdicts[name] == verdict]
            parts += [f"*{verdict}:* {', '.join(here)}"] if here else []
        lines.append(f"- **{question}.** {'; '.join(parts)}.")
    return "\n".join(lines)


def claim_label(name: str) -> str:
    """Anchor of a claim's page."""
    return f"claim-{name.replace('_', '-')}"


def _link(name: str) -> str:
    return f"[`{name}`](#{claim_label(name)})"


def _statistic(page: Page, outcome: Outcome) -> str:
    claim = page.claim
    statistic = f"{outcome.statistic.text()}: {claim.unit} ({outcome.statistic.seeds} seeds)"
    if claim.condition is not None and outcome.condition is not None:
        statistic += f"; a test if {outcome.condition.text()} lies above 0: {claim.condition[0]}"
    return escaped(statistic)


def _row(page: Page, outcome: Outcome) -> tuple[str, str, str]:
    return escaped(page.claim.text), outcome.statistic.text(), _link(page.name)


def _page(page: Page, outcome: Outcome) -> str:
    """The experiment of a claim: numbers, picture and words."""
    claim = page.claim
    rows = [
        ("claim", escaped(claim.text)),
        ("made by", escaped(f"{claim.paper}, {claim.place}")),
        ("verdict", outcome.verdict),
        ("statistic", _statistic(page, outcome)),
        ("run", f"{outcome.date}, {outcome.minutes:.1f} minutes" if outcome.date else "no results"),
        ("files", f"`experiments/claims/{page.name}.py` and `.json`"),
    ]
    rows += [("first look", escaped(claim.first_look_text()))] if claim.first_look else []
    rows += [("pilot", escaped(claim.pilot))] if claim.pilot else []
    figures = [(escaped(name), found.text()) for name, found in outcome.figures.items()]
    parts = [
        f"({claim_label(page.name)})=\n# `{page.name}`",
        table(("", ""), rows),
        f"```{{image}} /../experiments/claims/{page.name}.png\n:alt: curves of the arms, and the statistic of every seed\n```",
        *(escaped(part) for part in page.text.split("\n\n")),
        *([f"## Further figures\n\n{table(('figure', 'mean (95 % interval)'), figures)}"] if figures else []),
    ]
    return "\n\n".join(parts)
