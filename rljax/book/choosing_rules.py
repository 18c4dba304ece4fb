"""The rules of `rljax recommend`, as data.

Documents disagree with papers about some of these, and both with experiments; so each rule names who gives the advice, and the
claims and experiments of the trainer that bear on its reason. Their results say what became of them.
"""

from rljax.book.choosing import Rule, Where

GUIDE = "the guide's decision chart (unpublished)"
DESIGN = "the design document (unpublished), Section 6.3"

STALE = 16
"""Updates of staleness from which the group-level weight is advised; GEPO's paper compares delays up to 64."""
LONG = 2000
"""Tokens from which the design document advises a critic."""
SHORT = 64
"""Tokens up to which one baseline for the whole response is enough."""
FEW = 10_000
"""Responses that are too few to try settings."""
PRETRAINED = 50_000
"""Responses with which a critic can be pretrained for 50 steps, and most are left for the policy."""
MANY_UPDATES = 8

ALGORITHMS: tuple[Rule, ...] = (
    Rule(
        "preference pairs, and responses that must not grow", (Where("reward", "is", "pairs"), Where("wish", "is", "brevity")),
        "simpo", "no reference model; an average over tokens does not pay for length", {"--loss": "simpo"},
        {"simpo_length": "for"}, "SimPO, arXiv:2405.14734",
    ),
    Rule(
        "preference pairs, and a policy near the first one",
        (Where("reward", "is", "pairs"), Where("wish", "is", "near_start")),
        "ipo", "its optimum is a finite distance from the reference, where DPO's pushes rejected responses down without end",
        {"--loss": "ipo"}, {"ipo_certain": "for"}, "IPO, arXiv:2310.12036",
    ),
    Rule(
        "preference pairs and no reward", (Where("reward", "is", "pairs"),),
        "dpo", "trains on the pairs themselves, without a reward model and without sampling", {"--loss": "dpo"},
        {"ipo_certain": "against"}, "DPO, arXiv:2305.18290",
    ),
    Rule(
        "a better model with the same tokens, and memory for the logits of both",
        (Where("teacher", "is not", None), Where("wish", "is", "less_noise")),
        "gkd", "compares whole distributions, so its gradient has less noise", {"--teacher": "{teacher}"},
        {}, "GKD, arXiv:2306.13649",
    ),
    Rule(
        "a better model with the same tokens", (Where("teacher", "is not", None),),
        "on_policy_distillation", "a signal at every token", {"--teacher": "{teacher}"}, {}, "GKD, arXiv:2306.13649",
    ),
    Rule(
        "a reward for each step", (Where("reward", "is", "steps"),),
        "grpo_process", "credit ends where a step ends", {"--step-reward": "my_rewards.py:steps"}, {}, "GRPO, arXiv:2402.03300",
    ),
    Rule(
        "several rewards, of different scales", (Where("reward", "is", "several"),),
        "gdpo", "each reward is normalised by itself before they are summed", {"--reward": "math,my_rewards.py:style"},
        {}, "GDPO, arXiv:2601.05242",
    ),
    Rule(
        "a sampler whose weights are many updates old", (Where("staleness", "at least", STALE), Where("group", "at least", 2)),
        "gepo", "the weight's denominator is a mean over the group, which stays bounded where single ratios do not; it learns "
        "slowly where nothing is stale", {}, {"staleness_gepo": "for", "sampler_delay": "for"}, f"GEPO, arXiv:2508.17850; {GUIDE}",
    ),
    Rule(
        "long chains of steps with one reward at the end, and a critic",
        (Where("critic", "is", True), Where("length", "at least", LONG), Where("budget", "at least", PRETRAINED)),
        "vapo", "a pretrained critic tells the steps of a long response apart", {},
        {"value_pretraining": "for", "vapo_parts": "for", "lambda_of_length": "for", "decoupled_lambda": "for"},
        f"VAPO, arXiv:2504.05118; {GUIDE}; {DESIGN}",
    ),
    Rule(
        "one response per prompt, no critic", (Where("group", "is", 1),),
        "remax", "the reward of a greedy response is the baseline", {}, {}, "ReMax, arXiv:2310.10505",
    ),
    Rule(
        "you will report pass@k", (Where("pass_k", "at least", 2),),
        "pkpo", "the advantage is that of k attempts (so is that of `pass_at_k`)", {"--algorithm-options": "k={k}"},
        {"pkpo_pass_at_k": "for", "max_rl_pass_at_16": "against", "negative_only": "against"},
        "PKPO, arXiv:2505.15201",
    ),
    Rule(
        "stay close to the starting model", (Where("wish", "is", "near_start"),),
        "grpo", "a KL term to the reference, whose price is `--algorithm-options beta=0.04`",
        {"--algorithm-options": "beta=0.04"}, {"k3_variance": "for", "k3_gradient": "against", "kl_in_reward": "against"},
        "GRPO, arXiv:2402.03300",
    ),
    Rule(
        "a learned reward", (Where("reward", "is", "learned"),),
        "grpo", "a KL term to the reference keeps the policy where the reward model was trained",
        {"--algorithm-options": "beta=0.04"}, {"k3_variance": "for", "k3_gradient": "against", "kl_in_reward": "against"},
        f"GRPO, arXiv:2402.03300; {GUIDE}",
    ),
    Rule(
        "entropy falls too fast", (Where("wish", "is", "entropy"),),
        "clip_cov", "holds back the few tokens that make it fall (so does `kl_cov`)", {},
        {"clip_cov": "for", "kl_cov_entropy": "for", "clip_higher_entropy": "against"},
        "The entropy mechanism of reinforcement learning, arXiv:2505.22617",
    ),
    Rule(
        "wrong answers grow longer", (Where("wish", "is", "brevity"),),
        "dr_grpo", "no division by a response's length or by the standard deviation",
        {"--algorithm-options": "max_length={length}"}, {"length_bias": "for", "difficulty_bias": "for"},
        "Dr.GRPO, arXiv:2503.20783",
    ),
    Rule(
        "responses of very different certainty", (Where("wish", "is", "less_noise"),),
        "otb", "a baseline of its own for each position, of least variance", {}, {"optimal_baselines": "for"},
        "OPO, arXiv:2505.23585, and the token baseline of verl's code",
    ),
    Rule(
        "a mixture of experts", (Where("experts", "is", True),),
        "gspo", "one ratio per response, not per token, which routing makes jump", {}, {}, f"GSPO, arXiv:2507.18071; {GUIDE}",
    ),
    Rule(
        "many updates per rollout", (Where("updates", "at least", MANY_UPDATES),),
        "cispo", "a clipped weight leaves every token its gradient", {}, {"cispo": "for", "sapo": "against", "dppo": "against"},
        "MiniMax-M1, arXiv:2506.13585",
    ),
    Rule(
        "short answers, few settings", (Where("length", "at most", SHORT),),
        "rloo", "no standard deviation to divide by, no clip to tune", {},
        {"rloo_unbiased": "for", "rloo_ppo": "for", "zscore_rloo": "for"},
        "Back to basics, arXiv:2402.14740",
    ),
    Rule(
        "a first look with few responses", (Where("budget", "at most", FEW),),
        "rloo", "no response is thrown away, and there is nothing to tune", {},
        {"rloo_unbiased": "for", "dynamic_sampling": "against"}, "Back to basics, arXiv:2402.14740",
    ),
    Rule(
        "the first run on a new task", (),
        "dapo", "robust defaults, no further model in memory", {},
        {"dynamic_sampling": "for", "batch_deviation": "against", "dapo_ladder": "for", "lite_ppo": "against"},
        f"DAPO, arXiv:2503.14476; {GUIDE}; {DESIGN}",
    ),
)  # fmt: skip
"""Case -> algorithm, the most special first."""

