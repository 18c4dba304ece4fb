"""Parse sizes in bytes, such as 8GB."""

import re

from rljax.errors import InputError


def byte_count(size: str) -> int:
    """Convert a size such as 5GB to bytes.

    Raises:
        InputError: the text is not a positive number with a unit.

    Example:
        >>> byte_count("5GB"), byte_count("200 KB"), byte_count("1MiB")
        (5000000000, 200000, 1048576)
    """
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*(?:([KMGT])(i?))?B", size.strip(), re.IGNORECASE)
    number, prefix, binary = ("0", "", "") if found is None else found.groups("")
    power = ("", "K", "M", "G", "T").index(prefix.upper())
    count = int(float(number) * (1024 if binary else 1000) ** power)
    if count < 1:
        raise InputError(f"the size {size!r} must be a positive number with a unit, such as 5GB, 500MB or 4GiB.")
    return count
