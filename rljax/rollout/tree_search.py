"""Tree search over reasoning steps with visit counts (UCT), which continues the prefix whose value plus uncertainty is highest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from rljax.models import Params
from rljax.rollout.beam_search import ScoredPrefix, SearchResult, check_step_ends, extend_all, is_open
from rljax.rollout.continuations import Prefix, PrefixEvaluator
from rljax.rollout.engine import generate_seeds
from rljax.rollout.worker import RolloutWorker


class TreeSearch(NamedTuple):
    """Settings of a tree search."""

    simulations: int
    """N, simulations per problem; each samples at most one step."""
    width: int
    """W, the maximum number of steps sampled after the same prefix."""
    exploration: float
    """c, weight of the uncertainty, in the unit of the values."""
    step_ends: tuple[str, ...]
    """Texts that end a step; each step includes the text that ends it."""


@dataclass(eq=False)
class Node:
    """A prefix in the tree of one problem."""

    prefix: Prefix
    """The prefix."""
    depth: int
    """Number of steps in the prefix."""
    value: float = 0.0
    """The critic's value of the prefix."""
    children: list["Node"] = field(default_factory=list)
    """Nodes for the prefix continued by one step, without duplicates."""
    sampled: int = 0
    """Number of steps sampled after the prefix, including duplicates."""
    visits: int = 0
    """N(s), number of simulations whose path contains this node."""
    total: float = 0.0
    """Sum of the values that these simulations found."""


def tree_search(
    worker: RolloutWorker,
    params: Params,
    value: PrefixEvaluator,
    prompt_ids: Sequence[int],
    *,
    search: TreeSearch,
    key: PRNGKeyArray,
    rows: int = 256,
) -> list[SearchResult]:
    """Search for a good response to each of the prompts with UCT.

    ::

        select   from the root, while W steps were sampled after s:  s <- argmax_a  Q(s, a) + c √(ln N(s) / N(s, a))
        expand   sample one more step after s; V = the critic's value of the new prefix, or of s if s cannot be continued
        back up  N += 1 and the sum of values += V on the path;  Q = sum of values / N

    Each simulation covers all problems, so their steps are sampled and evaluated together. A step that was sampled before counts
    as another visit to its node. A prefix without a value (NaN) gets the value 0.

    Args:
        worker: the worker that samples the steps; its token budget covers a complete response.
        params: parameters of the policy.
        value: function that computes the values of prefixes.
        prompt_ids: indices into the worker's prompts.
        search: number of simulations, width, exploration, and where a step ends.
        key: random key; the same key gives the same result for the same prompts.
        rows: number of steps sampled at once.

    Returns:
        A result for each prompt: the complete response with the most visits and, among equal numbers of visits, the highest value.
        If there is no complete response, the result is the prefix at the end of the most visited path.

    Raises:
        ValueError: `search` has fewer than one simulation, a width below 1, a negative exploration, or no text that ends a step.
        InputError: the engine's responses do not match the requests.

    Source:
        UCT: Kocsis and Szepesvári, Bandit Based Monte-Carlo Planning, ECML 2006. With a value function in place of playouts, and
        steps of text as actions: Alphazero-like Tree-Search can Guide Large Language Model Decoding and Training,
        arXiv:2309.17179, Section 3.
    """
    if min(search.simulations, search.width) < 1 or search.exploration < 0:
        raise ValueError(f"simulations and width must be at least 1, and exploration at least 0, got {search}")
    check_step_ends(search.step_ends)
    problems, tokens, budget = worker.prompts.problems, worker.prompts.tokens, worker.sampling.max_tokens
    roots = [Node(Prefix(problems[i], tuple(tokens[i]), (), "", (), ended=False), 0) for i in prompt_ids]
    spent = np.zeros(len(roots), int)
    for simulation in range(search.simulations):
        paths = [select_path(root, search, budget) for root in roots]
        jobs = [(index, path[-1].prefix) for index, path in enumerate(paths) if is_open(path[-1].prefix, budget)]
        seeds = generate_seeds(jax.random.fold_in(key, simulation), len(roots)).tolist()
        job_seeds = [seeds[index] for index, _ in jobs]
        extended = extend_all(worker, params, jobs, prompt_ids, search.step_ends, job_seeds, rows)
        fresh: list[Node] = []
        for (index, _), (prefix, count) in zip(jobs, extended, strict=True):
            spent[index] += count
            child = add_child(paths[index][-1], prefix)
            paths[index].append(child)
            if not child.visits:
                fresh.append(child)
        values = value([node.prefix for node in fresh]) if fresh else ()
        for node, node_value in zip(fresh, np.nan_to_num(np.asarray(values, float)).tolist(), strict=True):
            node.value = node_value
        for path in paths:
            back_up(path)
    return [make_result(root, int(count)) for root, count in zip(roots, spent, strict=True)]


def select_path(root: Node, search: TreeSearch, budget: int) -> list[Node]:
    """Return the path from the root to the prefix to continue next, or to a prefix that cannot be continued."""
    path = [root]
    while is_open(path[-1].prefix, budget) and path[-1].sampled >= search.width:
        node = path[-1]
        bonus = search.exploration * np.sqrt(np.log(node.visits) / [child.visits for child in node.children])
        means = np.array([child.total / child.visits for child in node.children])
        path.append(node.children[int(np.argmax(means + bonus))])
    return path


def add_child(node: Node, prefix: Prefix) -> Node:
    """Return a node's child for this prefix; add the child unless the same step was sampled before."""
    node.sampled += 1
    same = (child for child in node.children if (child.prefix.tokens, child.prefix.end) == (prefix.tokens, prefix.end))
    child = next(same, None)
    if child is None:
        child = Node(prefix, node.depth + 1)
        node.children.append(child)
    return child


def back_up(path: Sequence[Node]) -> None:
    """Count a visit to each node of a path, and add the last node's value to each total."""
    for node in path:
        node.visits += 1
        node.total += path[-1].value


def make_result(root: Node, tokens: int) -> SearchResult:
    """Choose the best response in a tree; `tokens` is the number of tokens sampled for the tree."""
    nodes, ended, deepest = [root], [], 0
    while nodes:
        node = nodes.pop()
        nodes += node.children
        deepest = max(deepest, node.depth)
        ended += [node] if node.prefix.ended else []
    best = max(ended, key=lambda node: (node.visits, node.value), default=root)
    while not best.prefix.ended and best.children:
        best = max(best.children, key=lambda node: (node.visits, node.value))
    return SearchResult(ScoredPrefix(best.prefix, best.value), tokens, deepest)
