"""`python -m mappa_core` is `mappa`."""

import sys

from mappa_core.cli import main

sys.exit(main())
