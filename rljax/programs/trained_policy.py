"""Open a trained policy from a run folder or a Hugging Face model."""

import math
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from rljax.data.problem import Problem
from rljax.data.problem_datasets import load_problems
from rljax.data.prompts import EncodedPrompts, list_columns_left_out, list_prompt_omissions
from rljax.data.tokenizer import Tokenizer, check_no_special_token, has_chat_template
from rljax.errors import InputError
from rljax.files import check_local
from rljax.models import Params, Policy
from rljax.models.adapters import Adapter, Base
from rljax.models.folder_notes import unused_generation_settings
from rljax.models.huggingface import locate
from rljax.models.quantization import check_blocks, quantize_params
from rljax.parallel import add_shardings, is_first, mesh_of, policy_shardings, put
from rljax.parallel.memory import device_bytes
from rljax.programs.answer_settings import CacheDtype, Quantization
from rljax.programs.model_memory import check_model_fits
from rljax.records import required
from rljax.rollout import Engine, Environment, Response, RolloutWorker
from rljax.rollout.environment import ENVIRONMENTS, environment_of, other_policy_in, with_environment_prompts
from rljax.settings.checks import check_seed, check_stop, fit_setting
from rljax.text import counted
from rljax.tracking.run_folder import CONFIG, RunFolder
from rljax.tracking.start_records import (
    ENVIRONMENT,
    ENVIRONMENT_FILES,
    check_inputs,
    digest_of_name,
    digest_of_options,
    evaluation_inputs,
    text_inputs,
)
from rljax.tracking.summary import has_run_settings
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import DevicesConfig, TrainConfig
from rljax.training.parts.adapter import (
    base_entry,
    check_base,
    fresh_adapter,
    initial_adapter,
    make_base,
    merge_adapter,
    with_stored_adapter,
)
from rljax.training.parts.custom_parts import CustomParts, check_parts, read_saved_settings, refuse_missing
from rljax.training.parts.policy import choose_policy
from rljax.training.parts.problems import Problems, make_problems
from rljax.training.parts.reward import custom_environment_names, custom_reward_names, digest_of_reward
from rljax.training.parts.tokenizer import check_stop_ids, configure_tokenizer, make_tokenizer, with_chat
from rljax.training.setup import encode_problems
from rljax.training.worker import make_worker

JUDGING = ("environment", "reward")
"""Arguments of `train` that judge responses."""
Which = Literal["best", "last"]


