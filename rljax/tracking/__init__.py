"""Floor 5: the run folder, trackers, displays and plots."""
