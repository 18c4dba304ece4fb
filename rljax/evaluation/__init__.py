"""Floor 5: greedy and sampled evaluation, with intervals over problems."""
