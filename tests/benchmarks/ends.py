"""Memory and time of `find` and `finish`, and of `open_run`, for many commits that nobody encoded.

    python tests/benchmarks/ends.py [--commits 100000 1000000] [--processes 2] [--blocks-per-file 100] [--gs]
        [--beam --runner=FlinkRunner --job_endpoint=...]

The pipeline is the run's own without its middle: `find`, a stage that reports each block as done, and `finish`, on the
local runner with worker processes, or on the runner of `--beam`. It runs twice: at the end of a run (all commits are
files in `_commits`), and again with nothing new (all are in the index). Peak memory is that of the largest process; the
others are listed too. The workers of other runners are not seen.

With `--gs` the output is in a stand-in for Cloud Storage (the extra gcp), which counts the requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command import watch_memory

SLICE_BYTES = 1 << 20
LINES = 1285
FINGERPRINT = "0123456789abcdef"


class Corpus:
    """Input files (without bytes on the disk), parts (links to one file) and commits, in a folder."""

    def __init__(self, folder: Path, output: str, commits: int, blocks_per_file: int) -> None:
        from layerbeam.transforms.parts.part_format import Output
        from layerbeam.transforms.views import View

        self.folder, self.count, self.blocks_per_file = folder, commits, blocks_per_file
        self.output = Output(output, FINGERPRINT)
        self.view = View(name="tokens", level="token", layers=(12,), hidden_size=4)

    def commits_of(self, file: Any) -> Iterator[Any]:
        from layerbeam.transforms import layout
        from layerbeam.transforms.commits import BlockId, Commit, Part
        from layerbeam.transforms.parts import part_path

        size, sha256 = json.loads((self.folder / "part.json").read_text())
        counts = dict.fromkeys(("blank_skipped", "filtered", "rejected", "unknown_tokens"), 0)
        counts |= {"records_read": LINES, "embedded": LINES, "tokens": 41_000, "truncated_texts": 7}
        for number in range(file.size // SLICE_BYTES):
            begin = number * SLICE_BYTES
            block = BlockId(file, number * LINES, LINES, begin, begin + SLICE_BYTES, f"{number:064x}")
            name = layout.block_name(file.path, block.first_line)
            yield Commit(FINGERPRINT, block, counts, {"tokens": Part(part_path(self.view, name), 1, size, sha256)})

    def write(self) -> None:
        import pyarrow as pa

        from layerbeam.transforms import storage
        from layerbeam.transforms.columns import schema
        from layerbeam.transforms.parts.part_format import Output
        from layerbeam.transforms.write.block import write_part

        columns = schema(self.view)
        row = pa.table({f.name: pa.array([_value(f.type)], f.type) for f in columns}, columns)
        part = write_part(Output(f"{self.folder}/out", FINGERPRINT), self.view, "a-0000000000000000-000000000000", row)
        (self.folder / "part.json").write_text(json.dumps([part.bytes, part.sha256]))
        one = self.folder / "one"
        os.rename(self.folder / "out" / part.path, one)
        for folder in ("corpus", "out/_commits"):
            (self.folder / folder).mkdir(parents=True)
        links = 0
        for number in range(-(-self.count // self.blocks_per_file)):
            path = self.folder / "corpus" / f"part-{number:06d}.txt"
            path.touch()
            blocks = min(self.blocks_per_file, self.count - number * self.blocks_per_file)
            os.truncate(path, blocks * SLICE_BYTES)
            os.utime(path, (1_700_000_000, 1_700_000_000))
            for commit in self.commits_of(storage.stat_file(str(path))):
                links += 1
                if links % 50_000 == 0:  # file systems limit the links to one file
                    one.with_suffix(".next").write_bytes(one.read_bytes())
                    os.rename(one.with_suffix(".next"), one)
                os.link(one, self.folder / "out" / commit.parts["tokens"].path)
                text = json.dumps(commit.to_json(), sort_keys=True)
                (self.folder / "out/_commits" / f"{commit.block.name}.json").write_text(text)


def _value(type_: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(type_):
        return [0.5] * type_.list_size
    return "" if pa.types.is_string(type_) else 0


def run_ends(corpus: Corpus, processes: int, beam_options: list[str]) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from layerbeam.pipeline.config.identity import RunIdentity
    from layerbeam.pipeline.output.find import FindWork
    from layerbeam.pipeline.output.finish import Finish
    from layerbeam.pipeline.run.engines import local_runner
    from layerbeam.transforms import storage
    from layerbeam.transforms.settings import LINES as RECORDS
    from layerbeam.transforms.settings import BlockLimits

    head = RunIdentity(schema_version=1, fingerprint=FINGERPRINT, identity={}, encoder={}, settings={}, versions={})
    globs = [f"{corpus.folder}/corpus/*"]
    is_remote = bool(beam_options) or not storage.is_local(corpus.output.path)
    find = FindWork(globs, corpus.output.path, False, None, RECORDS, FINGERPRINT, BlockLimits(SLICE_BYTES), is_remote)
    if beam_options:
        pipeline = beam.Pipeline(options=PipelineOptions(beam_options))
    else:
        local = local_runner([], processes=processes)
        pipeline = beam.Pipeline(runner=local.runner, options=local.options)
    files = pipeline | beam.Impulse() | "find" >> find
    blocks = (
        files[FindWork.TO_READ]
        | "spread" >> beam.Reshuffle()
        | "all done" >> beam.FlatMap(lambda work: corpus.commits_of(work.file))
    )
    finish = Finish(corpus.output, (corpus.view,), head, 1.0, RECORDS, is_remote=is_remote)
    _ = (files[FindWork.KNOWN], (blocks,), files[FindWork.BOUNDARIES]) | "finish" >> finish
    pipeline.run().wait_until_finish()
    if storage.stat_file(storage.join(corpus.output.path, "_SUCCESS")) is None:
        raise SystemExit("the run did not end with _SUCCESS")


def open_output(corpus: Corpus) -> None:
    import layerbeam

    view = layerbeam.open_run(corpus.output.path).view("tokens")
    if len(next(view.iter_batches())) != 1 or len(view.parts) != corpus.count:
        raise SystemExit("the rows are not those that were written")


def measured(step: str, corpus: Corpus, processes: int, beam_options: list[str]) -> dict[str, Any]:
    """Seconds, and the peak memory of each process, of a step in a process of its own."""
    sizes = (corpus.count, corpus.blocks_per_file, processes)
    arguments = [str(corpus.folder), corpus.output.path, *map(str, sizes)]
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, __file__, "--step", step, *arguments, "--beam", *beam_options])
    with watch_memory(child.pid) as peaks:
        status = child.wait()
    if status:
        raise SystemExit(f"{step} failed")
    peaks_mb = sorted((peak >> 20 for peak in peaks.values()), reverse=True)
    return {"seconds": round(time.monotonic() - started, 1), "peak_mb": peaks_mb[0], "all_mb": peaks_mb}


@contextlib.contextmanager
def cloud_storage(folder: Path) -> Iterator[Any]:
    """A stand-in for Cloud Storage with pages as long as the real one's, known to child processes."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
    import google_cloud

    google_cloud._PAGE = 1000
    cloud, key_file = google_cloud.GoogleCloud("out"), folder / "key.json"
    with google_cloud.serve(cloud):
        key_file.write_text(google_cloud.service_account_key(cloud))
        os.environ.update(google_cloud.environment(cloud, key_file))
        yield cloud


