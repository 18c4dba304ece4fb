"""Command-line flags for the smallest transformer that tests train."""

SMALLEST = ("--layers", "1", "--width", "16", "--heads", "2", "--kv-heads", "1", "--hidden", "16")
