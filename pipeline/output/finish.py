"""The end of a run: `parts.jsonl`, `manifest.json` and `_SUCCESS` beside the parts, in this order.

Equal runs write equal bytes: nothing here knows a clock, a host or a number of workers. What one start of the program
did is in `_runs/<n>.json` (`pipeline.output.runlog`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from pipeline.output.accounts import unaccounted
from pipeline.output.commits import DAMAGED, PARTS, stray_parts, whole_commits
from pipeline.output.doubled_ids import count_doubled_ids
from pipeline.output.manifest import MANIFEST, SUCCESS, Gone, Report, RunHead, count_rows, describe_views
from transforms import filesystem, metrics
from transforms.formats import RecordFormat
from transforms.parts import part_folder
from transforms.records import Commit, InputFile, LeftOut, printable
from transforms.views import View
from transforms.write import COMMITS, REJECTS, TEMPORARY, Output, write_empty_part, write_word_types


def finish_run(
    output: Output,
    views: Iterable[View],
    head: RunHead,
    max_rejected: float,
    how: RecordFormat,
    found: Iterable[Report],
) -> dict[str, Any]:
    """Make the output folder whole: list the parts, delete what is not listed, write manifest and marker.

    `found`: everything the stages before reported, in any order. Gives the manifest. AssertionError where records are
    missing from the balance, or lines are in no block.
    """
    views = tuple(views)
    commits, reports = _gather(output.path, found)
    counts = _balance(reports, commits, how)
    compared = {}
    if metrics.DOUBLED_IDS in counts:
        doubled = count_doubled_ids(output.path, views, commits)
        compared = {"ids_compared_in": "block" if doubled is None else "run"}
        counts[metrics.DOUBLED_IDS] = counts[metrics.DOUBLED_IDS] if doubled is None else doubled
    described, empty = _finish_views(output, views, commits)
    problems = _problems(reports, counts, max_rejected)
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
        filesystem.delete_files(filesystem.join(output.path, path) for path in stray)
    _write(output, MANIFEST, json.dumps(manifest, indent=1).encode("ascii") + b"\n")
    _tidy_up(output.path)
    if not problems:
        filesystem.create_empty(filesystem.join(output.path, SUCCESS))
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
        reports.append(LeftOut(commits[name].block.file.path, "what was written of it is missing or short; run again"))
    return sorted(whole, key=lambda commit: (commit.block.file.path, commit.block.first_line)), reports


def _balance(reports: Sequence[Report], commits: Sequence[Commit], how: RecordFormat) -> dict[str, int]:
    """The counts of the run. AssertionError where they do not balance, or a line is in no block or in two."""
    files = [report for report in reports if isinstance(report, InputFile)]
    not_whole = [report.path for report in reports if isinstance(report, (LeftOut, Gone))]
    problem = unaccounted(files, not_whole, commits, how)
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
        if view.level == "word_type":
            parts = [write_word_types(output, view, parts)]
            described[view.name] |= {"path": parts[0].path, "sha256": parts[0].sha256}
        described[view.name] |= count_rows(parts)
        if not parts:
            empty.add(write_empty_part(output, view).path)
    return described, empty


def _problems(reports: Sequence[Report], counts: Mapping[str, int], max_rejected: float) -> list[str]:
    """Why the run is not complete."""
    problems = [f"{printable(r.path)}: {r.reason}" for r in _sorted(reports, LeftOut)]
    problems += [
        f"{printable(r.path)}: is gone; its rows stay until a run with --remove-gone" for r in _sorted(reports, Gone)
    ]
    rejected, records = counts.get(metrics.REJECTED, 0), counts.get(metrics.RECORDS, 0)
    if rejected > max_rejected * records:
        problems.append(
            f"{rejected:,} of {records:,} records were rejected: more than max_rejected {max_rejected:g} allows"
        )
    return problems


def _describe_inputs(reports: Sequence[Report], commits: Iterable[Commit]) -> list[dict[str, Any]]:
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


def _sorted(reports: Iterable[Any], kind: type) -> list[Any]:
    return sorted({report for report in reports if isinstance(report, kind)}, key=lambda report: str(report.path))


def _tidy_up(output_path: str) -> None:
    """Delete what was of use until the end only, and the marker of an earlier run."""
    for folder in (COMMITS, TEMPORARY):
        filesystem.delete_folder(filesystem.join(output_path, folder))
    # The marker also if it is a link to something else.
    filesystem.delete_files(filesystem.join(output_path, name) for name in (DAMAGED, SUCCESS))


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
