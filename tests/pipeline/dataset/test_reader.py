"""`layerbeam.open_run`: the rows it reads from a finished run, and its errors."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from object_store import upload
from tampering import edit
from weights import vectors
from workplace import workplace_in
from written_run import write_run

import layerbeam
from layerbeam.transforms.parts import parquet
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.view import ViewSpec

VIEWS = {
    "pieces": {"level": "token", "layers": [-1, 1], "combine": "sum", "special_tokens": False, "dtype": "float16"},
    "texts": {"level": "text", "layers": [-1, 0], "combine": "concat"},
    "tokens": {"level": "token", "layers": "all"},
}
LINES = random_lines(60)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over two files in several blocks, made once."""
    folder = tmp_path_factory.mktemp("finished")
    with workplace_in(folder) as place:
        place.write("corpus/a.txt", "\n".join(LINES[:20]) + "\n")
        place.write("corpus/b.txt", "\n".join(LINES[20:]) + "\n")
        place.configure(input={"slice_bytes": 800}, views=VIEWS)
        place.drive()
    return folder / "out"


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


@pytest.fixture
def row_groups_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", size)


# --- rows ---


@pytest.mark.parametrize("name", VIEWS)
def test_rows_are_in_the_order_of_the_text(finished, name):
    view = layerbeam.open_run(finished).view(name)
    table = view.to_arrow()
    assert len(view.parts) > 4, "one part is no test of an order"
    keys = ["file", "line", *(["token_index"] if view.level == "token" else [])]
    assert table.equals(table.sort_by([(key, "ascending") for key in keys]).combine_chunks())
    manifest = json.loads((finished / "manifest.json").read_text())["views"][name]
    assert table.num_rows == view.num_rows == len(view) == manifest["rows"]
    assert {field.name: str(field.type) for field in table.schema} == manifest["columns"]
    lines = dict.fromkeys(zip(table["file"].to_pylist(), table["line"].to_pylist(), strict=True))
    read = [(f"corpus/{'a' if n < 20 else 'b'}.txt", n if n < 20 else n - 20) for n, line in enumerate(LINES) if line]
    assert list(lines) == read


def test_some_columns_in_the_order_asked_for(finished):
    view = layerbeam.open_run(finished).view("tokens")
    assert view.to_arrow(["token", "layer_1", "file"]).column_names == ["token", "layer_1", "file"]
    assert view.to_arrow(["layer_1", "layer_1"]).column_names == ["layer_1"]
    assert next(view.iter_batches(["token", "file"])).schema.names == ["token", "file"]


def test_an_unlisted_part_is_not_read(out):
    stray = out / "tokens" / "z-0000000000000000-000000000000-0000000000000000.parquet"
    before = layerbeam.open_run(out).view("tokens").to_arrow()
    shutil.copy(next((out / "tokens").iterdir()), stray)
    view = layerbeam.open_run(out).view("tokens")
    assert str(stray) not in view.paths
    assert sorted([*view.paths, str(stray)]) == sorted(str(path) for path in (out / "tokens").iterdir())
    assert view.to_arrow().equals(before)


def test_the_paths_are_for_other_readers(finished):
    view = layerbeam.open_run(finished).view("texts")
    assert pa.concat_tables(pq.read_table(path) for path in view.paths).equals(view.to_arrow())


def test_repr_and_properties(finished):
    run = layerbeam.open_run(str(finished))
    rows = run.manifest["views"]["tokens"]["rows"]
    assert run.views == ("pieces", "texts", "tokens")
    assert run.manifest == json.loads((finished / "manifest.json").read_text())
    first, pieces, texts, tokens = repr(run).splitlines()
    assert first == f"layerbeam run {finished}: {run.manifest['encoder']['handle']}, 3 layers of 64"
    assert tokens.startswith(
        f"  tokens: {rows:,} rows, one per token; layer_0, layer_1, layer_2, layer_3, each 64 x float32; other "
    )
    assert "; embedding: 64 x float16; " in pieces
    view = run.view("texts")
    assert texts.strip() == repr(view)
    assert (view.level, view.format, view.vectors, view.width, view.dtype) == (
        "text",
        "parquet",
        ("embedding",),
        128,
        np.dtype("float32"),
    )


# --- NumPy ---


