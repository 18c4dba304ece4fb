"""Floor 5: reward models, and the training step on pairs of responses."""
