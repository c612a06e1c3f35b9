"""What is predicted from which columns of which data set, and how it is graded.

A recipe says for a person what a task is; the task's files and its name do not. The data sets of the two splits are
disjoint. What would give a target away is dropped: sums and products of it, and its parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from mappa_dsbench.grading.metrics import kind_of
from mappa_dsbench.problem import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to cut one data set. A target is turned into 0 and 1 by `above` (1 where it is larger) or `equals`.

    `columns` are the features; None: all that are no target. `drop` takes some away. Labels that stand in fewer than
    `common` rows are left out. At most `rows` rows are used. Recipes that differ in `seed` alone are different splits.
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
    def kind(self) -> Kind:
        """The stratum. A classification's training table holds labels, whatever is to be predicted from them."""
        return kind_of(self.metric)


def _of(dataset: str, target: str, metric: str, **rest: object) -> Recipe:
    return Recipe(dataset=dataset, targets=tuple(target.split()), metric=metric, **rest)  # type: ignore[arg-type]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MEANS = _listed("mean_radius mean_texture mean_smoothness mean_compactness mean_symmetry mean_fractal")
_ERRORS = _listed("error_radius error_texture error_perimeter error_area error_smoothness error_compactness")
_RATES = _listed("realint cpi")

TRAINING = (
    _of("breast", "benign", "roc_auc", columns=_ERRORS),
    _of("breast", "benign", "f1_binary", columns=_MEANS),
    _of("breast", "benign", "log_loss", columns=_listed("mean_texture mean_smoothness mean_symmetry mean_fractal")),
    _of("breast", "mean_concavity", "r2", columns=_ERRORS),
    _of("wine", "cultivar", "accuracy", columns=_listed("alcohol malic_acid ash alcalinity magnesium")),
    _of("wine", "cultivar", "f1_macro", columns=_listed("phenols nonflavanoid proanthocyanins hue")),
    _of("wine", "alcohol", "rmse", drop=("cultivar",)),
    _of("wine", "color_intensity", "mae"),
    _of("iris", "species", "accuracy", columns=_listed("sepal_length sepal_width")),
    _of("iris", "species", "roc_auc", equals="versicolor", drop=("petal_width",)),
    _of("iris", "petal_width", "rmse"),
    _of("digits", "digit", "accuracy"),
    _of("digits", "digit", "roc_auc", above=4),
    _of("diabetes", "progression", "rmse"),
    _of("diabetes", "bmi", "mae"),
    _of("diabetes", "sex", "roc_auc", above=1),
    _of("diabetes", "s3", "r2", drop=("s1", "s4")),
    _of("anes96", "PID", "qwk"),
    _of("anes96", "vote", "roc_auc", drop=("PID",)),
    _of("anes96", "vote", "f1_binary", columns=_listed("ClinLR selfLR age educ income TVnews")),
    _of("anes96", "income", "mae"),
    _of("anes96", "selfLR", "qwk", drop=("vote",)),
    _of("randhie", "mdvis", "normalized_gini", above=0, rows=1200),
    _of("randhie", "physlm", "roc_auc", above=0.5, rows=1200),
    _of("modechoice", "choice", "accuracy"),
    _of("modechoice", "choice", "f1_macro", drop=("psize",), seed=1),
    _of("modechoice", "invt_train", "mae", drop=("gc_train",)),
    _of("co2", "co2", "rmse"),
    _of("co2", "co2", "mae", drop=("day",), seed=1),
    _of("grunfeld", "invest", "smape"),
    _of("grunfeld", "firm", "accuracy", drop=("year",)),
    _of("grunfeld", "capital", "mae"),
    _of("engel", "foodexp", "rmsle"),
    _of("engel", "income", "mae"),
    _of("engel", "income", "f1_binary", above=900),
    _of("macrodata", "unemp", "mae", drop=("realint",)),
    _of("macrodata", "unemp", "roc_auc", above=6, drop=("realint",)),
    _of("macrodata", "tbilrate", "rmse", drop=_RATES),
    _of("airports", "state", "f1_macro", common=30, rows=1500),
    _of("airports", "state", "accuracy", common=100, rows=900),
    _of("airports", "longitude", "mae"),
    _of("seattle_temps", "temp", "mae", rows=900),
    _of("sf_temps", "temp", "rmse", rows=900),
    _of("barley", "yield", "rmse"),
    _of("barley", "site", "roc_auc", equals="Waseca"),
    _of("fertility", "2011", "mae", drop=("2005", "2010")),
    _of("fertility", "2011", "roc_auc", above=2.5, drop=("2000", "2005", "2010"), seed=1),
    _of("fertility", "1990", "r2", drop=("1985", "1995")),
    _of("fertility", "2000 2011", "mcrmse", drop=("1995", "2005", "2010")),
    _of("elnino", "temperature", "mae"),
    _of("stocks", "symbol", "accuracy"),
    _of("stocks", "price", "mae"),
    _of("meat", "beef", "rmse"),
    _of("meat", "pork", "mae"),
    _of("meat", "turkey", "r2"),
    _of("meat", "beef", "roc_auc", above=1500, seed=1),
    _of("meat", "veal lamb_and_mutton", "mean_rmsle"),
    _of("economics", "psavert", "mae"),
    _of("economics", "psavert", "roc_auc", above=8),
    _of("economics", "uempmed", "rmse"),
    _of("txhousing", "median", "rmsle", drop=("volume",), rows=900),
    _of("txhousing", "inventory", "mae", drop=("listings",), rows=900, seed=1),
    _of("txhousing", "inventory", "roc_auc", above=7, rows=900),
    _of("msleep", "vore", "accuracy", drop=("awake", "order")),
    _of("msleep", "sleep_total", "mae", drop=("awake",)),
    _of("seals", "delta_lat", "rmse", columns=("lat", "long")),
    _of("seals", "delta_long", "mae", columns=("lat", "long")),
)

