"""The end of a run: `parts.jsonl`, `manifest.json` and `_SUCCESS`, written in this order.

Equal runs write equal bytes: nothing here depends on a clock, a host or a number of workers. What each run did is in
`_runs/<n>.json` (`layerbeam.pipeline.output.run_log`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from layerbeam.pipeline.output.balance import count_duplicate_ids, find_gaps
from layerbeam.pipeline.output.commits import stray_parts, whole_commits
from layerbeam.pipeline.output.manifest import MissingInput, Report, RunIdentity, count_rows, describe_views
from layerbeam.pipeline.output.run_log import ACTIVE, RunLog, load_runs
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit, InputFile, SkippedFile, printable
from layerbeam.transforms.layout import COMMITS, DAMAGED, MANIFEST, PARTS, REJECTS, SUCCESS, TEMPORARY
from layerbeam.transforms.parts import part_folder
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_empty_part, write_word_types


def finish_run(
    output: Output,
    views: Iterable[View],
    head: RunIdentity,
    max_reject_rate: float,
    record_format: RecordFormat,
    found: Iterable[Report],
) -> dict[str, Any]:
    """Finalize the output folder: list the parts, delete what is not listed, write manifest and marker.

    `found`: all that the stages before reported, in any order. Returns the manifest. AssertionError if records are
    missing from the balance, or a line is in no block or in two.
    """
    views, reports = tuple(views), list(found)
    files = [report for report in reports if isinstance(report, InputFile)]
    missing = {report.path for report in reports if isinstance(report, MissingInput)}
    commits, lost = _whole_commits(output.path, reports)
    skipped = {report for report in reports if isinstance(report, SkippedFile)} | lost
    problem = find_gaps(files, missing | {file.path for file in skipped}, commits, record_format)
    if problem is not None:
        raise AssertionError(f"records are missing or duplicated: {problem}; run again, and please report it")
    counts = metrics.total([commit.counts for commit in commits])
    problem = metrics.unbalanced(counts)
    if problem is not None:
        raise AssertionError(f"records are missing: {problem}")
    compared = {}
    if metrics.DUPLICATE_IDS in counts:
        duplicates = count_duplicate_ids(output.path, views, commits)
        compared = {"ids_compared_in": "block" if duplicates is None else "run"}
        counts[metrics.DUPLICATE_IDS] = counts[metrics.DUPLICATE_IDS] if duplicates is None else duplicates
    described, empty = _finish_views(output, views, commits)
    problems = _problems(skipped, missing, counts, max_reject_rate)
    manifest = {
        **head.to_json(),
        "complete": not problems,
        "problems": problems,
        "counts": counts,
        **compared,
        "views": described,
        "inputs": _describe_inputs(files, skipped, commits),
    }
    _write(output, PARTS, b"".join(json.dumps(c.to_json(), sort_keys=True).encode("ascii") + b"\n" for c in commits))
    listed = empty | {part.path for commit in commits for part in commit.parts.values()}
    for folder in (*(part_folder(view) for view in views), REJECTS):
        stray = stray_parts(output.path, folder, listed)
        storage.delete_files(storage.join(output.path, path) for path in stray)
    _write(output, MANIFEST, json.dumps(manifest, indent=1).encode("ascii") + b"\n")
    for folder in (COMMITS, TEMPORARY):
        storage.delete_folder(storage.join(output.path, folder))
    # The marker is deleted first because it may be a link to another file.
    storage.delete_files(storage.join(output.path, name) for name in (DAMAGED, SUCCESS))
    if not problems:
        storage.create_empty(storage.join(output.path, SUCCESS))
    return manifest


def _whole_commits(output_path: str, reports: Iterable[Report]) -> tuple[list[Commit], set[SkippedFile]]:
    """The commits with intact parts, in the order file, line; and the files of the other commits."""
    commits: dict[str, Commit] = {}
    for report in reports:
        if isinstance(report, Commit) and commits.setdefault(report.block.name, report) != report:
            raise AssertionError(f"two blocks were written as {report.block.name}; run again with other file names")
    whole = whole_commits(output_path, commits.values())
    # The disk or the store did not keep what was written.
    lost = commits.keys() - {commit.block.name for commit in whole}
    reason = "what was written of it is missing or short; run again"
    return (
        sorted(whole, key=lambda commit: (commit.block.file.path, commit.block.first_line)),
        {SkippedFile(commits[name].block.file.path, reason) for name in lost},
    )


def _finish_views(
    output: Output, views: Sequence[View], commits: Sequence[Commit]
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Write what is made of all blocks. Returns the manifest's entry of each view, and the parts without rows."""
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