def requests(calls: list[str]) -> dict[str, int]:
    """How many requests of each kind. Deletions are counted by the batch that has them."""
    return {
        name: count for name, kind in _KINDS.items() if (count := sum(bool(re.match(kind, call)) for call in calls))
    }


_KINDS = {
    "pages of commits": r"GET /storage/v1/b/[^/]+/o\?prefix=run/_commits/",
    "pages of all parts": r"GET /storage/v1/b/[^/]+/o\?prefix=run/tokens/$",
    "pages of the parts of a file": r"GET /storage/v1/b/[^/]+/o\?prefix=run/tokens/.",
    "sizes": "GET /storage/v1/b/[^/]+/o/",
    "reads": "GET /download",
    "writes": "(POST|PUT) .*upload",
    "batches of deletions": "POST /batch",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--blocks-per-file", type=int, default=100)
    parser.add_argument("--gs", action="store_true")
    parser.add_argument("--beam", nargs=argparse.REMAINDER, default=[])
    parser.add_argument("--step", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        step, folder, output, commits, blocks_per_file, processes = options.step
        corpus = Corpus(Path(folder), output, int(commits), int(blocks_per_file))
        if step == "open":
            open_output(corpus)
        elif step == "write":
            corpus.write()
        else:
            run_ends(corpus, int(processes), options.beam)
        return
    for count in options.commits:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cloud = stack.enter_context(cloud_storage(folder)) if options.gs else None
            corpus = Corpus(folder, "gs://out/run" if cloud else f"{folder}/out", count, options.blocks_per_file)
            for step in ("write", "end of run", "nothing new", "open"):
                found = {"commits": count, "step": step, **measured(step, corpus, options.processes, options.beam)}
                if cloud is not None:
                    found["requests"] = requests(cloud.calls)
                    cloud.calls.clear()
                    if step == "write":
                        cloud.upload(folder / "out", corpus.output.path)
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
