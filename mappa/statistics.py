"""For what compares results: means and gains with 95 % intervals over clusters of problems, and their parts."""

from mappa.evaluation.statistics import CONFIDENCE_LEVEL as CONFIDENCE_LEVEL
from mappa.evaluation.statistics import difference_bounds as difference_bounds
from mappa.evaluation.statistics import effective_clusters as effective_clusters
from mappa.evaluation.statistics import mean_interval as mean_interval
from mappa.evaluation.statistics import number_clusters as number_clusters
from mappa.evaluation.statistics import paired_gain as paired_gain
from mappa.evaluation.statistics import share_interval as share_interval
from mappa.evaluation.statistics import wilson_interval as wilson_interval
from mappa_core.records import Interval as Interval
