-- What is known of an output folder, what follows from it, and the questions that `work` and `finish` ask.
-- `Catalog` fills the tables of part 1, then runs part 2.

-- Part 1: three lists, namely the input files as they are now, the commits, and the files on the disk.

PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;

-- The input now. `problem`: why it cannot be read, or not to its end. `max_records`: of a file that `input.limit` cuts.
CREATE TABLE files(
    path BLOB PRIMARY KEY, size INT, modified REAL, version TEXT, problem TEXT, max_records INT) WITHOUT ROWID;

-- The commits: a block may have several. `content`: a hash of its bytes, and of whether it is the last of its file.
-- `attempt`: 0 in the checkpoint. `together`: a hash of the paths that were to be read together. `line`: the commit as
-- JSON.
CREATE TABLE blocks(
    id INTEGER PRIMARY KEY, name TEXT, content TEXT, fingerprint TEXT, attempt INT, together TEXT, line BLOB);
CREATE INDEX blocks_of_name ON blocks(name);

-- The lines that a block holds of each of its files, and the state of the file then. A table of word types has none.
-- `content_key`, `place_key`, `texts_key`: of `keys_of` and `texts_key`.
CREATE TABLE ranges(
    block INT, path BLOB, size INT, modified REAL, version TEXT,
    first_line INT, end_line INT, first_byte INT, end_byte INT, is_last INT, records INT, texts INT, tokens INT,
    content_key INT, place_key INT, texts_key INT);

-- The parts that a block has. `view`: the first folder of a part, or two for the sums of word types.
CREATE TABLE parts(block INT, view TEXT, path TEXT, bytes INT);

-- The parts on the disk, and those that `verify --checksums` found damaged.
CREATE TABLE on_disk(path TEXT PRIMARY KEY, bytes INT) WITHOUT ROWID;
CREATE TABLE damaged(path TEXT PRIMARY KEY) WITHOUT ROWID;

-- What the run asks with: its settings, the attempt whose tables of word types count, and the missing files whose rows
-- are deleted.
CREATE TABLE run(fingerprint TEXT, tables_of INT);
CREATE TABLE pruned(path BLOB PRIMARY KEY) WITHOUT ROWID;

-- Files of the question `packed`.
CREATE TABLE asked(path BLOB PRIMARY KEY) WITHOUT ROWID;

-- Missing files: a commit has lines of them, and they are no input now.
CREATE VIEW missing AS SELECT * FROM ranges WHERE path NOT IN (SELECT path FROM files);

-- Part 2: the states of blocks, each within the one before.

CREATE INDEX ranges_of_block ON ranges(block);
CREATE INDEX ranges_of_file ON ranges(path);
CREATE INDEX parts_of_block ON parts(block);
CREATE INDEX parts_of_path ON parts(path);

-- Packs: blocks of several files.
CREATE TABLE packs(block INTEGER PRIMARY KEY);
INSERT INTO packs SELECT block FROM ranges GROUP BY block HAVING COUNT(*) > 1;

-- Valid: all parts are there in their full size, and none that the checkpoint lists was found damaged.
CREATE TABLE valid(id INTEGER PRIMARY KEY);
INSERT INTO valid SELECT id FROM blocks WHERE NOT EXISTS (
    SELECT 1 FROM parts LEFT JOIN on_disk USING (path) WHERE block = id AND (
        on_disk.bytes IS NOT parts.bytes OR (attempt = 0 AND path IN (SELECT path FROM damaged))));

-- Ranges whose file is as it was.
CREATE VIEW unchanged AS SELECT r.rowid AS range, r.* FROM ranges r JOIN files USING (path)
    WHERE (files.size, files.modified, files.version) = (r.size, r.modified, r.version);

-- Files that are read now. Of a file that could not be read to its end, what was read counts, if anything was. Else its
-- old rows stay, as those of missing files do.
CREATE TABLE read AS SELECT path FROM files
    WHERE problem = '' OR path IN (SELECT path FROM unchanged JOIN valid ON block = id);

