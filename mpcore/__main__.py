"""`python -m mpcore`, the same as the `mpcore` command."""

import sys

from mpcore.cli import main

sys.exit(main())
