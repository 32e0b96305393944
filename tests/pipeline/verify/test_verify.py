"""`layerbeam verify`: it passes sound runs, and finds errors planted in the files of a finished run."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
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
from repository import DATA
from weights import vectors
from workplace import Workplace

from layerbeam.pipeline.verify import recompute
from layerbeam.transforms.parts import read_tables
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.parts.write import write_part
from layerbeam.transforms.reference import forward
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.view import ViewSpec

VIEWS = {
    "tokens": {"level": "token", "layers": "all"},
    "words": {"level": "token", "layers": [-1, 1], "combine": "concat", "special_tokens": False, "truncate_dim": 70},
    "halves": {"level": "token", "layers": [1, 2, 3], "combine": "sum", "dtype": "float16"},
    "means": {"level": "text", "layers": [3, 0], "special_tokens": False, "normalize": True},
    "maxima": {"level": "text", "layers": [2, 1], "combine": "mean", "pooling": "max"},
    "firsts": {"level": "text", "layers": [0, 3], "pooling": "cls", "special_tokens": False, "dtype": "float16"},
    "pooled": {"level": "text", "pooling": "pooler"},
    "records": {"level": "token", "layers": [2, 1], "format": "tfrecord"},
    "sums": {"level": "text", "layers": [2, 1], "combine": "sum", "format": "tfrecord", "compress": False},
    "lines": {"level": "token", "layers": [-1, 0], "format": "jsonl", "special_tokens": False},
    "objects": {"level": "token", "layers": [3, 1], "combine": "mean", "format": "jsonl", "compress": False},
    "texts": {"level": "text", "layers": [-2], "format": "jsonl", "dtype": "float16"},
    "spaced": {"level": "word", "layers": [1], "words": "whitespace", "format": "tfrecord"},
    "parsed": {"level": "word", "layers": [1], "format": "jsonl"},
}
IN_OTHER_FORMATS = {
    "records": ViewSpec(name="records", level="token", layers=(2, 1), hidden_size=64, format="tfrecord"),
    "sums": ViewSpec(
        name="sums", level="text", layers=(2, 1), hidden_size=64, combine="sum", format="tfrecord", compress=False
    ),
    "lines": ViewSpec(name="lines", level="token", layers=(3, 0), hidden_size=64, format="jsonl", given_layers=(-1, 0)),
    "texts": ViewSpec(name="texts", level="text", layers=(2,), hidden_size=64, format="jsonl", dtype="float16"),
}
TOKENS = {"tokens": VIEWS["tokens"]}
ALL = ("--sample", "1000")


def finished(workplace: Workplace, *, lines: list[str] | None = None, **sections: Any) -> None:
    """A run over two files and several blocks."""
    lines = random_lines(30) if lines is None else lines
    corpus = {"a.txt": "\n".join(lines[:20]) + "\n", "b.txt": "\n".join(lines[20:]) + "\n"}
    workplace.finished(corpus, **{"input": {"slice_bytes": 1500}, "views": VIEWS} | sections)


def columns(workplace: Workplace, *arguments: str, status: int = 0) -> dict[str, dict]:
    """{view.column: what verify says of it}."""
    verdict = json.loads(workplace.verify("--json", *arguments, status=status).out)
    return {f"{column['view']}.{column['column']}": column for column in verdict["columns"]}


def rewrite(workplace: Workplace, view: str, change: Callable[[pa.Table], pa.Table], part: int = 0) -> Path:
    """Change the rows of a part and have parts.jsonl agree with its size and hash, so that only the rows differ."""
    path = sorted((workplace.folder / "out" / view).iterdir())[part]
    if path.suffix == ".parquet":
        table = change(pq.read_table(path))
        pq.write_table(table, path)
    else:
        as_view = IN_OTHER_FORMATS[view]
        table = change(pa.concat_tables(read_tables(str(path), schema(as_view))))
        out = workplace.folder / "out"
        part = write_part(Output(str(out), ""), as_view, "changed-0000000000000000-000000000000", table)
        os.replace(out / part.path, path)
    listed = workplace.folder / "out" / "parts.jsonl"
    commits = [json.loads(line) for line in listed.read_text().splitlines()]
    for commit in commits:
        if view in commit["parts"] and commit["parts"][view]["path"] == f"{view}/{path.name}":
            commit["parts"][view] |= {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
    listed.write_text("".join(json.dumps(commit) + "\n" for commit in commits))
    return path


def with_vectors(table: pa.Table, column: str, values: np.ndarray) -> pa.Table:
    field = table.schema.field(column)
    array = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=field.type)
    return table.set_column(table.column_names.index(column), field, array)


def planted(column: str, row: int, dimension: int, error: float) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = vectors(table, column).copy()
        values[row, dimension] += error
        return with_vectors(table, column, values)

    return change


@pytest.mark.parametrize(
    ("encoder", "against"),
    [
        ({"handle": str(DATA / "hf_uncased")}, "the reference implementation in NumPy"),
        ({"handle": str(DATA / "google_cased"), "max_seq_length": 12}, "the reference implementation in NumPy"),
        ({"handle": str(DATA / "tfhub_uncased")}, "the SavedModel, one text at a time"),
    ],
)
def test_every_view_passes(workplace, encoder, against):
    finished(workplace, encoder=encoder)
    assert len(list((workplace.folder / "out" / "tokens").iterdir())) > 2
    trust = ["--trust"] if "tfhub" in encoder["handle"] else []
    verdict = json.loads(workplace.verify("--json", *ALL, *trust).out)
    assert (verdict["result"], verdict["compared_with"]) == ("pass", against)
    assert (verdict["problems"], verdict["unverifiable"]) == ([], {})
    assert verdict["sampled"] == verdict["texts"] == 28
    found = {f"{column['view']}.{column['column']}": column for column in verdict["columns"]}
    assert set(found) == {
        *(f"tokens.layer_{layer}" for layer in range(4)),
        "words.embedding",
        "halves.embedding",
        "means.layer_3",
        "means.layer_0",
        "maxima.embedding",
        "firsts.layer_0",
        "firsts.layer_3",
        "pooled.pooled_output",
        "records.layer_2",
        "records.layer_1",
        "sums.embedding",
        "lines.layer_3",
        "lines.layer_0",
        "objects.embedding",
        "texts.layer_2",
        "spaced.layer_1",
        "parsed.layer_1",
    }
    assert found["tokens.layer_3"]["rows"] == workplace.rows("tokens").num_rows
    assert found["pooled.pooled_output"]["rows"] == 28
    for name, column in found.items():
        assert column["max_difference"] < (5e-3 if column["dtype"] == "float16" else 1e-5), name
        assert column["min_cosine"] > 1 - (1e-6 if column["dtype"] == "float16" else 1e-10), name


def test_a_text_is_encoded_once_for_all_views(workplace, monkeypatch):
    """A long text window by window; the record of several sampled sentences once."""
    views = {name: VIEWS[name] for name in ("tokens", "means", "firsts", "pooled", "spaced")}
    views["whole"] = {"level": "record", "layers": [1]}
    workplace.write("corpus/a.txt", "light " * 400 + ". Short. " + "shines " * 30 + "\n")
    encoder = {"long_text": "window", "max_seq_length": 66, "window_overlap": 32}
    workplace.configure(views=views, encoder=encoder, input={"unit": "sentence"})
    workplace.drive()
    lengths = []

    def counted(config, weights, ids, segments, codes):
        lengths.append(len(ids))
        return forward(config, weights, ids, segments, codes)

    monkeypatch.setattr(recompute, "forward", counted)
    verdict = json.loads(workplace.verify("--json", *ALL).out)
    assert (verdict["result"], verdict["sampled"]) == ("pass", 3)
    assert next(column["rows"] for column in verdict["columns"] if column["view"] == "whole") == 1
    # 15 windows of three sentences; the row of the record needs 3 of them before it is their turn.
    assert len(lengths) == 18


def test_what_is_printed(workplace):
    finished(workplace)
    out = workplace.verify("--sample", "7", "--seed", "3").out
    assert "out: 7 of 28 texts (seed 3) against the reference implementation in NumPy" in out
    assert "allowed   1e-04 + 1e-05 |x| in float32\n" in out
    assert "allowed   1.01e-04 + 1e-05 |x| in float32, six decimals\n" in out
    assert "allowed   1.01e-04 + 1e-03 |x| in float16, six decimals\n" in out
    assert "allowed   1e-04 + 1e-03 |x| in float16" in out
    assert out.rstrip().endswith("\npass")


def test_a_seed_draws_the_same_texts_again(workplace):
    finished(workplace, views=TOKENS)
    first, again, other = (columns(workplace, "--sample", "5", "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert first["tokens.layer_3"]["rows"] != other["tokens.layer_3"]["rows"]


def test_a_savedmodel_that_is_not_plain_bert(workplace):
    from saved_models import save

    save(workplace.folder / "model")
    views = {"tokens": {"level": "token", "layers": ["1..3"]}, "pooled": {"level": "text", "pooling": "pooler"}}
    workplace.prepare("a b c\ne cd\n" + "e e a b " * 9, views=views, encoder={"handle": "model", "max_seq_length": 40})
    workplace.drive()
    assert workplace.manifest()["encoder"]["engine"] == "savedmodel"
    assert {column["rows"] > 0 for column in columns(workplace, "--trust", *ALL).values()} == {True}


def test_hostile_input(workplace):
    lines = [
        b"caf\xc3\xa9 \xe4\xbd\xa0",
        b"\xff broken",
        b"",
        b"   ",
        b"\xe2\x80\x8b",
        b"[CLS] x ||| y",
        b"A" * 300,
        b"\r",
    ]
    workplace.write("corpus/a.txt", b"\xef\xbb\xbf" + b"\n".join(lines))
    workplace.write("corpus/b.txt.gz", gzip.compress(b"\r\n".join(lines * 4)))
    workplace.configure(input={"blank": "keep", "invalid_bytes": "replace", "slice_bytes": 300}, views=VIEWS)
    workplace.drive()
    assert json.loads(workplace.verify("--json", *ALL).out)["sampled"] == 8 * 5
    workplace.configure(input={"slice_bytes": 300, "max_reject_rate": 1.0}, views=VIEWS, output={"path": "out2"})
    workplace.drive()
    assert workplace._call("verify", "out2", *ALL, status=0).out.rstrip().endswith("pass")


@pytest.mark.parametrize(
    "errors",
    [
        {
            "tokens.layer_0": 1e-3,
            "halves.embedding": 0.1,  # float16
            "maxima.embedding": 1e-3,
            "records.layer_1": 1e-3,
            "lines.layer_0": 1e-3,
        },
        {
            "tokens.layer_3": 1e-3,
            "words.embedding": 1e-3,
            "means.layer_3": 1e-3,
            "pooled.pooled_output": 1e-3,
            "sums.embedding": 1e-3,
        },
    ],
)
def test_an_error_of_a_thousandth_in_one_value(workplace, errors):
    finished(workplace)
    for name, error in errors.items():
        view, column = name.split(".")
        rewrite(workplace, view, planted(column, row=4, dimension=7, error=error))
    done = workplace.verify(*ALL, status=1)
    for name in errors:
        view, column = name.split(".")
        assert re.search(rf"FAIL      {view}, {column}: corpus/a.txt line .*off by 0\.(001|00099|1|09)", done.out)
    assert done.out.rstrip().endswith("FAIL")
    failed = {name: len(found["failures"]) for name, found in columns(workplace, *ALL, status=1).items()}
    assert {name: count for name, count in failed.items() if count} == dict.fromkeys(errors, 1)


def test_not_a_number(workplace):
    finished(workplace, views=TOKENS)
    rewrite(workplace, "tokens", planted("layer_2", row=0, dimension=0, error=np.nan))
    assert "tokens, layer_2: corpus/a.txt line 0, row 0 of the text: off by nan" in workplace.verify(*ALL, status=1).out
    assert columns(workplace, *ALL, status=1)["tokens.layer_2"]["min_cosine"] is None


def test_two_rows_swapped_and_a_wrong_layer(workplace):
    def swap(table: pa.Table, column: str) -> pa.Table:
        values = vectors(table, column).copy()
        values[[1, 2]] = values[[2, 1]]
        return with_vectors(table, column, values)

    finished(workplace)
    for view, column in (("tokens", "layer_1"), ("means", "layer_0"), ("pooled", "pooled_output")):
        rewrite(workplace, view, functools.partial(swap, column=column))
    rewrite(workplace, "tokens", lambda table: with_vectors(table, "layer_2", vectors(table, "layer_3")), part=1)
    failed = {name for name, found in columns(workplace, *ALL, status=1).items() if found["failures"]}
    assert failed == {"tokens.layer_1", "tokens.layer_2", "means.layer_0", "pooled.pooled_output"}


def test_rows_and_bytes_of_other_formats(workplace):
    finished(workplace, views={view: VIEWS[view] for view in IN_OTHER_FORMATS})
    paths = {view: rewrite(workplace, view, lambda table: table.slice(table.num_rows - 1)) for view in IN_OTHER_FORMATS}
    problems = json.loads(workplace.verify("--json", *ALL, status=1).out)["problems"]
    for view, path in paths.items():
        assert any(problem.startswith(f"{view}/{path.name}: rows of ") for problem in problems)
        rewrite(workplace, view, lambda table: table)
        path.write_bytes(path.read_bytes()[:-3])
    out = workplace.verify(*ALL, status=1).out
    for view, path in paths.items():
        assert f"FAIL      {view}/{path.name} cannot be read: " in out


def test_tokens_of_other_formats(workplace):
    finished(workplace, views={view: VIEWS[view] for view in IN_OTHER_FORMATS})
    for view in ("records", "lines"):
        rewrite(workplace, view, lambda table: with_column(table, "token", ["other"] * table.num_rows))
    problems = json.loads(workplace.verify("--json", *ALL, status=1).out)["problems"]
    assert len([problem for problem in problems if "have other values in token" in problem]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.slice(table.num_rows - 1), "missing"),
        (lambda table: pa.concat_tables([table, table]), "are duplicates"),
        (lambda table: pa.concat_tables([table.slice(0, 1), table]), "are duplicates"),
        (lambda table: table.slice(1), "are too many or too few"),
        (lambda table: table.take([1, 0, *range(2, table.num_rows)]), "have other values in "),
        (lambda table: with_column(table, "file", ["WRONG"] * table.num_rows), "have other values in file"),
        (lambda table: with_column(table, "start", [99] * table.num_rows), "have other values in start"),
        (lambda table: with_column(table, "word_index", [7] * table.num_rows), "have other values in word_index"),
    ],
)
def test_rows_of_tokens(workplace, change, message):
    lines = [f"the river number {number}" for number in range(30)]
    finished(workplace, lines=lines, views={"tokens": {"level": "token", "layers": [-1]}})
    rewrite(workplace, "tokens", change)
    problems = json.loads(workplace.verify("--json", *ALL, status=1).out)["problems"]
    assert any(message in problem for problem in problems), problems


def with_column(table: pa.Table, name: str, values: list) -> pa.Table:
    field = table.schema.field(name)
    return table.set_column(table.column_names.index(name), field, pa.array(values, field.type))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["layer_3"]),
        lambda table: table.rename_columns([*table.column_names[:-1], "layer_2"]),
        lambda table: table.set_column(0, "file", table["line"]),
    ],
)
def test_columns_that_are_not_the_view_s(workplace, change):
    finished(workplace, views={"tokens": {"level": "token", "layers": [-1]}})
    path = rewrite(workplace, "tokens", change)
    assert f"FAIL      tokens/{path.name}: its columns are not those of the view" in workplace.verify(status=1).out


def test_rows_of_texts(workplace):
    finished(workplace, lines=[f"line {n}" for n in range(30)], views={"texts": {"level": "text", "layers": [-1]}})
    rewrite(workplace, "texts", lambda table: pa.concat_tables([table.slice(1, 3), table.slice(3)]))
    (missing, duplicate) = json.loads(workplace.verify("--json", *ALL, status=1).out)["problems"]
    assert "rows of 1 record are missing (the first at line 0)" in missing
    assert "rows of 1 record are duplicates (the first at line 3)" in duplicate
    rewrite(workplace, "texts", lambda table: table.take(list(reversed(range(table.num_rows)))))
    assert "not in the order of their lines" in workplace.verify(*ALL, status=1).out


def test_a_part_of_the_same_size_that_has_changed(workplace):
    finished(workplace, views={"pooled": VIEWS["pooled"]})
    path = sorted((workplace.folder / "out" / "pooled").iterdir())[0]
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # in the footer's metadata
    path.write_bytes(bytes(content))
    assert f"FAIL      pooled/{path.name}" in workplace.verify(*ALL, status=1).out


def test_files_that_are_not_as_listed(workplace):
    finished(workplace, views={"tokens": {"level": "token", "layers": [-1]}})
    first, second, *_ = sorted((workplace.folder / "out" / "tokens").iterdir())
    shutil.copy(second, second.with_name("copy.parquet"))
    first.unlink()
    with second.open("ab") as file:
        file.write(b"more")
    out = workplace.verify("--sample", "1", status=1).out
    assert f"FAIL      tokens/{first.name} is missing" in out
    assert f"FAIL      tokens/{second.name} has {second.stat().st_size:,} bytes, not" in out
    assert "FAIL      tokens/copy.parquet is there and not listed in parts.jsonl" in out


def test_an_input_file_that_is_missing_or_has_changed(workplace):
    finished(workplace, views=TOKENS)
    (workplace.folder / "corpus" / "a.txt").unlink()
    done = workplace.verify(*ALL, status=3)
    assert f"cannot verify corpus/a.txt: No such file or directory ({workplace.folder}/corpus/a.txt)" in done.out
    assert done.out.rstrip().endswith("cannot verify")
    verdict = json.loads(workplace.verify("--json", *ALL, status=3).out)
    assert (verdict["result"], 0 < verdict["sampled"] < 28) == ("cannot verify", True)
    b = workplace.folder / "corpus" / "b.txt"
    b.write_bytes(b.read_bytes().replace(b"the", b"eht"))
    reasons = json.loads(workplace.verify("--json", *ALL, status=3).out)["unverifiable"]
    assert reasons["corpus/b.txt"] == "its bytes have changed since it was read"
    with b.open("ab") as file:
        file.write(b"one more line")
    reasons = json.loads(workplace.verify("--json", "--sample", "1", status=3).out)["unverifiable"]
    assert "bytes now, and had" in reasons["corpus/b.txt"]


def test_a_failure_counts_more_than_what_cannot_be_verified(workplace):
    finished(workplace, views=TOKENS)
    (workplace.folder / "corpus" / "a.txt").unlink()
    rewrite(workplace, "tokens", planted("layer_0", row=0, dimension=0, error=1e-3), part=-1)
    assert json.loads(workplace.verify("--json", *ALL, status=1).out)["result"] == "fail"


def test_an_encoder_that_has_changed(workplace):
    folder = workplace.folder / "encoder"
    for name in ("config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"):
        workplace.write(f"encoder/{name}", (DATA / "hf_uncased" / name).read_bytes())
    finished(workplace, views=TOKENS, encoder={"handle": "encoder"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu_new"}))
    message = workplace.verify(status=2).err
    assert "out: what it was made with has changed:" in message
    assert "encoder.fingerprint: " in message


def test_damaged_records_of_a_run(workplace):
    finished(workplace, views=TOKENS)
    out = workplace.folder / "out"
    (out / "parts.jsonl").write_text("{}\n")
    assert "parts.jsonl: cannot be read" in workplace.verify(status=2).err
    (out / "_SUCCESS").unlink()
    assert "out: the run is not finished (no _SUCCESS in it, its last state is: done)" in workplace.verify(status=2).err
    (out / "_SUCCESS").touch()
    (out / "manifest.json").write_text('{"name": "x"}')
    assert (
        "is not a manifest of layerbeam: it has no complete, counts, encoder, fingerprint, identity"
        in workplace.verify(status=2).err
    )
    (out / "manifest.json").write_text("{")
    assert "out: manifest.json cannot be read; run the configuration again" in workplace.verify(status=2).err


def test_a_view_that_the_manifest_does_not_describe(workplace):
    finished(workplace, views={name: VIEWS[name] for name in ("tokens", "texts")})
    manifest = workplace.manifest()
    del manifest["views"]["texts"]
    workplace.write("out/manifest.json", json.dumps(manifest))
    out = workplace.verify(status=1).out
    assert re.search(r"FAIL      texts/\S+ cannot be read: 'texts': out has no such view; it has tokens", out)


def test_nothing_but_blank_lines(workplace):
    workplace.finished("\n" * 60, status=3, views=VIEWS)
    done = workplace.verify(status=3)
    assert done.out.startswith("out: 0 of 0 texts")
    assert "cannot verify (all): no text was embedded, so there is nothing to compare" in done.out


def test_wrong_numbers(workplace):
    assert "'-1' is not an integer from 0 up" in workplace.verify("--seed=-1", status=2).err
    assert "'0' is not a positive integer" in workplace.verify("--sample", "0", status=2).err
