"""`python -m mappa` is `mappa`."""

import sys

from mappa.cli import main

sys.exit(main())
