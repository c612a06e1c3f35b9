"""`python -m mappa_core` is `mappa`."""

import sys

from mappa.cli import main

sys.exit(main())
