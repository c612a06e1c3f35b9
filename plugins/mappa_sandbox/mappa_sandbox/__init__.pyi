from .environment import PROGRAM_ENVIRONMENT as PROGRAM_ENVIRONMENT
from .messages import PYTHON_SPEC as PYTHON_SPEC
from .messages import program_job as program_job
from .messages import program_result as program_result
from .messages import program_runner as program_runner
