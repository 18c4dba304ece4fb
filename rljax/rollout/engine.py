"""From prompts to judged groups: pad, place on the mesh, decode, fetch, turn into text, ask the reward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int, PRNGKeyArray, PyTree

from rljax.data.problem import Problem, reward_columns
from rljax.data.prompts import EncodedPrompts, left_pad
from rljax.data.tokenizer import Tokenizer
from rljax.models import Model, Params
from rljax.parallel import divide, fetch, of_first, put_rows, together
from rljax.rewards import protocol
from rljax.rewards.calling import Progress
from rljax.rewards.steps import on_tokens, score_steps
from rljax.rollout.groups import Groups
from rljax.rollout.sampling import Samples, Sampling, sample


@dataclass(frozen=True)
class Engine:
    """Samples responses to a fixed set of prompts and judges them.

    Args:
        model: the decoder.
        sampling: how tokens are drawn.
        mesh: where rows go; the number of rows of every call must be a multiple of its devices.
        prompts: what may be asked.
        prompt_length: slots that every prompt is padded to, in tokens.
        tokenizer: turns responses into text.
        reward: called as `reward(prompts=..., completions=..., **columns)`.
        step_reward: called in the same way, for the steps of each completion; None: steps are not judged.
        max_failure_share: the largest share of a call's completions that the reward may fail to judge; of several hosts, of each
            one's part.
        watch: called with the completions judged and all of them (on this host), by rewards that tell how far they are.
    """

    model: Model
    sampling: Sampling
    mesh: Mesh
    prompts: EncodedPrompts
    prompt_length: int
    tokenizer: Tokenizer
    reward: Callable
    step_reward: Callable | None = None
    max_failure_share: float = 0.1
    watch: Progress | None = None

    def draw(self, params: Params, problems: Sequence[int], key: PRNGKeyArray, *, unit: int = 1) -> Samples:
        """Sample a response to each of the problems (indices into `prompts`); host arrays `[B, T]`.

        Rows are filled up to a multiple of `unit` for it, so that few numbers of rows, and few compiled programs, occur.
        """
        rows = [*problems, *[problems[0]] * (-len(problems) % unit)]
        prompts = put_rows(self.mesh, self._padded(rows))
        drawn = fetch(sample(self.model, params, *prompts, key, sampling=self.sampling))
        return jax.tree.map(lambda array: array[: len(problems)], drawn)

    def generate(
        self,
        params: Params,
        problems: Sequence[int],
        group_size: int,
        key: PRNGKeyArray,
        *,
        sizes: Int[np.ndarray, "P"] | None = None,
    ) -> Groups:
        """Sample `group_size` responses to each of the problems, or fewer to some, and judge them.

        Args:
            params: of the policy that samples.
            problems: indices into `prompts`.
            group_size: G, responses a prompt.
            key: random key of this call.
            sizes: responses to each of the problems, from 1 to G; None: G to each. A place that a group leaves empty has no
                token and is not valid.

        Raises:
            InputError: the reward failed on too many responses, or returned what is no finite number (nor None).
        """
        member = np.arange(group_size) < np.full(len(problems), group_size if sizes is None else sizes)[:, None]
        rows = np.repeat(problems, member.sum(-1)).tolist()
        drawn = self.draw(params, rows, key, unit=1 if sizes is None else self._unit(member.size))
        asked = [self.prompts.problems[i] for i in rows]
        judged = self._judged(asked, drawn)
        prompt_tokens, prompt_mask = self._padded(problems)

        def grouped(array: np.ndarray, empty: float = 0) -> np.ndarray:
            places = np.full((*member.shape, *array.shape[1:]), empty, array.dtype)
            places[member] = array
            return places

        return Groups(
            problem=np.asarray(problems),
            prompt_tokens=prompt_tokens,
            prompt_mask=prompt_mask,
            tokens=grouped(drawn.tokens),
            mask=grouped(drawn.mask),
            behaviour_logp=grouped(drawn.behaviour_logp),
            policy_logp=grouped(drawn.policy_logp),
            truncated=grouped(drawn.truncated),
            parts=jax.tree.map(partial(grouped, empty=np.nan), judged.pop("parts")),
            **{name: grouped(array) for name, array in judged.items()},
        )

    def _judged(self, asked: Sequence[Problem], drawn: Samples) -> dict[str, PyTree]:
        """What the rewards say of responses, by fields of `Groups`; of several hosts each judges its part."""

        def judge_rows(rows: Int[np.ndarray, "R"]) -> dict[str, PyTree]:
            problems, some = [asked[row] for row in rows], jax.tree.map(lambda array: array[rows], drawn)
            completions = [self.text(tokens, seen) for tokens, seen in zip(some.tokens, some.mask, strict=True)]
            prompts, columns = [problem.prompt for problem in problems], reward_columns(problems)
            limits = {"max_failure_share": self.max_failure_share, "progress": self.watch}
            said = protocol.judge(self.reward, prompts, completions, columns, **limits)
            return {
                "rewards": said.total,
                "valid": said.valid,
                "failed": said.failed,
                "parts": said.parts if len(said.parts) > 1 else None,
                **self._steps(problems, some, completions),
            }

        if any(protocol.needs_all_hosts(reward) for reward in (self.reward, self.step_reward)):
            return of_first(together(lambda: judge_rows(np.arange(len(asked)))))
        return divide(len(asked), judge_rows)

    def _steps(self, asked: Sequence[Problem], drawn: Samples, completions: Sequence[str]) -> dict[str, np.ndarray]:
        """Rewards of the completions' steps on their tokens, `[B, T]`, if steps are judged."""
        if self.step_reward is None:
            return {}
        prompts = [problem.prompt for problem in asked]
        judged = score_steps(self.step_reward, prompts, completions, reward_columns(asked))
        rewards, ends = np.zeros(drawn.mask.shape, np.float32), np.zeros(drawn.mask.shape, bool)
        for row, steps in enumerate(judged):
            seen = drawn.mask[row]
            rewards[row, seen], ends[row, seen] = on_tokens(steps, self.tokenizer.decode, drawn.tokens[row, seen].tolist())
        return {"step_rewards": rewards, "step_end": ends}

    def _unit(self, places: int) -> int:
        """Rows that a ragged draw grows by: an eighth of all places, in whole rows of the mesh."""
        devices = self.mesh.size
        return devices * -(-places // (8 * devices))

    def _padded(self, problems: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return left_pad([self.prompts.tokens[i] for i in problems], self.prompt_length, self.sampling.pad_id)

    def first(self, count: int) -> "Engine":
        """Keep only the first prompts."""
        prompts = replace(self.prompts, problems=self.prompts.problems[:count], tokens=self.prompts.tokens[:count])
        return replace(self, prompts=prompts)

    def text(self, tokens: np.ndarray, mask: np.ndarray) -> str:
        """Decode one response."""
        return self.tokenizer.decode(tokens[mask].tolist())

    def shown(self, groups: Groups, count: int) -> list[dict]:
        """Turn the first response of the first groups into rows for a person to read."""
        rows = []
        for index in range(min(count, groups.count)):
            problem = self.prompts.problems[groups.problem[index]]
            rows.append(
                {
                    "prompt": problem.prompt,
                    "completion": self.text(groups.tokens[index, 0], groups.mask[index, 0]),
                    "answer": problem.answer,
                    "reward": float(groups.rewards[index, 0]),
                }
            )
        return rows
