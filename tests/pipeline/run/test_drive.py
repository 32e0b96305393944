"""`Workplace.drive`, which other tests use in place of a run: it writes the same bytes and messages."""

from __future__ import annotations

import gzip
import json
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines

LINES = random_lines(120)
ROWS = [{"text": line, "n": number} for number, line in enumerate(LINES)]
LEVELS = {
    "tokens": {"level": "token", "layers": "all"},
    "words": {"level": "word", "layers": [1], "keep_words": ["a", "e", "the"]},
    "texts": {"level": "text", "layers": [2], "format": "jsonl"},
    "records": {"level": "record", "layers": [-1], "format": "tfrecord"},
    "types": {"level": "word_type", "layers": [1]},
}
CORPORA = {
    "lines": {"a.txt": "\n".join(LINES), "b.txt": ""},
    "small files": {f"{number}.txt": line for number, line in enumerate(LINES[:40])},
    "gzip": {"a.txt.gz": gzip.compress("\n".join(LINES).encode(), mtime=0)},
    "jsonl": {"a.jsonl": "\n".join([*map(json.dumps, ROWS), "{"])},
    "csv": {"a.csv": "text,n\n" + "\n".join(f'"{line}",{number}' for number, line in enumerate(LINES))},
}


def without_times(printed: str) -> str:
    """What a command printed, without what differs between equal runs."""
    printed = re.sub(r"(\d\d:\d\d:\d\d )?\d+%: .*\n", "", printed)  # progress, of runs that take long enough
    printed = re.sub(r"fresh\d*|driven", "OUT", printed)
    return re.sub(
        r"\d\d:\d\d:\d\d |[\d.,]+ s\b.*|[\d,]+ a second.*|peak memory.*|busy with.*|first block.*| +", " ", printed
    )


@pytest.mark.parametrize("case", [*CORPORA, "parquet"])
def test_writes_what_a_run_writes(workplace, case):
    inputs = {"slice_bytes": 900, "max_reject_rate": 0.5}
    workplace.prepare(CORPORA.get(case, {}), views=LEVELS, input=inputs)
    if case == "parquet":
        workplace.folder.joinpath("corpus").mkdir()
        pq.write_table(pa.Table.from_pylist(ROWS), workplace.folder / "corpus/a.parquet", row_group_size=30)
    run, driven = workplace.run("--output", "fresh"), workplace.drive("--output", "driven")
    assert workplace.files("driven") == workplace.files("fresh")
    assert len(list(workplace.folder.glob("driven/tokens/*"))) > 1
    assert without_times(driven.out) == without_times(run.out)
    assert without_times(driven.err) == without_times(run.err)
    counts, expected = (
        json.loads((workplace.folder / out / "_runs/1.json").read_text())["counts"] for out in ("driven", "fresh")
    )
    assert {k: v for k, v in counts.items() if "micro" not in k} == {
        k: v for k, v in expected.items() if "micro" not in k
    }


def test_sentences_and_a_second_run(workplace):
    """Units that the tokenize stage cuts, and an edit: what is committed is found, and the rest encoded."""
    workplace.prepare("\n".join(f"{line}. {line} again." for line in LINES), views=LEVELS, input={"unit": "sentence"})
    for output in ("fresh", "driven"):
        (workplace.folder / "corpus/b.txt").unlink(missing_ok=True)
        work = workplace.run if output == "fresh" else workplace.drive
        work("--output", output)
        os.utime(workplace.write("corpus/b.txt", "One more text. And another."), (1e9, 1e9))
        assert "resuming" in work("--output", output).err
    assert workplace.files("driven") == workplace.files("fresh")


def test_arithmetic_instead_of_an_encoder(workplace):
    """Other vectors, all else equal."""
    workplace.prepare("\n".join(LINES), views=LEVELS, input={"slice_bytes": 900})
    workplace.drive("--output", "driven")
    workplace.drive("--output", "fresh", arithmetic=True)
    with_encoder, arithmetic = workplace.rows(output="driven"), workplace.rows(output="fresh")
    names = [name for name in with_encoder.column_names if not name.startswith("layer")]
    assert arithmetic.select(names) == with_encoder.select(names)
    assert arithmetic.schema == with_encoder.schema
    assert arithmetic["layer_1"] != with_encoder["layer_1"]