_AFFAIR = ("affairs",)
_POVERTY = _listed("poppovertyknown percpovertyknown percchildbelowpovert percadultpoverty percelderlypoverty category")
_COUNTS = _listed("poptotal popwhite popblack popamerindian popasian popother popadults poppovertyknown")

HELD_OUT = (
    _of("penguins", "species", "accuracy", columns=_listed("bill_depth_mm body_mass_g sex year")),
    _of("penguins", "species", "f1_macro", columns=_listed("bill_length_mm flipper_length_mm sex"), seed=1),
    _of("penguins", "sex", "roc_auc", equals="male"),
    _of("penguins", "body_mass_g", "rmse"),
    _of("penguins", "bill_length_mm", "medae", seed=1),
    _of("penguins", "bill_length_mm bill_depth_mm body_mass_g", "mean_rmsle"),
    _of("cars", "Miles_per_Gallon", "medae"),
    _of("cars", "Origin", "accuracy", drop=("brand",)),
    _of("cars", "Origin", "roc_auc", equals="USA", drop=("brand",), seed=1),
    _of("cars", "Horsepower", "rmse", drop=("Displacement",)),
    _of("cars", "Acceleration", "mae"),
    _of("mpg", "hwy", "mae", drop=("cty",)),
    _of("mpg", "class", "f1_macro", common=8),
    _of("mpg", "drv", "accuracy", drop=("manufacturer",)),
    _of("mpg", "displ", "rmse", drop=("cyl",)),
    _of("weather", "weather", "accuracy"),
    _of("weather", "weather", "roc_auc", equals="rain", drop=("precipitation",)),
    _of("weather", "temp_max", "rmse"),
    _of("weather", "temp_min", "mae", drop=("temp_max",)),
    _of("fair", "affairs", "roc_auc", above=0, rows=1200),
    _of("fair", "affairs", "log_loss", above=0, rows=1200, seed=1),
    _of("fair", "children", "r2", drop=_AFFAIR, rows=900),
    _of("fair", "yrs_married", "mae", rows=900),
    _of("midwest", "inmetro", "roc_auc", drop=("category",)),
    _of("midwest", "inmetro", "f1_binary", drop=("category", *_COUNTS), seed=1),
    _of("midwest", "state", "accuracy", drop=("category",)),
    _of("midwest", "percollege", "rmse", drop=("percprof", "category")),
    _of("midwest", "percbelowpoverty", "mae", drop=_POVERTY),
    _of("diamonds", "price", "rmsle"),
    _of("diamonds", "cut", "accuracy", rows=900),
    _of("diamonds", "clarity", "f1_macro", rows=1200),
    _of("diamonds", "carat", "rmse", drop=_listed("x y z")),
    _of("star98", "passed", "r2"),
    _of("star98", "passed", "roc_auc", above=45),
    _of("star98", "LOWINC", "rmse"),
)
