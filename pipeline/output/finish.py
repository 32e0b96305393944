"""The end of a run: `parts.jsonl`, `manifest.json` and `_SUCCESS` beside the parts, in this order.

Equal runs write equal bytes: nothing here knows a clock, a host or a number of workers. What one start of the program
did is in `_runs/<n>.json` (`layerbeam.pipeline.output.run_log`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.output.accounts import find_gaps
from layerbeam.pipeline.output.commits import DAMAGED, PARTS, stray_parts, whole_commits
from layerbeam.pipeline.output.duplicate_ids import count_duplicate_ids
from layerbeam.pipeline.output.manifest import (
    MANIFEST,
    SUCCESS,
    MissingInput,
    Report,
    RunIdentity,
    count_rows,
    describe_views,
)
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit, InputFile, SkippedFile, printable
from layerbeam.transforms.parts import part_folder
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import (
    COMMITS,
    REJECTS,
    TEMPORARY,
    Output,
    write_empty_part,
    write_word_types,
)


def finish_run(
    output: Output,
    views: Iterable[View],
    head: RunIdentity,
    max_reject_rate: float,
    record_format: RecordFormat,
    found: Iterable[Report],
) -> dict[str, Any]:
    """Make the output folder whole: list the parts, delete what is not listed, write manifest and marker.

    `found`: everything the stages before reported, in any order. Gives the manifest. AssertionError where records are
    missing from the balance, or lines are in no block.
    """
    views = tuple(views)
    commits, reports = _gather(output.path, found)
    counts = _balance(reports, commits, record_format)
    compared = {}
    if metrics.DUPLICATE_IDS in counts:
        doubled = count_duplicate_ids(output.path, views, commits)
        compared = {"ids_compared_in": "block" if doubled is None else "run"}
        counts[metrics.DUPLICATE_IDS] = counts[metrics.DUPLICATE_IDS] if doubled is None else doubled
    described, empty = _finish_views(output, views, commits)
    problems = _problems(reports, counts, max_reject_rate)
    manifest = {
        **head.to_json(),
        "complete": not problems,
        "problems": problems,
        "counts": counts,
        **compared,
        "views": described,
        "inputs": _describe_inputs(reports, commits),
    }
    _write(output, PARTS, b"".join(json.dumps(c.to_json(), sort_keys=True).encode("ascii") + b"\n" for c in commits))
    listed = empty | {part.path for commit in commits for part in commit.parts.values()}
    for folder in (*(part_folder(view) for view in views), REJECTS):
        stray = stray_parts(output.path, folder, listed)
        storage.delete_files(storage.join(output.path, path) for path in stray)
    _write(output, MANIFEST, json.dumps(manifest, indent=1).encode("ascii") + b"\n")
    _tidy_up(output.path)
    if not problems:
        storage.create_empty(storage.join(output.path, SUCCESS))
    return manifest


def _gather(output_path: str, found: Iterable[Report]) -> tuple[list[Commit], list[Report]]:
    """The commits whose parts are whole, in the order file, line; all reports, with a word on the other commits."""
    reports = list(found)
    commits: dict[str, Commit] = {}
    for report in reports:
        if isinstance(report, Commit) and commits.setdefault(report.block.name, report) != report:
            raise AssertionError(f"two blocks were written as {report.block.name}; run again with other file names")
    whole = whole_commits(output_path, commits.values())
    for name in commits.keys() - {commit.block.name for commit in whole}:
        # The disk or the store did not keep what it was given.
        reports.append(
            SkippedFile(commits[name].block.file.path, "what was written of it is missing or short; run again")
        )
    return sorted(whole, key=lambda commit: (commit.block.file.path, commit.block.first_line)), reports


def _balance(reports: Sequence[Report], commits: Sequence[Commit], record_format: RecordFormat) -> dict[str, int]:
    """The counts of the run. AssertionError where they do not balance, or a line is in no block or in two."""
    files = [report for report in reports if isinstance(report, InputFile)]
    not_whole = [report.path for report in reports if isinstance(report, (SkippedFile, MissingInput))]
    problem = find_gaps(files, not_whole, commits, record_format)
    if problem is not None:
        raise AssertionError(f"records are missing or doubled: {problem}; run again, and please report it")
    counts = metrics.total([commit.counts for commit in commits])
    problem = metrics.unbalanced(counts)
    if problem is not None:
        raise AssertionError(f"records are missing: {problem}")
    return counts


def _finish_views(
    output: Output, views: Sequence[View], commits: Sequence[Commit]
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Write what is made of all blocks; what the manifest says of each view, and the parts of those without rows."""
    described, empty = describe_views(views), set()
    for view in views:
        parts = [commit.parts[view.name] for commit in commits if view.name in commit.parts]
        if view.aggregates:
            parts = [write_word_types(output, view, parts)]
            described[view.name] |= {"path": parts[0].path, "sha256": parts[0].sha256}
        described[view.name] |= count_rows(parts)
        if not parts:
            empty.add(write_empty_part(output, view).path)
    return described, empty


