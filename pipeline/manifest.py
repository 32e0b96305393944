"""What a run leaves beside its parts: commits, `parts.jsonl`, `manifest.json`, `_SUCCESS`, and the fingerprint.

Equal runs write equal bytes: nothing here knows a clock, a host or a number of workers. What one start of the program
did is in `_runs/<n>.json` (`pipeline.runlog`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa

from pipeline.doubled_ids import count_doubled_ids
from transforms import filesystem, metrics
from transforms.parts import SUFFIXES, part_folder
from transforms.records import Commit, InputFile, LeftOut, Part
from transforms.views import View, schema, vector_type
from transforms.write import (
    COMMITS,
    REJECTS,
    TEMPORARY,
    Output,
    write_empty_part,
    write_word_types,
)

SCHEMA_VERSION = 1
PARTS = "parts.jsonl"
MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"

_PART_NAME = re.compile(r"(.+-[0-9a-f]{8}-\d{12}|empty)" + SUFFIXES)


def fingerprint(identity: Mapping[str, Any]) -> str:
    """16 hex digits for everything that decides rows, columns, values or where blocks are cut."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode("ascii")).hexdigest()[:16]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`setting: old value -> new value` for each that differs.

    >>> differences({"encoder": {"max_seq_length": 64}}, {"encoder": {"max_seq_length": 128}})
    ['encoder.max_seq_length: 64 -> 128']
    """
    before, after = dict(_flat(old)), dict(_flat(new))
    names = sorted(before.keys() | after.keys())
    return [
        f"{name}: {before.get(name, 'not set')} -> {after.get(name, 'not set')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def load_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is none or it is not whole."""
    try:
        value = json.loads(filesystem.read_bytes(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def load_commits(output_path: str) -> list[Commit]:
    """The commits of an output folder, from `parts.jsonl` and `_commits`, whose parts are there in their full size.

    Where a block is in both, the one in `_commits` is newer. What can't be read is left out: its block is done again.
    """
    lines: list[bytes] = []
    parts_path = filesystem.join(output_path, PARTS)
    if filesystem.exists(parts_path):
        lines = filesystem.read_bytes(parts_path).splitlines()
    folder = filesystem.join(output_path, COMMITS)
    for name in sorted(filesystem.list_folder(folder)):
        lines.append(filesystem.read_bytes(filesystem.join(folder, name)))
    sizes: dict[str, dict[str, int]] = {}
    commits = {}
    for line in lines:
        try:
            commit = Commit.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
        commits[commit.block.name] = commit
    return [commit for commit in commits.values() if _parts_are_there(output_path, commit, sizes)]


def listed_commits(output_path: str) -> list[Commit]:
    """What `parts.jsonl` of a finished run lists, its parts there or not. ValueError where it is damaged."""
    path = filesystem.join(output_path, PARTS)
    try:
        return [Commit.from_json(json.loads(line)) for line in filesystem.read_bytes(path).splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); run the configuration again: it is made anew") from error


def stray_parts(output_path: str, folder: str, listed: Container[str]) -> list[str]:
    """Paths of the parts in a view's folder that are not among those listed: what an earlier run left."""
    names = filesystem.list_folder(filesystem.join(output_path, folder))
    paths = (f"{folder}/{name}" for name in sorted(names) if _PART_NAME.fullmatch(name))
    return [path for path in paths if path not in listed]


def _parts_are_there(output_path: str, commit: Commit, sizes: dict[str, dict[str, int]]) -> bool:
    for part in commit.parts.values():
        folder, _, name = part.path.rpartition("/")
        if folder not in sizes:
            sizes[folder] = filesystem.list_folder(filesystem.join(output_path, folder))
        if sizes[folder].get(name) != part.bytes:
            return False
    return True


@dataclasses.dataclass(frozen=True)
class Gone:
    """An input file of an earlier run that no glob matches any more; its parts stay until somebody says otherwise."""

    path: str


def is_up_to_date(file: InputFile, done: Iterable[Commit], entry: Mapping[str, Any] | None) -> bool:
    """Whether an earlier run read the file to its end, as it is now (size and time), and all its blocks are there.

    `entry`: what the manifest's `inputs` say of the file.
    """
    if entry is None:
        return False
    blocks = sum(commit.block.file == file for commit in done)
    recorded = (entry.get("size"), entry.get("modified"), entry.get("blocks"), entry.get("left_out"))
    return recorded == (file.size, file.modified, blocks, None)


@dataclasses.dataclass(frozen=True)
class RunHead:
    """What is known of a run before it starts: the part of the manifest that no data decides. Plain JSON values."""

    fingerprint: str
    identity: Mapping[str, Any]
    encoder: Mapping[str, Any]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}


def finish_run(
    output: Output,
    views: Iterable[View],
    head: RunHead,
    max_rejected: float,
    found: Iterable[InputFile | LeftOut | Gone | Commit],
) -> dict[str, Any]:
    """Make the output folder whole: list the parts, delete what is not listed, write manifest and marker.

    `found`: everything the stages before reported, in any order. Gives the manifest. AssertionError where records are
    missing from the balance.
    """
    reports = list(found)
    commits: dict[str, Commit] = {}
    for report in reports:
        if isinstance(report, Commit) and commits.setdefault(report.block.name, report) != report:
            raise AssertionError(f"two blocks were written as {report.block.name}; run again with other file names")
    ordered = sorted(commits.values(), key=lambda commit: (commit.block.file.path, commit.block.first_line))
    views = tuple(views)
    counts = metrics.total([commit.counts for commit in ordered])
    problem = metrics.unbalanced(counts)
    if problem is not None:
        raise AssertionError(f"records are missing: {problem}")
    if metrics.DOUBLED_IDS in counts:
        doubled = count_doubled_ids(output.path, views, ordered)
        ids_compared = "block" if doubled is None else "run"
        counts[metrics.DOUBLED_IDS] = counts[metrics.DOUBLED_IDS] if doubled is None else doubled
    listed = {part.path for commit in ordered for part in commit.parts.values()}
    described = describe_views(views)
    for view in views:
        parts = [commit.parts[view.name] for commit in ordered if view.name in commit.parts]
        if view.level == "word_type":
            parts = [write_word_types(output, view, parts)]
            described[view.name] |= {"path": parts[0].path, "sha256": parts[0].sha256}
        described[view.name] |= count_rows(parts)
        if not parts:
            listed.add(write_empty_part(output, view).path)
    problems = [f"{filesystem.printable(r.path)}: {r.reason}" for r in _sorted(reports, LeftOut)]
    problems += [
        f"{filesystem.printable(report.path)}: is gone; its rows stay until a run with --remove-gone"
        for report in _sorted(reports, Gone)
    ]
    rejected, records = counts.get(metrics.REJECTED, 0), counts.get(metrics.RECORDS, 0)
    if rejected > max_rejected * records:
        problems.append(
            f"{rejected:,} of {records:,} records were rejected: more than max_rejected {max_rejected:g} allows"
        )
    manifest = {
        **head.to_json(),
        "complete": not problems,
        "problems": problems,
        "counts": counts,
        **({"ids_compared_in": ids_compared} if metrics.DOUBLED_IDS in counts else {}),
        "views": described,
        "inputs": _describe_inputs(reports, ordered),
    }
    _write(output, PARTS, b"".join(json.dumps(c.to_json(), sort_keys=True).encode("ascii") + b"\n" for c in ordered))
    for folder in (*(part_folder(view) for view in views), REJECTS):
        stray = stray_parts(output.path, folder, listed)
        filesystem.delete_files(filesystem.join(output.path, path) for path in stray)
    _write(output, MANIFEST, json.dumps(manifest, indent=1).encode("ascii") + b"\n")
    for folder in (COMMITS, TEMPORARY):
        filesystem.delete_folder(filesystem.join(output.path, folder))
    if problems:
        filesystem.delete_files([filesystem.join(output.path, SUCCESS)])
    else:
        filesystem.create_empty(filesystem.join(output.path, SUCCESS))
    return manifest


def _sorted(reports: Iterable[Any], kind: type) -> list[Any]:
    return sorted({report for report in reports if isinstance(report, kind)}, key=lambda report: str(report.path))


def describe_views(views: Iterable[View]) -> dict[str, dict[str, Any]]:
    """Columns and shapes of each view: what is known of it before any row is."""
    return {
        view.name: {
            "level": view.level,
            "columns": {field.name: str(field.type) for field in schema(view)},
            "vectors": list(view.vector_columns),
            "width": view.width,
            "dtype": view.dtype,
            "format": view.format,
        }
        for view in views
    }


def view_schema(entry: Mapping[str, Any]) -> pa.Schema:
    """The columns of a view as the manifest describes them."""
    vector = vector_type(entry["dtype"], entry["width"])
    types = {
        name: vector if type_.startswith("fixed_size_list") else pa.type_for_alias(type_)
        for name, type_ in entry["columns"].items()
    }
    return pa.schema([pa.field(name, type_) for name, type_ in types.items()])


def count_rows(parts: Sequence[Part]) -> dict[str, int]:
    """Rows, bytes and number of these parts."""
    return {"rows": sum(part.rows for part in parts), "bytes": sum(part.bytes for part in parts), "parts": len(parts)}


def _describe_inputs(reports: Iterable[Any], commits: Iterable[Commit]) -> list[dict[str, Any]]:
    inputs: dict[str, dict[str, Any]] = {}
    for report in reports:
        if isinstance(report, InputFile):
            inputs[report.path] = {"path": report.path, "size": report.size, "modified": report.modified}
    for report in _sorted(reports, LeftOut):
        inputs.setdefault(report.path, {"path": report.path})["left_out"] = report.reason
    for entry in inputs.values():
        entry |= {"left_out": entry.get("left_out"), "blocks": 0, "records": 0}
    for commit in commits:
        entry = inputs.get(commit.block.file.path, {})
        if entry:  # a file that is gone is no input
            entry["blocks"] += 1
            entry["records"] += commit.counts.get(metrics.RECORDS, 0)
    return [inputs[path] for path in sorted(inputs)]


def _write(output: Output, name: str, data: bytes) -> None:
    """Write one of the run's own files, unless it already says just that."""
    path = filesystem.join(output.path, name)
    if filesystem.exists(path) and filesystem.read_bytes(path) == data:
        return
    with filesystem.write_whole(path, temporary=output.temporary) as file:
        file.write(data)


class FinishRun(beam.DoFn):
    """(key, everything that was reported) -> the manifest as JSON, once everything it lists is there."""

    def __init__(self, output: Output, views: tuple[View, ...], head: RunHead, max_rejected: float) -> None:
        self._output = output
        self._views = views
        self._head = head
        self._max_rejected = max_rejected

    def process(self, element: tuple[Any, Iterable[Any]]) -> Iterator[str]:
        # Text: a path that is no UTF-8 goes through JSON's escapes, not through Beam's coder for strings.
        yield json.dumps(finish_run(self._output, self._views, self._head, self._max_rejected, element[1]))