@pytest.mark.parametrize(("name", "column"), [("tokens", "layer_2"), ("pieces", "embedding"), ("texts", "embedding")])
def test_vectors_of_several_parts(finished, name, column):
    view = layerbeam.open_run(finished).view(name)
    got = view.to_numpy(column)
    assert (got.shape, got.dtype) == ((view.num_rows, view.width), view.dtype)
    np.testing.assert_array_equal(got, vectors(view.to_arrow(), column))
    assert np.abs(got).max() > 0


def test_vectors_into_a_file_larger_than_memory(finished, tmp_path):
    view = layerbeam.open_run(finished).view("tokens")
    shape = (view.num_rows, view.width)
    file = np.lib.format.open_memmap(tmp_path / "layer_2.npy", "w+", view.dtype, shape)
    assert view.to_numpy("layer_2", out=file) is file
    file.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "layer_2.npy", mmap_mode="r"), view.to_numpy("layer_2"))


def test_out_of_another_shape_or_type(finished):
    view = layerbeam.open_run(finished).view("texts")
    with pytest.raises(ValueError, match=rf"out is float32 \[3, 4\]; .* needs float32 \[{view.num_rows}, 128\]"):
        view.to_numpy("embedding", out=np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"out is float64 .* needs float32"):
        view.to_numpy("embedding", out=np.zeros((view.num_rows, 128)))


def test_other_columns(finished):
    view = layerbeam.open_run(finished).view("tokens")
    table = view.to_arrow()
    for name in ("line", "token_id", "segment_id", "token"):
        assert view.to_numpy(name).tolist() == table[name].to_pylist()
    room = np.zeros(view.num_rows, np.int64)
    view.to_numpy("line", out=room)
    assert room.tolist() == table["line"].to_pylist()


TEXTS = ViewSpec(
    name="texts",
    level="text",
    layers=(3,),
    hidden_size=4,
    fields=(("id", "string"), ("year", "int64"), ("x", "float64")),
)


def text_rows(count: int, **columns: list[Any]) -> pa.Table:
    """Rows of `TEXTS`: the n-th with the vector [4 n, 4 n + 1, ...]."""
    numbers = np.arange(count)
    made = {"file": ["a.txt"] * count, "text": [f"text {n}" for n in numbers], "line": numbers} | columns
    values = pa.array(np.arange(4 * count, dtype=np.float32))
    type_ = schema(TEXTS).field("layer_3").type
    made["layer_3"] = pa.FixedSizeListArray.from_arrays(values, type=type_)
    arrays = []
    for field in schema(TEXTS):
        given = made.get(field.name, [None if field.nullable else 0] * count)
        arrays.append(given if isinstance(given, pa.Array) else pa.array(given, field.type))
    return pa.Table.from_arrays(arrays, schema=schema(TEXTS))


def test_vectors_of_one_part_are_not_copied(tmp_path, row_groups_of):
    row_groups_of(32)
    view = write_run(tmp_path, TEXTS, [text_rows(5)]).view("texts")
    assert pq.ParquetFile(view.paths[0]).num_row_groups == 3
    before = pa.total_allocated_bytes()
    got = view.to_numpy("layer_3")
    assert got.tolist() == np.arange(20).reshape(5, 4).tolist()
    assert not got.flags.owndata
    assert not got.flags.writeable
    assert pa.total_allocated_bytes() > before, "the memory is Arrow's"


def test_several_row_groups(tmp_path, row_groups_of):
    row_groups_of(32)
    view = write_run(tmp_path, TEXTS, [text_rows(5), text_rows(3)]).view("texts")
    assert pq.ParquetFile(view.paths[0]).num_row_groups == 3
    assert view.to_numpy("layer_3")[:, 0].tolist() == [0, 4, 8, 12, 16, 0, 4, 8]
    assert [batch.num_rows for batch in view.iter_batches(batch_rows=4)] == [4, 1, 3]


# --- pieces ---


def test_batches_are_all_rows_and_end_with_their_part(finished):
    view = layerbeam.open_run(finished).view("tokens")
    batches = list(view.iter_batches(["token", "layer_1"], batch_rows=50))
    assert pa.Table.from_batches(batches).equals(view.to_arrow(["token", "layer_1"]))
    sizes = [batch.num_rows for batch in batches]
    expected = [min(50, part.rows - first) for part in view.parts for first in range(0, part.rows, 50)]
    assert sizes == expected
    with pytest.raises(ValueError, match="batch_rows is 0; allowed: 1 or more"):
        view.iter_batches(batch_rows=0)


