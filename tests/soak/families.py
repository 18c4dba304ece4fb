"""Families of runs for the soak test. They differ in what a checkpoint contains besides parameters and optimizer state."""

FAMILIES = {
    "dynamic sampling": {
        "algorithm": "dapo",
        "algorithm_options": {"max_length": 12, "cache": 2},
        "oversample": 2.0,
        "max_tries": 3,
    },
    "critic": {"algorithm": "vapo", "algorithm_options": {}, "value_pretraining_steps": 3},
    "difficulty window": {"algorithm": "grpo", "algorithm_options": {}, "difficulty_window": (0.01, 0.99)},
    "remembered rewards": {"algorithm": "grpo", "algorithm_options": {}, "remembered_rewards": 3},
    "moving reference": {"algorithm": "t1", "algorithm_options": {}},
    "adapter": {"algorithm": "grpo", "algorithm_options": {}, "lora_rank": 2},
    "factored moments": {
        "algorithm": "grpo",
        "algorithm_options": {},
        "width": 128,
        "hidden": 128,
        "second_moment": "factored",
        "moments_dtype": "bfloat16",
    },
    "frozen parameters": {"algorithm": "grpo", "algorithm_options": {}, "freeze": ("embedding",)},
    "remedies": {
        "algorithm": "grpo",
        "algorithm_options": {},
        "remedy": "auto",
        "learning_rate": 0.9,
        "learning_rate_warmup": 0,
    },
    "environment": {
        "algorithm": "grpo",
        "algorithm_options": {},
        "tokenizer": "characters:0123456789<>=?",
        "warm_start_steps": 0,
    },
}
"""Family name -> settings. In this order, the checkpoints contain carried groups, a critic, a history, rewards, a
reference, an adapter, factored moments, no moments of frozen parameters, and changed settings. The last family plays
episodes."""
