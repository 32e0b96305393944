"""An output folder: a log of commits with a checkpoint, and which run may write to it. Read this page first.

A worker writes the parts of a block, then its commit. So the folder is a log, as that of Delta Lake:

| file | what it is | written by | deleted by |
|---|---|---|---|
| `_commits/*.json` | the log: a commit for each block that is done | workers | the end; the start: damaged ones |
| `_commits/*.jsonl` | many commits in one file | workers of the end | the end |
| `parts.jsonl` | the checkpoint: the commits that count, in the order of the rows | the end of a run | |
| `VIEW/`, `rejects/`, `_word_types/` | the parts that commits name | workers | the end: those of no live block |
| `manifest.json` | inputs, settings, counts, problems | the end | |
| `_SUCCESS` | the run is complete | the end | the start of a run with work left, and its end |
| `_runs/N.json` | the record of attempt N | its start and end | |
| `_runs/N.changes-*.jsonl` | the change feed: rows that came and went | the end, before the checkpoint | |
| `_runs/N.alive` | its time is the last sign of life | who works for attempt N | who ends its record |
| `_runs/N.work.jsonl` | what is left to do | the start | the end |
| `_runs/N.known-*` | the content index: commits by the hash of their bytes | the start | the end |
| `_runs/N.names-*`, `N.sums.jsonl` | lists for the workers of the end | the end | the end |
| `_runs/canaries-*.json` | the vectors of the canary texts | the first worker that encodes | the end |
| `_lock` | locked (flock) while a program of this machine writes | its start | its end |
| `_damaged.json` | parts that `verify --checksums` found changed | `verify` | the end |
| `_normalizer.json` | the normalizer of the tokenizer, for words | the start | |

A block has states, each within the one before; `catalog.sql` decides them. It is *recorded* if a commit of it can be
read; *valid* if also its parts have their full size and none is known to be damaged: a worker can find it by its bytes;
*live* if also no file of it has changed or is pruned, `input.limit` allows its records, and no other live block has its
lines. A file that live blocks of the run's settings cover from its first line to its last is *complete* and not read.
Any other file is read, and only what no valid block of these settings has is encoded. A part of no live block is an
orphan.

While no run is active, all but `parts.jsonl`, `_commits/`, `_damaged.json` and the folders of parts can be deleted
without losing vectors; without `_runs/` the history and the change feed are lost.

The modules, in the order of a run: `lock` and `attempts` admit one writer (`jobs` says whether a job is active,
`heartbeat` tells); `inputs` lists the files; `access` refuses folders of other settings; `work` compares the files with
the commits and writes the work list; `finish` compacts the log, writes the checkpoint, the feed and the manifest, and
deletes the orphans. All ask the `catalog`, a `scratch` database of the three lists that are known: input, commits,
files. `canaries` keeps what shows which encoder made the
vectors; `commits` reads the log, `manifest` and `run_log` the records, `changes` the feed, `rejects` the reasons,
`normalizer` how words are compared; `word_types` makes tables at the end.
"""
