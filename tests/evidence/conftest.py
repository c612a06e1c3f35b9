"""The scripts of docs/evidence import each other, as scripts do that are started in their folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "evidence"))
