"""The checker of signatures that the import hook applies to all of rljax."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A whole number is a float, as it is to every static checker."""
