"""What a notebook shows of a run and its views."""

from __future__ import annotations

import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from repository import DATA
from tampering import edit
from written_run import write_run

import layerbeam
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.view import ViewSpec

TEXTS = ViewSpec(
    name="texts",
    level="text",
    include_text=True,
    layers=(3,),
    hidden_size=4,
    fields=(("id", "string"), ("year", "int64")),
)


def text_rows(texts: list[str]) -> pa.Table:
    """Rows of `TEXTS` with vectors of 123456789."""
    rows = [
        {"file": "a.txt", "text": text, "line": line, "layer_3": [123456789.0] * 4} for line, text in enumerate(texts)
    ]
    columns = schema(TEXTS)
    given = [{f.name: row.get(f.name, None if f.nullable else 0) for f in columns} for row in rows]
    return pa.Table.from_pylist(given, schema=columns)


def cells(shown: str) -> list[list[list[str]]]:
    """The text of each cell, by table and row."""
    return [
        [
            [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        ]
        for table in re.findall(r"<table>(.*?)</table>", shown, re.DOTALL)
    ]


@pytest.mark.parametrize("format_", ["parquet", "tfrecord", "jsonl"])
def test_columns_and_first_rows(tmp_path: Path, format_: str) -> None:
    texts = ["<script>alert('x')</script>", "b" * 81, "&amp;\x00\u202e", "c" * 80, "e", "not shown", "f"]
    view = write_run(tmp_path, dataclasses.replace(TEXTS, format=format_), [text_rows(texts), text_rows(["g"])])[
        "texts"
    ]
    shown = view._repr_html_()
    columns, rows = cells(shown)
    assert columns[0] == ["column", "type"]
    assert [name for name, _ in columns[1:]] == view.schema.names
    assert {"layer_3": "4 x float32", "year": "int64", "text": "string"}.items() <= dict(columns[1:]).items()
    heading, *first = rows
    assert heading == view.other_columns
    text, year = heading.index("text"), heading.index("year")
    assert [row[text] for row in first] == [texts[0], "b" * 77 + "...", "&amp;\\x00\\u202e", "c" * 80, "e"]
    assert {row[year] for row in first} == {""}
    assert "view <b>texts</b>: 8 rows, one per text; " + format_ in shown
    assert "<script" not in shown
    assert "12345678" not in shown
    Path(view.paths[0]).unlink()
    assert "is missing; run the configuration again" in view._repr_html_()


def test_views_without_rows(tmp_path: Path) -> None:
    for number, tables in enumerate([[], [text_rows([])], [text_rows([]), text_rows(["a"])]]):
        run = write_run(tmp_path / str(number), TEXTS, tables)
        (columns,) = cells(run["texts"]._repr_html_())
        assert columns[0] == ["column", "type"]
        ((heading, only),) = cells(run._repr_html_())
        assert heading == ["view", "rows", "one per", "vectors", "format"]
        assert only == ["texts", "1" if number == 2 else "0", "text", "layer_3: 4 x float32", "parquet"]


def test_a_run_that_is_not_finished(workplace: Any) -> None:
    own: dict[str, Any] = {"level": "text", "layers": [-1], "pooling": "none"}
    views = {f"lists_{format_}": own | {"format": format_} for format_ in ("parquet", "tfrecord", "jsonl")}
    views |= {"codes": own | {"dtype": "int8"}, "types": {"level": "word_type", "layers": [1]}}
    workplace.finished({"a<b>.txt": "A river.\n\nA bank.\n"}, views=views, encoder={"handle": str(DATA / "hf_uncased")})
    out = workplace.folder / "out"
    run = layerbeam.open_run(out)
    shown = run._repr_html_()
    assert f"layerbeam run <b>{out}</b></div>" in shown
    assert "<div>3 records read, 2 texts embedded, 0 rejected</div>" in shown
    assert [row[0] for row in cells(shown)[0][1:]] == list(run)
    (out / "_SUCCESS").unlink()
    edit(out / "_runs" / "1.json", state="interrupted")
    run = layerbeam.open_run(out, allow_unfinished=True)
    assert f"layerbeam run <b>{out}</b>, not complete</div>" in run._repr_html_()
    for name in run:
        columns, (heading, *first) = cells(run[name]._repr_html_())
        if name == "types":
            assert columns[3:] == [["layer_1", "64 x float32"], ["layer_1_std", "64 x float32"]]
            assert (heading, first[0]) == (["word", "count"], [".", "2"])
            continue
        assert dict(columns[1:])[run[name].vectors[0]] == "lists of 64 x float32"
        assert [row[heading.index("line")] for row in first] == ["0", "2"]
        assert {row[heading.index("file")] for row in first} == {"corpus/a<b>.txt"}
    codes = run["codes"].stored
    assert dict(cells(codes._repr_html_())[0][1:])[codes.vectors[0]] == "lists of 64 x int8"
