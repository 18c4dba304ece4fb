"""Floor 5: reward models, direct losses on preferences, and the training steps on pairs of responses."""
