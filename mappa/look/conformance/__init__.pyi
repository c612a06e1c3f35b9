from .batches import expected_gradient as expected_gradient
from .batches import gradient_of as gradient_of
from .batches import possible_batches as possible_batches
from .decision_process import Action as Action
from .decision_process import Decision as Decision
from .decision_process import DecisionProcess as DecisionProcess
from .estimator_contract import EstimatorContract as EstimatorContract
from .exact_gradient import policy_gradient as policy_gradient