PARTS: tuple[Rule, ...] = (
    Rule(
        "responses of at most so many tokens", (),
        "overlong punishment", "the last quarter before the limit costs reward; `--without soft_overlong` leaves it out",
        {"--algorithm-options": "max_length={length} cache={cache}"}, {"soft_overlong": "for", "overlong_filter": "against"},
        "DAPO, arXiv:2503.14476, Section 3.4", ("dapo",),
    ),
    Rule(
        "a sampler that is not the learner", (Where("staleness", "at least", 1),),
        "masked weights", "tokens that the two see differently are left out", {"--correction": "masked"},
        {"masked_weights": "for", "truncated_weights": "against"}, "IcePop, arXiv:2510.18855",
        ("dapo", "grpo", "dr_grpo", "rloo", "gspo", "cispo", "clip_cov", "vapo", "pkpo", "otb", "gdpo", "grpo_process"),
    ),
    Rule(
        "a reward with outliers", (Where("outliers", "is", True),),
        "ranks", "a response's rank in its group does not feel how large an outlier is", {"--with": "advantage=rank"},
        {"rank_outliers": "for"}, "the design document (unpublished), Section 5.3.3",
        ("dapo", "grpo", "gspo", "cispo", "clip_cov"),
    ),
    Rule(
        "several updates per rollout", (Where("updates", "at least", 2),),
        "mini-batches", "each update has a part of the rollout; passes over it do what mini-batches that divide the prompts do not",
        {"--minibatches": "{minibatches}", "--passes": "{passes}"}, {}, "PPO, arXiv:1707.06347",
    ),
    Rule(
        "a learned reward", (Where("reward", "is", "learned"),),
        "reward model", "the folder that `rljax reward-model` writes", {"--reward": "model:my_reward_model"}, {},
        "`rljax reward-model --help`",
    ),
)  # fmt: skip
"""Case -> flags beside the algorithm's."""
