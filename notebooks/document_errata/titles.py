"""Titles of the documents with errata: unpublished or secondary texts about these algorithms."""

DESIGN = "The design document: the unpublished draft from which this library started"
UNDERSTANDING = "Understanding GRPO, DAPO, and VAPO"
ADVANCED = "Advanced RL Algorithms for LLM Training"
REVIEW = "DAPO: A Revolutionary RL Algorithm from ByteDance"
TABLE = "Table of RL methods for reasoning, GRPO to Open-Reasoner-Zero"