def _problems(
    skipped: Iterable[SkippedFile], missing: Iterable[str], counts: Mapping[str, int], max_reject_rate: float
) -> list[str]:
    """Why the run is not complete."""
    problems = [f"{printable(file.path)}: {file.reason}" for file in _by_path(skipped)]
    problems += [
        f"{printable(path)}: is missing; its rows stay until a run with --prune-missing" for path in sorted(missing)
    ]
    rejected, records = counts.get(metrics.REJECTED, 0), counts.get(metrics.RECORDS, 0)
    if rejected > max_reject_rate * records:
        problems.append(
            f"{rejected:,} of {records:,} records were rejected: more than max_reject_rate {max_reject_rate:g} allows"
        )
    return problems


def _describe_inputs(
    files: Iterable[InputFile], skipped: Iterable[SkippedFile], commits: Iterable[Commit]
) -> list[dict[str, Any]]:
    inputs: dict[str, dict[str, Any]] = {file.path: dataclasses.asdict(file) for file in files}
    for file in _by_path(skipped):
        inputs.setdefault(file.path, {"path": file.path})["left_out"] = file.reason
    for entry in inputs.values():
        entry |= {"left_out": entry.get("left_out"), "blocks": 0, "records": 0}
    for commit in commits:
        entry = inputs.get(commit.block.file.path, {})
        if entry:  # a missing file is not an input
            entry["blocks"] += 1
            entry["records"] += commit.counts.get(metrics.RECORDS, 0)
    return [inputs[path] for path in sorted(inputs)]


def _by_path(skipped: Iterable[SkippedFile]) -> list[SkippedFile]:
    return sorted(skipped, key=lambda file: (file.path, file.reason))


def _write(output: Output, name: str, data: bytes) -> None:
    """Write one of the run's own files, unless it has this content already."""
    path = storage.join(output.path, name)
    before = storage.read_bytes(path) if storage.exists(path) else None
    if before == data:
        return
    try:
        with storage.write_whole(path, temporary=output.temporary, sync=True) as file:
            file.write(data)
    except Exception:
        if before is not None and not storage.exists(path):  # a store deleted the old file for a write that failed
            with storage.write_whole(path, temporary=output.temporary) as file:
                file.write(before)
        raise


@dataclasses.dataclass(eq=False)
class RefuseIfSuperseded(beam.DoFn):
    """Forwards the element. RuntimeError if a newer run is active in the folder: finalizing would delete its files.

    A job whose launcher was interrupted may still be active, and holds no lock. The newer run finalizes the folder.
    """

    output_path: str
    number: int

    def process(self, element: Any) -> Iterator[Any]:
        for run in load_runs(self.output_path):
            if run["run"] > self.number and run["state"] in ACTIVE:
                raise RuntimeError(f"run {run['run']} is newer and active in {self.output_path}; it continues")
        yield element


@dataclasses.dataclass(eq=False)
class FinishRun(beam.DoFn):
    """(key, all reports) -> the manifest as JSON, once everything that it lists is there."""

    output: Output
    views: tuple[View, ...]
    head: RunIdentity
    max_reject_rate: float
    record_format: RecordFormat

    def process(self, element: tuple[Any, Iterable[Any]]) -> Iterator[str]:
        # JSON, because Beam's coder for strings refuses a path that is not UTF-8; JSON escapes it.
        yield json.dumps(
            finish_run(self.output, self.views, self.head, self.max_reject_rate, self.record_format, element[1])
        )


@dataclasses.dataclass(eq=False)
class RecordRunEnd(beam.DoFn):
    """Manifest -> manifest. Records the end of the run, because the program that submitted it may have exited.

    If that has not, it writes the record once more, with what only it knows.
    """

    output_path: str
    number: int

    def process(self, manifest: str) -> Iterator[str]:
        RunLog.end_unattended(self.output_path, self.number, complete=json.loads(manifest)["complete"])
        yield manifest
