"""The end of a run: the index, the tables of `word_type` views, `manifest.json` and `_SUCCESS`, in this order.

Equal runs write equal bytes: nothing here depends on a clock, a host or a number of workers. What each run did is in
`_runs/<n>.json` (`layerbeam.pipeline.output.run_log`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindows

from layerbeam.pipeline.config.identity import RunIdentity
from layerbeam.pipeline.output.attempts import newer_attempt
from layerbeam.pipeline.output.finish_group import GroupReport, finish_group
from layerbeam.pipeline.output.groups import Boundaries, Gathered
from layerbeam.pipeline.output.index import (
    Index,
    Shard,
    parse_commit,
    path_hash,
    unlisted_paths,
)
from layerbeam.pipeline.output.manifest import count_rows, describe_views
from layerbeam.pipeline.output.rejects import count_rejects, remedy
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.pipeline.output.word_types import TablePart, WordTypes
from layerbeam.transforms import layout, metrics, storage
from layerbeam.transforms.columns import schema, splits_by
from layerbeam.transforms.commits import Commit, InputFile, printable
from layerbeam.transforms.parts import FORMATS, is_part_file, is_table_file, part_folder, read_tables
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_empty_part

# 64 bits of a hash for each: 8 MB. So many different ids share a hash once in 37 million runs.
MAX_COMPARED_IDS = 1_000_000
# Without a setting: of all records, and of those that the encoder fails on.
_REJECT_RATES = 0.01, 0.001


class SupersededError(Exception):
    """A newer run is active in the folder, or has finalized it; the argument is its number."""


class _Gather(beam.DoFn):
    """`InputFile` or `Commit` -> (number of the group, `Gathered`), once per bundle and group.

    So commits leave the worker as 16 bytes each; a runner may hold in memory what meets in a Flatten.
    """

    def start_bundle(self) -> None:
        self._gathered: dict[int, Gathered] = {}

    def process(self, report: InputFile | Commit, boundaries: Boundaries) -> None:
        path = report.path if isinstance(report, InputFile) else next(report.of_files()).block.file.path
        self._gathered.setdefault(boundaries.number_of(path), Gathered()).add(report)

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(GlobalWindows.windowed_value, self._gathered.items())


@dataclasses.dataclass
class Finish(beam.PTransform):
    """(`GroupWork`, all PCollections of `InputFile` or `Commit`, `Boundaries`) -> the manifest as JSON, at the end.

    Two levels: each group of files is finished on its own, then the run. Commits do not cross a shuffle: what does are
    16 bytes for each block, and the groups' reports. In between many workers make the tables of `word_type` views.

    Nothing if a newer run is active in the folder, or has finalized it.

    `run_number`: of the run whose end is recorded here, because the program that submitted it may have exited. If that
    has not, it writes the record once more, with what only it knows.
    `is_remote`: many workers delete the commits; on the local runner the last step does, which is a stage less.
    """

    output: Output
    views: tuple[View, ...]
    run_identity: RunIdentity
    max_reject_rate: float | None
    record_format: RecordFormat
    run_number: int | None = None
    limit: int | None = None
    is_remote: bool = False

    def expand(self, inputs: tuple[Any, Sequence[Any], Any]) -> Any:
        known, reports, boundaries = inputs
        gathered = [known | "known" >> beam.Map(lambda work: (work.group.number, Gathered(work)))]
        for number, of_stage in enumerate(reports):
            gathered.append(of_stage | f"gather {number}" >> beam.ParDo(_Gather(), beam.pvalue.AsSingleton(boundaries)))
        of_groups = gathered | "reports" >> beam.Flatten() | "of one group" >> beam.GroupByKey()
        reports = (
            of_groups
            | "finish group" >> beam.FlatMap(self._finish_group)
            | "under one key" >> beam.WithKeys(0)
            | "all groups" >> beam.GroupByKey()
        )
        indexed = reports | "index" >> beam.FlatMap(self._index)
        aggregated = tuple(view for view in self.views if view.aggregates)
        tables: tuple[Any, ...] = ()
        if aggregated:
            shards = indexed | "shards" >> beam.Map(_shards_of)
            written = shards | "word types" >> WordTypes(self.output, aggregated)
            tables = (beam.pvalue.AsList(written),)
        listed = indexed | "write manifest" >> beam.FlatMap(self._write_manifest, *tables)
        if not self.is_remote:
            return listed | "finish run" >> beam.FlatMap(self._finish_run)
        spread = listed | "new shards" >> beam.FlatMap(lambda found: found[2]) | "spread shards" >> beam.Reshuffle()
        deleted = spread | "delete commits" >> beam.FlatMap(self._delete_commits)
        return listed | "finish run" >> beam.FlatMap(self._finish_run, beam.pvalue.AsList(deleted))

    def _finish_group(self, element: tuple[int, Iterable[Gathered]]) -> Iterator[GroupReport]:
        gathered = Gathered()
        for of_bundle in element[1]:
            gathered.update(of_bundle)
        with self._end_if_superseded():
            self._refuse_if_superseded()  # then workers have left blocks to the newer run
            yield finish_group(self.output, self.views, gathered, self.record_format, limited=self.limit is not None)

    def _index(self, element: tuple[Any, Iterable[GroupReport]]) -> Iterator[list[GroupReport]]:
        with self._end_if_superseded():
            self._refuse_if_superseded()
            yield self.write_index(element[1])

    def _write_manifest(
        self, reports: list[GroupReport], tables: Iterable[TablePart] = ()
    ) -> Iterator[tuple[str, bool, list[Shard]]]:
        """(the manifest as JSON, whether the run is complete, the shards with commits that are files in `_commits`)."""
        with self._end_if_superseded():
            # JSON, because Beam's coder for strings refuses a path that is not UTF-8; JSON escapes it.
            manifest = self.write_manifest(reports, tables)
            yield json.dumps(manifest), manifest["complete"], [shard for shard in _shards_of(reports) if shard.is_new]

    def _delete_commits(self, shard: Shard) -> Iterator[Any]:
        with self._end_if_superseded():
            self._refuse_if_superseded()
            commits = (parse_commit(line) for line in shard.read(self.output.path))
            names = (commit.together or commit.block.name for commit in commits if commit is not None)
            # Those of a block of several files follow each other, or nearly.
            storage.delete_files(self.output.path, (layout.commit_path(name) for name, _ in itertools.groupby(names)))
        return iter(())

    def _finish_run(self, listed: tuple[str, bool, list[Shard]], deleted: Iterable[Any] = ()) -> Iterator[str]:
        manifest, is_complete, _ = listed
        with self._end_if_superseded():
            self.finish_run(is_complete=is_complete)
            if self.run_number is not None:
                RunLog.end_unattended(self.output.path, self.run_number, "done")
            yield manifest

    @contextlib.contextmanager
    def _end_if_superseded(self) -> Iterator[None]:
        path, number = self.output.path, self.run_number
        try:
            yield
        except SupersededError as error:
            # The newer run finalizes the folder: to do it here too would delete what it is writing.
            logging.getLogger(__name__).warning("%s: run %s leaves the folder to run %s", path, number, error)
            if number is not None:
                RunLog.end_unattended(path, number, "superseded")

    def _refuse_if_superseded(self) -> None:
        newer = None if self.run_number is None else newer_attempt(self.output.path, self.run_number)
        if newer is not None:
            raise SupersededError(newer)

    def write_index(self, found: Iterable[GroupReport]) -> list[GroupReport]:
        """Make the index whole. Returns the reports of all groups, which come in any order, in the order of the groups.

        AssertionError if records are missing from the balance.
        """
        reports = sorted(found, key=lambda report: report.number)
        problem = metrics.unbalanced(metrics.total([report.counts for report in reports]))
        if problem is not None:
            raise AssertionError(f"records are missing: {problem}")
        # Another attempt may have ended meanwhile, and its marker does not stand for what follows.
        storage.delete_files(self.output.path, [layout.SUCCESS])
        for report in reports:
            if report.lines is not None:
                _write(self.output, layout.PARTS, report.lines)
        return [dataclasses.replace(report, lines=None) for report in reports]

    def write_manifest(self, reports: Sequence[GroupReport], tables: Iterable[TablePart] = ()) -> dict[str, Any]:
        """Delete the parts that no group lists, and write the manifest, which is returned.

        `reports`: what `write_index` gave. `tables`: of all views of level `word_type`, in any order.
        """
        output, shards = self.output, _shards_of(reports)
        counts = metrics.total([report.counts for report in reports])
        index = Index(output.path, shards, strict=True)
        compared = {}
        if metrics.DUPLICATE_IDS in counts:
            duplicates = count_duplicate_ids(output.path, self.views, index, counts)
            compared = {"ids_compared_in": "block" if duplicates is None else "run"}
            counts[metrics.DUPLICATE_IDS] = counts[metrics.DUPLICATE_IDS] if duplicates is None else duplicates
        described, paths = self._finish_views(reports, tables)
        skipped = [file for report in reports for file in report.skipped]
        missing = {path for report in reports for path in report.missing}
        reasons = {} if counts.get(metrics.EMBEDDED) else count_rejects(output.path, index)
        problems = find_problems(skipped, missing, counts, reasons, self.max_reject_rate, self.record_format.text_field)
        manifest = {
            **self.run_identity,
            "complete": not problems,
            "problems": problems,
            "counts": counts,
            **compared,
            "views": described,
            "inputs": [entry for report in reports if not isinstance(report.inputs, Shard) for entry in report.inputs],
        }
        if all(shard.path != layout.PARTS for shard in shards):
            inputs = [report.inputs for report in reports if isinstance(report.inputs, Shard)]
            manifest["index"] = {
                "parts": [shard.to_json() for shard in shards],
                "inputs": [shard.to_json() for shard in inputs],
            }
        self._refuse_if_superseded()
        hashes = [np.array([path_hash(path) for path in paths], np.uint64)]
        hashes += [np.frombuffer(report.listed, np.uint64) for report in reports]
        _delete_strays(output.path, self.views, np.unique(np.concatenate(hashes)))
        _write(output, layout.MANIFEST, json.dumps(manifest, indent=1).encode("ascii") + b"\n")
        _delete_old_index(output.path, manifest)
        return manifest

    def finish_run(self, *, is_complete: bool) -> None:
        """Delete the commits that are left, which the index lists, and write the marker of a complete run."""
        path = self.output.path
        self._refuse_if_superseded()
        _empty_folder(path, layout.COMMITS)
        names = {"", layout.REJECTS, *(view.name for view in self.views), *map(part_folder, self.views)}
        folders = [storage.join(path, name) for name in sorted(names)]
        for folder in folders:
            storage.delete_unfinished(folder)
        storage.delete_files(path, [layout.DAMAGED])
        if is_complete:
            # Without it a power cut could leave the marker over empty parts. A view's folder may be on another disk.
            storage.flush(folders)
            self._refuse_if_superseded()
            storage.create_if_absent(storage.join(path, layout.SUCCESS), b"")

    def _finish_views(
        self, reports: Sequence[GroupReport], tables: Iterable[TablePart]
    ) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """The manifest's entry of each view; and the paths of tables and of parts without rows, which are written."""
        described, paths = describe_views(self.views), set()
        tables = sorted(tables, key=lambda table: table.number)
        for view in self.views:
            if view.aggregates:
                parts = [table.part for table in tables if table.view == view.name]
                described[view.name] |= count_rows(parts) | {"files": [part.to_json() for part in parts]}
                paths |= {part.path for part in parts}
                continue
            sizes = metrics.total([{"rows": 0, "bytes": 0, "parts": 0}, *(r.views.get(view.name, {}) for r in reports)])
            described[view.name] |= {name: sizes[name] for name in ("rows", "bytes", "parts")}
            if not sizes["parts"]:
                paths.add(write_empty_part(self.output, view).path)
        return described, paths


