from .training.run import Run as Run

__version__: str
