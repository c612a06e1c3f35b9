"""`mappa mathchat prepare DIR`: makes the published training and evaluation files from a user's copies."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from mappa_core import TaskError
from mappa_core.data import Rows, read_dataset, read_rows
from mappa_mathchat.published import (
    AIME,
    AIME_2025,
    AMC,
    PUBLISHED_FILES,
    SUBSET_SEED,
    PublishedFile,
    PublishedProblem,
    content_sha256,
    find_overlap,
    parse_problems,
    select_training_subset,
)

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".parquet")
HUB_PREFIX = "hf:"
AMC_SUBSET_NOTE = (
    "The published AMC evaluation used 32 of the 117 problems, chosen by random ids that cannot be derived; "
    "eval-amc.jsonl holds all 117."
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The user's copy of one published file."""

    published: PublishedFile
    origin: str
    problems: tuple[PublishedProblem, ...]
    sha256: str

    @property
    def difference(self) -> str | None:
        """How the copy differs from the published file; None where it does not."""
        count, expected = len(self.problems), self.published
        if count != expected.count:
            return f"{self.origin}: {count} problems, {expected.title} as published has {expected.count}"
        if self.sha256 != expected.sha256:
            return (
                f"{self.origin}: the content differs from {expected.title} as published: "
                f"sha256 {self.sha256}, expected {expected.sha256}"
            )
        return None


def find_sources(names: Sequence[str]) -> tuple[SourceFile, ...]:
    """Find one source per published file in files, folders and `hf:ID[:SPLIT]`, identified by content, then by name.

    Raises:
        TaskError: a published file is found nowhere or twice, or a file named is none of them.
    """
    sources_by_file: dict[PublishedFile, SourceFile] = {}
    for name in names:
        for source in _find_sources_at(name):
            if source.published in sources_by_file:
                other = sources_by_file[source.published].origin
                raise TaskError(f"{source.origin} and {other} are both {source.published.title}; name one of them")
            sources_by_file[source.published] = source
    missing = [published for published in PUBLISHED_FILES if published not in sources_by_file]
    if missing:
        missing_names = "; ".join(f"{one.title} ({one.name}.json, {one.count} problems)" for one in missing)
        raise TaskError(
            f"not found in {', '.join(names)}: {missing_names}. "
            "Name files, folders or hf:ID[:SPLIT] with --from, once for each"
        )
    return tuple(sources_by_file[published] for published in PUBLISHED_FILES)


def _find_sources_at(name: str) -> list[SourceFile]:
    if name.startswith(HUB_PREFIX):
        identifier, _, split = name.removeprefix(HUB_PREFIX).partition(":")
        rows = read_dataset(identifier, split or "train")
        return [_identify_source(name, identifier.rpartition("/")[2], rows)]
    path = Path(name).expanduser()
    if not path.is_dir():
        return [_identify_source(str(path), path.stem, read_rows(path))]
    stems = {published.name.casefold() for published in PUBLISHED_FILES}
    files = [file for file in sorted(path.iterdir()) if file.stem.casefold() in stems and file.suffix in SUFFIXES]
    return [_identify_source(str(file), file.stem, read_rows(file)) for file in files]


def _identify_source(origin: str, stem: str, rows: Rows) -> SourceFile:
    problems = parse_problems(rows)
    sha256 = content_sha256(problems)
    same_name = stem.casefold().replace("-", "_")
    for published in PUBLISHED_FILES:
        if sha256 == published.sha256:
            return SourceFile(published, origin, problems, sha256)
    for published in PUBLISHED_FILES:
        if same_name == published.name.casefold():
            return SourceFile(published, origin, problems, sha256)
    names = ", ".join(published.name for published in PUBLISHED_FILES)
    raise TaskError(
        f"{origin}: {len(problems)} problems that are none of the published files, by content or name ({names})"
    )


