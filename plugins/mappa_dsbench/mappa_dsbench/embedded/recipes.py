"""The recipes of the embedded tasks: data set, features, targets and metric.

A recipe tells people what a task is; the task's files and its name do not. The data sets of the two splits are
disjoint. Columns that reveal a target are dropped: its sums, products and parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from mappa_dsbench.grading.metrics import problem_kind
from mappa_dsbench.problem import ProblemKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One task from one data set. A target is turned into 0 and 1 by `above` (1 where it is larger) or `equals`.

    `columns` are the features; None: all that are no target. `drop` removes some. Labels with fewer than `common` rows
    are left out. At most `rows` rows are used. Recipes that differ in `seed` alone give different splits. The task's
    name is a hash of the fields: renaming one renames all tasks.
    """

    dataset: str
    targets: tuple[str, ...]
    metric: str
    columns: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    above: float | None = None
    equals: str | None = None
    common: int | None = None
    rows: int = 600
    seed: int = 0

    @property
    def kind(self) -> ProblemKind:
        """The stratum. A classification's training table holds labels, whatever is to be predicted from them."""
        return problem_kind(self.metric)


def _recipe(dataset: str, target: str, metric: str, **rest: object) -> Recipe:
    return Recipe(dataset=dataset, targets=tuple(target.split()), metric=metric, **rest)  # type: ignore[arg-type]


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MEANS = _split_words("mean_radius mean_texture mean_smoothness mean_compactness mean_symmetry mean_fractal")
_ERRORS = _split_words("error_radius error_texture error_perimeter error_area error_smoothness error_compactness")
_RATES = _split_words("realint cpi")

TRAINING = (
    _recipe("breast", "benign", "roc_auc", columns=_ERRORS),
    _recipe("breast", "benign", "f1_binary", columns=_MEANS),
    _recipe(
        "breast", "benign", "log_loss", columns=_split_words("mean_texture mean_smoothness mean_symmetry mean_fractal")
    ),
    _recipe("breast", "mean_concavity", "r2", columns=_ERRORS),
    _recipe("wine", "cultivar", "accuracy", columns=_split_words("alcohol malic_acid ash alcalinity magnesium")),
    _recipe("wine", "cultivar", "f1_macro", columns=_split_words("phenols nonflavanoid proanthocyanins hue")),
    _recipe("wine", "alcohol", "rmse", drop=("cultivar",)),
    _recipe("wine", "color_intensity", "mae"),
    _recipe("iris", "species", "accuracy", columns=_split_words("sepal_length sepal_width")),
    _recipe("iris", "species", "roc_auc", equals="versicolor", drop=("petal_width",)),
    _recipe("iris", "petal_width", "rmse"),
    _recipe("digits", "digit", "accuracy"),
    _recipe("digits", "digit", "roc_auc", above=4),
    _recipe("diabetes", "progression", "rmse"),
    _recipe("diabetes", "bmi", "mae"),
    _recipe("diabetes", "sex", "roc_auc", above=1),
    _recipe("diabetes", "s3", "r2", drop=("s1", "s4")),
    _recipe("anes96", "PID", "qwk"),
    _recipe("anes96", "vote", "roc_auc", drop=("PID",)),
    _recipe("anes96", "vote", "f1_binary", columns=_split_words("ClinLR selfLR age educ income TVnews")),
    _recipe("anes96", "income", "mae"),
    _recipe("anes96", "selfLR", "qwk", drop=("vote",)),
    _recipe("randhie", "mdvis", "normalized_gini", above=0, rows=1200),
    _recipe("randhie", "physlm", "roc_auc", above=0.5, rows=1200),
    _recipe("modechoice", "choice", "accuracy"),
    _recipe("modechoice", "choice", "f1_macro", drop=("psize",), seed=1),
    _recipe("modechoice", "invt_train", "mae", drop=("gc_train",)),
    _recipe("co2", "co2", "rmse"),
    _recipe("co2", "co2", "mae", drop=("day",), seed=1),
    _recipe("grunfeld", "invest", "smape"),
    _recipe("grunfeld", "firm", "accuracy", drop=("year",)),
    _recipe("grunfeld", "capital", "mae"),
    _recipe("engel", "foodexp", "rmsle"),
    _recipe("engel", "income", "mae"),
    _recipe("engel", "income", "f1_binary", above=900),
    _recipe("macrodata", "unemp", "mae", drop=("realint",)),
    _recipe("macrodata", "unemp", "roc_auc", above=6, drop=("realint",)),
    _recipe("macrodata", "tbilrate", "rmse", drop=_RATES),
    _recipe("airports", "state", "f1_macro", common=30, rows=1500),
    _recipe("airports", "state", "accuracy", common=100, rows=900),
    _recipe("airports", "longitude", "mae"),
    _recipe("seattle_temps", "temp", "mae", rows=900),
    _recipe("sf_temps", "temp", "rmse", rows=900),
    _recipe("barley", "yield", "rmse"),
    _recipe("barley", "site", "roc_auc", equals="Waseca"),
    _recipe("fertility", "2011", "mae", drop=("2005", "2010")),
    _recipe("fertility", "2011", "roc_auc", above=2.5, drop=("2000", "2005", "2010"), seed=1),
    _recipe("fertility", "1990", "r2", drop=("1985", "1995")),
    _recipe("fertility", "2000 2011", "mcrmse", drop=("1995", "2005", "2010")),
    _recipe("elnino", "temperature", "mae"),
    _recipe("stocks", "symbol", "accuracy"),
    _recipe("stocks", "price", "mae"),
    _recipe("meat", "beef", "rmse"),
    _recipe("meat", "pork", "mae"),
    _recipe("meat", "turkey", "r2"),
    _recipe("meat", "beef", "roc_auc", above=1500, seed=1),
    _recipe("meat", "veal lamb_and_mutton", "mean_rmsle"),
    _recipe("economics", "psavert", "mae"),
    _recipe("economics", "psavert", "roc_auc", above=8),
    _recipe("economics", "uempmed", "rmse"),
    _recipe("txhousing", "median", "rmsle", drop=("volume",), rows=900),
    _recipe("txhousing", "inventory", "mae", drop=("listings",), rows=900, seed=1),
    _recipe("txhousing", "inventory", "roc_auc", above=7, rows=900),
    _recipe("msleep", "vore", "accuracy", drop=("awake", "order")),
    _recipe("msleep", "sleep_total", "mae", drop=("awake",)),
    _recipe("seals", "delta_lat", "rmse", columns=("lat", "long")),
    _recipe("seals", "delta_long", "mae", columns=("lat", "long")),
)