def find_problems(
    skipped: Iterable[InputFile],
    missing: Iterable[str],
    counts: Mapping[str, int],
    reasons: Mapping[str, int],
    max_reject_rate: float | None,
    text_field: str,
) -> list[str]:
    """Why a run is not complete. `reasons`: of rejects, the most frequent first, if nothing was embedded."""
    problems = sorted({f"{printable(file.path)}: {file.problem}" for file in skipped})
    stay = "is missing; its rows stay until a run with --prune-missing"
    problems += [f"{printable(path)}: {stay}" for path in sorted(missing)]
    names = (metrics.RECORDS, metrics.REJECTED, metrics.REJECTED_BY_ENCODER)
    records, rejected, by_encoder = (counts.get(name, 0) for name in names)
    of_all, of_encoder = _REJECT_RATES if max_reject_rate is None else (max_reject_rate,) * 2
    if not counts.get(metrics.EMBEDDED, 0) and (records or not problems):
        problems.append(f"nothing was embedded: {_why_nothing(counts, reasons, text_field)}")
    elif rejected > of_all * records:
        allowed = f"more than max_reject_rate {of_all:g} allows"
        problems.append(f"{rejected:,} of {records:,} records were rejected: {allowed}")
    elif by_encoder > of_encoder * records:
        problems.append(
            f"the encoder failed on {by_encoder:,} of {records:,} records, more than {of_encoder:g}: look at the "
            "reasons in rejects/; if they are the texts' fault, set input.max_reject_rate"
        )
    return problems


