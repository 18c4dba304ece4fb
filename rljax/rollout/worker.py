"""The rollout worker, which sends prompts to the engine, has the responses judged, and arranges everything in groups."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from rljax.algorithms import Rollout
from rljax.data.problem import Problem
from rljax.data.prompts import EncodedPrompts, check_has_token, left_pad
from rljax.models import Params
from rljax.records import required
from rljax.rewards.reward_call import Progress
from rljax.rewards.reward_scores import has_verifier
from rljax.rollout.engine import generate_seeds
from rljax.rollout.engine_protocols import (
    Engine,
    ReportingEngine,
    Request,
    Response,
    Sampling,
    check_token_ids,
    sample_responses,
)
from rljax.rollout.environment import Environment, Player
from rljax.rollout.groups import Groups, correctness_masks, group_rows, pad_responses
from rljax.rollout.judging import IMPATIENT, Judge, Patience, Verdicts
from rljax.rollout.overlapped_judging import judge_while_sampling
from rljax.rollout.stratified import group_seeds


@dataclass(frozen=True)
class RolloutWorker:
    """Samples responses to a fixed set of prompts and has them judged.

    Args:
        engine: the engine that samples responses.
        prompts: the prompts, with their problems.
        prompt_length: L, padded length of a prompt, in tokens.
        sampling: how tokens are sampled.
        judge: computes the rewards of the responses.
        environment: answers the policy's turns, and judges the episodes in place of the reward; None for single-turn responses.
        compares_with_greedy: whether each prompt also gets a greedy response, whose reward is the baseline for the others.
        judging: function that returns a context manager, active while responses are judged, for example to measure the time.
        reward_groups: number of groups per call of the reward; these groups are judged while later groups are sampled. None: all
            groups are judged in one call, after the last response.
        needs_turns: whether a rollout contains the environment's reward for each turn.
        extra_sets: workers for extra held-out sets, by name; these sets are evaluated together with this worker's prompts.
        other: player that takes the turns for which `environment.is_others_turn` is True; None lets the policy take these, too.
        vocabulary: V, number of the policy's token ids; if None, the engine's token ids are not checked.
    """

    engine: Engine
    prompts: EncodedPrompts
    prompt_length: int
    sampling: Sampling
    judge: Judge
    environment: Environment | None = None
    compares_with_greedy: bool = False
    judging: Callable[[], AbstractContextManager] = nullcontext
    reward_groups: int | None = None
    needs_turns: bool = False
    extra_sets: Mapping[str, "RolloutWorker"] = field(default_factory=dict)
    other: Player | None = None
    vocabulary: int | None = None

    @property
    def all_problems(self) -> list[Problem]:
        """The problems of this worker's prompts and of the extra sets."""
        return [problem for worker in (self, *self.extra_sets.values()) for problem in worker.prompts.problems]

    def make_requests(self, prompt_ids: Sequence[int], groups: Sequence[int], key: PRNGKeyArray) -> list[Request]:
        """Make one request per prompt, with seeds from the key.

        Raises:
            InputError: a prompt has no tokens.
        """
        for prompt_id in set(prompt_ids):
            check_has_token(self.prompts.problems[prompt_id], self.prompts.tokens[prompt_id])
        seeds = generate_seeds(key, len(prompt_ids)).tolist()
        seeds = seeds if self.sampling.strata is None else group_seeds(seeds, groups)
        return [
            Request(tuple(self.prompts.tokens[prompt_id]), int(prompt_id), int(group), self.sampling, seed)
            for prompt_id, group, seed in zip(prompt_ids, groups, seeds, strict=True)
        ]

    def answer(self, params: Params, prompt_ids: Sequence[int], key: PRNGKeyArray) -> list[Response]:
        """Sample a response to each of the prompts, without judging the responses.

        Raises:
            InputError: a prompt has no tokens, or the engine's responses do not match the requests.
        """
        return sample_responses(self.engine, params, self.make_requests(prompt_ids, range(len(prompt_ids)), key))

    def play(self, params: Params, prompt_ids: Sequence[int], key: PRNGKeyArray) -> list[Response]:
        """Play one episode of the environment per prompt, and return the responses.

        Raises:
            InputError: in the same cases as `generate`.
        """
        requests = self.make_requests(prompt_ids, range(len(prompt_ids)), key)
        return self._sample_and_judge(params, requests, [self.prompts.problems[prompt_id] for prompt_id in prompt_ids])[0]

    def generate(
        self,
        params: Params,
        prompt_ids: Sequence[int],
        group_size: int,
        key: PRNGKeyArray,
        *,
        sizes: Int[np.ndarray, "P"] | None = None,
        version: int = 0,
    ) -> Groups:
        """Sample and judge a group of responses to each of the prompts.

        Args:
            params: parameters of the policy that samples.
            prompt_ids: indices into `prompts`.
            group_size: G, responses per prompt.
            key: random key of this call.
            sizes: number of responses to each prompt, from 1 to G; None for G. The unused slots of a group have no tokens and are
                not valid.
            version: number of RL steps that the parameters have been trained for.

        Raises:
            InputError: a prompt has no tokens; the reward failed on too many responses, or returned something other than a
                finite number or None; or the engine or the environment breaks its contract.
        """
        member = np.arange(group_size) < np.full(len(prompt_ids), group_size if sizes is None else sizes)[:, None]
        group_ids = np.arange(len(prompt_ids)).repeat(member.sum(-1)).tolist()
        requests = self.make_requests([prompt_ids[group] for group in group_ids], group_ids, key)
        problems = [self.prompts.problems[request.prompt_id] for request in requests]
        responses, verdicts = self._sample_and_judge(params, requests, problems)
        check_token_ids(responses, self.vocabulary)
        prompts = left_pad([self.prompts.tokens[prompt_id] for prompt_id in prompt_ids], self.prompt_length, 0)
        length = self.sampling.max_tokens
        groups = _stack_groups(np.asarray(prompt_ids), prompts, member, responses, verdicts, length, version)
        return self._with_greedy(params, groups) if self.compares_with_greedy else groups

    def _with_greedy(self, params: Params, groups: Groups) -> Groups:
        """Add the rewards of greedy responses; if a greedy response has no reward, its group is marked as not valid."""
        greedy = self.greedy()
        requests = greedy.make_requests(groups.prompt_ids.tolist(), range(groups.count), jax.random.key(0))
        problems = [self.prompts.problems[request.prompt_id] for request in requests]
        verdicts = greedy._sample_and_judge(params, requests, problems)[1]
        valid = required(groups.rollout.valid, "rollout.valid") & verdicts.valid[:, None]
        return groups._replace(rollout=groups.rollout._replace(greedy_rewards=verdicts.rewards, valid=valid))

    def _sample_and_judge(self, params: Params, requests: list[Request], problems: list) -> tuple[list[Response], Verdicts]:
        """Sample responses to the requests, and judge them with the environment or the reward."""
        if self.environment is not None:
            from rljax.rollout.episodes import play  # noqa: PLC0415  most runs have no environment

            play_all = partial(
                play,
                self.engine,
                self.environment,
                params,
                requests,
                problems,
                self.judge.tokenizer,
                judging=self.judging,
                other=self.other,
            )
            # All hosts play together, so a single host cannot retry.
            patience = self.judge.patience if jax.process_count() == 1 else IMPATIENT
            share, seconds = self.judge.max_failure_share, self.judge.seconds
            turns = self.sampling.max_tokens if self.needs_turns else None
            return patience.retry(partial(play_all, max_failure_share=share, seconds=seconds, turn_rewards=turns))
        if self.reward_groups is not None:
            return judge_while_sampling(
                self.engine,
                self.judge,
                params,
                requests,
                problems,
                self.sampling.max_tokens,
                groups=self.reward_groups,
                judging=self.judging,
            )
        responses = sample_responses(self.engine, params, requests)
        with self.judging():
            return responses, self.judge(problems, responses, self.sampling.max_tokens)

    @property
    def verifies(self) -> bool:
        """True if a verifier decides which responses are correct."""
        return self.environment is None and has_verifier(self.judge.reward)

    def with_first_prompts(self, count: int) -> "RolloutWorker":
        """Return a worker with only the first `count` prompts."""
        prompts = replace(self.prompts, problems=self.prompts.problems[:count], tokens=self.prompts.tokens[:count])
        return replace(self, prompts=prompts)

    def with_sampling(self, **changes: float | int | tuple[str, ...] | tuple[int, ...] | None) -> "RolloutWorker":
        """Return a worker with changed `Sampling` settings that samples responses independently and records no sampling masks."""
        return replace(self, sampling=self.sampling._replace(kept=None, strata=None, **changes))

    def greedy(self) -> "RolloutWorker":
        """Return a worker that always takes the likeliest token."""
        return self.with_sampling(temperature=0.0, top_k=None, top_p=None)

    def with_reports(self, progress: Progress, patience: Patience) -> "RolloutWorker":
        """Return a worker that reports judging progress and retries a failing judge; its engine reports to `patience.tell`."""
        if isinstance(self.engine, ReportingEngine):
            self.engine.report_to(patience.tell)
        extra_sets = {name: worker.with_reports(progress, patience) for name, worker in self.extra_sets.items()}
        return replace(self, judge=self.judge._replace(progress=progress, patience=patience), extra_sets=extra_sets)

    def text(self, tokens: Int[np.ndarray, "T"], attention: Bool[np.ndarray, "T"]) -> str:
        """Decode one response to text."""
        return self.judge.tokenizer.decode(tokens[attention].tolist())

    def sample_rows(self, groups: Groups, count: int) -> list[dict]:
        """Return a readable row for the first response of each of the first `count` groups."""
        rows = []
        right, known = correctness_masks(groups.rollout)
        for index in range(min(count, groups.count)):
            problem = self.prompts.problems[groups.prompt_ids[index]]
            rows.append(
                {
                    "prompt": problem.prompt,
                    "completion": self.text(groups.tokens[index, 0], groups.attention[index, 0]),
                    "answer": problem.answer,
                    "reward": float(groups.rollout.rewards[index, 0]),
                    "correct": bool(right[index, 0]) if known[index, 0] and groups.rollout.correct is not None else None,
                }
            )
        return rows


