"""Kinds of runs for the soak: what a checkpoint holds beyond parameters and optimiser."""

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
}
"""Settings by name: carried groups, a critic, a history, rewards, a reference."""
