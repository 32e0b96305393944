"""What is known of an output folder, as tables of a scratch database, and the questions about it of `catalog.sql`.

That file says what the states of a block are. SQLite keeps the database in a temporary file of its own (about 1 kB for
each block): memory does not depend on the number of files, blocks and parts.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from layerbeam.pipeline.output.changes import Event
from layerbeam.pipeline.output.commits import load_damaged, recorded
from layerbeam.pipeline.output.scratch import Scratch
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, hash_paths, in_index, printable
from layerbeam.transforms.flow.content_index import keys_of, texts_key
from layerbeam.transforms.parts import is_part_file, is_table_file

_PAGE = Path(__file__).with_name("catalog.sql").read_text("utf-8")
_PART_2 = _PAGE.index("-- Part 2:")


class PackedFile(NamedTuple):
    """A file of a pack, and whether the pack has the run's settings."""

    pack: int
    is_of_run: bool
    file: InputFile


class Catalog(Scratch):
    """Call `load` and `add_files`, then `judge`, before what asks for states. OSError if the temporary disk is full.

    `fingerprint`: of the run.
    """

    def __init__(self, output_path: str) -> None:
        self._path = output_path
        self.fingerprint = ""
        super().__init__(_PAGE[:_PART_2])

    def _paths(self, query: str) -> list[str]:
        """The paths of input files that a query gives."""
        return [_path(path) for (path,) in self._run(query)]

    def add_files(self, files: Iterable[InputFile], limited: Mapping[str, int] | None = None) -> None:
        """The input as it is now. `limited`: how many records are read of a file that has more."""
        most = limited or {}
        rows = ((_key(f.path), f.size, f.modified, f.version, f.problem, most.get(f.path)) for f in files)
        self._change("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)

    def add_problems(self, files: Iterable[InputFile]) -> None:
        """Files that could not be read, or not to their end."""
        rows = ((f.problem, _key(f.path)) for f in files)
        self._change("UPDATE files SET problem = ? WHERE path = ?", rows)

    def load(self, folders: Iterable[str] = ()) -> None:
        """The commits and the listing of the output folder. `folders`: of parts that no commit may list.

        What another attempt moves from `_commits` to the index meanwhile is seen, in one of them or in both.
        """
        for batch in storage.in_batches(recorded(self._path, self._has_block)):
            self._add(batch)
        self._change("INSERT INTO damaged VALUES (?)", ((path,) for path in load_damaged(self._path)))
        listed = (path.rpartition("/")[0] for (path,) in self._run("SELECT DISTINCT path FROM parts"))
        for folder in sorted({*folders, *listed}):
            sizes = storage.file_sizes(storage.join(self._path, folder))
            own = ((f"{folder}/{name}", size) for name, size in sizes if is_part_file(name) or is_table_file(name))
            self._change("INSERT OR REPLACE INTO on_disk VALUES (?, ?)", own)

    def _has_block(self, name: str) -> bool:
        return next(self._run("SELECT 1 FROM blocks WHERE name = ?", (name,)), None) is not None

    def _add(self, commits: Sequence[tuple[Commit, bytes]]) -> None:
        first = 1 + next(self._run("SELECT COALESCE(MAX(id), 0) FROM blocks"))[0]
        blocks = list(enumerate(commits, start=first))
        self._change("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)", (_block_row(id_, *one) for id_, one in blocks))
        ranges = ((id_, *_range_row(own)) for id_, (commit, _) in blocks for own in commit.files)
        self._change("INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", ranges)
        parts = (
            (id_, view, part.path, part.bytes) for id_, (commit, _) in blocks for view, part in commit.parts.items()
        )
        self._change("INSERT INTO parts VALUES (?, ?, ?, ?)", parts)

    def judge(self, fingerprint: str = "", *, pruned: Iterable[str] = (), tables_of: int = 0) -> None:
        """Decide which blocks are valid and live.

        `pruned`: files that are gone, and whose rows do not stay. `tables_of`: the attempt whose tables of word types
        count.
        """
        self.fingerprint = fingerprint
        self._change("INSERT INTO pruned VALUES (?)", ((_key(path),) for path in pruned))
        self._change("INSERT INTO run VALUES (?, ?)", [(fingerprint, tables_of)])
        self._run_script(_PAGE[_PART_2:])
        self._drop_overlapping()
        self._change("DELETE FROM live WHERE id IN (SELECT block FROM beyond_limit)")

    def _drop_overlapping(self) -> None:
        """Of blocks in `live` with the same lines leave that of the run's settings and of the latest attempt."""
        rows = """SELECT id, path, first_line, end_line FROM overlapping CROSS JOIN ranges USING (path)
                  JOIN live ON block = id JOIN blocks USING (id) ORDER BY fingerprint <> ?, attempt DESC, id"""
        taken: dict[bytes, list[tuple[int, int]]] = {}
        dropped = []
        for id_, ranges in itertools.groupby(self._run(rows, (self.fingerprint,)), key=lambda row: row[0]):
            own = [(path, (first, end)) for _, path, first, end in ranges]
            if any(first < e and s < end for path, (first, end) in own for s, e in taken.get(path, ())):
                dropped.append((id_,))
            else:
                for path, lines in own:
                    taken.setdefault(path, []).append(lines)
        self._change("DELETE FROM live WHERE id = ?", dropped)

    def incomplete(self) -> dict[str, int]:
        """{path: the first line that is missing} of the files with work left; at the end of a run there must be none.

        Files that can be read are counted only.
        """
        return {_path(path): line for path, line in self._run("SELECT * FROM incomplete")}

    def packed_in_part(self) -> set[str]:
        """Files of packs that a killed run has committed, and with them not all that was to be read together.

        To be packed as in an undisturbed run, these are read together again.
        """
        rows = self._run("SELECT * FROM new_packs")
        in_part = set[str]()
        for together, found in itertools.groupby(rows, key=lambda row: row[0]):
            paths = {_path(path) for _, path in found}
            in_part |= paths if hash_paths(paths) != together else set()
        return in_part

    def packed(self, paths: Iterable[str]) -> Iterator[PackedFile]:
        """Unchanged files among these that a valid pack contains, in the order of the packs."""
        self._change("DELETE FROM asked")
        self._change("INSERT INTO asked VALUES (?)", ((_key(path),) for path in paths))
        rows = list(self._run("SELECT * FROM packed"))
        for pack, is_of_run, path, *state in rows:
            yield PackedFile(pack, bool(is_of_run), InputFile(_path(path), *state))

    def stranded(self) -> Iterator[tuple[int, str]]:
        """(pack, path) of files that cannot be read, or are gone, and whose rows a pack has that is not live."""
        return ((pack, _path(path)) for pack, path in self._run("SELECT * FROM stranded"))

    def content_index(self) -> tuple[int, Iterator[tuple[int, int, int]], Iterator[bytes]]:
        """(the number of records, the records, the lines) of what valid commits hold, for `write_content_index`."""
        self._change("INSERT INTO content_index SELECT * FROM offsets")
        count = next(self._run("SELECT COUNT(*) + COUNT(texts_key) FROM ranges JOIN content_index USING (block)"))[0]
        lines = (line for (line,) in self._run("SELECT line FROM valid JOIN blocks USING (id) ORDER BY name, id"))
        return count, self._run("SELECT * FROM index_records"), lines

    def done(self, path: str) -> Iterator[tuple[bool, int, int, int, int, int]]:
        """(is of the run's settings, block, first byte, end, records, texts) of live blocks of an unchanged file."""
        query = "SELECT is_of_run, block, first_byte, end_byte, records, texts FROM done WHERE path = ? ORDER BY 3"
        return self._run(query, (_key(path),))

    def views_of(self, block: int) -> set[str]:
        """The views that a block has parts of."""
        return {view for (view,) in self._run("SELECT view FROM parts WHERE block = ?", (block,))}

    def line(self, block: int) -> bytes:
        """The commit of a block."""
        return bytes(next(self._run("SELECT line FROM blocks WHERE id = ?", (block,)))[0])

    def texts_and_tokens(self) -> tuple[int, int]:
        """The texts and tokens of live blocks of the run's settings."""
        query = "SELECT COALESCE(SUM(texts), 0), COALESCE(SUM(tokens), 0) FROM live_ranges WHERE is_of_run"
        texts, tokens = next(self._run(query))
        return texts, tokens

    def fingerprints(self) -> set[str]:
        """The fingerprints of valid blocks."""
        return {value for (value,) in self._run("SELECT DISTINCT fingerprint FROM blocks JOIN valid USING (id)")}

    def versions(self) -> set[tuple[str, str]]:
        """(path, version) of all files of which a block is recorded."""
        return {(_path(path), version) for path, version in self._run("SELECT DISTINCT path, version FROM ranges")}

    def pruned(self) -> list[str]:
        """The missing files whose rows are deleted."""
        return self._paths("SELECT path FROM pruned ORDER BY 1")

    def missing(self) -> list[str]:
        """Files of earlier runs that are no input any more."""
        return self._paths("SELECT DISTINCT path FROM missing ORDER BY 1")

    def contents_of_missing(self) -> dict[str, tuple[int, set[int]]]:
        """{path: (size, what stands for its bytes, as `keys_of` has it)} of these files, as recorded last."""
        found: dict[bytes, tuple[Any, set[int]]] = {}
        for path, *state, content in self._run(
            "SELECT path, size, modified, version, content_key FROM missing ORDER BY block"
        ):
            if path not in found or found[path][0] != state:
                found[path] = state, set()
            found[path][1].add(content)
        return {_path(path): (state[0], contents) for path, (state, contents) in found.items()}

    def num_files(self) -> int:
        """How many files blocks are recorded of."""
        return int(next(self._run("SELECT COUNT(DISTINCT path) FROM ranges"))[0])

    def num_live_blocks(self) -> int:
        """How many blocks have rows that stay."""
        return int(next(self._run("SELECT COUNT(*) FROM live"))[0])

    def has_input(self) -> bool:
        """Whether there are input files now. A shard may have none."""
        return bool(next(self._run("SELECT EXISTS (SELECT 1 FROM files)"))[0])

    def missing_and_live(self) -> list[str]:
        """Missing files whose rows stay."""
        return self._paths("SELECT DISTINCT path FROM missing JOIN live ON block = id")

    def problems(self) -> dict[str, str]:
        """Why files could not be read, or not to their end."""
        return {_path(path): why for path, why in self._run("SELECT path, problem FROM files WHERE problem <> ''")}

    def lost(self) -> list[str]:
        """Missing files, rows of which are damaged, unless their rows are deleted anyway."""
        return self._paths("SELECT DISTINCT path FROM lost")

    def invalid(self) -> set[str]:
        """Unchanged files with a block whose parts are missing or short."""
        return set(self._paths("SELECT DISTINCT path FROM invalid"))

    def lines(self) -> Iterator[bytes]:
        """The live commits in the order of the rows: the lines of the checkpoint."""
        for line, attempt in self._run("SELECT line, attempt FROM live JOIN blocks USING (id) ORDER BY name"):
            yield in_index(line) if attempt else line

    @property
    def has_rows(self) -> bool:
        """Whether there are valid blocks of the run's settings."""
        query = "SELECT 1 FROM valid JOIN blocks USING (id) WHERE fingerprint = ?"
        return bool(self.fingerprint) and next(self._run(query, (self.fingerprint,)), None) is not None

    def feed(self) -> Iterator[Event]:
        """The change feed: the rows of the checkpoint, as it was loaded, against those of live blocks."""
        rows = self._run("SELECT * FROM feed")
        for (came, path, first, end, content), same in itertools.groupby(rows, key=lambda row: row[:5]):
            yield Event(
                bool(came), printable(_path(path)), first, end - first, content, tuple(view for *_, view in same)
            )

    def input_sizes(self) -> dict[str, int]:
        """The size of each file that live blocks were read from."""
        return {_path(path): size for path, size in self._run("SELECT path, size FROM live_ranges ORDER BY name")}

    def text_bytes(self) -> int:
        """The decompressed bytes that live blocks were read from."""
        return int(next(self._run("SELECT COALESCE(SUM(end_byte - first_byte), 0) FROM live_ranges"))[0])

    def paths_of_parts(self, view: str) -> Iterator[str]:
        """The parts of the live blocks in a view, in the order of the rows."""
        query = "SELECT path FROM parts JOIN live ON block = id JOIN blocks USING (id) WHERE view = ? ORDER BY name"
        return (path for (path,) in self._run(query, (view,)))

    def orphans(self) -> Iterator[str]:
        """Files on the disk that no live block lists."""
        return (path for (path,) in self._run("SELECT path FROM orphans"))

    def is_as_listed(self) -> bool:
        """Whether the checkpoint lists all live blocks, and only these, and the disk has no other parts.

        But a view without rows has an empty part.
        """
        query = """SELECT (SELECT COUNT(*) FROM blocks) = (SELECT COUNT(*) FROM live)
                   AND NOT EXISTS (SELECT 1 FROM blocks WHERE attempt > 0)"""
        with_rows = {view for (view,) in self._run("SELECT DISTINCT view FROM parts JOIN live ON block = id")}
        orphans = (path.split("/") for path in self.orphans())
        return bool(next(self._run(query))[0]) and all(
            name.startswith(f"{layout.EMPTY}.") and folder not in with_rows for *_, folder, name in orphans
        )


def open_catalog(output_path: str) -> Catalog:
    """The catalog of a folder without an input: all valid blocks are live."""
    catalog = Catalog(output_path)
    catalog.load()
    catalog.judge()
    return catalog


class Totals:
    """What commits hold: `counts`; rows, bytes and parts of each view; and the texts by what encoded them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.views: dict[str, Counter[str]] = collections.defaultdict(Counter)
        self.made_with: Counter[str] = Counter()

    def count(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Pass the lines of commits on, counted."""
        for line in lines:
            commit = json.loads(line)
            for file in commit["files"]:
                counts = file.get("counts", {})
                self.counts.update(counts)
                self.made_with[commit.get("made_with", "unknown")] += metrics.embedded_texts(counts)
            for view, part in commit["parts"].items():
                self.views[view].update(rows=part["rows"], bytes=part["bytes"], parts=1)
            yield line


def _block_row(id_: int, commit: Commit, line: bytes) -> tuple[Any, ...]:
    """A row of the table `blocks`."""
    content = hashlib.sha256("".join(f"{own.sha256}{own.is_last}" for own in commit.files).encode()).hexdigest()
    return id_, commit.name, content, commit.fingerprint, commit.attempt or 0, commit.together, line


def _range_row(own: FileRange) -> tuple[Any, ...]:
    """A row of the table `ranges`, without the block."""
    file, end_line = own.file, own.first_line + own.num_lines
    lines, data = (own.first_line, end_line), (own.first_byte, own.end_byte)
    records, tokens = (own.counts.get(name, 0) for name in (metrics.RECORDS, metrics.TOKENS))
    counts = records, metrics.embedded_texts(own.counts), tokens
    return (
        _key(file.path),
        file.size,
        file.modified,
        file.version,
        *lines,
        *data,
        own.is_last,
        *counts,
        *keys_of(own),
        texts_key(own),
    )


def _key(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _path(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