def _stack_groups(
    prompt_ids: Int[np.ndarray, "P"],
    prompts: tuple[np.ndarray, np.ndarray],
    member: Bool[np.ndarray, "P G"],
    responses: Sequence[Response],
    verdicts: Verdicts,
    length: int,
    version: int,
) -> Groups:
    """Arrange judged responses in groups."""
    arrays = pad_responses(responses, length)
    versions = [version if response.version is None else np.ravel(response.version)[0] for response in responses]
    rows = {name: group_rows(array, member) for name, array in arrays.items()}
    return Groups(
        rollout=Rollout(
            mask=rows["mask"],
            behaviour_logp=rows["behaviour_logp"],
            policy_logp=rows["policy_logp"],
            rewards=group_rows(verdicts.rewards, member),
            truncated=group_rows(np.array([response.truncated for response in responses], bool), member),
            valid=group_rows(verdicts.valid, member),
            step_rewards=None if verdicts.step_rewards is None else group_rows(verdicts.step_rewards, member),
            step_end=None if verdicts.step_end is None else group_rows(verdicts.step_end, member),
            turn_rewards=None if verdicts.turn_rewards is None else group_rows(verdicts.turn_rewards, member),
            reward_parts=jax.tree.map(lambda array: group_rows(array, member, np.nan), verdicts.reward_parts),
            correct=None if verdicts.correct is None else group_rows(verdicts.correct, member, np.nan),
        ),
        prompt_ids=prompt_ids,
        prompt_tokens=prompts[0],
        prompt_attention=prompts[1],
        tokens=rows["tokens"],
        attention=rows["attention"],
        version=group_rows(np.array(versions, np.int32), member),
        turns=group_rows(np.array([response.turns for response in responses], np.int32), member),
        failed=group_rows(verdicts.failed, member),
        kept=rows.get("kept"),
        experts=_experts_in_slots(responses, member, prompts[1], length),
        metrics=jax.tree.map(lambda array: group_rows(array, member, np.nan), verdicts.metrics),
        token_version=rows.get("token_version"),
    )


def _experts_in_slots(
    responses: Sequence[Response], member: Bool[np.ndarray, "P G"], attention: Bool[np.ndarray, "P L"], length: int
) -> np.ndarray | None:
    """Arrange the recorded experts in groups; None if none are recorded."""
    if responses[0].experts is None:
        return None
    from rljax.rollout.expert_records import experts_in_slots  # noqa: PLC0415  few models have experts

    return group_rows(experts_in_slots(responses, attention.shape[1], length), member, -1)
