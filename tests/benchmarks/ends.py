"""Memory and time of `find` and `finish`, and of `open_run`, for many commits that nobody encoded.

    python tests/benchmarks/ends.py [--commits 100000 1000000] [--blocks-per-file 100] [--gs]

All blocks are committed, each by a file in `_commits`, as when a run has been killed before its end. `find` looks what
is left to do, `finish` is the run's own end on the local runner, and `nothing new` finds the folder complete. Peak
memory is that of the process of each step, which does not import TensorFlow.

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
import types
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
        from layerbeam.transforms.views.view import ViewSpec

        self.folder, self.count, self.blocks_per_file = folder, commits, blocks_per_file
        self.output = Output(output, FINGERPRINT)
        self.view = ViewSpec(name="tokens", level="token", layers=(12,), hidden_size=4)

    @property
    def job(self) -> Any:
        """What `find` asks a job for."""
        from layerbeam.transforms.settings import LINES as RECORDS
        from layerbeam.transforms.settings import BlockLimits

        given = types.SimpleNamespace(files=[f"{self.folder}/corpus/*"], limit=None, max_missing=0)
        config, limits = types.SimpleNamespace(input=given), BlockLimits(SLICE_BYTES)
        return types.SimpleNamespace(
            config=config, output=self.output, records=RECORDS, limits=limits, views=(self.view,)
        )

    def commits_of(self, file: Any) -> Iterator[Any]:
        from layerbeam.transforms.flow import layout
        from layerbeam.transforms.flow.commits import Commit, FileRange, Part
        from layerbeam.transforms.parts import part_path

        size, sha256 = json.loads((self.folder / "part.json").read_text())
        counts = dict.fromkeys(("blank_skipped", "filtered", "rejected", "unknown_tokens"), 0)
        counts |= {"records_read": LINES, "embedded": LINES, "tokens": 41_000, "truncated_texts": 7}
        for number in range(file.size // SLICE_BYTES):
            lines, begin = (number * LINES, LINES), number * SLICE_BYTES
            end, content = begin + SLICE_BYTES, f"{number:064x}"
            own = FileRange(file, *lines, begin, end, content, is_last=end == file.size, counts=counts)
            name = layout.block_name(file.path, own.first_line)
            part = Part(part_path(self.view, layout.part_name(name, content[::-1])), 1, size, sha256)
            yield Commit(name, FINGERPRINT, (own,), {"tokens": part}, attempt=1)

    def write(self) -> None:
        import pyarrow as pa

        from layerbeam.transforms import storage
        from layerbeam.transforms.parts.part_format import Output
        from layerbeam.transforms.parts.write import write_part
        from layerbeam.transforms.views.columns import schema

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
                (self.folder / "out/_commits" / f"{commit.name}.json").write_bytes(commit.to_line())


def _value(type_: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(type_):
        return [0.5] * type_.list_size
    return "" if pa.types.is_string(type_) else 0


def find(corpus: Corpus) -> None:
    from layerbeam.pipeline.output.work import begin_work, find_work

    work = find_work(corpus.job)
    if not work.is_empty:
        raise SystemExit("the blocks are not those of the input")
    begin_work(corpus.job, 1, work)


def finish(corpus: Corpus) -> None:
    import apache_beam as beam

    from layerbeam.pipeline.config.identity import RunIdentity
    from layerbeam.pipeline.output.finish import RunEnd
    from layerbeam.pipeline.run.engines import local_runner
    from layerbeam.pipeline.run.stages import Finish
    from layerbeam.transforms import storage
    from layerbeam.transforms.flow.commits import InputFile

    identity: Any = {"input": {"text_field": "text", "pair_field": None}, "views": {}}
    encoder: Any = {"handle": "none", "engine": "none", "hidden_size": 4, "num_hidden_layers": 12, "vocabulary_size": 1}
    encoder |= {"do_lower_case": False, "casing_from": "none"}
    settings: Any = {"input": {}}
    head = RunIdentity(
        schema_version=1, fingerprint=FINGERPRINT, identity=identity, encoder=encoder, settings=settings, versions={}
    )
    local = local_runner([], workers=1)
    with beam.Pipeline(runner=local.runner, options=local.options) as root:
        problems = root | beam.Create([]).with_output_types(InputFile)
        _ = problems | "finish" >> Finish(RunEnd(corpus.output, (corpus.view,), head, 1.0, "text", 1))
    if not storage.exists(storage.join(corpus.output.path, "_SUCCESS")):
        raise SystemExit("the run did not end with _SUCCESS")


def nothing_new(corpus: Corpus) -> None:
    from layerbeam.pipeline.output.work import find_work

    work = find_work(corpus.job)
    if not (work.is_empty and work.catalog.is_as_listed()):
        raise SystemExit("the folder is not complete")


def open_output(corpus: Corpus) -> None:
    import layerbeam

    view = layerbeam.open_run(corpus.output.path).view("tokens")
    if len(next(view.iter_batches())) != 1 or len(view.parts) != corpus.count or not view.parts[corpus.count // 2].rows:
        raise SystemExit("the rows are not those that were written")


def measured(step: str, corpus: Corpus) -> dict[str, Any]:
    """Seconds and peak memory of a step in a process of its own."""
    arguments = [str(corpus.folder), corpus.output.path, str(corpus.count), str(corpus.blocks_per_file)]
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, __file__, "--step", step, *arguments])
    with watch_memory(child.pid) as peaks:
        status = child.wait()
    if status:
        raise SystemExit(f"{step} failed")
    return {"seconds": round(time.monotonic() - started, 1), "peak_mb": max(peaks.values()) >> 20}


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
    "pages of parts": r"GET /storage/v1/b/[^/]+/o\?prefix=run/tokens/",
    "sizes": "GET /storage/v1/b/[^/]+/o/",
    "reads": "GET /download",
    "writes": "(POST|PUT) .*upload",
    "batches of deletions": "POST /batch",
}
STEPS = {"write": Corpus.write, "find": find, "finish": finish, "nothing new": nothing_new, "open": open_output}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--blocks-per-file", type=int, default=100)
    parser.add_argument("--gs", action="store_true")
    parser.add_argument("--step", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        step, folder, output, commits, blocks_per_file = options.step
        STEPS[step](Corpus(Path(folder), output, int(commits), int(blocks_per_file)))
        return
    for count in options.commits:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cloud = stack.enter_context(cloud_storage(folder)) if options.gs else None
            corpus = Corpus(folder, "gs://out/run" if cloud else f"{folder}/out", count, options.blocks_per_file)
            for step in STEPS:
                found = {"commits": count, "step": step, **measured(step, corpus)}
                if cloud is not None:
                    found["requests"] = requests(cloud.calls)
                    cloud.calls.clear()
                    if step == "write":
                        cloud.upload(folder / "out", corpus.output.path)
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
