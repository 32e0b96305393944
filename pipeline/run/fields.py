"""Fields that no record has, and columns that no file has: a misspelt name would give null columns or no texts."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from layerbeam.pipeline.config.job import Job
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.pipeline.output.work import PendingWork
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile, printable
from layerbeam.transforms.input import delimited, parquet
from layerbeam.transforms.input.conll import comment_of
from layerbeam.transforms.input.content import UTF8_MARK
from layerbeam.transforms.input.jsonl import field_names
from layerbeam.transforms.input.path_fields import value_of_path
from layerbeam.transforms.settings import RecordFormat

_PATHS, _FILES, _HEAD_BYTES, _RECORDS, _NAMED = 1000, 32, 1 << 20, 1000, 12


def check_fields(job: Job, work: PendingWork) -> None:
    """UsageError if none of the first records of some files, spread over all of them, has a configured field.

    Of CSV and Parquet: if each of these files lacks a column. Of paths: if none has a configured part. Reading ends
    with the first record after which all fields were found: in general that is the first one.
    """
    records = job.records
    settings = {records.pair_field: "pair_field", records.id_field: "id_field"}
    settings |= dict.fromkeys(records.text_fields, "text_field")
    missing = {name: settings.get(name, "keep_fields") for name, _ in records.fields_read}
    seen = dict.fromkeys(records.word_columns)  # in the order of the records
    num_records, problem = 0, ""
    files = [file for file in work.files if file.size]
    _check_paths(files, records)
    for file in files[:: -(-len(files) // _FILES) or 1]:
        try:
            if records.is_delimited:
                delimited.read_header(file, records)
            elif records.format == "parquet":
                next(parquet.find_pieces(file, 1, records), None)
            if records.format not in ("jsonl", "conllu"):
                return
            with storage.open_binary(file.path, _HEAD_BYTES) as opened:
                data = next(storage.read_chunks(opened, file.path, _HEAD_BYTES), b"")
        except OSError as error:  # the run reports it
            name, names = getattr(error, "lacks", None) or ("", ())
            hint = _hint(file, records) or did_you_mean(name, names)
            if (name or hint) and not problem:
                problem = f"input.{missing.get(name, 'delimiter')}: {printable(file.path)}: {error}{hint}"
            continue
        for names in _names(data, records):
            num_records += 1
            seen |= dict.fromkeys(names)
            if missing.keys() <= seen.keys():
                return
    if num_records:
        problem = _absent_fields(missing, seen, num_records)
    if problem:
        raise UsageError(f"{problem}\n`layerbeam run --force` starts anyway")


def _names(data: bytes, records: RecordFormat) -> Iterator[Iterable[str]]:
    """The names of the fields in each of the first lines of a file that has some."""
    for line in itertools.islice(data.removeprefix(UTF8_MARK).split(b"\n"), _RECORDS):
        text = line.decode(records.encoding, "replace")
        # The last line may be cut off, and then it is not valid.
        names = list(comment_of(text.strip())) or None if records.word_columns else field_names(text)
        if names is not None:
            yield names


def _check_paths(files: Sequence[InputFile], records: RecordFormat) -> None:
    """UsageError if an expression for a field from the path matches none of some files, spread over all of them."""
    some = files[:: -(-len(files) // _PATHS) or 1]
    for name, expression in records.path_fields.items():
        if some and not any(value_of_path(expression, file.path) for file in some):
            raise UsageError(
                f"input.keep_fields.{name}: path {expression} matches no file, such as {printable(some[0].path)}; "
                "correct it, or `layerbeam run --force` starts anyway"
            )


def _absent_fields(settings: Mapping[str, str], seen: Mapping[str, None], num_records: int) -> str:
    """A line for each field that is not among those of the first records. `settings`: the one that names each field."""
    known = ", ".join(list(seen)[:_NAMED]) + (", ..." if len(seen) > _NAMED else "")
    among = f"the first {num_records:,} records have" if num_records > 1 else "the first record has"
    return "\n".join(
        f"input.{setting}: no record has a field `{name}`; {among}: {known}{did_you_mean(name, seen)}"
        for name, setting in settings.items()
        if name not in seen
    )


def _hint(file: InputFile, records: RecordFormat) -> str:
    """`; set input.delimiter: ";"` if that finds all columns in the first row of a CSV file, else an empty string."""
    if not records.is_delimited:
        return ""
    others = {f"delimiter: {json.dumps(d)}": dataclasses.replace(records, delimiter=d) for d in delimited.DELIMITERS}
    for setting, other in ({"quote: '\"'": dataclasses.replace(records, quote='"')} | others).items():
        with contextlib.suppress(OSError):
            delimited.read_header(file, other)
            return f"; set input.{setting}"
    return ""
