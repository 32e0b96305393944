from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from repository import DATA
from weights import vectors

from layerbeam.pipeline.plan import plan
from layerbeam.pipeline.run import run
from layerbeam.pipeline.verify.compare import cosines
from layerbeam.transforms.encoders import onednn


def corpus(workplace, **encoder) -> None:
    workplace.write("corpus/a.txt", "\n".join(random_lines(60)))
    workplace.configure(
        input={"slice_bytes": 1000},
        encoder=encoder,
        views={"tokens": {"level": "token", "layers": "all"}, "p": {"level": "text", "pooling": "pooler"}},
    )


def test_run_reports_speed(workplace):
    corpus(workplace)
    done = workplace.run()
    record = json.loads((workplace.folder / "out/_runs/1.json").read_text())
    counts = record["counts"]
    assert counts["encoded_tokens"] == workplace.rows().num_rows
    assert record["padding_share"] == round(1 - counts["encoded_tokens"] / counts["padded_tokens"], 4)
    assert counts["encoded_tokens"] / record["tokens_per_second"] == pytest.approx(record["seconds"], abs=0.01)
    assert 0 <= record["seconds_to_first_block"] < record["seconds"]
    assert set(record["stage_shares"]) == {"read", "tokenize", "forward", "pooling", "write"}
    assert sum(record["stage_shares"].values()) == pytest.approx(1, abs=1e-3)
    assert all(counts[f"{stage}_microseconds"] > 0 for stage in record["stage_shares"])
    assert f"speed     {counts['encoded_tokens']:,} tokens encoded (with special tokens, and equal " in done.out
    assert "          first block after " in done.out
    assert json.loads(workplace.show("--json").out)["last_start"]["stage_shares"] == record["stage_shares"]
    assert "seconds" not in json.dumps(workplace.manifest())


def test_bfloat16_is_verified_by_cosine(workplace):
    corpus(workplace, compute_dtype="bfloat16")
    workplace.drive()
    exact = workplace.drive("--output", "exact", "--set", "encoder.compute_dtype=float32")
    assert "exact: complete" in exact.out
    for layer in range(1, 4):
        coarse, fine = (vectors(workplace.rows(output=output), f"layer_{layer}") for output in ("out", "exact"))
        assert 1e-4 < np.abs(coarse - fine).max() < 0.5
    printed = workplace.verify("--sample", "60").out
    assert "allowed   cosine 0.998 and length 0.98 to 1.02 after products of bfloat16, in float32\npass\n" in printed
    assert "other settings" in workplace.drive("--set", "encoder.compute_dtype=float32", status=2).err


def test_bfloat16_on_a_processor_without_it(workplace, monkeypatch):
    for module in (run, plan):
        monkeypatch.setattr(module, "slow_bfloat16", lambda dtype: f"compute_dtype: {dtype} is slow here")
    corpus(workplace, compute_dtype="bfloat16")
    assert "compute_dtype: bfloat16 is slow here" in workplace.drive().err
    assert "compute_dtype: bfloat16 is slow here" in workplace.plan().out


@pytest.mark.usefixtures("int8_products")
def test_int8_products(workplace, fail_after):
    """Equal bytes by a resumed run and by two workers, close to products in float32."""
    corpus(workplace, compute_dtype="int8")
    fail_after(2)
    workplace.drive()
    workplace.run("--workers", "2", "--output", "two")
    assert workplace.files("two") == workplace.files()
    workplace.drive("--output", "exact", "--set", "encoder.compute_dtype=float32")
    for layer in range(1, 4):
        coarse, fine = (vectors(workplace.rows(output=output), f"layer_{layer}") for output in ("out", "exact"))
        assert 1e-3 < np.abs(coarse - fine).max() < 1
        assert cosines(coarse, fine).min() > 0.95
    printed = workplace.verify("--sample", "60").out
    assert "against the reference implementation in NumPy, with the same int8 codes" in printed
    assert "allowed   cosine 0.998 and length 0.98 to 1.02 after products of int8, in float32" in printed
    assert "float32   tokens, layer_3: cosine with products in float32 at least 0.9" in printed
    assert printed.endswith("\npass\n")
    assert "other settings" in workplace.drive("--set", "encoder.compute_dtype=float32", status=2).err


