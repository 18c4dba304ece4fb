"""Reinforcement learning for language models in JAX: a book of equations that run, and a trainer built from them."""
