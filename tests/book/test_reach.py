"""Every equation is reached by a command: as a part of an algorithm, or through what trains and judges; or it says why not."""

import ast
from pathlib import Path

import rljax
from rljax.book.uses import calls_of_ops, calls_of_records, names_of_ops

PACKAGE = Path(rljax.__file__).parent
APART = {
    "categorical.c51_projection": "the critic's targets are whole returns, of which it is `two_hot`, the head of that name",
    "divergence.entropy": "a model computes it over parts of the vocabulary, so that all logits never exist at once",
    "gae.decoupled_gae": "the slots `advantage` and `target` of a critic are its two halves",
    "ratio.group_expectation_log_denominator_unnormalized": "underflows beyond short responses; GEPO takes the normalised one",
    "ratio.group_expectation_log_ratio": "the slots `denominator` and `log_ratio` of GEPO are its two halves",
    "ratio.group_expectation_log_ratio_unnormalized": "underflows beyond short responses; GEPO takes the normalised one",
    "regularise.diagonal_fisher": "needs a gradient of each example; no trainer keeps them yet",
    "regularise.fisher_anchor": "a penalty on parameters, where the terms of an algorithm are of tokens",
    "regularise.negative_log_likelihood": "the term of positive examples is the same, token by token",
    "selection.rl_kl_from_pass_rate": "says why a window of difficulty helps; nothing is decided by it",
    "shaping.weighted_composite": "`--reward-weights` is the same on the host, with opinions left out",
    "unpublished.group_baseline.hierarchical": "a rollout does not say which problems are of one type",
    "unpublished.group_baseline.reliability_quality": "needs several scorings of a response",
    "unpublished.mixture.constitutional_sum": "`--reward A,B --reward-weights` is the same sum",
    "unpublished.mixture.multi_objective": "`--reward A,B --reward-weights` is the same sum",
    "unpublished.mixture.neural_symbolic_mixture": "needs a symbolic policy beside the model, in sampler and scorer",
    "unpublished.offset_gae.complexity_weighted_gae": "the document does not say what the complexity of a state is",
}
"""Equations that no command reaches, and why."""


def imported_by_commands() -> set[str]:
    """Equations that the trainer, the rewards, the data or another part of the package imports."""
    names = {(function.__module__, function.__name__): name for function, name in names_of_ops().items()}
    found = set()
    for file in PACKAGE.rglob("*.py"):
        if file.relative_to(PACKAGE).parts[0] in ("ops", "book"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {names[node.module, alias.name] for alias in node.names if (node.module, alias.name) in names}
    return found


def test_every_equation_is_reached_or_says_why_not():
    reached = {op for ops in calls_of_records().values() for op in ops} | imported_by_commands()
    calls, before = calls_of_ops(), set()
    while reached != before:
        before, reached = reached, reached | {inner for op in reached for inner in calls[op]}
    assert set(names_of_ops().values()) - reached == set(APART)
    assert all(APART.values())
