"""What makes offers of functions, classes and objects: the marks of a file or a notebook, and `offer` for hooks."""

from mappa_core.defaults.functions import coach as coach
from mappa_core.defaults.functions import shaper as shaper
from mappa_core.defaults.functions import tool as tool
from mappa_core.defaults.objects import offer as offer
