"""Tree search over reasoning steps with visit counts (UCT): prefixes are continued where value and uncertainty are high."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from rljax.models import Params
from rljax.rollout.continuations import Prefix, Value
from rljax.rollout.engine import generate_seeds
from rljax.rollout.search import ScoredPrefix, SearchResult, check_step_ends, extend_all, is_open
from rljax.rollout.worker import RolloutWorker


class TreeSearch(NamedTuple):
    """Settings of a tree search."""

    simulations: int
    """N, simulations per problem; each samples at most one step."""
    width: int
    """W, largest number of sampled continuations of a prefix."""
    exploration: float
    """c, weight of the uncertainty, in the value's unit."""
    step_ends: tuple[str, ...]
    """Texts that end a step; they are part of the step."""


@dataclass(eq=False)
class Node:
    """A prefix in the tree of one problem."""

    prefix: Prefix
    """The prefix."""
    depth: int
    """Number of its steps."""
    value: float = 0.0
    """Its own value."""
    children: list["Node"] = field(default_factory=list)
    """Its continuations, without duplicates."""
    sampled: int = 0
    """Number of steps sampled after it, including duplicates."""
    visits: int = 0
    """N(s), simulations that passed through it."""
    total: float = 0.0
    """Sum of the values that these simulations found."""


def tree_search(
    worker: RolloutWorker,
    params: Params,
    value: Value,
    prompt_ids: Sequence[int],
    *,
    search: TreeSearch,
    key: PRNGKeyArray,
    rows: int = 256,
) -> list[SearchResult]:
    """Search for a good response to each of the prompts with UCT.

    ::

        select   from the root, while W steps were sampled after s:  s <- argmax_a  Q(s, a) + c √(ln N(s) / N(s, a))
        expand   sample one more step after s; V = the critic's value of the new prefix. If s cannot be continued, V = its value
        back up  N += 1 and the sum of values += V on the path;  Q = sum of values / N

    All problems take part in each simulation, so their steps are sampled and evaluated together. A step that was sampled before
    counts as another visit of its prefix. A prefix without a value (NaN) counts as 0.

    Args:
        worker: samples steps with its settings; its token budget covers a complete response.
        params: parameters of the policy.
        value: computes the values of prefixes.
        prompt_ids: indices into the worker's prompts.
        search: number of simulations, width, exploration, and where a step ends.
        key: random key; the same key gives the same result for the same prompts.
        rows: number of steps sampled at once.

    Returns:
        A result for each prompt. Its response is the complete one with the most visits; if several have as many, the one of highest
        value. Without a complete response, it is the prefix at the end of the path of most visits.

    Raises:
        ValueError: `search` has no simulation, no continuation, a negative exploration, or no text that ends a step.
        InputError: the engine's responses do not answer the requests.

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
        jobs = [(place, path[-1].prefix) for place, path in enumerate(paths) if is_open(path[-1].prefix, budget)]
        seeds = generate_seeds(jax.random.fold_in(key, simulation), len(roots)).tolist()
        own_seeds = [seeds[place] for place, _ in jobs]
        extended = extend_all(worker, params, jobs, prompt_ids, search.step_ends, own_seeds, rows)
        fresh: list[Node] = []
        for (place, _), (prefix, count) in zip(jobs, extended, strict=True):
            spent[place] += count
            child = add_child(paths[place][-1], prefix)
            paths[place].append(child)
            if not child.visits:
                fresh.append(child)
        found = value([node.prefix for node in fresh]) if fresh else ()
        for node, number in zip(fresh, np.nan_to_num(np.asarray(found, float)).tolist(), strict=True):
            node.value = number
        for path in paths:
            back_up(path)
    return [make_result(root, int(count)) for root, count in zip(roots, spent, strict=True)]


def select_path(root: Node, search: TreeSearch, budget: int) -> list[Node]:
    """Return the path from the root to the prefix that is continued next, or to one that cannot be continued."""
    path = [root]
    while is_open(path[-1].prefix, budget) and path[-1].sampled >= search.width:
        node = path[-1]
        spread = search.exploration * np.sqrt(np.log(node.visits) / [child.visits for child in node.children])
        means = np.array([child.total / child.visits for child in node.children])
        path.append(node.children[int(np.argmax(means + spread))])
    return path


def add_child(node: Node, prefix: Prefix) -> Node:
    """Add a continuation to a node, and return its node: an earlier one if the same step was sampled before."""
    node.sampled += 1
    same = (child for child in node.children if (child.prefix.tokens, child.prefix.end) == (prefix.tokens, prefix.end))
    child = next(same, None)
    if child is None:
        child = Node(prefix, node.depth + 1)
        node.children.append(child)
    return child


def back_up(path: Sequence[Node]) -> None:
    """Count a visit on each node of a path, and add the value of the last one."""
    for node in path:
        node.visits += 1
        node.total += path[-1].value


def make_result(root: Node, tokens: int) -> SearchResult:
    """Choose the response of a tree."""
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
