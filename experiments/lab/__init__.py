"""The laboratory: small worlds, policies that are tables of logits, statistics and bookkeeping that only experiments use.

`python experiments/NAME.py` finds it, as it is in the folder of the script; `rljax claims --rerun` puts that folder on the path.
"""
