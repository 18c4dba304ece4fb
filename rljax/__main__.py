"""Run the command line: `python -m rljax` does the same as `rljax`."""

import sys

from rljax.cli import main

sys.exit(main())
