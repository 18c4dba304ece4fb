"""The laboratory: small worlds, policies that are tables of logits, statistics and bookkeeping that only experiments use.

`python experiments/NAME.py` finds it in the script's folder; `rljax claims --rerun` adds that folder to the path.
"""
