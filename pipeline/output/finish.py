"""The end of a run: `parts.jsonl`, `manifest.json` and `_SUCCESS`, written in this order.

Equal runs write equal bytes: nothing here depends on a clock, a host or a number of workers. What each run did is in
`_runs/<n>.json` (`layerbeam.pipeline.output.run_log`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa

from layerbeam.pipeline.output.attempts import newer_attempt
from layerbeam.pipeline.output.commits import broken_parts, parts_of
from layerbeam.pipeline.output.find import MissingInput, Report
from layerbeam.pipeline.output.manifest import RunIdentity, count_rows, describe_views
from layerbeam.pipeline.output.rejects import count_rejects, remedy
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.transforms import layout, metrics, storage
from layerbeam.transforms.columns import schema
from layerbeam.transforms.commits import Commit, InputFile, SkippedFile, printable
from layerbeam.transforms.parts import FORMATS, is_part_file, part_folder, read_tables
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_empty_part, write_word_types

# 64 bits of a hash for each: 8 MB. So many different ids share a hash once in 37 million runs.
MAX_COMPARED_IDS = 1_000_000


class SupersededError(Exception):
    """A newer run is at work in the folder, or has finalized it; the argument is its number."""


@dataclasses.dataclass(eq=False)
class FinishRun(beam.DoFn):
    """(key, all reports) -> the manifest as JSON, once everything that it lists is there; nothing if a newer run is at
    work in the folder, or has finalized it.

    `run_number`: of the run whose end is recorded here, because the program that submitted it may have exited. If that
    has not, it writes the record once more, with what only it knows.
    """

    output: Output
    views: tuple[View, ...]
    head: RunIdentity
    max_reject_rate: float
    record_format: RecordFormat
    run_number: int | None = None
    limit: int | None = None

    def process(self, element: tuple[Any, Iterable[Report]]) -> Iterator[str]:
        path, number = self.output.path, self.run_number
        try:
            self._refuse_if_superseded()
            manifest = self.finish(element[1])
        except SupersededError as error:
            # The newer run finalizes the folder: to do it here too would delete what it is writing.
            logging.getLogger(__name__).warning("%s: run %s leaves the folder to run %s", path, number, error)
            if number is not None:
                RunLog.end_unattended(path, number, "superseded")
            return
        if number is not None:
            RunLog.end_unattended(path, number, "done")
        # JSON, because Beam's coder for strings refuses a path that is not UTF-8; JSON escapes it.
        yield json.dumps(manifest)

    def finish(self, found: Iterable[Report]) -> dict[str, Any]:
        """Finalize the output folder: list the parts, delete what is not listed, write manifest and marker.

        `found`: all that the stages before reported, in any order. Returns the manifest. AssertionError if records are
        missing from the balance, or a line is in no block or in two.
        """
        output, reports = self.output, list(found)
        files = [report for report in reports if isinstance(report, InputFile)]
        missing = {report.path for report in reports if isinstance(report, MissingInput)}
        commits, lost = _whole_commits(output.path, reports)
        left_out = {report for report in reports if isinstance(report, SkippedFile)} | lost
        skipped = sorted(left_out, key=lambda file: (file.path, file.reason))
        # Where the last file ends does not matter if it is not read to its end.
        not_to_end = {max(file.path for file in files)} if self.limit is not None and files else set[str]()
        problem = find_gaps(
            files, missing | {file.path for file in skipped}, commits, self.record_format, not_to_end=not_to_end
        )
        if problem is not None:
            raise AssertionError(f"records are missing or duplicated: {problem}; run again, and please report it")
        counts = metrics.total([commit.counts for commit in commits])
        problem = metrics.unbalanced(counts)
        if problem is not None:
            raise AssertionError(f"records are missing: {problem}")
        compared = {}
        if metrics.DUPLICATE_IDS in counts:
            duplicates = count_duplicate_ids(output.path, self.views, commits)
            compared = {"ids_compared_in": "block" if duplicates is None else "run"}
            counts[metrics.DUPLICATE_IDS] = counts[metrics.DUPLICATE_IDS] if duplicates is None else duplicates
        described, empty = self._finish_views(commits)
        problems = self._problems(skipped, missing, counts, commits)
        manifest = {
            **self.head,
            "complete": not problems,
            "problems": problems,
            "counts": counts,
            **compared,
            "views": described,
            "inputs": _describe_inputs(files, skipped, commits),
        }
        # Another attempt may have ended meanwhile, and its marker does not stand for what follows.
        storage.delete_files([storage.join(output.path, layout.SUCCESS)])
        listed_commits = (dataclasses.replace(commit, attempt=None).to_json() for commit in commits)
        lines = (json.dumps(commit, sort_keys=True).encode("ascii") + b"\n" for commit in listed_commits)
        _write(output, layout.PARTS, b"".join(lines))
        listed = empty | {path for commit in commits for path in commit.part_paths}
        self._refuse_if_superseded()
        _delete_strays(output.path, self.views, listed)
        _write(output, layout.MANIFEST, json.dumps(manifest, indent=1).encode("ascii") + b"\n")
        for folder in (layout.COMMITS, layout.TEMPORARY):
            storage.delete_folder(storage.join(output.path, folder))
        storage.delete_files([storage.join(output.path, layout.DAMAGED)])
        if not problems:
            self._refuse_if_superseded()
            storage.create_whole(storage.join(output.path, layout.SUCCESS), b"", temporary=output.temporary)
        return manifest

    def _refuse_if_superseded(self) -> None:
        newer = None if self.run_number is None else newer_attempt(self.output.path, self.run_number)
        if newer is not None:
            raise SupersededError(newer)

    def _finish_views(self, commits: Sequence[Commit]) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """Write what is made of all blocks. Returns the manifest's entry of each view, and the parts without rows."""
        described, empty = describe_views(self.views), set()
        for view in self.views:
            parts = parts_of(view.name, commits)
            if view.aggregates:
                parts = [write_word_types(self.output, view, parts)]
                described[view.name] |= {"path": parts[0].path, "sha256": parts[0].sha256}
            described[view.name] |= count_rows(parts)
            if not parts:
                empty.add(write_empty_part(self.output, view).path)
        return described, empty

    def _problems(
        self,
        skipped: Iterable[SkippedFile],
        missing: Iterable[str],
        counts: Mapping[str, int],
        commits: Sequence[Commit],
    ) -> list[str]:
        """Why the run is not complete."""
        problems = [f"{printable(file.path)}: {file.reason}" for file in skipped]
        stay = "is missing; its rows stay until a run with --prune-missing"
        problems += [f"{printable(path)}: {stay}" for path in sorted(missing)]
        rejected, records = counts.get(metrics.REJECTED, 0), counts.get(metrics.RECORDS, 0)
        if records and not counts.get(metrics.EMBEDDED, 0):
            problems.append(f"nothing was embedded: {self._why_nothing(counts, commits)}")
        elif rejected > self.max_reject_rate * records:
            allowed = f"more than max_reject_rate {self.max_reject_rate:g} allows"
            problems.append(f"{rejected:,} of {records:,} records were rejected: {allowed}")
        return problems

    def _why_nothing(self, counts: Mapping[str, int], commits: Sequence[Commit]) -> str:
        """What happened to most records, and what to do."""
        outcomes = (
            (metrics.REJECTED, "rejected"),
            (metrics.BLANK, "blank; check input.files and input.text_field"),
            (metrics.FILTERED, "filtered; check keep_words"),
        )
        name, what = max(outcomes, key=lambda outcome: counts.get(outcome[0], 0))
        why = f"{counts[name]:,} of {counts[metrics.RECORDS]:,} records are {what}"
        if name == metrics.REJECTED:
            reason, count = next(iter(count_rejects(self.output.path, commits).items()))
            fix = remedy(reason, self.record_format.text_field)
            why += f", {count:,} of them because: {reason}" + (f"; {fix}" if fix else "")
        return why


