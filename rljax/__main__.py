"""`python -m rljax` is the command `rljax`."""

import sys

from rljax.cli import main

sys.exit(main())