@pytest.mark.parametrize("format_", ["parquet", "tfrecord", "jsonl"])
def test_one_part_of_any_format(tmp_path, row_groups_of, format_):
    row_groups_of(64 * 16)
    view = write_run(tmp_path, dataclasses.replace(TEXTS, format=format_), [text_rows(70), text_rows(3)]).view("texts")
    part = view.parts[0]
    columns = ["layer_3", "text", "id"]
    assert view.read(part, columns).equals(text_rows(70).select(columns))
    for rows in ([1, 64, 69], [63], [64], [69, 0], []):  # at the border of 64 rows, in any order
        expected = text_rows(70).select(columns).take(pa.array(rows, pa.int64()))
        assert view.read(part, columns, np.array(rows, np.int64)).equals(expected), rows
    assert view.read(part).equals(text_rows(70))
    assert view.first_rows(2).equals(text_rows(2))
    with pytest.raises(KeyError, match="no such column"):
        view.read(part, ["layer_2"])
    with open(view.paths[0], "ab") as file:
        file.write(b"\n")
    with pytest.raises(
        ValueError, match=f"has {part.bytes + 1:,} bytes, not {part.bytes:,}; run the configuration again"
    ):
        view.read(part)
    Path(view.paths[0]).write_bytes(b"no longer the part")
    with pytest.raises(ValueError, match=r"has 18 bytes, not [\d,]+; run the configuration again to rewrite it"):
        view.read(part)
    Path(view.paths[0]).write_bytes(bytes(part.bytes))
    with pytest.raises((OSError, ValueError), match=f"{Path(part.path).name}: cannot be read"):
        view.read(part)


# --- tf.data ---


@pytest.mark.parametrize("name", ["tokens", "pieces"])
def test_one_element_per_text(finished, name):
    view = layerbeam.open_run(finished).view(name)
    table = view.to_arrow()
    texts: dict[Any, list[int]] = {}
    for row, key in enumerate(zip(table["file"].to_pylist(), table["line"].to_pylist(), strict=True)):
        texts.setdefault(key, []).append(row)
    dataset = view.to_tf_dataset()
    elements = list(dataset.as_numpy_iterator())
    assert len(elements) == dataset.cardinality().numpy() == len(texts) > 40
    for element, ((file, line), rows) in zip(elements, texts.items(), strict=True):
        assert (element["file"], element["line"], element["sentence"]) == (file.encode(), line, 0)
        assert element["token"].tolist() == [table["token"][row].as_py().encode() for row in rows]
        for column in view.vectors:
            np.testing.assert_array_equal(element[column], vectors(table, column)[rows])
    assert elements[0][view.vectors[0]].dtype == view.dtype


def test_batches_of_padded_texts(finished):
    view = layerbeam.open_run(finished).view("tokens")
    (batch,) = view.to_tf_dataset(["token", "layer_3"]).padded_batch(5).take(1).as_numpy_iterator()
    assert set(batch) == {"token", "layer_3"}
    lengths = (batch["token"] != b"").sum(axis=1)
    assert batch["layer_3"].shape == (5, lengths.max(), 64)
    assert len(set(lengths.tolist())) > 2
    padding = np.arange(lengths.max()) >= lengths[:, None]
    np.testing.assert_array_equal((batch["layer_3"] == 0).all(axis=2), padding)


def test_one_element_per_row_of_texts(finished):
    view = layerbeam.open_run(finished).view("texts")
    dataset = view.to_tf_dataset(["text", "num_tokens", "embedding"])
    assert dataset.cardinality().numpy() == view.num_rows
    elements = list(dataset.as_numpy_iterator())
    assert [element["text"].decode() for element in elements] == [line for line in LINES if line]
    assert elements[0]["num_tokens"].shape == ()
    np.testing.assert_array_equal([element["embedding"] for element in elements], view.to_numpy("embedding"))