def make_files(sources: Sequence[SourceFile]) -> dict[str, bytes]:
    """Build the files, by name: training subset, two evaluation sets and the manifest.

    Raises:
        TaskError: a problem of the training set is also in an evaluation set.
    """
    aime, amc, aime_2025 = sources
    rows = {
        "train.jsonl": _rows(select_training_subset(aime.problems), AIME.name),
        "eval-amc.jsonl": _rows(amc.problems, AMC.name),
        "eval-aime-2025.jsonl": _rows(aime_2025.problems, AIME_2025.name),
    }
    _check_disjoint(rows)
    files = {
        name: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in of).encode() for name, of in rows.items()
    }
    manifest = {
        "schema": 1,
        "files": {name: {"rows": len(rows[name]), "sha256": hashlib.sha256(files[name]).hexdigest()} for name in files},
        "sources": {
            source.published.name: {
                "origin": Path(source.origin).name,
                "rows": len(source.problems),
                "content_sha256": source.sha256,
                "as_published": source.difference is None,
            }
            for source in sources
        },
        "training_subset": {"seed": SUBSET_SEED, "rows": len(rows["train.jsonl"]), "of": len(aime.problems)},
        "note": AMC_SUBSET_NOTE,
    }
    return {**files, "manifest.json": (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()}


def _rows(problems: Sequence[PublishedProblem], name: str) -> list[dict[str, str]]:
    return [problem.as_row(f"{name}-{index}") for index, problem in enumerate(problems, start=1)]


def _check_disjoint(rows: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    for name in ("eval-amc.jsonl", "eval-aime-2025.jsonl"):
        shared = find_overlap(rows["train.jsonl"], rows[name])
        if shared:
            pairs = ", ".join(f"{trained} = {held_out}" for trained, held_out in shared)
            raise TaskError(
                f"{len(shared)} problems are in the training set and in {name}: {pairs}. Nothing was written"
            )


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files or none: to a temporary folder first, then renamed, the manifest last.

    Raises:
        TaskError: a folder or a file with other content has one of the names, or the folder cannot be written.
    """
    for name, content in files.items():
        there = folder / name
        if there.is_dir():
            raise TaskError(f"{there} is a folder; name another folder or move it away")
        if there.exists() and there.read_bytes() != content:
            raise TaskError(f"{there} is there with other content; name another folder or move it away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".prepare-", dir=folder) as aside:
            for name, content in files.items():
                Path(aside, name).write_bytes(content)
            for name in files:
                Path(aside, name).replace(folder / name)
    except OSError as error:
        raise TaskError(f"{folder} cannot be written: {error.strerror}") from error


@click.command("prepare", short_help="Make the published training and evaluation files.")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--from",
    "names",
    metavar="PLACE",
    multiple=True,
    help="A file, a folder, or hf:ID[:SPLIT] on the Hugging Face hub; may be repeated; DIR by default.",
)
@click.option(
    "--accept-differences", is_flag=True, help="Go on with files that are not as published; the manifest says so."
)
def prepare(folder: Path, names: tuple[str, ...], accept_differences: bool) -> None:
    """Make DIR/train.jsonl (512 problems of AIME 1983-2024), DIR/eval-amc.jsonl, DIR/eval-aime-2025.jsonl and
    DIR/manifest.json from copies of AIME_1983_2024, amc and aime_2025 (JSON, JSON Lines, CSV or Parquet)."""
    sources = find_sources(names or (str(folder),))
    for source in sources:
        click.echo(
            f"{source.origin}: {source.published.title}, {len(source.problems)} problems, sha256 {source.sha256}"
        )
    differences = [source.difference for source in sources if source.difference is not None]
    if differences and not accept_differences:
        raise TaskError("\n".join([*differences, "Nothing was written; --accept-differences goes on with them"]))
    for difference in differences:
        click.echo(f"Accepted: {difference}")
    files = make_files(sources)
    write_files(folder, files)
    for name, content in files.items():
        click.echo(f"wrote {folder / name}, sha256 {hashlib.sha256(content).hexdigest()}")
    click.echo("Training and evaluation share no problem.")
    click.echo(AMC_SUBSET_NOTE)
    click.echo(
        f"Next: mappa eval --plugin mathchat tasks.use=file tasks.options.path={folder / 'train.jsonl'} "
        f"tasks.options.eval_path={folder / 'eval-aime-2025.jsonl'}"
    )