def _why_nothing(counts: Mapping[str, int], reasons: Mapping[str, int], text_field: str) -> str:
    """What happened to most records, and what to do."""
    outcomes = (
        (metrics.REJECTED, "rejected"),
        (metrics.BLANK, "blank; check input.files and input.text_field"),
        (metrics.FILTERED, "filtered; check keep_words"),
    )
    name, what = max(outcomes, key=lambda outcome: counts.get(outcome[0], 0))
    if not counts.get(name):
        return "the files are empty; check input.files"
    why = f"{counts[name]:,} of {counts[metrics.RECORDS]:,} records are {what}"
    if name == metrics.REJECTED:
        reason, count = next(iter(reasons.items()))
        fix = remedy(reason, text_field)
        why += f", {count:,} of them because: {reason}" + (f"; {fix}" if fix else "")
    return why


def _shards_of(reports: Iterable[GroupReport]) -> list[Shard]:
    return [shard for report in reports for shard in report.shards]


def _delete_strays(output_path: str, views: Sequence[View], listed: npt.NDArray[np.uint64]) -> None:
    """Delete the parts that are not listed: an earlier run left them. `listed`: what `path_hash` gives, sorted."""
    folders = [(folder, is_part_file) for folder in (*(part_folder(view) for view in views), layout.REJECTS)]
    folders += [(view.name, is_table_file) for view in views if view.aggregates]
    of_views = {view.name for view in views}
    for folder, is_own in folders:
        names = filter(is_own, storage.file_names(storage.join(output_path, folder)))
        stray = unlisted_paths((f"{folder}/{name}" for name in names), listed)
        start = folder if folder in of_views else ""  # a view's folder may be a link to another disk
        inner = (path.removeprefix(f"{start}/") for path in stray)
        storage.delete_files(storage.join(output_path, start), inner)


