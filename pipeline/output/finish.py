"""The end of a run: the index, `manifest.json` and `_SUCCESS`, in this order.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.config.identity import RunIdentity
from layerbeam.pipeline.output.attempts import newer_attempt
from layerbeam.pipeline.output.canaries import find_canaries
from layerbeam.pipeline.output.catalog import Catalog, Totals
from layerbeam.pipeline.output.changes import write_changes
from layerbeam.pipeline.output.commits import COMPACTED, compact
from layerbeam.pipeline.output.manifest import describe_views, load_manifest
from layerbeam.pipeline.output.rejects import count_rejects, remedy
from layerbeam.pipeline.output.run_log import RunLog
from layerbeam.pipeline.output.word_types import WordTypeTables
from layerbeam.pipeline.output.work import LOST_WITH_ITS_FILE, WorkList
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import InputFile, parse_commit, printable
from layerbeam.transforms.parts import PART_FORMATS, folders_of, read_tables
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import NOT_COPIED, Move, copy_files, write_empty_part
from layerbeam.transforms.views.columns import schema, splits_by
from layerbeam.transforms.views.view import ViewSpec

# 64 bits of a hash for each: 8 MB. So many different ids share a hash once in 37 million runs.
MAX_COMPARED_IDS = 1_000_000
# Without a setting: of all records, and of those that the encoder fails on.
_REJECT_RATES = 0.01, 0.001
# A larger file is not kept in memory while it is written again.
_KEPT_BYTES = 64 << 20
# The end of another attempt moves commits to the index while this one reads both.
_LOOKS = 3
# Of files whose rows were deleted so many are named.
_NAMED_FILES = 10
_LOST = "what was written of it is missing or short; run again"
MISSING = (
    "is missing; its rows stay, because more files are missing than input.max_missing allows: restore them, raise it "
    "or give --prune-missing"
)


class SupersededError(Exception):
    """A newer run is active in the folder, or has finalized it; the argument is its number."""


@dataclasses.dataclass
class RunEnd:
    """The steps of the end of a run, once all blocks are done; the last one writes the manifest.

    Many workers compact the log and make the tables of `word_type` views; one loads what is known of the folder and
    writes the rest. Nothing is done if a newer run is active in the folder, or has finalized it.

    `run_number`: of the run whose end is recorded here, because the program that submitted it may have exited. If that
    has not, it writes the record once more, with what only it knows.
    """

    output: Output
    views: tuple[ViewSpec, ...]
    run_identity: RunIdentity
    max_reject_rate: float | None
    text_field: str | list[str]
    run_number: int

    def do_all(self, problems: Iterable[InputFile | None]) -> Iterator[str]:
        """Do all steps in one place; gives the manifest as JSON. `problems`: files that could not be read."""
        compacted = [self.compact(*element) for element in self.list_commits(0, problems)]
        if self.has_tables and self.has_work_list:
            self.tables.make_all()
        yield from self.finish_compacted((0, [found for _, found in compacted]))

    @property
    def has_tables(self) -> bool:
        """Whether a view is a table of word types."""
        return any(view.aggregates for view in self.views)

    @property
    def has_work_list(self) -> bool:
        """Whether the work list of the attempt is there: it is deleted when the run is finished."""
        return self._work_list.exists

    @property
    def tables(self) -> WordTypeTables:
        """The steps that make the tables."""
        return WordTypeTables(self.output, self.views, self.run_number, self.open)

    def list_commits(
        self, _: int, problems: Iterable[InputFile | None]
    ) -> Iterator[tuple[tuple[str, int, int] | None, list[InputFile]]]:
        """(None, all problems); if there are many commits, (where a file has the names of some, no problem).

        The local runner keeps in memory what it shuffles, and more than once.
        """
        yield None, [problem for problem in problems if problem is not None]
        with self._end_if_superseded():
            self._refuse_if_superseded()  # then workers have left blocks to the newer run
            path, places = self.output.path, list[tuple[int, int]]()
            batches = storage.in_batches(storage.file_names(storage.join(path, layout.COMMITS)), COMPACTED)
            first = next(batches, [])
            if len(first) < COMPACTED:
                return
            with storage.write_atomically(lambda sha256: storage.join(path, self._names(sha256))) as file:
                for batch in itertools.chain([first], batches):
                    data = json.dumps(batch).encode("ascii")
                    places.append((file.num_bytes, len(data)))
                    file.write(data)
            yield from (((self._names(file.sha256), *place), []) for place in places)

    def _names(self, sha256: str) -> str:
        return layout.names_path(self.run_number, sha256)

    def compact(self, names: tuple[str, int, int] | None, problems: list[InputFile]) -> tuple[int, list[InputFile]]:
        """Join the commits of one element of `list_commits` to one file; passes the problems on, under one key."""
        if names is not None:
            path, offset, size = names
            with storage.open_binary(storage.join(self.output.path, path), offset + size) as file:
                file.seek(offset)
                compact(self.output.path, storage.parse_json(file.read(size)))
        return 0, problems

    def finish_compacted(self, element: tuple[int, Iterable[list[InputFile]]], _: Iterable[Any] = ()) -> Iterator[str]:
        """The manifest as JSON, after the log is compacted; nothing if a newer run has the folder."""
        with self._end_if_superseded():
            # JSON, because Beam's coder for strings refuses a path that is not UTF-8; JSON escapes it.
            yield json.dumps(self.finish(itertools.chain.from_iterable(element[1])))

    @contextlib.contextmanager
    def _end_if_superseded(self) -> Iterator[None]:
        path, number = self.output.path, self.run_number
        try:
            yield
        except SupersededError as error:
            # The newer run finalizes the folder: to do it here too would delete what it is writing.
            logging.getLogger(__name__).warning("%s: run %s leaves the folder to run %s", path, number, error)
            RunLog.end_unattended(path, number, "superseded")

    def _refuse_if_superseded(self) -> None:
        newer = newer_attempt(self.output.path, self.run_number)
        if newer is not None:
            raise SupersededError(newer)

    @property
    def _work_list(self) -> WorkList:
        return WorkList(self.output.path, self.run_number)

    def open(self, problems: Iterable[InputFile] = ()) -> Catalog:
        """The catalog of the folder, with the input that the attempt found."""
        catalog = Catalog(self.output.path)
        pruned = self._work_list.fill(catalog)
        catalog.add_problems(problems)
        catalog.load(folders_of(self.views))
        catalog.judge(self.output.fingerprint, pruned=pruned, tables_of=self.run_number)
        return catalog

    def finish(self, problems: Iterable[InputFile] = ()) -> Mapping[str, Any]:
        """Finish the run; returns the manifest. `problems`: of the files that workers could not read.

        AssertionError if records are missing.
        """
        self._refuse_if_superseded()
        if not self.has_work_list:
            finished = load_manifest(self.output.path)
            if finished is not None:  # an engine has repeated this stage
                return finished
        catalog, left_out = self._open_and_check(list(problems))
        # Another attempt may have ended meanwhile, and its marker does not stand for what follows.
        storage.delete_files(self.output.path, [layout.SUCCESS])
        totals = Totals()
        path, number, lines = self.output.path, self.run_number, totals.count(catalog.lines())
        _write(self.output, layout.PARTS, lines, lambda after: write_changes(path, number, after, catalog.feed()))
        manifest = self._describe(catalog, totals, left_out)
        self._refuse_if_superseded()
        empty = {
            write_empty_part(self.output, view).path for view in self.views if not totals.views[view.name]["parts"]
        }
        self._delete_orphans(path for path in catalog.orphans() if path not in empty)
        _write(self.output, layout.MANIFEST, [json.dumps(manifest, indent=1).encode("ascii")])
        self._end(is_complete=manifest["complete"], pruned=catalog.pruned())
        return manifest

    def _open_and_check(self, problems: Collection[InputFile]) -> tuple[Catalog, dict[str, str]]:
        """(the catalog, opened up to three times; why rows of some files are missing or old)."""
        for look in range(_LOOKS):
            catalog = self.open(problems)
            if self._keep_rows(catalog):
                catalog = self.open(problems)
            left_out = {file.path: file.problem for file in problems} | catalog.problems()
            left_out |= dict.fromkeys(catalog.missing_and_live(), MISSING)
            left_out |= dict.fromkeys(catalog.lost(), LOST_WITH_ITS_FILE)
            missing, invalid = catalog.incomplete(), catalog.invalid()
            left_out |= dict.fromkeys(missing.keys() & invalid, _LOST)
            gaps = missing.keys() - invalid
            if not missing or look == _LOOKS - 1:
                break
        if gaps:
            path = min(gaps)
            raise AssertionError(
                f"records are missing: {printable(path)}: line {missing[path]} and what follows it is in no block; run "
                "again, and please report it"
            )
        return catalog, dict(sorted(left_out.items()))

    def _keep_rows(self, catalog: Catalog) -> bool:
        """Copy the rows of missing or unreadable files out of packs that are not live. Whether it copied any."""
        copied = False
        for pack, found in itertools.groupby(list(catalog.stranded()), key=lambda one: one[0]):
            commit, paths = parse_commit(catalog.line(pack)), {path for _, path in found}
            if commit is not None:
                with contextlib.suppress(*NOT_COPIED):  # damaged: the rows are lost
                    moves = [Move(own, own) for own in commit.files if own.file.path in paths]
                    BlockStore(self.output).put(copy_files(self.output, self.views, commit, moves))
                    copied = True
        return copied

    def _describe(self, catalog: Catalog, totals: Totals, left_out: Mapping[str, str]) -> dict[str, Any]:
        """The manifest."""
        path, counts = self.output.path, dict(sorted(totals.counts.items()))
        problem = metrics.unbalanced(counts)
        if problem is not None:
            raise AssertionError(f"records are missing: {problem}")
        compared = {}
        if metrics.DUPLICATE_IDS in counts:
            duplicates = self._count_duplicate_ids(catalog, totals)
            compared = {"ids_compared_in": "block" if duplicates is None else "run"}
            counts[metrics.DUPLICATE_IDS] = counts[metrics.DUPLICATE_IDS] if duplicates is None else duplicates
        reasons = {} if counts.get(metrics.EMBEDDED) else count_rejects(path, catalog.paths_of_parts(layout.REJECTS))
        given = (self.max_reject_rate, self.text_field)
        problems = find_problems(left_out, counts, reasons, *given, has_input=catalog.has_input())
        canaries = find_canaries(path, self.output.fingerprint)
        described = describe_views(self.views)
        for name, view in described.items():
            view |= {key: totals.views[name][key] for key in ("rows", "bytes", "parts")}
        return {
            **self.run_identity,
            "complete": not problems,
            "problems": problems,
            "counts": counts,
            "made_with": dict(sorted(totals.made_with.items())),
            **compared,
            "views": described,
            "left_out": left_out,
            **({} if canaries is None else {"canaries": canaries}),
        }

    def _count_duplicate_ids(self, catalog: Catalog, totals: Totals) -> int | None:
        """Records of the whole run with the id of an earlier one, from the column of the smallest columnar view.

        None if that would take much memory or time: over a million records, or no columnar view with all records.
        Duplicates within one block are in the counts of its commit.
        """
        views = [
            view
            for view in self.views
            if PART_FORMATS[view.format].is_columnar
            and view.level in ("token", "text", "record")
            and view.keep_words is None
        ]
        if not views or totals.counts[metrics.EMBEDDED] > MAX_COMPARED_IDS:
            return None
        smallest = min(views, key=lambda view: totals.views[view.name]["rows"])
        paths = (storage.join(self.output.path, path) for path in catalog.paths_of_parts(smallest.name))
        hashes = np.fromiter((value for path in paths for value in _id_hashes(path, schema(smallest))), np.uint64)
        return len(hashes) - len(np.unique(hashes))

    def _delete_orphans(self, orphans: Iterable[str]) -> None:
        """Delete the parts that are not listed: an earlier run left them."""
        names = {view.name for view in self.views}
        for folder, paths in itertools.groupby(orphans, key=lambda path: path.rpartition("/")[0]):
            if folder in folders_of(self.views):
                start = folder if folder in names else ""  # a view's folder may be a link to another disk
                inner = (path.removeprefix(f"{start}/") for path in paths)
                storage.delete_files(storage.join(self.output.path, start), inner)

    def _end(self, *, is_complete: bool, pruned: Sequence[str]) -> None:
        """Delete the commits, which the index lists, and write the marker of a complete run."""
        path = self.output.path
        self._refuse_if_superseded()
        _empty_folder(path, layout.COMMITS)
        folders = [storage.join(path, name) for name in ("", *folders_of(self.views))]
        for folder in folders:
            storage.delete_unfinished(folder)
        storage.delete_files(path, [layout.DAMAGED])
        if is_complete:
            # Without it a power cut could leave the marker over empty parts. A view's folder may be on another disk.
            storage.flush(folders)
            self._refuse_if_superseded()
            storage.create_if_absent(storage.join(path, layout.SUCCESS), b"")
        some = {"files": len(pruned), "first": [printable(name) for name in pruned[:_NAMED_FILES]]}
        RunLog.end_unattended(path, self.run_number, "done", pruned=some)
        found = map(layout.attempt_of_list, storage.file_names(storage.join(path, layout.RUNS)))
        ended = (name for number, name in filter(None, found) if number <= self.run_number)
        storage.delete_files(path, [*ended, layout.canaries_path(self.output.fingerprint)])


def find_problems(
    left_out: Mapping[str, str],
    counts: Mapping[str, int],
    reasons: Mapping[str, int],
    max_reject_rate: float | None,
    text_field: str | list[str],
    *,
    has_input: bool = True,
) -> list[str]:
    """Why a run is not complete. `reasons`: of rejects, the most frequent first, if nothing was embedded.

    `has_input`: whether there are input files, which a shard may lack.
    """
    if not (left_out or has_input):
        return []
    problems = [f"{printable(path)}: {reason}" for path, reason in sorted(left_out.items())]
    names = (metrics.RECORDS, metrics.REJECTED, metrics.REJECTED_BY_ENCODER)
    records, rejected, by_encoder = (counts.get(name, 0) for name in names)
    lines = records + counts.get(metrics.MORE_LINES, 0)
    rejected_lines = rejected + counts.get(metrics.REJECTED_LINES, 0)
    of_all, of_encoder = _REJECT_RATES if max_reject_rate is None else (max_reject_rate,) * 2
    if not counts.get(metrics.EMBEDDED, 0) and (records or not problems):
        problems.append(f"nothing was embedded: {_why_nothing(counts, reasons, text_field)}")
    elif rejected > of_all * records or rejected_lines > of_all * lines:
        of_lines = f" ({rejected_lines:,} of {lines:,} lines)" if lines > records else ""
        allowed = f"more than max_reject_rate {of_all:g} allows"
        problems.append(f"{rejected:,} of {records:,} records were rejected{of_lines}: {allowed}")
    elif by_encoder > of_encoder * records:
        problems.append(
            f"the encoder failed on {by_encoder:,} of {records:,} records, more than {of_encoder:g}: look at the "
            "reasons in rejects/; if they are the texts' fault, set input.max_reject_rate"
        )
    return problems


def _why_nothing(counts: Mapping[str, int], reasons: Mapping[str, int], text_field: str | list[str]) -> str:
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


def _empty_folder(output_path: str, folder: str) -> None:
    """Delete a folder that may have more files than fit in memory."""
    if storage.is_local(output_path):
        for batch in storage.in_batches(storage.file_names(storage.join(output_path, folder))):
            storage.delete_files(output_path, (f"{folder}/{name}" for name in batch))
    storage.delete_folder(output_path, folder)


def _write(output: Output, name: str, lines: Iterable[bytes], first: Callable[[str], None] = lambda _: None) -> None:
    """Write one of the run's own files. `first`: called with its SHA-256, before it replaces that of an earlier run."""
    path = storage.join(output.path, name)
    found = storage.stat_if_exists(path)
    before = storage.read_if_exists(path) if found is not None and found.size <= _KEPT_BYTES else None
    try:
        with storage.write_atomically(path, sync=True) as file:
            for line in lines:
                file.write(line + b"\n")
            first(file.sha256)
    except Exception:
        if before is not None and storage.read_if_exists(path) != before:  # a store without atomic writes has lost it
            with storage.write_atomically(path) as file:
                file.write(before)
        raise


def _id_hashes(path: str, columns: pa.Schema) -> Iterator[int]:
    """64 bits for the id of each record in a part. The rows of a record are adjacent."""
    table = pa.concat_tables(read_tables(path, columns, ["file", "line", "id"]))
    first = splits_by(table, ["file", "line"])[:-1]
    for value in table["id"].take(first).drop_null().to_pylist():
        yield int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