def test_nulls_in_kept_fields(tmp_path):
    tables = [text_rows(2, id=["a", None], year=[1611, 1612], x=[0.5, None]), text_rows(1, id=["c"], year=[None])]
    view = write_run(tmp_path, TEXTS, tables).view("texts")
    elements = list(view.to_tf_dataset(["id", "x", "layer_3"]).as_numpy_iterator())
    assert [element["id"] for element in elements] == [b"a", b"", b"c"]
    np.testing.assert_array_equal([element["x"] for element in elements], [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(view.to_numpy("year"), [1611, 1612, np.nan])
    assert view.to_arrow()["year"].to_pylist() == [1611, 1612, None]
    with pytest.raises(
        Exception, match="column year has null in 1 rows of a part, which a tensor of int64 cannot hold"
    ):
        list(view.to_tf_dataset(["year"]))


# --- no rows ---


@pytest.mark.parametrize("view", [TEXTS, ViewSpec(name="tokens", level="token", layers=(1, 3), hidden_size=4)])
def test_a_view_without_rows(tmp_path, view):
    read = write_run(tmp_path, view, []).view(view.name)
    table = read.to_arrow()
    assert (read.num_rows, table.num_rows, read.paths) == (0, 0, ())
    assert table.schema.equals(schema(view))
    assert read.schema.equals(schema(view))
    assert read.to_numpy("layer_3").shape == (0, 4)
    assert read.to_numpy("layer_3").dtype == np.float32
    assert read.to_numpy("line").shape == (0,)
    assert list(read.iter_batches()) == []
    assert list(read.to_tf_dataset()) == []
    assert "0 rows" in repr(read)


# --- errors ---


def test_unknown_names(finished):
    run = layerbeam.open_run(finished)
    with pytest.raises(KeyError) as caught:
        run.view("token")
    assert str(caught.value) == (
        f"'token': {finished} has no such view; it has pieces, texts, tokens; did you mean `tokens`?"
    )
    with pytest.raises(KeyError) as caught:
        run.view("texts").to_numpy("num_token")
    assert str(caught.value) == (
        f"'num_token': view texts of {finished} has no such column; it has the vectors embedding; other columns: file, "
        "line, sentence, start, end, text, num_tokens, num_dropped, num_unknown; did you mean `num_tokens`?"
    )
    tokens = run.view("tokens")
    for read in (tokens.to_numpy, lambda name: tokens.to_arrow([name]), lambda name: tokens.iter_batches([name])):
        with pytest.raises(KeyError, match=r"it has the vectors layer_0, layer_1, layer_2, layer_3; .* segment_id$"):
            read("layer_12")
    with pytest.raises(KeyError, match="no such column"):
        tokens.to_tf_dataset(["layer_12"])
    with pytest.raises(TypeError, match=r"columns is 'layer_1'; give a list: \['layer_1'\]"):
        tokens.to_arrow("layer_1")


def test_no_run_there(finished, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere: holds no layerbeam run .*output\.path$"):
        layerbeam.open_run(tmp_path / "nowhere")
    for slash in ("", "/"):
        with pytest.raises(FileNotFoundError, match=rf"did you mean {finished}\?"):
            layerbeam.open_run(f"{finished}/tokens{slash}")


@pytest.mark.parametrize("manifest", ["", "manifest.json", "parts.jsonl"])
def test_a_run_that_has_not_ended(out, manifest):
    (out / "_SUCCESS").unlink()
    edit(out / "_runs" / "1.json", state="interrupted")
    if manifest:
        (out / manifest).unlink()
    for allow in (False, True):
        with pytest.raises(ValueError, match=r"not finished \(no _SUCCESS in it, its last state is: interrupted\)"):
            layerbeam.open_run(out, allow_incomplete=allow)


def test_a_run_that_is_not_complete(workplace):
    workplace.write("corpus/a.txt", b"one line\n\xff\nanother\n")
    workplace.configure(input={"max_reject_rate": 0.1}, views={"texts": {"level": "text", "layers": [-1]}})
    workplace.drive(status=3)
    with pytest.raises(ValueError, match=r"ended without _SUCCESS:\n  1 of 3 records were rejected(.|\n)*allow_incomp"):
        layerbeam.open_run("out")
    run = layerbeam.open_run("out", allow_incomplete=True)
    assert run.view("texts").to_arrow()["text"].to_pylist() == ["one line", "another"]
    assert "not complete" in repr(run)


def test_a_missing_or_damaged_part(out):
    view = layerbeam.open_run(out).view("tokens")
    path = Path(view.paths[1])
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(ValueError, match=rf"{path.name}: has [\d,]+ bytes, not [\d,]+; run the configuration again"):
        view.to_arrow()
    path.write_bytes(data[:-8] + b"damaged!")
    with pytest.raises(ValueError, match=rf"{path.name}: cannot be read .*; if it is damaged, delete it and run"):
        view.to_arrow()
    path.write_bytes(data[:200] + bytes(2000) + data[2200:])
    with pytest.raises((OSError, ValueError), match=rf"{path.name}: cannot be read"):
        view.to_arrow()
    path.unlink()
    for read in (view.to_arrow, lambda: view.to_numpy("layer_1"), lambda: list(view.iter_batches())):
        with pytest.raises(FileNotFoundError, match=rf"{path.name}: is missing; run the configuration again"):
            read()


def test_parts_with_fewer_rows_than_the_view(out):
    views = json.loads((out / "manifest.json").read_text())["views"]
    rows = views["texts"]["rows"]
    views["texts"]["rows"] += 1
    edit(out / "manifest.json", views=views)
    with pytest.raises(ValueError, match=f"has {rows} rows, not {rows + 1}; run the configuration again to rewrite it"):
        layerbeam.open_run(out).view("texts").to_numpy("embedding")


def test_damaged_files_of_the_run(out):
    (out / "parts.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"parts\.jsonl: cannot be read"):
        layerbeam.open_run(out)
    edit(out / "manifest.json", schema_version=2)
    with pytest.raises(ValueError, match="schema_version 2, this layerbeam reads 1"):
        layerbeam.open_run(out)
    (out / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read; run the configuration again"):
        layerbeam.open_run(out)


def without(view: dict[str, object], name: str) -> dict[str, object]:
    return {entry: value for entry, value in view.items() if entry != name}


@pytest.mark.parametrize(
    ("changed", "invalid"),
    [
        (
            lambda _: {},
            "complete, counts, encoder, fingerprint, identity, left_out, made_with, problems, schema_version, settings",
        ),
        (lambda whole: whole | {"views": []}, "views"),
        (lambda whole: whole | {"views": {"t": None}}, "views.t"),
        (lambda whole: whole | {"views": {"t": without(whole["views"]["texts"], "level")}}, "views.t.level"),
    ],
)
def test_an_invalid_manifest(out, changed, invalid):
    whole = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(changed(whole)))
    message = re.escape(f"manifest.json is not a manifest of layerbeam: it has no {invalid}")
    with pytest.raises(ValueError, match=message):
        layerbeam.open_run(out)
    (out / "_SUCCESS").unlink()
    edit(out / "_runs" / "1.json", state="incomplete")
    with pytest.raises(ValueError, match=message):
        layerbeam.open_run(out, allow_incomplete=True)


@pytest.mark.parametrize("format_", ["tfrecord", "jsonl"])
def test_other_formats_are_refused(out, format_):
    views = json.loads((out / "manifest.json").read_text())["views"]
    views["tokens"]["format"] = format_
    edit(out / "manifest.json", views=views)
    run = layerbeam.open_run(out)
    view = run.view("tokens")
    assert view.format == format_
    assert "tokens" in repr(run)
    for read in (view.to_arrow, lambda: view.to_numpy("layer_1"), view.iter_batches, view.to_tf_dataset):
        with pytest.raises(ValueError, match=rf"view tokens of .* is {format_}; open_run reads the rows of Parq"):
            read()


# --- blocks and files ---


def test_blocks_and_their_parts(finished):
    run = layerbeam.open_run(finished)
    blocks = list(run.blocks())
    assert sum(block.counts["records_read"] for block in blocks) == run.manifest["counts"]["records_read"] == 60
    assert [block.parts["tokens"] for block in blocks] == list(run["tokens"].parts)
    for block in blocks:
        assert run.same_texts(block.parts["tokens"], "texts") == block.parts["texts"]
    lines = [(block.files[0].file.path, block.files[0].first_line) for block in blocks]
    assert lines == sorted(lines)
    assert [(entry["path"], entry["records"]) for entry in run.inputs()] == [("corpus/a.txt", 20), ("corpus/b.txt", 40)]
    assert run["tokens"].vectors_text == "layer_0, layer_1, layer_2, layer_3, each 64 x float32"
    assert run["tokens"].file_format.is_columnar


def test_rejects_of_a_block(workplace):
    workplace.write("corpus/a.txt", b"one line\n\xff\nanother\n")
    workplace.configure(input={"max_reject_rate": 0.5}, views={"texts": {"level": "text", "layers": [-1]}})
    workplace.drive()
    run = layerbeam.open_run("out")
    (block,) = run.blocks()
    (reject,) = run.rejects(block)
    assert (reject.line, reject.raw, reject.stage) == (1, b"\xff", "read")
    assert run.summary().rejects == {reject.kind: 1}
    (workplace.folder / "out" / block.parts["rejects"].path).write_text("{}\n")
    assert run.rejects(block) == []


def test_files_that_have_changed(out):
    run = layerbeam.open_run(out)
    (missing, longer, other, *_) = run["tokens"].parts
    assert (run.check_files(), run.check_part(other)) == ([], None)
    (out / missing.path).unlink()
    (out / longer.path).write_bytes((out / longer.path).read_bytes() + b"x")
    (out / other.path).write_bytes(bytes(other.bytes))
    shutil.copy(out / other.path, out / "tokens" / "copy.parquet")
    assert run.check_files() == [
        f"{missing.path} is missing",
        f"{longer.path} has {longer.bytes + 1:,} bytes, not {longer.bytes:,}",
        "tokens/copy.parquet is there and not listed in parts.jsonl",
    ]
    assert run.check_part(other) == "has changed since it was written: its SHA-256 differs"


def test_the_job_of_a_run(finished):
    job = layerbeam.open_run(finished).job()
    assert [view.name for view in job.views] == list(VIEWS)
    assert job.config.output.path == str(finished)


def test_an_unfinished_run_has_its_intact_blocks(out):
    whole = layerbeam.open_run(out)
    first, second, *others = whole.blocks()
    (out / second.parts["tokens"].path).unlink()
    (out / "_SUCCESS").unlink()
    (out / "manifest.json").unlink()
    edit(out / "_runs" / "1.json", state="interrupted")
    run = layerbeam.open_run(out, allow_unfinished=True)
    assert list(run.blocks()) == [first, *others]
    assert run["tokens"].num_rows == whole["tokens"].num_rows - second.parts["tokens"].rows
    assert run["tokens"].to_arrow().num_rows == run["tokens"].num_rows
    assert run.summary().state == "unfinished: interrupted"
    assert sum(entry["records"] for entry in run.inputs()) == run.manifest["counts"]["records_read"]
    assert "not complete" in repr(run)
    with pytest.raises(FileNotFoundError, match="nowhere: holds no layerbeam run"):
        layerbeam.open_run("nowhere", allow_unfinished=True)


# --- stores and processes ---


def test_an_object_store(finished, memory):
    upload(finished, "memory://bucket/runs/out")
    run = layerbeam.open_run("memory://bucket/runs/out")
    here = layerbeam.open_run(finished)
    assert run.views == here.views
    for name in run.views:
        assert run.view(name).to_arrow().equals(here.view(name).to_arrow())
    assert run.view("tokens").paths[0].startswith("memory://bucket/runs/out/tokens/a-")
    del memory.stored[run.view("tokens").paths[2]]
    with pytest.raises(FileNotFoundError, match="is missing"):
        run.view("tokens").to_arrow()
    with pytest.raises(FileNotFoundError, match=r"did you mean memory://bucket/runs/out\?$"):
        layerbeam.open_run("memory://bucket/runs/out/texts")


def test_a_view_can_be_pickled(finished):
    view = layerbeam.open_run(finished).view("tokens")
    sent = pickle.loads(pickle.dumps(view))
    assert sent.schema.equals(view.schema)
    assert pickle.loads(pickle.dumps(sent)).to_arrow().equals(view.to_arrow())


def test_a_run_is_a_collection_of_views(finished):
    run = layerbeam.open_run(finished)
    assert (list(run), len(run), "texts" in run, "text" in run) == (list(VIEWS), 3, True, False)
    assert run["texts"].num_rows == run.view("texts").num_rows
    assert run._ipython_key_completions_() == list(VIEWS)
    with pytest.raises(KeyError, match="did you mean `texts`"):
        run["text"]


def test_pandas_is_optional(finished, monkeypatch):
    view = layerbeam.open_run(finished)["texts"]
    frame = view.to_pandas(["line", "text", "embedding"])
    assert frame.columns.tolist() == ["line", "text", "embedding"]
    np.testing.assert_array_equal(np.stack(frame["embedding"]), view.to_numpy("embedding"))
    assert len(view.to_pandas()) == len(view)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="to_pandas needs pandas, which is not installed here: pip install pandas"):
        view.to_pandas()
