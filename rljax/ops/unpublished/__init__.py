"""Equations of a design document that are in no paper; each names the published estimator that does the same job, if any."""
