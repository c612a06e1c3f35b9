"""The decorators by which functions of a file, or of a notebook, become offers."""

from mappa_core.defaults.functions import coach as coach
from mappa_core.defaults.functions import shaper as shaper
from mappa_core.defaults.functions import tool as tool
