"""What is known of an output folder, as tables of a scratch database: `find` and `finish` are queries over it.

Three lists are all that is known: the input files as they are now, the recorded commits (the files in `_commits`, then
`parts.jsonl`), and the files on the disk. A block is *sound* if its parts have their full size; *kept* if also none of
its files has changed. A file is *complete* if kept blocks cover it from the first line to the last, without a gap.

SQLite keeps the database in a temporary file of its own (about 1 kB for each block): memory does not depend on the
number of files, blocks and parts.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from layerbeam.pipeline.output.changes import Event
from layerbeam.pipeline.output.commits import load_damaged, recorded
from layerbeam.pipeline.output.scratch import Scratch
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, hash_paths, in_index, printable
from layerbeam.transforms.flow.content_index import keys_of, texts_key
from layerbeam.transforms.parts import is_part_file, is_table_file

_TABLES = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
CREATE TABLE files(                                   -- the input now
    path BLOB PRIMARY KEY, size INT, modified REAL, version TEXT, problem TEXT, max_records INT) WITHOUT ROWID;
CREATE TABLE blocks(                                  -- as recorded; attempt 0: in the index
    id INTEGER PRIMARY KEY, name TEXT, content TEXT, fingerprint TEXT, attempt INT, together TEXT, line BLOB);
CREATE INDEX blocks_of_name ON blocks(name);
CREATE TABLE ranges(                                  -- what blocks hold of files
    block INT, path BLOB, size INT, modified REAL, version TEXT,
    first_line INT, end_line INT, first_byte INT, end_byte INT, is_last INT, records INT, texts INT, tokens INT,
    content_key INT, place_key INT, texts_key INT);   -- of `keys_of`, `texts_key`
CREATE TABLE parts(block INT, view TEXT, path TEXT, bytes INT);
CREATE TABLE damaged(path TEXT PRIMARY KEY) WITHOUT ROWID;  -- as `verify --checksums` found
CREATE TABLE pruned(path BLOB PRIMARY KEY) WITHOUT ROWID;  -- files that are gone, and whose rows go
CREATE TABLE on_disk(path TEXT PRIMARY KEY, bytes INT) WITHOUT ROWID;
"""

# Of several commits of a block with the same content the first one is kept, which is that of the index: so two attempts
# that end at once keep the same. The content may differ at the end of what `input.limit` allows, or where an attempt
# could not see that it is the last of its file: then the last one is.
# Of a file that could not be read to its end, what was read counts, if anything was; else its old rows stay. So do
# those of files that are gone.
_JUDGED = """
CREATE INDEX ranges_of_block ON ranges(block);
CREATE INDEX ranges_of_file ON ranges(path);
CREATE INDEX parts_of_block ON parts(block);
CREATE INDEX parts_of_path ON parts(path);
CREATE TABLE packs(block INTEGER PRIMARY KEY);
INSERT INTO packs SELECT block FROM ranges GROUP BY block HAVING COUNT(*) > 1;
CREATE TABLE sound(id INTEGER PRIMARY KEY);
INSERT INTO sound SELECT id FROM blocks WHERE NOT EXISTS (
    SELECT 1 FROM parts LEFT JOIN on_disk USING (path) WHERE block = id AND (
        on_disk.bytes IS NOT parts.bytes OR (attempt = 0 AND path IN (SELECT path FROM damaged))));
CREATE VIEW same AS SELECT r.rowid AS range, r.* FROM ranges r JOIN files USING (path)
    WHERE (files.size, files.modified, files.version) = (r.size, r.modified, r.version);
CREATE TABLE read AS SELECT path FROM files
    WHERE problem = '' OR path IN (SELECT path FROM same JOIN sound ON block = id);
CREATE TABLE state(id INTEGER PRIMARY KEY, changed INT, pruned INT);
INSERT INTO state SELECT block,
        SUM(path IN (SELECT path FROM read) AND r.rowid NOT IN (SELECT range FROM same)),
        SUM(path IN (SELECT path FROM pruned))
    FROM ranges r JOIN sound ON block = id GROUP BY block;
CREATE TABLE kept(id INTEGER PRIMARY KEY);
INSERT INTO kept SELECT id FROM (
    SELECT id, ROW_NUMBER() OVER (PARTITION BY name ORDER BY fingerprint <> :fingerprint, attempt DESC) AS place FROM (
        SELECT id, name, fingerprint, attempt, ROW_NUMBER() OVER (
            PARTITION BY name, fingerprint, content ORDER BY attempt, id) AS place
        FROM state JOIN blocks USING (id) WHERE NOT changed AND NOT pruned)
    WHERE place = 1) WHERE place = 1;
INSERT INTO kept SELECT MIN(id) FROM sound JOIN blocks USING (id)  -- of tables, which hold no file
    WHERE attempt = :tables_of AND id NOT IN (SELECT block FROM ranges) GROUP BY name;
"""

