from .session.offer_marks import coach as coach
from .session.offer_marks import offer as offer
from .session.offer_marks import shaper as shaper
from .session.offer_marks import tool as tool
from .training.run import Run as Run

__version__: str
