"""Code that only experiments use: small worlds, policies that are tables of logits, statistics and bookkeeping.

`python experiments/NAME.py` finds this package in the script's folder; `rljax claims --rerun` adds that folder to the import
path.
"""