def _problems(reports: Sequence[Report], counts: Mapping[str, int], max_reject_rate: float) -> list[str]:
    """Why the run is not complete."""
    problems = [f"{printable(r.path)}: {r.reason}" for r in _sorted(reports, SkippedFile)]
    problems += [
        f"{printable(r.path)}: is gone; its rows stay until a run with --prune-missing"
        for r in _sorted(reports, MissingInput)
    ]
    rejected, records = counts.get(metrics.REJECTED, 0), counts.get(metrics.RECORDS, 0)
    if rejected > max_reject_rate * records:
        problems.append(
            f"{rejected:,} of {records:,} records were rejected: more than max_reject_rate {max_reject_rate:g} allows"
        )
    return problems


def _describe_inputs(reports: Sequence[Report], commits: Iterable[Commit]) -> list[dict[str, Any]]:
    inputs: dict[str, dict[str, Any]] = {}
    for report in reports:
        if isinstance(report, InputFile):
            inputs[report.path] = {"path": report.path, "size": report.size, "modified": report.modified}
    for report in _sorted(reports, SkippedFile):
        inputs.setdefault(report.path, {"path": report.path})["left_out"] = report.reason
    for entry in inputs.values():
        entry |= {"left_out": entry.get("left_out"), "blocks": 0, "records": 0}
    for commit in commits:
        entry = inputs.get(commit.block.file.path, {})
        if entry:  # a file that is gone is no input
            entry["blocks"] += 1
            entry["records"] += commit.counts.get(metrics.RECORDS, 0)
    return [inputs[path] for path in sorted(inputs)]


def _sorted(reports: Iterable[Any], kind: type) -> list[Any]:
    return sorted({report for report in reports if isinstance(report, kind)}, key=lambda report: str(report.path))


def _tidy_up(output_path: str) -> None:
    """Delete what was of use until the end only, and the marker of an earlier run."""
    for folder in (COMMITS, TEMPORARY):
        storage.delete_folder(storage.join(output_path, folder))
    # The marker also if it is a link to something else.
    storage.delete_files(storage.join(output_path, name) for name in (DAMAGED, SUCCESS))


def _write(output: Output, name: str, data: bytes) -> None:
    """Write one of the run's own files, unless it already says just that."""
    path = storage.join(output.path, name)
    before = storage.read_bytes(path) if storage.exists(path) else None
    if before == data:
        return
    try:
        with storage.write_whole(path, temporary=output.temporary, sync=True) as file:
            file.write(data)
    except Exception:
        if before is not None and not storage.exists(path):  # a store took the old one away for what broke off
            with storage.write_whole(path, temporary=output.temporary) as file:
                file.write(before)
        raise


class FinishRun(beam.DoFn):
    """(key, everything that was reported) -> the manifest as JSON, once everything it lists is there."""

    def __init__(
        self,
        output: Output,
        views: tuple[View, ...],
        head: RunIdentity,
        max_reject_rate: float,
        record_format: RecordFormat,
    ) -> None:
        self._output = output
        self._views = views
        self._head = head
        self._max_reject_rate = max_reject_rate
        self._how = record_format

    def process(self, element: tuple[Any, Iterable[Any]]) -> Iterator[str]:
        # Text: a path that is no UTF-8 goes through JSON's escapes, not through Beam's coder for strings.
        manifest = finish_run(self._output, self._views, self._head, self._max_reject_rate, self._how, element[1])
        yield json.dumps(manifest)
