"""What the end of a run leaves beside the parts: `parts.jsonl`, `manifest.json`, `_SUCCESS`; and the fingerprint.

Equal runs write equal bytes: nothing here knows a clock, a host or a number of workers. What one start of the program
did is in `_runs/<n>.json` (`pipeline.output.runlog`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import pyarrow as pa

from pipeline.output.accounts import unaccounted
from pipeline.output.commits import DAMAGED, PARTS, stray_parts, whole_commits
from pipeline.output.doubled_ids import count_doubled_ids
from transforms import filesystem, metrics
from transforms.formats import RecordFormat
from transforms.parts import part_folder
from transforms.records import Commit, InputFile, LeftOut, Part, printable
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
MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"


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


_PLAIN = {
    "schema_version": int,
    "fingerprint": str,
    "identity": dict,
    "encoder": dict,
    "settings": dict,
    "complete": bool,
    "problems": list,
    "counts": dict,
    "views": dict,
    "inputs": list,
}


def load_manifest(output_path: str) -> dict[str, Any] | None:
    """What the last run that ended wrote; None where there is nothing, or it is damaged: the next run makes it anew."""
    manifest = load_json(filesystem.join(output_path, MANIFEST))
    whole = manifest is not None and all(isinstance(manifest.get(name), type_) for name, type_ in _PLAIN.items())
    return manifest if manifest is not None and whole and stays_inside(manifest) else None


def stays_inside(manifest: Mapping[str, Any]) -> bool:
    """Whether the views and tables that a manifest names lie in its folder: it may be a stranger's."""
    return all(
        name not in ("", ".", "..")
        and "/" not in name
        and isinstance(view, dict)
        and str(view.get("path", f"{name}/")).rpartition("/")[0] == name
        for name, view in manifest["views"].items()
    )


@dataclasses.dataclass(frozen=True)
class Gone:
    """An input file of an earlier run that no glob matches any more; its parts stay until somebody says otherwise."""

    path: str


def recorded_inputs(manifest: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """What a manifest says of each input file, by its path; nothing where it is none, or damaged."""
    entries = (manifest or {"inputs": []})["inputs"]
    return {entry["path"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("path"), str)}


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


def shape_text(encoder: Mapping[str, Any]) -> str:
    """`12 layers of 768`."""
    return f"{encoder['num_hidden_layers']} layers of {encoder['hidden_size']}"


def finish_run(
    output: Output,
    views: Iterable[View],
    head: RunHead,
    max_rejected: float,
    how: RecordFormat,
    found: Iterable[InputFile | LeftOut | Gone | Commit],
) -> dict[str, Any]:
    """Make the output folder whole: list the parts, delete what is not listed, write manifest and marker.

    `found`: everything the stages before reported, in any order. Gives the manifest. AssertionError where records are
    missing from the balance, or lines are in no block.
    """
    reports = list(found)
    commits: dict[str, Commit] = {}
    for report in reports:
        if isinstance(report, Commit) and commits.setdefault(report.block.name, report) != report:
            raise AssertionError(f"two blocks were written as {report.block.name}; run again with other file names")
    whole = whole_commits(output.path, commits.values())
    for name in commits.keys() - {commit.block.name for commit in whole}:
        # The disk or the store did not keep what it was given.
        reports.append(LeftOut(commits[name].block.file.path, "what was written of it is missing or short; run again"))
    ordered = sorted(whole, key=lambda commit: (commit.block.file.path, commit.block.first_line))
    views = tuple(views)
    files = [report for report in reports if isinstance(report, InputFile)]
    not_whole = [report.path for report in reports if isinstance(report, (LeftOut, Gone))]
    problem = unaccounted(files, not_whole, ordered, how)
    if problem is not None:
        raise AssertionError(f"records are missing or doubled: {problem}; run again, and please report it")
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
    problems = [f"{printable(r.path)}: {r.reason}" for r in _sorted(reports, LeftOut)]
    problems += [
        f"{printable(report.path)}: is gone; its rows stay until a run with --remove-gone"
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
    filesystem.delete_files([filesystem.join(output.path, DAMAGED)])
    success = filesystem.join(output.path, SUCCESS)
    filesystem.delete_files([success])  # also if it is a link to something else
    if not problems:
        filesystem.create_empty(success)
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
    before = filesystem.read_bytes(path) if filesystem.exists(path) else None
    if before == data:
        return
    try:
        with filesystem.write_whole(path, temporary=output.temporary, sync=True) as file:
            file.write(data)
    except Exception:
        if before is not None and not filesystem.exists(path):  # a store took the old one away for what broke off
            with filesystem.write_whole(path, temporary=output.temporary) as file:
                file.write(before)
        raise


class FinishRun(beam.DoFn):
    """(key, everything that was reported) -> the manifest as JSON, once everything it lists is there."""

    def __init__(
        self, output: Output, views: tuple[View, ...], head: RunHead, max_rejected: float, how: RecordFormat
    ) -> None:
        self._output = output
        self._views = views
        self._head = head
        self._max_rejected = max_rejected
        self._how = how

    def process(self, element: tuple[Any, Iterable[Any]]) -> Iterator[str]:
        # Text: a path that is no UTF-8 goes through JSON's escapes, not through Beam's coder for strings.
        manifest = finish_run(self._output, self._views, self._head, self._max_rejected, self._how, element[1])
        yield json.dumps(manifest)