class OpenPolicy(NamedTuple):
    """A trained policy with everything needed to sample and judge answers."""

    config: TrainConfig
    """Settings of the run."""
    policy: Policy
    """The model."""
    params: Params
    """Parameters of the model, on the devices."""
    tokenizer: Tokenizer
    """Tokenizer of prompts and responses."""
    worker: RolloutWorker
    """Worker that answers the problems greedily and judges the answers."""
    mesh: Mesh
    """The devices."""
    missing: tuple[str, ...] = ()
    """Arguments of `train` that judged the run's responses and were not passed again. Unless empty, answers cannot be judged."""
    untrusted: tuple[str, ...] = ()
    """Rewards of the run that are untrusted code. Unless empty, answers cannot be judged."""
    skipped: str | None = None
    """The run's environment, if it is untrusted code and therefore left out; the model then answers each prompt with one turn."""
    trust: bool = False
    """Whether code that the run's config.json names may be executed."""
    model_folder: Path | None = None
    """Folder of the model; None for a run."""

    def check_can_judge(self) -> None:
        """Reject a policy whose answers cannot be judged.

        Raises:
            InputError: the reward or environment was not passed again, or is untrusted code.
        """
        _refuse_to_judge(self.missing, self.untrusted, [])

    def print_unused_settings(self, *, temperature: float, top_k: int | None, top_p: float | None) -> None:
        """Print to stderr which generation settings of the model's folder are ignored when sampling with these settings."""
        if self.model_folder is not None and is_first():
            sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
            for note in unused_generation_settings(self.model_folder, **sampling):
                print(f"note: {note}.", file=sys.stderr)

    def sampler(
        self,
        *,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        stop: Sequence[str] | None = None,
        stop_ids: Sequence[int] = (),
    ) -> RolloutWorker:
        """Make a worker that samples answers with these settings instead of greedily; `stop=None` uses the run's stop strings.
        `stop_ids` end an answer in addition to the run's end tokens.

        Raises:
            InputError: a value is out of range, a stop string contains a special token, or a stop id is not a token id.
        """
        is_finite = 0 <= temperature < math.inf
        if not is_finite or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
            raise InputError(
                f"temperature={temperature}, top_k={top_k}, top_p={top_p} cannot be used for sampling: the temperature must be "
                "finite and not negative, top_k must be at least 1 and top_p above 0 and at most 1."
            )
        if temperature == 0 and (top_k, top_p) != (None, None):
            raise InputError(
                f"top_k={top_k} and top_p={top_p} apply to sampling, but at temperature 0 nothing is sampled; leave them out, or "
                "set a temperature above 0."
            )
        stop = self.worker.sampling.stop if stop is None else stop
        check_stop(stop)
        check_no_special_token(self.tokenizer, stop)
        check_stop_ids(stop_ids, self.tokenizer)
        ends = tuple(dict.fromkeys([*self.worker.sampling.eos_ids, *stop_ids]))
        return self.worker.with_sampling(temperature=temperature, top_k=top_k, top_p=top_p, stop=tuple(stop), eos_ids=ends)

    def sample(
        self,
        prompts: Sequence[str],
        *,
        count: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: Sequence[str] | None = None,
        stop_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> list[list[str]]:
        """Sample continuations of prompts.

        Args:
            prompts: texts of the prompts.
            count: number of continuations of each prompt.
            temperature: sampling temperature; 0 always takes the most likely token.
            top_k: sample only from the k most likely tokens.
            top_p: sample from the smallest set of most likely tokens with at least this total probability.
            stop: texts that end a continuation and are included in it; by default, the run's stop strings.
            stop_ids: ids of tokens that end a continuation, in addition to the end tokens of the model and of the run.
            seed: random seed of the sampling.

        Returns:
            `count` texts for each prompt.

        Raises:
            InputError: a value is out of range, the prompts are not a list of texts, or a prompt is too long or has no token.
        """
        is_list = isinstance(prompts, Iterable) and not isinstance(prompts, str)
        if not is_list or not all(isinstance(prompt, str) for prompt in prompts):
            raise InputError(f"prompts is {prompts!r:.80}; give a list of texts, such as ['1+1='].")
        split = Problems([], [Problem(prompt, "") for prompt in prompts])
        problems = with_environment_prompts(split, self.worker.environment, self.tokenizer).heldout
        encoded = _encode_prompts(self.config, problems, self.tokenizer)
        if encoded.dropped:
            limit = self.config.data.max_prompt_tokens
            verb = "is" if encoded.dropped == 1 else "are"
            raise InputError(
                f"{counted(encoded.dropped, 'prompt')} {verb} longer than max_prompt_tokens={limit}; shorten them."
            )
        worker = self.sampler(temperature=temperature, top_k=top_k, top_p=top_p, stop=stop, stop_ids=stop_ids)
        responses = _sample_continuations(replace(worker, prompts=encoded), self.params, count, seed)
        if worker.environment is not None:
            return [[self.tokenizer.decode(response.tokens) for response in row] for row in responses]
        return [[worker.judge.completion(response) for response in row] for row in responses]

    def sample_ids(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: Sequence[str] | None = None,
        stop_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> list[list[list[int]]]:
        """Sample continuations of token ids, which are used unchanged: no token is added before them.

        Args:
            prompts: token ids of the prompts.
            count: number of continuations of each prompt.
            temperature: sampling temperature; 0 always takes the most likely token.
            top_k: sample only from the k most likely tokens.
            top_p: sample from the smallest set of most likely tokens with at least this total probability.
            stop: texts that end a continuation and are included in it; by default, the run's stop strings.
            stop_ids: ids of tokens that end a continuation, in addition to the end tokens of the model and of the run.
            seed: random seed of the sampling.

        Returns:
            The token ids of `count` continuations of each prompt; the last token of a finished continuation is the end token, or
            the token that completes a stop string.

        Raises:
            InputError: a value is out of range, the prompts are not lists of token ids, a prompt is empty or has the token that
                ends a plan, or an id is not in the model's vocabulary.
        """
        size = self.policy.vocab_size
        try:
            rows = tuple([operator.index(token) for token in tokens] for tokens in prompts)
        except TypeError as error:
            raise InputError(
                f"prompts is {prompts!r:.80}; give a list with the token ids of each prompt, such as [[5, 6]]."
            ) from error
        for tokens in rows:
            wrong = next((token for token in tokens if not 0 <= token < size), None)
            if wrong is not None:
                raise InputError(f"the token id {wrong} is not in the model's vocabulary; its ids are 0 to {size - 1}.")
            if not tokens:
                raise InputError("a prompt has no token ids; give at least one.")
        written = EncodedPrompts(tuple(Problem(str(tokens), "") for tokens in rows), rows, dropped=0)
        check_plan_ends(self.config, written, self.tokenizer)
        encoded = replace(written, problems=tuple(Problem("", "") for _ in rows))
        worker = self.sampler(temperature=temperature, top_k=top_k, top_p=top_p, stop=stop, stop_ids=stop_ids)
        responses = _sample_continuations(replace(worker, prompts=encoded), self.params, count, seed)
        return [[response.tokens.tolist() for response in row] for row in responses]


def _sample_continuations(worker: RolloutWorker, params: Params, count: int, seed: int) -> list[list[Response]]:
    """Sample `count` responses to each of the worker's prompts; an environment, if there is one, responds to each turn."""
    if fit_setting("count", count, int) < 1:
        raise InputError(f"count is {count}; it must be at least 1.")
    check_seed(seed)
    indices = np.arange(len(worker.prompts.tokens)).repeat(count).tolist()
    if count > 1 and worker.sampling.temperature == 0 and worker.environment is None:
        raise InputError(
            f"the {count} continuations of a prompt would all be the same at temperature 0; leave count (--count) out, or set a "
            "temperature (--temperature) above 0."
        )
    key = jax.random.key(seed)
    responses = worker.answer(params, indices, key) if worker.environment is None else worker.play(params, indices, key)
    return [responses[begin : begin + count] for begin in range(0, len(responses), count)]


def is_run(target: str | Path) -> bool:
    """Return whether `target` is the folder of a run rather than of a model."""
    return (Path(target) / "checkpoints").is_dir()


def find_run(target: str | Path, which: str) -> tuple[Path | None, str]:
    """Return the run and checkpoint of `RUN`, `RUN/checkpoints/last` or `RUN/checkpoints/step-N`; the run is None otherwise.

    Raises:
        InputError: the folder contains a run without checkpoints.
    """
    check_local(target, "the run or model")
    path = Path(target)
    if is_run(path):
        return path, which
    if (path / CONFIG).is_file() and has_run_settings(RunFolder.open(path)):
        models = [str(path / name) for name in get_args(Which) if (path / name).is_dir()]
        remedy = f"Name a model: {', '.join(models)}." if models else "Repeat the command that started the run."
        raise InputError(
            f"{str(path)!r} is the folder of a run without checkpoints: the run ended before it wrote one, or they were deleted. "
            f"{remedy}"
        )
    is_own = path.parent.name == "checkpoints" and (path.parent.parent / CONFIG).exists() and not (path / CONFIG).exists()
    if is_own and (path.name in get_args(Which) or path.name.startswith("step-")):
        return path.parent.parent, path.name
    return None, which


def fit_devices(devices: DevicesConfig) -> DevicesConfig:
    """Reduce a run's mesh to one without a context axis that the available devices can form and that divides the run's rows."""
    fsdp = math.gcd(devices.fsdp * (devices.context or 1), jax.device_count())
    tensor = math.gcd(devices.tensor, jax.device_count() // fsdp)
    replicas = None if devices.replicas is None else math.gcd(devices.replicas, jax.device_count() // (fsdp * tensor))
    return DevicesConfig(replicas, fsdp, tensor)


def load(
    target: str | Path,
    *,
    which: Which = "best",
    tokenizer: str | None = None,
    dataset: str | None = None,
    problems: Sequence[Problem] | None = None,
    limit: int | None = None,
    max_response_tokens: int | None = None,
    chat: bool | None = None,
    reward: str | Callable | Sequence[Callable | str] | None = None,
    reward_messages: bool | None = None,
    policy: Policy | None = None,
    engine: Engine | None = None,
    environment: Environment | str | None = None,
    environment_options: str | None = None,
    trust: bool = False,
    accept_changes: bool = False,
    quantize: Quantization = None,
    cache_dtype: CacheDtype = None,
) -> OpenPolicy:
    """Open the policy of a run, or a Hugging Face model.

    Args:
        target: folder of a run or of its checkpoint (`RUN/checkpoints/last`), model folder or hub id.
        which: "best" or "last" checkpoint of a run.
        tokenizer: tokenizer of a model folder; a run has its own.
        dataset: file or hub id of the problems to work on; a run's held-out problems by default.
        problems: problems to work on, instead of `dataset`.
        limit: maximum number of these problems; the first ones are used.
        max_response_tokens: token budget of a response, instead of the run's.
        chat: whether prompts are formatted with the tokenizer's chat template. By default, a run keeps its
            setting, and a model uses a template if its tokenizer has one and the problems are conversations.
        reward: judges the answers, instead of the run's reward; several are summed with the run's weights.
        reward_messages: whether your own reward receives conversations as lists of messages instead of text. By default, a run
            keeps its setting, and a model uses lists.
        policy: the custom policy that was passed to `train`; None means the built-in one.
        engine: samples the answers, instead of the built-in engine.
        environment: the custom environment that was passed to `train`, or the name of an environment, instead of the run's.
        environment_options: arguments of the named environment's class, as a JSON object.
        trust: whether a reward or an environment that the run's config.json names as `file.py:NAME` or `module:NAME` may be
            executed.
        accept_changes: whether to open a run even if its held-out rows, reward, chat template or tokenizer have changed since the
            run was last started.
        quantize: "int8" or "nf4" quantizes the matrices of the layers to 8 or 4 bits, after an adapter is merged in.
        cache_dtype: "int8" quantizes keys and values to 8 bits; None keeps the run's setting.

    Returns:
        The policy. Its answers can be sampled, but not judged, if a reward or an environment was passed to `train` and neither is
        passed here, or if its reward is untrusted code.

    Raises:
        InputError: the target, its checkpoint or an argument cannot be used, or an argument is missing.
    """
    path, checkpoint = find_run(target, which)
    run = None if path is None else RunFolder.open(path)
    config, needed = (
        (with_stored_adapter(TrainConfig.flat(model=str(target))), ()) if run is None else read_saved_settings(run.config)
    )
    named, own = (environment, None) if isinstance(environment, str) else (None, environment)
    if environment_options is not None and named is None:
        raise InputError(
            f"environment_options={environment_options} applies to an environment that is named; name it, too, or leave "
            "environment_options out."
        )
    others = {"environment": named, "environment_options": None if named is None else environment_options}
    others |= {"max_response_tokens": max_response_tokens, "reward_messages": reward_messages, "cache_dtype": cache_dtype}
    config = _override(config, reward, tokenizer=tokenizer, **others)
    if problems is None and dataset is not None:
        problems = load_problems(dataset, prompt_column=config.data.prompt_column, answer_column=config.data.answer_column)
    named_code = custom_reward_names(config) if reward is None else custom_environment_names(config)
    untrusted = () if run is None or trust or environment is not None else named_code
    skipped = config.reward.environment if {*custom_environment_names(config)}.intersection(untrusted) else None
    if untrusted or own is not None:  # arguments replace what the settings name
        config = config.replace(environment=None, environment_options=None)
    custom = CustomParts(policy, engine, environment_of(config, own), None if isinstance(reward, str) else reward)
    check_parts(custom)
    if reward_messages is not None and custom.environment is not None:
        raise InputError(
            f"reward_messages={reward_messages} applies to a reward, but an environment judges the answers; leave it out."
        )
    missing = _missing_judges(needed, custom._replace(reward=reward), problems)
    has_own_judge = custom.environment is None and reward is None and not (missing or untrusted)
    if missing or untrusted:
        custom = custom._replace(reward=partial(_refuse_to_judge, missing, untrusted))
    split = make_problems(config) if problems is None else Problems(problems[:limit], problems[:limit])
    opened = _open(config, custom, split, run, checkpoint, chat, quantize)
    if run is not None:
        rows = problems is None and skipped is None  # a skipped environment may have written the prompts
        is_own = {"rows": rows, "judge": has_own_judge, "environment": named is None, "text": tokenizer is None}
        check_inputs(run, _digest_inputs(opened, **is_own), accepts=accept_changes)
    worker = opened.worker if limit is None else opened.worker.with_first_prompts(limit)
    folder = locate(str(target)) if run is None else None
    if problems is not None and is_first():
        chat_is_on, rows = opened.config.model.chat, opened.worker.prompts.problems
        notes = list_prompt_omissions(rows, opened.tokenizer, chat=True) if chat_is_on else list_columns_left_out(rows)
        for note in notes:
            print(f"note: {note}.", file=sys.stderr)
    return opened._replace(
        worker=worker, missing=missing, untrusted=untrusted, skipped=skipped, trust=trust, model_folder=folder
    )


def choose_chat(
    config: TrainConfig, tokenizer: Tokenizer, problems: Sequence[Problem], *, is_run: bool, chat: bool | None
) -> bool:
    """Decide whether prompts are formatted with the chat template, and print a note to stderr if a template is not used.

    Args:
        config: settings of the run, or of a model.
        tokenizer: tokenizer of the model.
        problems: the problems to work on.
        is_run: whether the settings belong to a run, which was trained with or without its template.
        chat: the caller's choice; None means that the other arguments decide.
    """
    if chat is not None or config.model.chat:
        return config.model.chat if chat is None else chat
    has_chats, has_template = any(problem.messages is not None for problem in problems), has_chat_template(tokenizer)
    if has_template and has_chats and not is_run:
        return True
    if has_template and (has_chats or not is_run) and is_first():
        kind = "conversations" if has_chats else "plain text"
        print(
            f"note: the tokenizer has a chat template, but the prompts, which are {kind}, are not formatted with it; --chat "
            "applies it.",
            file=sys.stderr,
        )
    return False


def _override(
    config: TrainConfig, reward: str | Callable | Sequence[Callable | str] | None, **others: str | int | None
) -> TrainConfig:
    """Replace saved settings, and fit them to this process and the built-in engine; None leaves a setting unchanged."""
    if isinstance(reward, str) or callable(reward):
        config = config.replace(reward_weights=None, reward_combine="sum")  # both belong to the run's rewards
    overrides = others | {"reward": reward if isinstance(reward, str) else None}
    config = config.replace(**{name: value for name, value in overrides.items() if value is not None})
    server = dict.fromkeys(("engine_url", "engine_server", "engine_folder", "engine_patience", "engine_in_flight"))
    return replace(config.replace(attention="blockwise", **server), devices=fit_devices(config.devices))


def _missing_judges(needed: Collection[str], passed: CustomParts, problems: Sequence[Problem] | None) -> tuple[str, ...]:
    """Return the judging arguments that were passed to `train`, but not here.

    Raises:
        InputError: another argument that is needed to open the policy was passed to `train`, but not here.
    """
    others = () if problems is not None else ("problems", "dataset")
    absent = {"policy", "engine", *JUDGING, *others}.intersection(needed).difference(passed.names())
    refuse_missing(absent.difference(JUDGING))
    return () if passed.environment is not None or passed.reward is not None else tuple(sorted(absent))


def _refuse_to_judge(missing: Sequence[str], untrusted: Sequence[str], completions: Sequence[str]) -> list[float]:
    """Replace the reward: raise if a judging argument was not passed again or is untrusted code."""
    del completions
    refuse_missing(missing)
    if untrusted:
        raise InputError(
            f"the run is judged by {' and '.join(untrusted)}, which is code that its config.json names; read it, then add "
            "--trust (trust=True) to execute it, or give --reward."
        )
    return []


def _digest_inputs(opened: OpenPolicy, *, rows: bool, judge: bool, environment: bool, text: bool) -> dict[str, str | None]:
    """Compute digests of the inputs that come from the run: held-out rows, reward, environment, and tokenizer with template."""
    config, problems = opened.config, opened.worker.prompts.problems if rows else None
    inputs = evaluation_inputs(problems, digest_of_reward(config, None) if judge else None)
    if config.reward.environment and environment:
        inputs |= {ENVIRONMENT: digest_of_name(config.reward.environment, ENVIRONMENTS)}
        inputs |= {ENVIRONMENT_FILES: digest_of_options(config.reward.environment_options)}
    return inputs | text_inputs(opened.tokenizer, chat=config.model.chat) if text else inputs


def _open(
    config: TrainConfig,
    custom: CustomParts,
    problems: Problems,
    run: RunFolder | None,
    which: str,
    chat: bool | None,
    quantize: Quantization,
) -> OpenPolicy:
    """Combine model, tokenizer, problems and parameters."""
    tokenizer = make_tokenizer(config)
    config = with_chat(config, is_used=choose_chat(config, tokenizer, problems.heldout, is_run=run is not None, chat=chat))
    tokenizer = configure_tokenizer(tokenizer, config.model)
    problems = with_environment_prompts(problems, custom.environment, tokenizer)
    mesh = mesh_of(config.devices)
    exact = choose_policy(config, custom, tokenizer, mesh)
    policy = exact if quantize is None else quantized_policy(exact, quantize, config.model.dtype, mesh)
    prompts = _encode_prompts(config, problems.heldout, tokenizer)
    longest = max(map(len, prompts.tokens))
    prompt_length = longest if custom.engine is None else None
    left = check_model_fits(
        config, policy, mesh, device_bytes(mesh), prompt_length=prompt_length, environment=custom.environment
    )
    # Free memory may differ between hosts, which must decode the same number of rows.
    left = left if jax.process_count() == 1 else None
    worker = make_worker(config, custom, mesh, policy, tokenizer, prompts, longest, problems, free_bytes=left).greedy()
    other = other_policy_in(custom.environment)
    if other not in (None, "past"):
        from rljax.options.other_policy import read_player  # noqa: PLC0415  few environments have another policy

        worker = replace(worker, other=read_player(other, config, exact, tokenizer, mesh, longest))
    if quantize is None or (run is None and config.adapter.rank is None):
        params = parameters_of(config, policy, mesh, run, which)
    else:  # checkpoints and merged adapters are not quantized
        params = quantize_params(parameters_of(config, exact, mesh, run, which), kind=quantize, dtype=config.model.dtype)
        params = put(params, policy_shardings(mesh, params, params, policy.partition))
    return OpenPolicy(config, policy, params, tokenizer, worker, mesh)


def _encode_prompts(config: TrainConfig, problems: Sequence[Problem], tokenizer: Tokenizer) -> EncodedPrompts:
    """Tokenize prompts; with sub-policies, refuse a prompt in which the plan would already have ended."""
    prompts = encode_problems(config, problems, tokenizer)
    check_plan_ends(config, prompts, tokenizer)
    return prompts


def check_plan_ends(config: TrainConfig, prompts: EncodedPrompts, tokenizer: Tokenizer) -> None:
    """With sub-policies, refuse a prompt in which a plan would already have ended.

    Raises:
        InputError: a prompt contains the text that ends a plan.
    """
    if config.model.sub_policies is not None:
        from rljax.options.plans_and_answers import check_prompts  # noqa: PLC0415  few runs have sub-policies

        check_prompts(prompts, tokenizer, required(config.model.plan_end, "plan_end"))


def quantized_policy(policy: Policy, kind: str, dtype: str, mesh: Mesh) -> Policy:
    """Return a policy whose initial matrices are quantized.

    Args:
        policy: the policy with exact matrices.
        kind: "int8" or "nf4".
        dtype: dtype of the matrix products.
        mesh: the devices.

    Raises:
        InputError: the policy or one of its matrices cannot be quantized, or its blocks cannot be divided evenly among the devices.
    """
    if policy.quantized is None or policy.shapes is None:
        raise InputError(
            f"quantize={kind!r} quantizes only the built-in transformer, but this is your own policy; leave it out."
        )
    shapes = jax.eval_shape(partial(quantize_params, kind=kind, dtype=dtype), policy.shapes())
    check_blocks(shapes, mesh)
    return policy._replace(init=partial(policy.quantized, kind=kind), shapes=lambda: shapes)


def parameters_of(config: TrainConfig, policy: Policy, mesh: Mesh, run: RunFolder | None, which: str) -> Params:
    """Load the policy's parameters onto the mesh: those of a run's checkpoint, or the initial ones; an adapter is merged in."""
    if run is not None and config.adapter.rank is not None:
        opened = open_adapter(config, policy, mesh, run, which)
        return merge_adapter(opened.base, opened.params, config, mesh=mesh, policy=policy)
    if run is None and config.adapter.rank is not None:
        base = required(make_base(config, policy, mesh, is_custom=False), "lora_rank")
        factors = initial_adapter(config, base)
        factors = put(factors, policy_shardings(mesh, factors, factors, policy.partition))
        return merge_adapter(base, factors, config, mesh=mesh, policy=policy)
    key = jax.random.key(config.run.seed)
    params = policy.init(key) if run is None or policy.shapes is None else policy.shapes()
    param_shardings = policy_shardings(mesh, params, params, policy.partition)
    if run is None:
        return put(params, param_shardings)
    like = add_shardings(params, param_shardings)
    del params
    return checkpoints.restore_params(run.checkpoints / which, like)


class OpenAdapter(NamedTuple):
    """An adapter from a run, with its base."""

    base: Base
    """The frozen model under the adapter."""
    params: Adapter
    """Factors of the adapter, on the mesh."""


def open_adapter(config: TrainConfig, policy: Policy, mesh: Mesh, run: RunFolder, which: str) -> OpenAdapter:
    """Read the adapter of a run's checkpoint, and load the base that its settings name.

    Args:
        config: settings of the run.
        policy: the model.
        mesh: the devices.
        run: folder of the run.
        which: "best" or "last" checkpoint.

    Raises:
        InputError: the base cannot be loaded or is not the run's, or the checkpoint cannot be read.
    """
    base = required(make_base(config, policy, mesh, is_custom=False), "lora_rank")
    check_base(run, base_entry(config, base))
    like = jax.eval_shape(partial(fresh_adapter, config, base))
    param_shardings = policy_shardings(mesh, like, like, policy.partition)
    return OpenAdapter(base, checkpoints.restore_params(run.checkpoints / which, add_shardings(like, param_shardings)))