-- Valid blocks, and how many of their files have changed or are pruned.
CREATE TABLE state(id INTEGER PRIMARY KEY, changed INT, pruned INT);
INSERT INTO state SELECT block,
        SUM(path IN (SELECT path FROM read) AND r.rowid NOT IN (SELECT range FROM unchanged)),
        SUM(path IN (SELECT path FROM pruned))
    FROM ranges r JOIN valid ON block = id GROUP BY block;

-- Live: valid, none of its files has changed or is pruned, and no other live block has its lines.
-- Of several commits of a block with the same content the first one is live, which is that of the checkpoint: so two
-- attempts that end at once have the same. The content may differ at the end of what `input.limit` allows, or where an
-- attempt could not see that it is the last of its file: then the last one is.
CREATE TABLE live(id INTEGER PRIMARY KEY);
INSERT INTO live SELECT id FROM (
    SELECT id, ROW_NUMBER() OVER (
        PARTITION BY name ORDER BY fingerprint <> (SELECT fingerprint FROM run), attempt DESC) AS place FROM (
        SELECT id, name, fingerprint, attempt, ROW_NUMBER() OVER (
            PARTITION BY name, fingerprint, content ORDER BY attempt, id) AS place
        FROM state JOIN blocks USING (id) WHERE NOT changed AND NOT pruned)
    WHERE place = 1) WHERE place = 1;
INSERT INTO live SELECT MIN(id) FROM valid JOIN blocks USING (id)  -- the tables of word types
    WHERE attempt = (SELECT tables_of FROM run) AND id NOT IN (SELECT block FROM ranges) GROUP BY name;

-- Files of which two blocks in `live` have the same lines: `Catalog` then deletes all but one.
CREATE TABLE overlapping AS SELECT DISTINCT path FROM (
    SELECT path, first_line, end_line, MAX(end_line) OVER (
        PARTITION BY path ORDER BY first_line, end_line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM ranges JOIN live ON block = id) WHERE before > first_line;

-- Blocks behind the records that `input.limit` allows: `Catalog` deletes them from `live`, too.
CREATE VIEW beyond_limit AS SELECT block FROM (
    SELECT block, max_records, SUM(records) OVER (PARTITION BY path ORDER BY first_line) AS records
    FROM ranges JOIN live ON block = id JOIN files USING (path) WHERE max_records IS NOT NULL)
    WHERE records > max_records;

-- Live blocks and what they hold of files.
CREATE VIEW live_ranges AS SELECT name, fingerprint = (SELECT fingerprint FROM run) AS is_of_run, r.* FROM ranges r JOIN live ON block = id JOIN blocks USING (id);

-- The questions before a run.

-- Files that live blocks of the run's settings do not cover, and the first line that is missing (it may be that after
-- the last one).
CREATE VIEW incomplete AS
WITH pieces AS (
    SELECT path, first_line, end_line, is_last, records,
        LAG(end_line, 1, 0) OVER (PARTITION BY path ORDER BY first_line) AS expected
    FROM live_ranges WHERE is_of_run)
SELECT path, COALESCE(MIN(CASE WHEN expected <> first_line THEN expected END), MAX(end_line), 0) AS line
FROM files LEFT JOIN pieces USING (path) WHERE problem = ''
GROUP BY path HAVING COUNT(first_line) = 0 OR SUM(expected <> first_line) > 0
    OR (max_records IS NULL AND MAX(is_last) = 0) OR SUM(records) <> max_records
ORDER BY path;

-- What live blocks have of files that are as they were.
CREATE VIEW done AS SELECT path, fingerprint = (SELECT fingerprint FROM run) AS is_of_run, id AS block, first_byte,
    end_byte, records, texts FROM unchanged JOIN live ON block = id JOIN blocks USING (id);

-- Of the files in `asked`, those that a valid pack has as they are now, in the newest one.
CREATE VIEW packed AS
SELECT block, fingerprint = (SELECT fingerprint FROM run) AS is_of_run, path, size, modified, version FROM (
    SELECT unchanged.*, fingerprint, ROW_NUMBER() OVER (PARTITION BY path ORDER BY attempt DESC, block DESC) AS place
    FROM unchanged JOIN valid ON block = id JOIN blocks USING (id)
    WHERE block IN (SELECT block FROM packs) AND path IN (SELECT path FROM asked))