def _whole_commits(output_path: str, reports: Iterable[Report]) -> tuple[list[Commit], set[SkippedFile]]:
    """The commits with intact parts, in the order file, line; and the files of the other commits."""
    commits: dict[str, Commit] = {}
    for report in reports:
        if isinstance(report, Commit) and commits.setdefault(report.block.name, report) != report:
            raise AssertionError(f"two blocks were written as {report.block.name}; run again with other file names")
    whole, lost = [], set()
    broken = broken_parts(output_path, commits.values()).keys()
    for commit in sorted(commits.values(), key=lambda commit: (commit.block.file.path, commit.block.first_line)):
        if broken.isdisjoint(commit.part_paths):
            whole.append(commit)
        else:  # the disk or the store did not keep what was written
            lost.add(SkippedFile(commit.block.file.path, "what was written of it is missing or short; run again"))
    return whole, lost


def _describe_inputs(
    files: Iterable[InputFile], skipped: Iterable[SkippedFile], commits: Iterable[Commit]
) -> list[dict[str, Any]]:
    reasons = {file.path: file.reason for file in skipped}
    known = {path: {"path": path} for path in reasons} | {file.path: dataclasses.asdict(file) for file in files}
    blocks: Counter[str] = Counter()
    records: Counter[str] = Counter()
    for commit in commits:
        blocks[commit.block.file.path] += 1
        records[commit.block.file.path] += commit.counts.get(metrics.RECORDS, 0)
    return [
        {**known[path], "left_out": reasons.get(path), "blocks": blocks[path], "records": records[path]}
        for path in sorted(known)
    ]


