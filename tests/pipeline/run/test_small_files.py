"""Many small files: they are read, encoded and written together, and remain files of their own in all that is told."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from float_bounds import OF_TWO

import layerbeam
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.slice.slices import FileToRead, join_small_files

VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "texts": {"level": "text", "layers": [2]},
    "words": {"level": "word", "layers": [1], "keep_words": ["the", "river"]},
    "records": {"level": "record", "layers": [3]},
}
NUM_FILES = 70
ALONE = ("--set", "input.limit=1000000", "--output", "alone")


def text_of(number: int, seed: int = 0) -> bytes:
    lines = random_lines(1 + number % 3, seed=seed + number, longest=12)
    return "\n".join([*lines, "the river"]).encode()


# Many small files, a large one among them, and one of each kind that is special.
CORPUS = {f"{number:03}.txt": text_of(number) for number in range(NUM_FILES)} | {
    "020-large.txt": "\n".join(random_lines(60)),
    "030-empty.txt": b"",
    "031-blank.txt": b"\n \n\n",
    "032-bad.txt": b"good\n\xff\nthe river\n",
    "033-packed.txt.gz": gzip.compress(b"one line\nthe other line", mtime=0),
}
SETTINGS = {"views": VIEWS, "input": {"slice_bytes": 4_000, "max_reject_rate": 1.0}}


@pytest.fixture
def small(workplace):
    workplace.prepare(CORPUS, **SETTINGS)
    return workplace


@pytest.fixture
def finished(workplace, encoded):
    """A run over them."""
    workplace.finished(CORPUS, **SETTINGS)
    encoded.clear()
    return workplace


def texts_in(encoded: list[tuple[str, int]]) -> int:
    return sum(texts for _, texts in encoded)


def rows(workplace, view: str, output: str = "out") -> pa.Table:
    """The rows as `open_run` gives them, sorted by file: those of a file are adjacent and in its order."""
    table = layerbeam.open_run(str(workplace.folder / output), allow_incomplete=True)[view].to_arrow()
    keys = list(zip(table["file"].to_pylist(), table["line"].to_pylist(), strict=True))
    for _, lines in itertools.groupby(keys, key=lambda key: key[0]):
        of_file = [line for _, line in lines]
        assert of_file == sorted(of_file)
    assert len(list(itertools.groupby(file for file, _ in keys))) == len({file for file, _ in keys})
    return table.take(sorted(range(len(keys)), key=lambda row: keys[row][0])).combine_chunks()


def assert_same_rows(workplace, first: str, second: str) -> None:
    """Equal in all columns, the vectors to rounding."""
    for view in VIEWS:
        one, other = rows(workplace, view, first), rows(workplace, view, second)
        vectors = [field.name for field in one.schema if pa.types.is_fixed_size_list(field.type)]
        assert one.drop_columns(vectors).equals(other.drop_columns(vectors)), view
        for name in vectors:
            values = (table[name].combine_chunks().flatten().to_numpy() for table in (one, other))
            np.testing.assert_allclose(*values, atol=OF_TWO, rtol=0)


def parts_in(workplace, view: str, output: str = "out") -> list[str]:
    return sorted(os.listdir(workplace.folder / output / view))


def test_the_rows_are_those_of_a_block_for_each_file(finished):
    finished.drive(*ALONE)
    assert_same_rows(finished, "out", "alone")
    together, alone = finished.manifest(), finished.manifest("alone")
    assert together["counts"] == alone["counts"]
    record = json.loads((finished.folder / "out/_runs/1.json").read_text())
    for name in ("records_read", "embedded", "blank_skipped", "rejected", "tokens"):
        assert record["counts"][name] == together["counts"][name]
    assert together["counts"]["rejected"] == 1
    inputs, others = (layerbeam.open_run(name).inputs() for name in ("out", "alone"))
    assert [(entry["path"], entry["records"]) for entry in inputs] == [(e["path"], e["records"]) for e in others]
    assert len(parts_in(finished, "tokens")) < 12
    assert len(parts_in(finished, "tokens", "alone")) > NUM_FILES
    assert together["views"]["tokens"]["parts"] == len(parts_in(finished, "tokens"))
    assert together["views"]["tokens"]["bytes"] == sum(
        path.stat().st_size for path in (finished.folder / "out/tokens").iterdir()
    )
    (reject,) = finished.rejects()
    assert (reject["file"].rpartition("/")[2], reject["line"]) == ("032-bad.txt", 1)
    # The commands know the files.
    assert "nothing to do" in finished.drive().err
    finished.verify("--sample", "300")
    finished.verify("--checksums")
    assert "75 files" in finished.show().out
    finished._call("report", "out", status=0)


def test_any_number_of_workers_gives_the_same_bytes(finished):
    finished.run("--workers", "3", "--output", "three")
    assert finished.files() == finished.files("three")


def fail_once_packed(small, fail_after) -> list[dict[str, Any]]:
    """A run that fails once a pack is committed; returns what the pack holds."""
    fail_after(5)
    commits = (json.loads(path.read_text()) for path in (small.folder / "out/_commits").glob("*.json"))
    files = max((commit["files"] for commit in commits), key=len)
    assert len(files) > 10
    return files


def test_failed_and_resumed(small, fail_after):
    fail_once_packed(small, fail_after)
    assert "unfinished" in small.show().out
    small.drive()
    small.assert_equals_fresh()


def test_a_file_that_changes_between_a_failure_and_the_next_run(small, fail_after):
    """Its block is done, and another block has it then: the newer one counts, whichever is read first."""
    files = fail_once_packed(small, fail_after)
    for own in files[1:9]:
        small.write(own["file"]["path"], "the river has changed\n")
    for number in range(30):
        small.write(f"corpus/{number:03}-new.txt", text_of(number, seed=100))
    small.drive()
    small.drive("--output", "fresh")
    assert_same_rows(small, "out", "fresh")
    assert small.manifest()["counts"] == small.manifest("fresh")["counts"]
    small.verify("--checksums")


def test_every_bundle_executed_twice_encodes_once(finished, encoded):
    finished.run("--direct_runner_bundle_repeat=1", "--output", "twice")
    assert finished.files() == finished.files("twice")
    assert texts_in(encoded) == finished.manifest()["counts"]["embedded"]


def test_only_new_and_changed_files_are_encoded(finished, encoded):
    for number in range(40):
        finished.write(f"corpus/{number:03}-new.txt", text_of(number, seed=100))
    changed = [3, 4, 41]
    for number in changed:
        finished.write(f"corpus/{number:03}.txt", text_of(number, seed=500))
    os.utime(finished.folder / "corpus/050.txt", (1, 1))  # touched, not changed
    for number in (10, 60):
        (finished.folder / f"corpus/{number:03}.txt").unlink()
    (finished.folder / "corpus/020-large.txt").unlink()
    finished.drive("--prune-missing")
    expected = sum(len(text_of(number, seed=100).splitlines()) for number in range(40))
    expected += sum(len(text_of(number, seed=500).splitlines()) for number in changed)
    assert texts_in(encoded) == expected
    finished.drive("--output", "fresh")
    assert_same_rows(finished, "out", "fresh")
    finished.verify("--checksums")
    finished.verify("--sample", "300")
    assert finished.manifest()["counts"] == finished.manifest("fresh")["counts"]
    names = {
        row
        for part in parts_in(finished, "texts")
        for row in pq.read_table(finished.folder / "out/texts" / part)["file"].to_pylist()
    }
    assert "corpus/010.txt" not in names
    assert "nothing to do" in finished.drive().err


def test_each_reject_stays_with_its_file(workplace):
    """Bad bytes are found where a file is read, long texts when all files of a block are tokenized."""
    for number in range(40):
        workplace.write(f"corpus/{number:02}.txt", f"the river {number}\nand the bank\n")
    long, bad = "the river " * 20, b"a well\n\xff\n"
    for name in ("03", "05"):
        workplace.write(f"corpus/{name}.txt", f"{long}\nthe well\n")
    for name in ("04", "06"):
        workplace.write(f"corpus/{name}.txt", bad)
    encoder = {"max_seq_length": 16, "long_text": "reject"}
    workplace.configure(
        views={"texts": VIEWS["texts"]}, encoder=encoder, input={"slice_bytes": 8_000, "max_reject_rate": 1.0}
    )

    def rejects() -> list[tuple[str, int, str]]:
        assert len(parts_in(workplace, "rejects")) == 1
        return [(reject["file"][7:], reject["line"], reject["stage"]) for reject in workplace.rejects()]

    workplace.drive()
    assert rejects() == [
        ("03.txt", 0, "tokenize"),
        ("04.txt", 1, "read"),
        ("05.txt", 0, "tokenize"),
        ("06.txt", 1, "read"),
    ]
    workplace.write("corpus/04.txt", b"a well\n")
    workplace.drive()
    assert rejects() == [("03.txt", 0, "tokenize"), ("05.txt", 0, "tokenize"), ("06.txt", 1, "read")]
    (workplace.folder / "corpus/05.txt").unlink()
    workplace.drive("--prune-missing")
    assert rejects() == [("03.txt", 0, "tokenize"), ("06.txt", 1, "read")]
    workplace.verify("--checksums")
    workplace.verify("--sample", "100")


def test_reread_encodes_what_size_and_time_hide(finished, encoded):
    files = finished.files()
    encoded.clear()
    finished.drive("--reread")
    assert texts_in(encoded) == 0
    assert finished.files() == files
    for name in ("005.txt", "031-blank.txt"):
        path = finished.folder / "corpus" / name
        times = path.stat()
        path.write_bytes(path.read_bytes().replace(b" ", b"a"))
        assert path.stat().st_size == times.st_size
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "nothing to do" in finished.drive().err
    finished.drive("--reread")
    assert 0 < texts_in(encoded) < 10
    finished.drive("--output", "fresh")
    assert_same_rows(finished, "out", "fresh")


def test_a_changed_file_beside_a_missing_one(finished):
    before = rows(finished, "texts").filter(pc.equal(rows(finished, "texts")["file"], "corpus/005.txt"))
    (finished.folder / "corpus/005.txt").unlink()
    finished.write("corpus/006.txt", b"the river is new\n")
    assert "corpus/005.txt: is missing; its rows stay" in finished.drive("--set", "input.max_missing=0", status=3).out
    after = rows(finished, "texts")
    assert after.filter(pc.equal(after["file"], "corpus/005.txt")).equals(before)
    assert after.filter(pc.equal(after["file"], "corpus/006.txt"))["text"].to_pylist() == ["the river is new"]
    finished.drive("--prune-missing")
    finished.drive("--output", "fresh")
    assert_same_rows(finished, "out", "fresh")


def test_a_damaged_part_is_written_again(finished):
    files = finished.files()
    (path,) = [part for part in parts_in(finished, "tokens") if part.startswith("000-")][:1]
    part = finished.folder / "out/tokens" / path
    part.write_bytes(part.read_bytes()[:-100])
    finished.drive()
    assert finished.files() == files


def test_a_file_that_changes_during_the_run_is_left_out_alone(small, monkeypatch):
    real = storage.find_change
    calls = []

    def find_change(file: InputFile) -> Any:
        if file.path.endswith("/007.txt"):
            calls.append(file)
            if len(calls) == 2:  # after its block is encoded
                small.write("corpus/007.txt", b"changed\n")
        return real(file)

    monkeypatch.setattr(storage, "find_change", find_change)
    assert "corpus/007.txt: " in small.drive(status=3).out
    names = set(rows(small, "texts")["file"].to_pylist())
    assert "corpus/007.txt" not in names
    assert {"corpus/006.txt", "corpus/008.txt"} <= names
    small.drive()
    small.drive("--output", "fresh")
    assert_same_rows(small, "out", "fresh")


def test_files_that_change_one_after_the_other_during_the_run(workplace, monkeypatch):
    """The second when the block is written without the first."""
    for number in range(40):
        workplace.write(f"corpus/{number:02}.txt", f"the river {number}\nand the bank\n")
    for name in ("04", "08"):
        workplace.write(f"corpus/{name}.txt", b"\xff\n\xff\n")
    workplace.configure(views={"texts": VIEWS["texts"]}, input={"slice_bytes": 8_000, "max_reject_rate": 1.0})
    real = storage.find_change
    calls = {"corpus/04.txt": 0, "corpus/06.txt": 0}

    def find_change(file: InputFile) -> Any:
        if file.path in calls:
            calls[file.path] += 1
            assert calls[file.path] < 10
            if (file.path, calls[file.path]) in (("corpus/04.txt", 2), ("corpus/06.txt", 3)):
                workplace.write(file.path, b"changed\n")
        return real(file)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "find_change", find_change)
        out = workplace.drive(status=3).out
    assert out.count("changed while it was being read") == 2
    kept = [f"corpus/{number:02}.txt" for number in range(40) if number not in (4, 6, 8)]
    assert rows(workplace, "texts")["file"].to_pylist() == [path for path in kept for _ in range(2)]
    assert [(reject["file"], reject["line"]) for reject in workplace.rejects()] == [
        ("corpus/08.txt", 0),
        ("corpus/08.txt", 1),
    ]
    assert workplace.manifest()["counts"]["records_read"] == 76
    workplace.drive()
    changed = rows(workplace, "texts").filter(pc.equal(rows(workplace, "texts")["text"], "changed"))
    assert changed["file"].to_pylist() == ["corpus/04.txt", "corpus/06.txt"]
    assert workplace.manifest()["counts"]["embedded"] == 76


def test_readers_see_one_view(finished):
    for number in range(20):
        finished.write(f"corpus/{number:03}-new.txt", text_of(number, seed=100))
    finished.drive()
    view = layerbeam.open_run(str(finished.folder / "out"))["tokens"]
    table = view.to_arrow()
    assert len(view.parts) == len(view.paths) == len(set(view.paths)) < 20
    assert table.equals(pa.Table.from_batches(list(view.iter_batches(batch_rows=7)), table.schema))
    flat = np.concatenate([chunk.flatten().to_numpy() for chunk in table["layer_0"].chunks])
    assert np.array_equal(view.to_numpy("layer_0").ravel(), flat)
    texts = layerbeam.open_run(str(finished.folder / "out"))["texts"]
    dataset = view.to_tf_dataset(["file", "line", "token"])
    assert len(dataset) == sum(1 for _ in dataset) == len(texts)
    assert texts.first_rows(2)["file"].to_pylist() == ["corpus/000.txt"] * 2
    part = next(part for part in texts.parts if "/000-new" in part.path)
    names = texts.read(part, ["file"])["file"].unique().to_pylist()
    lines = [line for name in names for line in (finished.folder / name).read_text().splitlines() if line]
    assert len(names) > 10
    assert texts.read(part, ["text"])["text"].to_pylist() == lines
    assert texts.read(part, ["text"], np.array([len(lines) - 1, 0]))["text"].to_pylist() == [lines[-1], lines[0]]
    assert texts.first_rows(1_000).equals(texts.read(texts.parts[0]))


@pytest.mark.parametrize("unit", ["record", "sentence", "chunk"])
def test_json_lines_with_ids(workplace, unit):
    for number in range(24):
        objects = [{"text": f"The river {number}. It is wide.", "key": f"{number % 18}-{line}"} for line in range(2)]
        workplace.write(f"corpus/{number:02}.jsonl", "".join(json.dumps(one) + "\n" for one in objects))
    how = {"slice_bytes": 8_000, "id_field": "key", "unit": unit}
    if unit == "chunk":
        how["chunk"] = {"tokens": 8, "overlap": 2}
    workplace.configure(views={name: VIEWS[name] for name in ("tokens", "texts", "records")}, input=how)
    workplace.drive()
    workplace.drive(*ALONE)
    for view in ("tokens", "texts", "records"):
        columns = ["file", "line", "id"]
        assert rows(workplace, view).select(columns).equals(rows(workplace, view, "alone").select(columns))
    assert workplace.manifest()["counts"] == workplace.manifest("alone")["counts"]
    assert workplace.manifest()["counts"]["doubled_ids"] == 12
    assert len(parts_in(workplace, "tokens")) == 1
    workplace.verify("--sample", "50")


def test_whole_files_and_files_that_fill_a_block(workplace):
    for number in range(40):
        workplace.write(f"corpus/{number:02}.txt", f"the river {number}\nand the bank\n")
    workplace.write("corpus/05.txt.gz", gzip.compress(b"the river and the bank and the well\n" * 500))
    workplace.configure(views={"texts": VIEWS["texts"]}, input={"slice_bytes": 2_000})
    workplace.drive()
    assert workplace.manifest()["counts"]["embedded"] == 580
    workplace.verify("--sample", "30")
    workplace.configure(views={"texts": VIEWS["texts"]}, input={"slice_bytes": 2_000, "record": "file"})
    (workplace.folder / "corpus/05.txt.gz").unlink()
    workplace.drive("--output", "whole")
    assert rows(workplace, "texts", "whole")["line"].to_pylist() == [0] * 40


def test_views_that_need_a_file_for_each_block(workplace):
    for number in range(40):
        workplace.write(f"corpus/{number:02}.txt", f"the river {number}\n")
    workplace.configure(views={"types": {"level": "word_type", "layers": [2]}})
    workplace.drive()
    assert len(parts_in(workplace, "_word_types/types")) == 40


@pytest.mark.parametrize("format", ["tfrecord", "jsonl"])
def test_rows_of_other_formats_are_copied_from_parts_that_files_share(workplace, encoded, format):
    for number in range(40):
        workplace.write(f"corpus/{number:02}.txt", f"the river {number}\n")
    views = {level: {"level": level, "layers": [2], "format": format} for level in ("text", "word")}
    workplace.configure(views=views)
    workplace.drive()
    assert len(parts_in(workplace, "text")) == len(parts_in(workplace, "word")) == 1
    workplace.write("corpus/07.txt", "the bank\n")
    (workplace.folder / "corpus/30.txt").unlink()
    encoded.clear()
    workplace.drive("--prune-missing")
    assert texts_in(encoded) == 1
    workplace.drive("--output", "fresh")
    for name in views:
        found = []
        for output in ("out", "fresh"):
            view = layerbeam.open_run(str(workplace.folder / output))[name]
            of_parts = [row for part in view.parts for row in view.read(part).to_pylist()]
            found.append(sorted(of_parts, key=lambda row: (row["file"], row["start"])))
        vectors = [[row.pop("layer_2") for row in of_run] for of_run in found]
        assert found[0] == found[1]
        np.testing.assert_allclose(*vectors, atol=OF_TWO, rtol=0)
    workplace.verify("--sample", "39")


def test_words_of_files_that_were_packed_before_word_types_were_counted(workplace):
    for number in range(20):
        workplace.write(f"corpus/{number:02d}.txt", f"the river bank {number % 7}\n")
    texts = {"texts": VIEWS["texts"]}
    both = {**texts, "types": {"level": "word_type", "layers": [-1]}}
    for views in (texts, both):
        workplace.configure(views=views)
        workplace.drive()
    workplace.write("corpus/05.txt", "walked to the river\n")
    workplace.drive()
    workplace.configure(views=both, output={"path": "fresh"})
    workplace.drive()
    assert len(parts_in(workplace, "texts")) == 20
    grown, fresh = (layerbeam.open_run(out)["types"].to_arrow(["word", "count"]) for out in ("out", "fresh"))
    assert grown.equals(fresh)


def sizes_together(sizes: list[int]) -> list[list[int]]:
    files = (FileToRead(InputFile(f"{number:04}.txt", size, 0.0)) for number, size in enumerate(sizes))
    found = join_small_files(files, BlockLimits(text_bytes=1_600, joins_files=True))
    return [[file.size for file in (work.file, *work.others)] for work in found]


def test_which_files_are_together():
    assert sizes_together([100] * 40) == [[100] * 16, [100] * 16, *([[100]] * 8)]
    assert sizes_together([100] * 8 + [5_000] + [100] * 8 + [0]) == [[5_000], [100] * 16, [0]]
    assert sizes_together([101] * 20) == [[101]] * 20


def test_what_is_left_of_files_is_put_together_as_before():
    sizes = np.random.default_rng(0).integers(1, 100, 2_000).tolist()
    together = sizes_together(sizes)
    assert max(map(len, together)) > 20
    left = [some for number, some in enumerate(together) if number % 3]
    assert sizes_together([size for some in left for size in some]) == left


def test_a_pack_has_as_many_tokens_as_four_blocks(workplace):
    """So a kill costs little, also of a view with few bytes for each text."""
    text = b"the old bank of the river\n" * 170
    workplace.prepare({f"{number:03}.txt": text for number in range(100)}, views={"texts": VIEWS["texts"]})
    workplace.drive(arithmetic=True)
    blocks = [json.loads(line) for line in (workplace.folder / "out/parts.jsonl").read_bytes().splitlines()]
    tokens = [sum(file["counts"]["tokens"] for file in block["files"]) for block in blocks]
    assert sum(tokens) == 100 * 170 * 6
    assert len(tokens) == 2
    assert max(tokens) < 1 << 16
