"""Sizes of the smallest transformer that commands train in tests."""

SMALLEST = ("--layers", "1", "--width", "16", "--heads", "2", "--kv-heads", "1", "--hidden", "16")
