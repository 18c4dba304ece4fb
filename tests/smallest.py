"""Flags for the smallest transformer that tests train from the command line."""

SMALLEST = ("--layers", "1", "--width", "16", "--heads", "2", "--kv-heads", "1", "--hidden", "16")