_AFFAIR = ("affairs",)
_POVERTY = _split_words(
    "poppovertyknown percpovertyknown percchildbelowpovert percadultpoverty percelderlypoverty category"
)
_COUNTS = _split_words("poptotal popwhite popblack popamerindian popasian popother popadults poppovertyknown")

HELD_OUT = (
    _recipe("penguins", "species", "accuracy", columns=_split_words("bill_depth_mm body_mass_g sex year")),
    _recipe("penguins", "species", "f1_macro", columns=_split_words("bill_length_mm flipper_length_mm sex"), seed=1),
    _recipe("penguins", "sex", "roc_auc", equals="male"),
    _recipe("penguins", "body_mass_g", "rmse"),
    _recipe("penguins", "bill_length_mm", "medae", seed=1),
    _recipe("penguins", "bill_length_mm bill_depth_mm body_mass_g", "mean_rmsle"),
    _recipe("cars", "Miles_per_Gallon", "medae"),
    _recipe("cars", "Origin", "accuracy", drop=("brand",)),
    _recipe("cars", "Origin", "roc_auc", equals="USA", drop=("brand",), seed=1),
    _recipe("cars", "Horsepower", "rmse", drop=("Displacement",)),
    _recipe("cars", "Acceleration", "mae"),
    _recipe("mpg", "hwy", "mae", drop=("cty",)),
    _recipe("mpg", "class", "f1_macro", common=8),
    _recipe("mpg", "drv", "accuracy", drop=("manufacturer",)),
    _recipe("mpg", "displ", "rmse", drop=("cyl",)),
    _recipe("weather", "weather", "accuracy"),
    _recipe("weather", "weather", "roc_auc", equals="rain", drop=("precipitation",)),
    _recipe("weather", "temp_max", "rmse"),
    _recipe("weather", "temp_min", "mae", drop=("temp_max",)),
    _recipe("fair", "affairs", "roc_auc", above=0, rows=1200),
    _recipe("fair", "affairs", "log_loss", above=0, rows=1200, seed=1),
    _recipe("fair", "children", "r2", drop=_AFFAIR, rows=900),
    _recipe("fair", "yrs_married", "mae", rows=900),
    _recipe("midwest", "inmetro", "roc_auc", drop=("category",)),
    _recipe("midwest", "inmetro", "f1_binary", drop=("category", *_COUNTS), seed=1),
    _recipe("midwest", "state", "accuracy", drop=("category",)),
    _recipe("midwest", "percollege", "rmse", drop=("percprof", "category")),
    _recipe("midwest", "percbelowpoverty", "mae", drop=_POVERTY),
    _recipe("diamonds", "price", "rmsle"),
    _recipe("diamonds", "cut", "accuracy", rows=900),
    _recipe("diamonds", "clarity", "f1_macro", rows=1200),
    _recipe("diamonds", "carat", "rmse", drop=_split_words("x y z")),
    _recipe("star98", "passed", "r2"),
    _recipe("star98", "passed", "roc_auc", above=45),
    _recipe("star98", "LOWINC", "rmse"),
)