def _delete_old_index(output_path: str, manifest: Mapping[str, Any]) -> None:
    """Delete what an earlier manifest listed."""
    index = manifest.get("index")
    used = {shard["path"] for shards in (index or {}).values() for shard in shards}
    if index is not None:
        storage.delete_files(output_path, [layout.PARTS])
    folder = storage.join(output_path, layout.INDEX)
    listed = (f"{layout.INDEX}/{name}" for name in storage.list_folder(folder))
    storage.delete_files(output_path, [path for path in listed if path not in used])
    if index is None:
        storage.delete_empty_folder(folder)


def _empty_folder(output_path: str, folder: str) -> None:
    """Delete a folder that may have more files than fit in memory."""
    if storage.is_local(output_path):
        for batch in storage.in_batches(storage.file_names(storage.join(output_path, folder))):
            storage.delete_files(output_path, (f"{folder}/{name}" for name in batch))
    storage.delete_folder(output_path, folder)


def _write(output: Output, name: str, data: bytes) -> None:
    """Write one of the run's own files, unless it has this content already."""
    path = storage.join(output.path, name)
    before = storage.read_if_exists(path)
    if before == data:
        return
    try:
        with storage.write_atomically(path, sync=True) as file:
            file.write(data)
    except Exception:
        if before is not None and storage.read_if_exists(path) != before:  # a store without atomic writes has lost it
            with storage.write_atomically(path) as file:
                file.write(before)
        raise


def count_duplicate_ids(output_path: str, views: Sequence[View], index: Index, counts: Mapping[str, int]) -> int | None:
    """Records of the whole run with the id of an earlier one, from the `id` column of the smallest columnar view.

    None if that would take much memory or time: over a million records, or no columnar view with all records.
    Duplicates within one block are in the counts of its commit.
    """
    parts = {
        view.name: index.parts(view.name)
        for view in views
        if FORMATS[view.format].is_columnar and view.level in ("token", "text", "record") and view.keep_words is None
    }
    if not parts or counts.get(metrics.EMBEDDED, 0) > MAX_COMPARED_IDS:
        return None
    smallest = min(parts, key=lambda name: sum(part.rows for part in parts[name]))
    columns = next(schema(view) for view in views if view.name == smallest)
    paths = dict.fromkeys(storage.join(output_path, part.path) for part in parts[smallest])
    hashes = np.fromiter((value for path in paths for value in _id_hashes(path, columns)), np.uint64)
    return len(hashes) - len(np.unique(hashes))


def _id_hashes(path: str, columns: pa.Schema) -> Iterator[int]:
    """64 bits for the id of each record in a part. The rows of a record are adjacent."""
    table = pa.concat_tables(read_tables(path, columns, ["file", "line", "id"]))
    first = splits_by(table, ["file", "line"])[:-1]
    for value in table["id"].take(first).drop_null().to_pylist():
        yield int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
