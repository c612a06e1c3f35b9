from .notebook.compare import compare as compare
from .notebook.judge import judge as judge
from .notebook.observe import observe as observe
from .notebook.train import train as train
from .notebook.trained_run import TrainedRun as TrainedRun
from .session.offer_marks import coach as coach
from .session.offer_marks import offer as offer
from .session.offer_marks import shaper as shaper
from .session.offer_marks import tool as tool

__version__: str