_OVERLAPPING = """
SELECT DISTINCT path FROM (
    SELECT path, first_line, end_line, MAX(end_line) OVER (
        PARTITION BY path ORDER BY first_line, end_line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM ranges JOIN kept ON block = id) WHERE before > first_line
"""

_BEYOND_LIMIT = """
DELETE FROM kept WHERE id IN (SELECT block FROM (
    SELECT block, max_records, SUM(records) OVER (PARTITION BY path ORDER BY first_line) AS records
    FROM ranges JOIN kept ON block = id JOIN files USING (path) WHERE max_records IS NOT NULL)
    WHERE records > max_records)
"""

# Files that kept blocks do not cover, and the first line that is missing; None if all to the last one are.
_INCOMPLETE = """
WITH pieces AS (
    SELECT path, first_line, end_line, is_last, records,
        LAG(end_line, 1, 0) OVER (PARTITION BY path ORDER BY first_line) AS expected
    FROM ranges JOIN kept ON block = id JOIN blocks USING (id) WHERE fingerprint = ?)
SELECT path, COALESCE(MIN(CASE WHEN expected <> first_line THEN expected END), MAX(end_line), 0) AS line
FROM files LEFT JOIN pieces USING (path) WHERE problem = ''
GROUP BY path HAVING COUNT(first_line) = 0 OR SUM(expected <> first_line) > 0
    OR (max_records IS NULL AND MAX(is_last) = 0) OR SUM(records) <> max_records
ORDER BY path
"""

# Of the files in `asked`, those that a sound pack has as they are now, in the newest one.
_PACKED = """
SELECT block, fingerprint = ?, path, size, modified, version FROM (
    SELECT same.*, fingerprint, ROW_NUMBER() OVER (PARTITION BY path ORDER BY attempt DESC, block DESC) AS place
    FROM same JOIN sound ON block = id JOIN blocks USING (id)
    WHERE block IN (SELECT block FROM packs) AND path IN (SELECT path FROM asked))
WHERE place = 1 ORDER BY block, range
"""

# Files that cannot be read, or are gone, and whose newest rows are in a sound pack that is not kept.
_STRANDED = """
SELECT block, path FROM (
    SELECT r.rowid AS range, block, path, ROW_NUMBER() OVER (
        PARTITION BY path ORDER BY block IN (SELECT id FROM kept) DESC, attempt DESC, block DESC) AS place
    FROM ranges r JOIN sound ON block = id JOIN blocks USING (id)
    WHERE path NOT IN (SELECT path FROM read) AND path NOT IN (SELECT path FROM pruned))
WHERE place = 1 AND block IN (SELECT block FROM packs) AND block NOT IN (SELECT id FROM kept)
ORDER BY block, range
"""

# Where the line of each sound block is, if these follow each other: those of a file are together.
_KNOWN = """
INSERT INTO known SELECT id, SUM(LENGTH(line) + 1) OVER (
    ORDER BY name, id ROWS UNBOUNDED PRECEDING) - LENGTH(line) - 1 FROM sound JOIN blocks USING (id)
"""

_RECORDS = """
WITH keys AS (SELECT content_key AS key, place_key, block FROM ranges
    UNION ALL SELECT texts_key, place_key, block FROM ranges WHERE texts_key IS NOT NULL)
SELECT key, place_key, offset FROM keys JOIN known USING (block) JOIN blocks ON id = block
ORDER BY key, place_key, attempt DESC, id DESC
"""