def _delete_strays(output_path: str, views: Iterable[View], listed: Container[str]) -> None:
    """Delete the parts that are not listed: an earlier run left them."""
    for folder in (*(part_folder(view) for view in views), layout.REJECTS):
        names = filter(is_part_file, storage.list_folder(storage.join(output_path, folder)))
        stray = [path for path in (f"{folder}/{name}" for name in sorted(names)) if path not in listed]
        storage.delete_files(storage.join(output_path, path) for path in stray)


def _write(output: Output, name: str, data: bytes) -> None:
    """Write one of the run's own files, unless it has this content already."""
    path = storage.join(output.path, name)
    before = _read(path)
    if before == data:
        return
    try:
        with storage.write_whole(path, temporary=output.temporary, sync=True) as file:
            file.write(data)
    except Exception:
        if before is not None and _read(path) != before:  # a store without atomic writes has lost it
            with storage.write_whole(path, temporary=output.temporary) as file:
                file.write(before)
        raise


def _read(path: str) -> bytes | None:
    return storage.read_bytes(path) if storage.exists(path) else None


def find_gaps(
    files: Iterable[InputFile],
    not_whole: Iterable[str],
    commits: Iterable[Commit],
    record_format: RecordFormat,
    *,
    not_to_end: Container[str] = (),
) -> str | None:
    """The first line that is in no block or in two, as a message; None if every line is in exactly one.

    `not_whole`: paths of files that were skipped or are missing, which may have any blocks. `commits` are in the order
    of their lines within a file. A missing last block goes undetected if the file does not record where it ends
    (compressed files and Parquet).
    """
    excused = set(not_whole)
    blocks = defaultdict(list)
    for commit in commits:
        blocks[commit.block.file.path].append(commit.block)
    known = {file.path: file for file in files}
    for path in blocks.keys() - known.keys() - excused:
        return f"{printable(path)}: has blocks but is not an input file"
    paragraphs = record_format.format == "text" and record_format.record == "paragraph"
    for path, file in known.items():
        if path in excused:
            continue
        # Blank lines before a file's first paragraph are in no block.
        line = blocks[path][0].first_line if paragraphs and blocks[path] else 0
        for block in blocks[path]:
            if block.first_line > line:
                return f"{printable(path)}: lines {line} to {block.first_line - 1} are in no block"
            if block.first_line < line:
                return f"{printable(path)}: line {block.first_line} is in two blocks"
            line += block.num_lines
        has_no_end = storage.is_compressed(path) or record_format.format == "parquet" or path in not_to_end
        if has_no_end or (paragraphs and not blocks[path]):
            continue
        end = blocks[path][-1].end_byte if blocks[path] else 0
        if end != file.size:
            return f"{printable(path)}: bytes {end:,} to {file.size:,} are in no block"
    return None


def count_duplicate_ids(output_path: str, views: Sequence[View], commits: Sequence[Commit]) -> int | None:
    """Records of the whole run with the id of an earlier one, from the `id` column of the smallest columnar view.

    None if that would take much memory or time: over a million records, or no columnar view with all records.
    Duplicates within one block are in the counts of its commit.
    """
    parts = {
        view.name: parts_of(view.name, commits)
        for view in views
        if FORMATS[view.format].is_columnar and view.level in ("token", "text", "record") and view.keep_words is None
    }
    if not parts or sum(commit.counts.get(metrics.EMBEDDED, 0) for commit in commits) > MAX_COMPARED_IDS:
        return None
    smallest = min(parts, key=lambda name: sum(part.rows for part in parts[name]))
    columns = next(schema(view) for view in views if view.name == smallest)
    paths = [storage.join(output_path, part.path) for part in parts[smallest]]
    hashes = np.fromiter((value for path in paths for value in _id_hashes(path, columns)), np.uint64)
    return len(hashes) - len(np.unique(hashes))


def _id_hashes(path: str, columns: pa.Schema) -> Iterator[int]:
    """64 bits for the id of each record in a part. The rows of a record are adjacent."""
    table = pa.concat_tables(read_tables(path, columns, ["line", "id"]))
    first = np.flatnonzero(np.diff(table["line"].to_numpy(), prepend=-1))
    for value in table["id"].take(first).drop_null().to_pylist():
        yield int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