@pytest.mark.usefixtures("int8_products")
def test_calibration_with_own_texts(workplace):
    corpus(workplace, compute_dtype="int8", calibration="mine.txt")
    lines = random_lines(20)
    workplace.write("mine.txt", "\n".join([*lines, "", " "]))
    workplace.drive()
    workplace.drive("--output", "default", "--set", "encoder.calibration=null")
    workplace.drive("--output", "listed", "--set", f"encoder.calibration={json.dumps(lines)}")
    assert workplace.files() == workplace.files("listed")
    own, default = (vectors(workplace.rows(output=output), "layer_3") for output in ("out", "default"))
    assert 1e-3 < np.abs(own - default).max() < 1
    workplace.write("mine.txt", "Other texts.\n")
    assert "with the same int8 codes" in workplace.verify("--sample", "60").out  # the texts are in the manifest
    assert "encoder.calibration: " in workplace.drive(status=2).err
    manifest = workplace.manifest()
    manifest["settings"]["encoder"]["calibration"] = "mine.txt"
    workplace.write("out/manifest.json", json.dumps(manifest))
    assert "encoder.calibration should be texts, and is a file" in workplace.verify(status=2).err


def test_calibration_that_cannot_be_used(workplace):
    corpus(workplace, compute_dtype="int8", calibration="none.txt")
    assert "encoder.calibration: none.txt: cannot be read (No such file" in workplace.drive(status=2).err
    workplace.write("none.txt", "\n \n")
    assert "encoder.calibration: has 0 texts of 0 bytes; give at least one, and" in workplace.drive(status=2).err
    workplace.write("none.txt", "long " * 30_000)
    assert "has 1 texts of 150,000 bytes; give at least one, and at most 131,072" in workplace.drive(status=2).err
    corpus(workplace, calibration=["A text."])
    assert "encoder.calibration: applies to compute_dtype int8, which is float32" in workplace.drive(status=2).err


def test_int8_on_a_processor_without_it(workplace, monkeypatch):
    monkeypatch.setattr(onednn, "instructions", lambda: frozenset({"avx2"}))
    corpus(workplace, compute_dtype="int8")
    for command in (workplace.drive, workplace.plan):
        refused = command(status=2).err
        assert "encoder.compute_dtype: int8 needs a processor with VNNI instructions, no GPU or TPU" in refused
        assert "has none: take float32, or such a machine" in refused
    assert not (workplace.folder / "out").exists()


def test_bfloat16_of_wrong_text_fails(workplace):
    corpus(workplace, compute_dtype="bfloat16", max_seq_length=16)
    workplace.drive()
    parts = [json.loads(line) for line in (workplace.folder / "out/parts.jsonl").read_text().splitlines()]
    largest = max((part["parts"]["p"] for part in parts), key=lambda part: part["rows"])
    path = workplace.folder / "out" / largest["path"]
    table = pq.read_table(path)
    pooled = vectors(table, "pooled_output").copy()
    assert len(pooled) > 2
    column = table.schema.get_field_index("pooled_output")
    swapped = table.column(column).take(list(range(len(pooled)))[::-1])
    pq.write_table(table.set_column(column, table.schema.field(column), swapped), path)
    assert "FAIL      p, pooled_output: " in workplace.verify("--sample", "60", status=1).out


@pytest.mark.parametrize(("buckets", "xla"), [([16, 32, 64], False), ([64], True)])  # XLA compiles for each
def test_buckets_and_xla_change_no_value_beyond_rounding(workplace, buckets, xla):
    corpus(workplace, length_buckets=buckets, max_seq_length=64, batch_tokens=256, xla=xla)
    workplace.drive()
    record = json.loads((workplace.folder / "out/_runs/1.json").read_text())
    assert record["padding_share"] > 0.1
    assert "pass" in workplace.verify("--sample", "60").out.splitlines()[-1]
    # They change no rows, and no values beyond rounding: the output is accepted without them.
    assert "nothing to do" in workplace.drive("--set", "encoder.length_buckets=null", "--set", "encoder.xla=false").err


@pytest.mark.parametrize(("setting", "value"), [("compute_dtype", "bfloat16"), ("xla", True)])
def test_saved_model_refuses_xla_and_bfloat16(workplace, setting, value):
    workplace.write("corpus/a.txt", "text\n")
    handle = str(DATA / "tfhub_uncased")
    buckets = {"length_buckets": [32], "max_seq_length": 32}
    workplace.configure(encoder={"handle": handle, "engine": "savedmodel", setting: value, **buckets})
    assert f"encoder.{setting}: engine savedmodel runs {handle} as it was saved" in workplace.drive(status=2).err


def test_bucket_over_positions(workplace):
    workplace.prepare("text\n", encoder={"length_buckets": [32, 4096]})
    assert "encoder.length_buckets: ends with 4096; " in workplace.drive(status=2).err