WHERE place = 1 ORDER BY block, range;

-- The files of packs that no checkpoint lists: a killed run may have written a pack of fewer files than there are.
CREATE VIEW new_packs AS SELECT together, path FROM blocks JOIN live USING (id) JOIN ranges ON block = id
    WHERE together IS NOT NULL AND attempt > 0 ORDER BY together, path;

-- The content index: where the line of each valid block is, if these follow each other. Those of a file are adjacent.
CREATE VIEW offsets AS SELECT id AS block, SUM(LENGTH(line) + 1) OVER (
    ORDER BY name, id ROWS UNBOUNDED PRECEDING) - LENGTH(line) - 1 AS offset FROM valid JOIN blocks USING (id);
CREATE TABLE content_index(block INTEGER PRIMARY KEY, offset INT);  -- of `offsets`, once they are asked for
CREATE VIEW index_records AS
WITH keys AS (SELECT content_key AS key, place_key, block FROM ranges
    UNION ALL SELECT texts_key, place_key, block FROM ranges WHERE texts_key IS NOT NULL)
SELECT key, place_key, offset FROM keys JOIN content_index USING (block) JOIN blocks ON id = block
ORDER BY key, place_key, attempt DESC, id DESC;

-- The questions at the end of a run; some are asked before, too.

-- Files that cannot be read, or are missing, and whose newest rows are in a valid pack that is not live.
CREATE VIEW stranded AS SELECT block, path FROM (
    SELECT r.rowid AS range, block, path, ROW_NUMBER() OVER (
        PARTITION BY path ORDER BY block IN (SELECT id FROM live) DESC, attempt DESC, block DESC) AS place
    FROM ranges r JOIN valid ON block = id JOIN blocks USING (id)
    WHERE path NOT IN (SELECT path FROM read) AND path NOT IN (SELECT path FROM pruned))
WHERE place = 1 AND block IN (SELECT block FROM packs) AND block NOT IN (SELECT id FROM live)
ORDER BY block, range;

-- Missing files of which a block is not valid, unless they are pruned.
CREATE VIEW lost AS SELECT path FROM missing JOIN blocks ON block = id
    WHERE path NOT IN (SELECT path FROM pruned) AND id NOT IN (SELECT id FROM valid)
    AND name NOT IN (SELECT name FROM blocks JOIN live USING (id));

-- Unchanged files of which a block is not valid.
CREATE VIEW invalid AS SELECT path FROM unchanged WHERE block NOT IN (SELECT id FROM valid);

-- Files on the disk that no live block lists.
CREATE VIEW orphans AS SELECT path FROM on_disk EXCEPT SELECT path FROM parts JOIN live ON block = id;

-- The change feed, by view: lines in the checkpoint as it was loaded that are not live, and live lines that are not in
-- it.
CREATE VIEW feed AS
WITH of_views AS (SELECT id, path, first_line, end_line, content_key, view
        FROM blocks JOIN ranges ON block = id JOIN (SELECT block, view FROM parts) USING (block)
        WHERE view <> 'rejects' AND INSTR(view, '/') = 0),
    went AS (SELECT path, first_line, end_line, content_key, view FROM of_views
        WHERE id IN (SELECT id FROM blocks WHERE attempt = 0 EXCEPT SELECT id FROM live)),
    came AS (SELECT path, first_line, end_line, content_key, view FROM of_views
        WHERE id IN (SELECT id FROM live JOIN blocks USING (id) WHERE attempt > 0))
SELECT 0 AS has_come, * FROM (SELECT * FROM went EXCEPT SELECT * FROM came)
UNION ALL SELECT 1, * FROM (SELECT * FROM came EXCEPT SELECT * FROM went) ORDER BY 2, 3, 1, 4, 5, 6;
