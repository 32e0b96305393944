"""The end of a run: the index, the tables of `word_type` views, `manifest.json` and `_SUCCESS`, in this order.

Equal runs write equal bytes: nothing here depends on a clock, a host or a number of workers. What each run did is in
`_runs/<n>.json` (`layerbeam.pipeline.output.run_log`).
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import hashlib
import heapq
import itertools
import json
import logging
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindows

from layerbeam.pipeline.output.attempts import newer_attempt
from layerbeam.pipeline.output.commits import broken_parts, committed
from layerbeam.pipeline.output.groups import Boundaries, Gathered, mark
from layerbeam.pipeline.output.index import (
    SHARD_COMMITS,
    Index,
    Shard,
    count_part,
    load_index,
    parse_commit,
    path_hash,
    unlisted_paths,
    write_shard,
)
from layerbeam.pipeline.output.manifest import RunIdentity, count_rows, describe_views
from layerbeam.pipeline.output.rejects import count_rejects, remedy
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.pipeline.output.word_types import TablePart, WordTypes
from layerbeam.pipeline.run.keep_alive import keep_alive
from layerbeam.transforms import layout, metrics, storage
from layerbeam.transforms.blocks import row_splits_of
from layerbeam.transforms.columns import schema, splits_by
from layerbeam.transforms.commits import BlockId, Commit, InputFile, Part, SkippedFile, printable
from layerbeam.transforms.parts import FORMATS, is_part_file, is_table_file, part_folder, read_rejects, read_tables
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_empty_part, write_part, write_rejects

# 64 bits of a hash for each: 8 MB. So many different ids share a hash once in 37 million runs.
MAX_COMPARED_IDS = 1_000_000
# Without a setting: of all records, and of those that the encoder fails on.
_REJECT_RATES = 0.01, 0.001
_LOST = "what was written of it is missing or short; run again"


class SupersededError(Exception):
    """A newer run is at work in the folder, or has finalized it; the argument is its number."""


class _Gather(beam.DoFn):
    """`SkippedFile` or `Commit` -> (number of the group, `Gathered`), once per bundle and group.

    So commits leave the worker as 16 bytes each; a runner may hold in memory what meets in a Flatten.
    """

    def start_bundle(self) -> None:
        self._gathered: dict[int, Gathered] = {}

    def process(self, report: SkippedFile | Commit, boundaries: Boundaries) -> None:
        path = report.path if isinstance(report, SkippedFile) else next(report.of_files()).block.file.path
        self._gathered.setdefault(boundaries.number_of(path), Gathered()).add(report)

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(GlobalWindows.windowed_value, self._gathered.items())


@dataclasses.dataclass(frozen=True)
class GroupReport:
    """What the end of a run must know of a group of input files.

    `views`: rows, bytes and parts of each; `inputs`: entries of the manifest, or the shard that has them; `listed`:
    8 bytes for each part, which `path_hash` gives; `lines`: the index of a small run, which is written last.
    """

    number: int
    shards: Sequence[Shard]
    inputs: Sequence[Mapping[str, Any]] | Shard
    counts: Mapping[str, int]
    views: Mapping[str, Mapping[str, int]]
    skipped: Collection[SkippedFile]
    missing: Collection[str]
    listed: bytes
    lines: bytes | None


@dataclasses.dataclass
class Finish(beam.PTransform):
    """(`GroupWork`, all PCollections of `SkippedFile` or `Commit`, `Boundaries`) -> the manifest as JSON, at the end.

    Two levels: each group of files is finished on its own, then the run. Commits do not cross a shuffle: what does are
    16 bytes for each block, and the groups' reports. In between many workers make the tables of `word_type` views.

    Nothing if a newer run is at work in the folder, or has finalized it.

    `run_number`: of the run whose end is recorded here, because the program that submitted it may have exited. If that
    has not, it writes the record once more, with what only it knows. `alive_path`: where workers give signs of life.
    `is_remote`: many workers delete the commits; on the local runner the last step does, which is a stage less.
    """

    output: Output
    views: tuple[View, ...]
    head: RunIdentity
    max_reject_rate: float | None
    record_format: RecordFormat
    run_number: int | None = None
    limit: int | None = None
    alive_path: str | None = None
    is_remote: bool = False

    def expand(self, inputs: tuple[Any, Sequence[Any], Any]) -> Any:
        known, reports, boundaries = inputs
        gathered = [known | "known" >> beam.Map(lambda work: (work.group.number, Gathered(work)))]
        for number, of_stage in enumerate(reports):
            gathered.append(of_stage | f"gather {number}" >> beam.ParDo(_Gather(), beam.pvalue.AsSingleton(boundaries)))
        of_groups = gathered | "reports" >> beam.Flatten() | "of one group" >> beam.GroupByKey()
        reports = (
            keep_alive(of_groups, "finish group", self.alive_path)
            | "finish group" >> beam.Map(self._finish_group)
            | "under one key" >> beam.WithKeys(0)
            | "all groups" >> beam.GroupByKey()
        )
        indexed = keep_alive(reports, "index", self.alive_path) | "index" >> beam.FlatMap(self._index)
        aggregated = tuple(view for view in self.views if view.aggregates)
        tables: tuple[Any, ...] = ()
        if aggregated:
            shards = indexed | "shards" >> beam.Map(_shards_of)
            written = shards | "word types" >> WordTypes(self.output, aggregated, self.alive_path)
            tables = (beam.pvalue.AsList(written),)
            indexed = keep_alive(indexed, "write manifest", self.alive_path)
        listed = indexed | "write manifest" >> beam.FlatMap(self._write_manifest, *tables)
        if not self.is_remote:
            return listed | "finish run" >> beam.FlatMap(self._finish_run)
        spread = listed | "new shards" >> beam.FlatMap(lambda found: found[2]) | "spread shards" >> beam.Reshuffle()
        deleted = keep_alive(spread, "delete commits", self.alive_path) | "delete commits" >> beam.FlatMap(
            self._delete_commits
        )
        return keep_alive(listed, "finish run", self.alive_path) | "finish run" >> beam.FlatMap(
            self._finish_run, beam.pvalue.AsList(deleted)
        )

    def _finish_group(self, element: tuple[int, Iterable[Gathered]]) -> GroupReport:
        gathered = Gathered()
        for of_bundle in element[1]:
            gathered.update(of_bundle)
        return finish_group(self.output, self.views, gathered, self.record_format, limited=self.limit is not None)

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
            folder = storage.join(self.output.path, layout.COMMITS)
            commits = (parse_commit(line) for line in shard.read(self.output.path))
            names = (commit.together or commit.block.name for commit in commits if commit is not None)
            # Those of a block of several files follow each other, or nearly.
            storage.delete_files(storage.join(folder, f"{name}.json") for name, _ in itertools.groupby(names))
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
        storage.delete_files([storage.join(self.output.path, layout.SUCCESS)])
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
        skipped = sorted({file for report in reports for file in report.skipped}, key=lambda f: (f.path, f.reason))
        problems = self._problems(skipped, {path for report in reports for path in report.missing}, counts, index)
        manifest = {
            **self.head,
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
        for folder in (layout.COMMITS, layout.TEMPORARY):
            _empty_folder(storage.join(path, folder))
        storage.delete_files([storage.join(path, layout.DAMAGED)])
        if is_complete:
            self._refuse_if_superseded()
            storage.create_whole(storage.join(path, layout.SUCCESS), b"", temporary=self.output.temporary)

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

    def _problems(
        self,
        skipped: Iterable[SkippedFile],
        missing: Iterable[str],
        counts: Mapping[str, int],
        commits: Iterable[Commit],
    ) -> list[str]:
        """Why the run is not complete."""
        problems = [f"{printable(file.path)}: {file.reason}" for file in skipped]
        stay = "is missing; its rows stay until a run with --prune-missing"
        problems += [f"{printable(path)}: {stay}" for path in sorted(missing)]
        names = (metrics.RECORDS, metrics.REJECTED, metrics.REJECTED_BY_ENCODER)
        records, rejected, by_encoder = (counts.get(name, 0) for name in names)
        of_all, of_encoder = _REJECT_RATES if self.max_reject_rate is None else (self.max_reject_rate,) * 2
        if records and not counts.get(metrics.EMBEDDED, 0):
            problems.append(f"nothing was embedded: {self._why_nothing(counts, commits)}")
        elif rejected > of_all * records:
            allowed = f"more than max_reject_rate {of_all:g} allows"
            problems.append(f"{rejected:,} of {records:,} records were rejected: {allowed}")
        elif by_encoder > of_encoder * records:
            problems.append(
                f"the encoder failed on {by_encoder:,} of {records:,} records, more than {of_encoder:g}: look at the "
                "reasons in rejects/; if they are the texts' fault, set input.max_reject_rate"
            )
        return problems

    def _why_nothing(self, counts: Mapping[str, int], commits: Iterable[Commit]) -> str:
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


def finish_group(
    output: Output, views: Sequence[View], gathered: Gathered, record_format: RecordFormat, *, limited: bool = False
) -> GroupReport:
    """Check a group's commits and list them in the index. Replaces nothing that another attempt could have written.

    `limited`: where the last input file ends does not matter, because it is not read to its end. AssertionError if a
    line is in no block or in two.
    """
    work = gathered.work
    if work is None:
        path = next(iter(gathered.blocks), None) or next(iter(gathered.skipped)).path
        raise AssertionError(
            f"records are missing or duplicated: {printable(path)}: is in no group of files; run again"
        )
    group = work.group
    files = {file.path: file for file in group.files if isinstance(file, InputFile)}
    last = max(files) if files and group.end is None and limited else None
    skipped = {*work.skipped, *gathered.skipped}
    reasons = dict(sorted((file.path, file.reason) for file in skipped))
    excused = {*work.missing, *reasons}
    unknown = gathered.blocks.keys() - files.keys() - excused
    if unknown:
        raise _gap(f"{printable(min(unknown))}: has blocks but is not an input file")
    writer = _IndexWriter(output, is_only=group.is_only)
    entries = []
    index = load_index(output.path)
    together = _of_files(
        committed(output.path, (f"{name}.json" for name in {*gathered.together, *group.begun_together}))
    )
    checked: dict[str, bool] = {}

    def choose(path: str, in_index: Iterable[Commit]) -> Iterator[Commit | None]:
        candidates = _Candidates(
            output,
            path,
            files.get(path),
            is_current=path in work.current,
            is_excused=path in excused,
            is_begun=path in group.begun,
            together=together.get(path, []),
            checked=checked,
        )
        if path in work.begun:
            in_index = [commit for commit in candidates.together if commit.block.file == files[path]][:1]
        marks = gathered.marks_of(path) if path in gathered.blocks else None
        return candidates.choose(marks, iter(in_index))

    # Which rows are left of a file that several input files share must be known before the first of them is listed.
    in_index = index.between(group.first, group.end) if work.has_together or together else ()
    shared = _of_files((None, commit) for commit in in_index if commit.together or _path_of(commit) in together)
    chosen = {
        path: list(choose(path, shared.get(path, ())))
        for path in sorted((shared.keys() | together.keys()) & (files.keys() | excused))
        if len(list(itertools.islice(gathered.marks_of(path), 2))) < 2
    }
    moved = _without_others(output, views, itertools.chain.from_iterable(chosen.values()))
    old = itertools.groupby(index.between(group.first, group.end), _path_of)
    nothing: tuple[str | None, Iterator[Commit]] = (None, iter(()))
    of_path, of_index = next(old, nothing)
    for path in sorted({*files, *excused}):
        while of_path is not None and of_path < path:
            of_path, of_index = next(old, nothing)
        gaps = GapCheck(files[path], record_format, has_end=path != last) if path in files else None
        blocks = records = 0
        found = chosen[path] if path in chosen else choose(path, of_index if of_path == path else ())
        for commit in found:
            if commit is None:  # the disk or the store did not keep what was written
                skipped.add(SkippedFile(path, _LOST))
                reasons[path] = max(reasons.get(path, ""), _LOST)
                gaps = None
                continue
            if gaps is not None:
                gaps.add(commit.block)
            parts = {name: moved.get((part.path, part.first_row), part) for name, part in commit.parts.items()}
            writer.add(dataclasses.replace(commit, parts=parts))
            blocks, records = blocks + 1, records + commit.counts.get(metrics.RECORDS, 0)
        problem = gaps.end() if gaps is not None and path not in excused else None
        if problem is not None:
            raise _gap(problem)
        reason = reasons.get(path)
        if path in files or reason is not None:
            known = dataclasses.asdict(files[path]) if path in files else {"path": path}
            entries.append({**known, "left_out": reason, "blocks": blocks, "records": records})
    shards, text = writer.end()
    inputs: Sequence[Mapping[str, Any]] | Shard = entries
    if not group.is_only and entries:
        lines = (json.dumps(entry).encode("ascii") for entry in entries)
        inputs = write_shard(output, lines, [e["path"] for e in entries], suffix=layout.INPUTS_SUFFIX)
    counts = dict(sorted(writer.counts.items()))
    listed = writer.listed.tobytes()
    return GroupReport(group.number, shards, inputs, counts, writer.views, skipped, work.missing, listed, text)


def _path_of(commit: Commit) -> str:
    return commit.block.file.path


def _of_files(commits: Iterable[tuple[Any, Commit | None]]) -> dict[str, list[Commit]]:
    """The commits by the paths of their files."""
    found: dict[str, list[Commit]] = {}
    for _, commit in commits:
        for of_file in commit.of_files() if commit is not None else ():
            found.setdefault(_path_of(of_file), []).append(of_file)
    return found


def _without_others(
    output: Output, views: Sequence[View], commits: Iterable[Commit | None]
) -> dict[tuple[str, int | None], Part]:
    """Copy what the commits have of files that other commits, which do not count any more, have rows of, too.

    Returns {(path, first row) of a part: the part that it is in the copy}. The commits are in the order of the rows.
    """
    of_file: dict[tuple[str, str], list[Part]] = {}
    for commit in commits:
        for name, part in commit.parts.items() if commit is not None else ():
            if part.first_row is not None:
                of_file.setdefault((name, part.path), []).append(part)
    moved = {}
    for (name, path), parts in of_file.items():
        rows = row_splits_of(np.array([part.rows for part in parts])).tolist()
        if rows[-1] == parts[0].file_rows:
            continue
        block = layout.block_of(path)
        if name == layout.REJECTS:
            rejects = list(read_rejects(storage.join(output.path, path)))
            kept = [reject for part in parts for reject in rejects[part.rows_of_file]]
            copy = write_rejects(output, block, [reject for reject in kept if reject is not None])
        else:
            view = next(view for view in views if view.name == name)
            table = pa.concat_tables(read_tables(storage.join(output.path, path), schema(view)))
            pieces = [table[part.rows_of_file] for part in parts]
            copy = write_part(output, view, block, pa.concat_tables(pieces).combine_chunks())
        for part, first in zip(parts, rows, strict=False):
            moved[path, part.first_row] = dataclasses.replace(
                copy, rows=part.rows, first_row=first, file_rows=copy.rows
            )
    return moved


def _gap(problem: str) -> AssertionError:
    return AssertionError(f"records are missing or duplicated: {problem}; run again, and please report it")


@dataclasses.dataclass
class _Candidates:
    """The commits of one input file: in the order of its lines, from `_commits` and from the index.

    `is_current`: the file was not read, and the commits of its present state in the index count. Otherwise those count
    that this run reported as done, and if the file `is_excused` (missing, or not read to its end) others of its present
    state; if none was reported, all. `is_begun`: it has commits in `_commits`. `together`: what commits of several
    files in `_commits` say of this one. `checked`: whether the parts that several files share are whole, once known.
    """

    output: Output
    path: str
    file: InputFile | None
    is_current: bool
    is_excused: bool
    is_begun: bool
    together: Sequence[Commit]
    checked: dict[str, bool]

    def choose(self, marks: Iterator[tuple[int, int]] | None, in_index: Iterator[Commit]) -> Iterator[Commit | None]:
        """The commit of each block that is in the output; None for one whose parts are missing or short."""
        keeps_all = marks is None
        reported = ((line, mark, None) for line, mark in marks or ())
        indexed = ((commit.block.first_line, None, commit) for commit in in_index)
        lines_begun = {*self._lines_begun(), *(commit.block.first_line for commit in self.together)}
        begun = ((line, None, None) for line in sorted(lines_begun)) if self.is_excused else ()
        wanted = self._of_lines(heapq.merge(reported, indexed, begun, key=_first))
        for batch in storage.in_batches(wanted):
            newer = self._newer(batch, keeps_all)
            # Each on its own: the parts of two commits of a block may have the same names.
            chosen = self._whole([newer.get(line) for line, _, _ in batch])
            others = [
                None if commit is not None else self._if_counts(old, hashes, keeps_all)
                for commit, (_, hashes, old) in zip(chosen, batch, strict=True)
            ]
            for (_, hashes, old), one, other in zip(batch, chosen, self._whole(others), strict=True):
                commit = one or other
                if commit is not None:
                    yield dataclasses.replace(commit, block=self._now(commit.block)) if hashes else commit
                elif hashes or (self.is_current and old is not None and old.block.file == self.file):
                    yield None

    def _newer(self, lines: Sequence[tuple[int, set[int], Commit | None]], keeps_all: bool) -> dict[int, Commit | None]:
        """{first line: the commit in `_commits` that counts}."""
        if self.is_current:
            return {}
        newer = {
            line: self._if_counts(commit, hashes, keeps_all)
            for line, hashes, _ in lines
            for commit in self.together
            if commit.block.first_line == line
        }
        names = {f"{self._name(line)}.json": (line, hashes) for line, hashes, _ in lines if newer.get(line) is None}
        for name, commit in committed(self.output.path, names):
            line, hashes = names[name]
            newer[line] = self._if_counts(commit, hashes, keeps_all)
        return newer

    def _whole(self, commits: Sequence[Commit | None]) -> list[Commit | None]:
        """The commits, None for those with parts that are missing or short."""
        unknown = [commit for commit in commits if commit is not None and not commit.part_paths <= self.checked.keys()]
        broken = broken_parts(self.output.path, unknown).keys() if unknown else ()
        for part in (part for commit in unknown for part in commit.parts.values() if part.first_row is not None):
            self.checked[part.path] = part.path not in broken
        return [
            c if c is not None and all(self.checked.get(path, path not in broken) for path in c.part_paths) else None
            for c in commits
        ]

    def _of_lines(
        self, found: Iterable[tuple[int, int | None, Commit | None]]
    ) -> Iterator[tuple[int, set[int], Commit | None]]:
        """(first line, hashes of the blocks reported, the commit in the index) of each line that may count."""
        for line, same in itertools.groupby(found, _first):
            hashes, commit = set[int](), None
            for _, hash_, indexed in same:
                hashes |= set() if hash_ is None else {hash_}
                commit = commit or indexed
            if hashes or self.is_current or self.is_excused:
                yield line, hashes, commit

    def _lines_begun(self) -> list[int]:
        """The first lines of the blocks with a commit in `_commits`."""
        if not self.is_begun:
            return []
        key = layout.file_name(self.path)
        names = storage.file_names(storage.join(self.output.path, layout.COMMITS), f"{key}-")
        ends = (name.removesuffix(".json").removeprefix(f"{key}-") for name in names)
        return sorted(int(end) for end in ends if end.isdigit())

    def _name(self, line: int) -> str:
        return layout.block_name(self.path, line)

    def _if_counts(self, commit: Commit | None, hashes: Container[int], keeps_all: bool) -> Commit | None:
        """The commit if it is of this block as it is now."""
        if commit is None:
            return None
        if commit.block.file.path != self.path:
            raise AssertionError(f"two blocks were written as {commit.block.name}; run again with other file names")
        if hashes:
            is_block = commit.fingerprint == self.output.fingerprint and mark(commit.block)[1] in hashes
        else:
            is_block = commit.block.file == self.file or (self.is_excused and keeps_all)
        return commit if is_block else None

    def _now(self, block: BlockId) -> BlockId:
        """The block of the file as it is now: its bytes are the same, and the file may have grown."""
        return block if self.file is None else dataclasses.replace(block, file=self.file)


def _first(item: tuple[int, Any, Any]) -> int:
    return item[0]


class _IndexWriter:
    """Writes commits to the index in shards, and counts what they hold. No more than one shard is in memory."""

    def __init__(self, output: Output, *, is_only: bool) -> None:
        self._output = output
        self._is_only = is_only
        self._lines: list[bytes] = []
        self._files: list[str] = []
        self._of_shard: dict[str, Counter[str]] = {}
        self._is_new = False
        self._ends: dict[str, tuple[str, int]] = {}
        self._shards: list[Shard] = []
        self.views: dict[str, Counter[str]] = {}
        self.counts: Counter[str] = Counter()
        self.listed = array.array("Q")

    def add(self, commit: Commit) -> None:
        """List a commit; those of a group come in the order of its rows."""
        if len(self._lines) == SHARD_COMMITS:
            self._end_shard()
        values = dataclasses.replace(commit, attempt=None).to_json()
        self._lines.append(json.dumps(values, sort_keys=True).encode("ascii"))
        self._files.append(commit.block.file.path)
        self._is_new |= commit.attempt is not None
        self.counts.update(commit.counts)
        for name, part in commit.parts.items():
            if part.begins_file:
                self.listed.append(path_hash(part.path))
            count_part(self._of_shard, name, part)
            count_part(self.views, name, part)
            # A part of a file that is not the next of the last one's is a piece of its own.
            end = (part.path, part.first_row)
            self._of_shard[name].update(pieces=self._ends.get(name) != end or part.first_row is None)
            self._ends[name] = (part.path, (part.first_row or 0) + part.rows)

    def end(self) -> tuple[list[Shard], bytes | None]:
        """(the shards, None); of a run with few blocks what `parts.jsonl` is to hold, which is not written yet."""
        if self._is_only and not self._shards:
            shard = Shard(layout.PARTS, "", "", len(self._lines), self._counted())
            return [shard], b"".join(line + b"\n" for line in self._lines)
        if self._lines:
            self._end_shard()
        return self._shards, None

    def _end_shard(self) -> None:
        facts = {"views": self._counted(), "is_new": self._is_new}
        self._shards.append(write_shard(self._output, self._lines, self._files, suffix=".jsonl", **facts))
        self._lines, self._files, self._of_shard, self._is_new, self._ends = [], [], {}, False, {}

    def _counted(self) -> dict[str, Counter[str]]:
        """Rows, bytes and files of each view in the shard; pieces only if they are not the files."""
        for sizes in self._of_shard.values():
            if sizes["pieces"] == sizes["parts"]:
                del sizes["pieces"]
        return self._of_shard


def _shards_of(reports: Iterable[GroupReport]) -> list[Shard]:
    return [shard for report in reports for shard in report.shards]


def _delete_strays(output_path: str, views: Sequence[View], listed: npt.NDArray[np.uint64]) -> None:
    """Delete the parts that are not listed: an earlier run left them. `listed`: what `path_hash` gives, sorted."""
    folders = [(folder, is_part_file) for folder in (*(part_folder(view) for view in views), layout.REJECTS)]
    folders += [(view.name, is_table_file) for view in views if view.aggregates]
    for folder, is_own in folders:
        names = filter(is_own, storage.file_names(storage.join(output_path, folder)))
        stray = unlisted_paths((f"{folder}/{name}" for name in names), listed)
        storage.delete_files(storage.join(output_path, path) for path in stray)


def _delete_old_index(output_path: str, manifest: Mapping[str, Any]) -> None:
    """Delete what an earlier manifest listed."""
    index = manifest.get("index")
    used = {shard["path"] for shards in (index or {}).values() for shard in shards}
    if index is not None:
        storage.delete_files([storage.join(output_path, layout.PARTS)])
    folder = storage.join(output_path, layout.INDEX)
    old = [name for name in storage.list_folder(folder) if f"{layout.INDEX}/{name}" not in used]
    storage.delete_files(storage.join(folder, name) for name in old)
    if index is None:
        storage.delete_empty_folder(folder)


def _empty_folder(folder: str) -> None:
    """Delete a folder that may have more files than fit in memory."""
    if storage.is_local(folder):
        for batch in storage.in_batches(storage.file_names(folder)):
            storage.delete_files(storage.join(folder, name) for name in batch)
    storage.delete_folder(folder)


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


class GapCheck:
    """Finds the first line of a file that is in no block or in two.

    `has_end`: whether it is read to its end. A missing last block goes undetected if the file does not record where it
    ends (compressed files and Parquet).
    """

    def __init__(self, file: InputFile, record_format: RecordFormat, *, has_end: bool = True) -> None:
        self._file = file
        self._paragraphs = record_format.format == "text" and record_format.record == "paragraph"
        self._has_end = has_end and not storage.is_compressed(file.path) and record_format.format != "parquet"
        # Blank lines before a file's first paragraph are in no block.
        self._line: int | None = None if self._paragraphs else 0
        self._end = 0
        self._problem: str | None = None

    def add(self, block: BlockId) -> None:
        """The next block in the order of its lines."""
        line = block.first_line if self._line is None else self._line
        if self._problem is None and block.first_line > line:
            self._problem = f"lines {line} to {block.first_line - 1} are in no block"
        elif self._problem is None and block.first_line < line:
            self._problem = f"line {block.first_line} is in two blocks"
        self._line, self._end = block.first_line + block.num_lines, block.end_byte

    def end(self) -> str | None:
        """What is wrong, as a message; None if every line is in exactly one block."""
        is_empty = self._paragraphs and self._line is None
        if self._problem is None and self._has_end and not is_empty and self._end != self._file.size:
            self._problem = f"bytes {self._end:,} to {self._file.size:,} are in no block"
        return None if self._problem is None else f"{printable(self._file.path)}: {self._problem}"


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