# Lines whose rows the index of an earlier run lists and that are not kept, and those that are new, by view.
_EVENTS = """
WITH of_views AS (SELECT id, path, first_line, end_line, content_key, view
        FROM blocks JOIN ranges ON block = id JOIN (SELECT block, view FROM parts) USING (block)
        WHERE view <> :rejects AND INSTR(view, '/') = 0),
    went AS (SELECT path, first_line, end_line, content_key, view FROM of_views
        WHERE id IN (SELECT id FROM blocks WHERE attempt = 0 EXCEPT SELECT id FROM kept)),
    came AS (SELECT path, first_line, end_line, content_key, view FROM of_views
        WHERE id IN (SELECT id FROM kept JOIN blocks USING (id) WHERE attempt > 0))
SELECT 0, * FROM (SELECT * FROM went EXCEPT SELECT * FROM came)
UNION ALL SELECT 1, * FROM (SELECT * FROM came EXCEPT SELECT * FROM went) ORDER BY 2, 3, 1, 4, 5, 6
"""


class PackedFile(NamedTuple):
    """A file of a pack, and whether the pack has the run's settings."""

    pack: int
    is_of_run: bool
    file: InputFile


class Catalog(Scratch):
    """Call `load`, then `judge`, before any query. OSError if the disk of temporary files is full.

    `fingerprint`: of the run.
    """

    def __init__(self, output_path: str) -> None:
        self._path = output_path
        self.fingerprint = ""
        super().__init__(_TABLES)

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
        """Decide which blocks are kept.

        `pruned`: files that are gone, and whose rows do not stay. `tables_of`: the attempt whose tables of word types
        count.
        """
        self.fingerprint = fingerprint
        self._change("INSERT INTO pruned VALUES (?)", ((_key(path),) for path in pruned))
        values = {"fingerprint": fingerprint, "tables_of": tables_of}
        self._run_script(_JUDGED, values)
        self._drop_overlapping()
        self._change(_BEYOND_LIMIT)

    def _drop_overlapping(self) -> None:
        """Of kept blocks with the same lines keep that of the run's settings and of the latest attempt."""
        self._change(f"CREATE TEMP TABLE overlapping AS {_OVERLAPPING}")
        rows = """SELECT id, path, first_line, end_line FROM overlapping CROSS JOIN ranges USING (path)
                  JOIN kept ON block = id JOIN blocks USING (id) ORDER BY fingerprint <> ?, attempt DESC, id"""
        taken: dict[bytes, list[tuple[int, int]]] = {}
        dropped = []
        for id_, ranges in itertools.groupby(self._run(rows, (self.fingerprint,)), key=lambda row: row[0]):
            own = [(path, (first, end)) for _, path, first, end in ranges]
            if any(first < e and s < end for path, (first, end) in own for s, e in taken.get(path, ())):
                dropped.append((id_,))
            else:
                for path, lines in own:
                    taken.setdefault(path, []).append(lines)
        self._change("DELETE FROM kept WHERE id = ?", dropped)

    def incomplete(self) -> dict[str, int]:
        """{path: the first line that is missing} of the files with work left; at the end of a run there must be none.

        Files that can be read are counted only.
        """
        return {_path(path): line for path, line in self._run(_INCOMPLETE, (self.fingerprint,))}

    def packed_in_part(self) -> set[str]:
        """Files of packs that a killed run has committed, and with them not all that was to be read together.

        To be packed as in an undisturbed run, these are read together again.
        """
        rows = self._run(
            "SELECT together, path FROM blocks JOIN kept USING (id) JOIN ranges ON block = id "
            "WHERE together IS NOT NULL AND attempt > 0 ORDER BY 1, 2"
        )
        in_part = set[str]()
        for together, found in itertools.groupby(rows, key=lambda row: row[0]):
            paths = {_path(path) for _, path in found}
            in_part |= paths if hash_paths(paths) != together else set()
        return in_part

    def packed(self, paths: Iterable[str]) -> Iterator[PackedFile]:
        """Unchanged files among these that a sound pack contains, in the order of the packs."""
        self._change("CREATE TEMP TABLE asked(path BLOB PRIMARY KEY)")
        self._change("INSERT INTO asked VALUES (?)", ((_key(path),) for path in paths))
        rows = list(self._run(_PACKED, (self.fingerprint,)))
        self._change("DROP TABLE asked")
        for pack, is_of_run, path, *state in rows:
            yield PackedFile(pack, bool(is_of_run), InputFile(_path(path), *state))

    def stranded(self) -> Iterator[tuple[int, str]]:
        """(pack, path) of files that cannot be read, or are gone, and whose rows a pack has that does not stay."""
        return ((pack, _path(path)) for pack, path in self._run(_STRANDED))

    def known(self) -> tuple[int, Iterator[tuple[int, int, int]], Iterator[bytes]]:
        """(the number of records, the records, the lines) of what sound commits hold, for `write_content_index`."""
        self._change("CREATE TABLE known(block INTEGER PRIMARY KEY, offset INT)")
        self._change(_KNOWN)
        count = next(self._run("SELECT COUNT(*) + COUNT(texts_key) FROM ranges JOIN known USING (block)"))[0]
        lines = (line for (line,) in self._run("SELECT line FROM sound JOIN blocks USING (id) ORDER BY name, id"))
        records = self._run(_RECORDS)
        return count, records, lines

    def done(self, path: str) -> Iterator[tuple[bool, int, int, int, int, int]]:
        """(is of the run's settings, block, first byte, end, records, texts) of what is kept of a file as it is now."""
        return self._run(
            "SELECT fingerprint = ?, id, first_byte, end_byte, records, texts FROM same JOIN kept ON block = id "
            "JOIN blocks USING (id) WHERE path = ? ORDER BY first_byte",
            (self.fingerprint, _key(path)),
        )

    def views_of(self, block: int) -> set[str]:
        """The views that a block has parts of."""
        return {view for (view,) in self._run("SELECT view FROM parts WHERE block = ?", (block,))}

    def line(self, block: int) -> bytes:
        """The commit of a block."""
        return bytes(next(self._run("SELECT line FROM blocks WHERE id = ?", (block,)))[0])

    def texts_and_tokens(self) -> tuple[int, int]:
        """The texts and tokens of kept blocks of the run's settings."""
        query = """SELECT SUM(texts), SUM(tokens) FROM ranges JOIN kept ON block = id JOIN blocks USING (id)
                   WHERE fingerprint = ?"""
        texts, tokens = next(self._run(query, (self.fingerprint,)))
        return texts or 0, tokens or 0

    def fingerprints(self) -> set[str]:
        """The fingerprints of sound blocks."""
        return {value for (value,) in self._run("SELECT DISTINCT fingerprint FROM blocks JOIN sound USING (id)")}

    def versions(self) -> set[tuple[str, str]]:
        """(path, version) of all files of which a block is recorded."""
        return {(_path(path), version) for path, version in self._run("SELECT DISTINCT path, version FROM ranges")}

    def pruned(self) -> list[str]:
        """The files that are gone, and whose rows do not stay."""
        return self._paths("SELECT path FROM pruned ORDER BY 1")

    def gone(self) -> list[str]:
        """Files of earlier runs that are no input any more."""
        return self._paths("SELECT DISTINCT path FROM ranges WHERE path NOT IN (SELECT path FROM files) ORDER BY 1")

    def contents_of_gone(self) -> dict[str, tuple[int, set[int]]]:
        """{path: (size, what stands for its bytes, as `keys_of` has it)} of these files, as recorded last."""
        found: dict[bytes, tuple[Any, set[int]]] = {}
        rows = self._run(
            "SELECT path, size, modified, version, content_key FROM ranges "
            "WHERE path NOT IN (SELECT path FROM files) ORDER BY block"
        )
        for path, *state, content in rows:
            if path not in found or found[path][0] != state:
                found[path] = state, set()
            found[path][1].add(content)
        return {_path(path): (state[0], contents) for path, (state, contents) in found.items()}

    def num_files(self) -> int:
        """How many files blocks are recorded of."""
        return int(next(self._run("SELECT COUNT(DISTINCT path) FROM ranges"))[0])

    def gone_and_kept(self) -> list[str]:
        """Missing files whose rows are kept."""
        return self._paths(
            "SELECT DISTINCT path FROM ranges JOIN kept ON block = id WHERE path NOT IN (SELECT path FROM files)"
        )

    def problems(self) -> dict[str, str]:
        """Why files could not be read, or not to their end."""
        return {_path(path): why for path, why in self._run("SELECT path, problem FROM files WHERE problem <> ''")}

    def lost(self) -> list[str]:
        """Files that are gone, and of which a block is not sound, unless their rows do not stay anyway."""
        return self._paths(
            "SELECT DISTINCT path FROM ranges JOIN blocks ON block = id WHERE path NOT IN (SELECT path FROM files) "
            "AND path NOT IN (SELECT path FROM pruned) AND id NOT IN (SELECT id FROM sound) "
            "AND name NOT IN (SELECT name FROM blocks JOIN kept USING (id))"
        )

    def unsound(self) -> set[str]:
        """Files of which a block was recorded as they are now, and its parts are missing or short."""
        return set(self._paths("SELECT DISTINCT path FROM same WHERE block NOT IN (SELECT id FROM sound)"))

    def lines(self) -> Iterator[bytes]:
        """The kept commits in the order of the rows: the lines of `parts.jsonl`."""
        for line, attempt in self._run("SELECT line, attempt FROM kept JOIN blocks USING (id) ORDER BY name"):
            yield in_index(line) if attempt else line

    @property
    def has_rows(self) -> bool:
        """Whether there are sound blocks of the run's settings."""
        query = "SELECT 1 FROM sound JOIN blocks USING (id) WHERE fingerprint = ?"
        return bool(self.fingerprint) and next(self._run(query, (self.fingerprint,)), None) is not None

    def events(self) -> Iterator[Event]:
        """What differs between the rows of the index, as it was loaded, and those that are kept."""
        rows = self._run(_EVENTS, {"rejects": layout.REJECTS})
        for (came, path, first, end, content), same in itertools.groupby(rows, key=lambda row: row[:5]):
            yield Event(
                bool(came), printable(_path(path)), first, end - first, content, tuple(view for *_, view in same)
            )

    def input_sizes(self) -> dict[str, int]:
        """The size of each file that kept blocks were read from."""
        rows = self._run("SELECT path, size FROM ranges JOIN kept ON block = id JOIN blocks USING (id) ORDER BY name")
        return {_path(path): size for path, size in rows}

    def text_bytes(self) -> int:
        """The decompressed bytes that kept blocks were read from."""
        query = "SELECT COALESCE(SUM(end_byte - first_byte), 0) FROM ranges JOIN kept ON block = id"
        return int(next(self._run(query))[0])

    def paths_of_parts(self, view: str) -> Iterator[str]:
        """The parts of the kept blocks in a view, in the order of the rows."""
        query = """SELECT path FROM parts JOIN kept ON block = kept.id JOIN blocks USING (id)
                   WHERE view = ? ORDER BY name"""
        return (path for (path,) in self._run(query, (view,)))

    def strays(self) -> Iterator[str]:
        """Files on the disk that no kept block lists."""
        query = "SELECT path FROM on_disk EXCEPT SELECT path FROM parts JOIN kept ON block = id"
        return (path for (path,) in self._run(query))

    def is_as_listed(self) -> bool:
        """Whether the index lists all kept blocks, and only these, and the disk has no other parts.

        But a view without rows has an empty part.
        """
        query = """SELECT (SELECT COUNT(*) FROM blocks) = (SELECT COUNT(*) FROM kept)
                   AND NOT EXISTS (SELECT 1 FROM blocks WHERE attempt > 0)"""
        with_rows = {view for (view,) in self._run("SELECT DISTINCT view FROM parts JOIN kept ON block = id")}
        strays = (path.split("/") for path in self.strays())
        return bool(next(self._run(query))[0]) and all(
            name.startswith(f"{layout.EMPTY}.") and folder not in with_rows for *_, folder, name in strays
        )


def open_catalog(output_path: str) -> Catalog:
    """The catalog of a folder without an input: all sound blocks are kept."""
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
