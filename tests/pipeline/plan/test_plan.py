"""`layerbeam plan`: exact for a corpus that is read whole, close for a sample, and nothing is written."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import math
import os
import random
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from adversarial_corpus import configuration, snapshot, write_corpus

import layerbeam
from layerbeam.pipeline.config import load
from layerbeam.pipeline.config.job import Job, resolve
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.forecast.estimate import TEXT_BYTES, TEXTS, Estimate, estimate
from layerbeam.pipeline.forecast.sampling import Budget
from layerbeam.pipeline.output.work import find_work
from layerbeam.pipeline.plan import plan as plan_module
from layerbeam.pipeline.plan.measure import Measurement, measure
from layerbeam.pipeline.plan.plan import Machines, Truncation, _dataflow, _truncations
from layerbeam.transforms.flow import metrics

EVERYTHING = Budget(1 << 40, 1 << 40)
STATISTICS = (metrics.RECORDS, TEXTS, metrics.TOKENS, TEXT_BYTES)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sampled does not depend on how busy the machine is. Without `measured`, nothing is encoded for it."""
    monkeypatch.setattr(plan_module, "BUDGET", dataclasses.replace(plan_module.BUDGET, seconds=math.inf))
    monkeypatch.setattr(plan_module, "measure", lambda *_: Measurement())


@pytest.fixture
def measured(unhurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and seconds are measured, however busy the machine is."""
    monkeypatch.setattr(plan_module, "measure", measure)
    monkeypatch.setattr(plan_module, "_LEAST_SECONDS", 100.0)
    monkeypatch.setattr(plan_module, "_MOST_SECONDS", 100.0)


def planned(workplace: Any, *arguments: str, status: int = 0) -> dict[str, Any]:
    return json.loads(workplace.plan("--json", *arguments, status=status).out)


def values(plan: dict[str, Any]) -> dict[str, int]:
    assert all(total["margin"] == 0 for total in plan["estimates"].values())
    return {name: total["value"] for name, total in plan["estimates"].items()}


def without_times(plan: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the machine: how many blocks are written for their sizes does."""
    views = {
        name: {key: size[key] for key in ("rows", "margin", "vector_bytes")} for name, size in plan["views"].items()
    }
    kept = {name: value for name, value in plan.items() if name not in ("time", "dataflow", "free_bytes", "memory")}
    return kept | {"views": views}


def test_a_small_corpus_is_counted(workplace):
    lines = ["the river", "", "the river", "the bank of the river", "the " * 40, "  "]
    workplace.write("corpus/a.txt", "".join(f"{line}\n" for line in lines).encode() + b"\xff\n")
    workplace.configure(
        encoder={"max_seq_length": 16},
        views={
            "tokens": {"level": "token", "layers": [-1, -2]},
            "words": {"level": "word", "layers": [-1]},
            "texts": {"level": "text", "layers": [-1]},
            "forms": {"level": "word_type", "layers": [-1]},
        },
    )
    plan = planned(workplace, status=3)
    assert plan["problems"] == ["1 of 7 records were rejected: more than max_reject_rate 0.01 allows"]
    assert values(plan) == {
        "records": 7,
        "texts": 4,
        "tokens": 2 + 2 + 5 + 14,
        "encoded_tokens": 4 + 4 + 7 + 16,
        "blank": 2,
        "filtered": 0,
        "rejected": 1,
        "truncated_texts": 1,
        "dropped_tokens": 26,
    }
    assert plan["rejects_seen"] == {"invalid UTF-8: invalid start byte": 1}
    assert {name: view["rows"] for name, view in plan["views"].items()} == {
        "tokens": 31,
        "words": 23,
        "texts": 4,
        "forms": 4,
    }
    assert plan["views"]["tokens"]["vector_bytes"] == 31 * 2 * 64 * 4
    assert plan["duplicates"] == {"texts": 0.25, "tokens": round(4 / 31, 4), "blocks": 1}
    assert plan["input"]["sample"]["is_whole"]
    assert plan["lengths"]["bins"] == [
        {"from": 1, "to": 8, "texts": 3},
        {"from": 9, "to": 16, "texts": 0},
        {"from": 17, "to": 32, "texts": 0},
        {"from": 33, "to": 64, "texts": 1},
    ]
    assert (plan["lengths"]["median"], plan["lengths"]["longest_seen"]) == (4, 42)
    assert plan["max_seq_lengths"] == [
        {"max_seq_length": 16, "longer": 0.25, "tokens_lost": round(26 / 49, 6)},
        {"max_seq_length": 64, "longer": 0.0, "tokens_lost": 0.0},
        {"max_seq_length": 128, "longer": 0.0, "tokens_lost": 0.0},
    ]
    assert plan["blocks"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_nothing_is_written_and_the_run_gives_what_was_planned(workplace):
    corpus = write_corpus(workplace.folder, texts=60, tiny_files=5, line_bytes=20_000)
    workplace.write("c.yaml", yaml.safe_dump(configuration(corpus, "out")))
    output = workplace.folder / "out"
    before = snapshot(workplace.folder, without=output)
    plan = planned(workplace, status=3)
    assert snapshot(workplace.folder, without=output) == before
    assert not output.exists()
    workplace.drive(status=3, arithmetic=True)
    manifest = workplace.manifest()
    counts = manifest["counts"]
    found = values(plan)
    assert found["records"] == counts["records_read"] > 2_000
    assert found["texts"] == counts["embedded"]
    assert (found["blank"], found["rejected"]) == (counts["blank_skipped"], counts["rejected"])
    assert (found["tokens"], found["dropped_tokens"]) == (counts["tokens"], counts["dropped_tokens"])
    assert plan["problems"] == manifest["problems"]
    view = manifest["views"]["texts"]
    assert plan["views"]["texts"]["rows"] == view["rows"]
    assert plan["views"]["texts"]["bytes"] == pytest.approx(view["bytes"], rel=0.1)
    record = json.loads((output / "_runs/1.json").read_text())
    assert plan["blocks"] == record["counts"]["blocks_written"]


def test_the_same_seed_gives_the_same_plan(workplace):
    workplace.prepare("".join(f"line {n} of the text {n * n}\n" for n in range(3_000)))
    assert without_times(planned(workplace)) == without_times(planned(workplace))


def test_completed_files_are_not_planned_again(workplace):
    workplace.finished("one line\n" * 3)
    done = planned(workplace)
    assert (done["input"]["files"], done["input"]["files_to_do"], values(done)["texts"]) == (1, 0, 0)
    assert "nothing to encode" in workplace.plan().out
    workplace.write("corpus/b.txt", "one more\n" * 2)
    more = planned(workplace)
    assert (more["input"]["files"], more["input"]["files_to_do"], values(more)["texts"]) == (2, 1, 2)
    files = workplace.files()
    other = planned(workplace, "--set", "encoder.max_seq_length=64", status=2)
    assert values(other)["texts"] == 5
    assert other["hints"] == [
        "run would refuse: output.path: out holds a run with other settings, and rows of both do not belong together; "
        "give a new folder, or restore the settings (views can be added, and nothing else can change):"
    ]
    assert workplace.files() == files


@pytest.mark.usefixtures("measured")
def test_a_view_without_rows_among_others(workplace):
    workplace.write("corpus/a.txt", "one bank here\nnothing\nmore words\n")
    rare = {"level": "word", "layers": [1], "pooling": "mean", "keep_words": ["zebra"]}
    workplace.configure(views={"rare": rare, "found": rare | {"keep_words": ["bank"]}})
    views = planned(workplace)["views"]
    assert [views[name]["rows"] for name in ("rare", "found")] == [0, 1]
    assert views["rare"]["bytes"] == 0 < views["found"]["bytes"]


def test_committed_blocks_are_not_sampled(workplace):
    workplace.write("corpus/a.txt", "".join(f"a {number:06}\n" for number in range(3_000)))
    workplace.configure(input={"slice_bytes": 9_000}, views={"t": {"level": "text", "layers": [0]}})
    workplace.drive(arithmetic=True)
    (workplace.folder / "out/_SUCCESS").unlink()
    (workplace.folder / "out/manifest.json").unlink()
    part = sorted((workplace.folder / "out/t").iterdir())[1]
    texts = pq.read_metadata(part).num_rows
    assert 100 < texts < 2_000
    part.unlink()
    plan = planned(workplace)
    assert (values(plan)["texts"], plan["kept"]["texts"], plan["changed"]) == (texts, 3_000 - texts, 0)


@pytest.mark.usefixtures("measured")
def test_hours_on_dataflow(workplace):
    workplace.prepare("one line\n" * 3)
    assert planned(workplace)["dataflow"] is None
    plan = planned(workplace, "--machines", "5", "--vcpus", "4")
    hours = plan["dataflow"].pop("hours")
    assert hours == plan["time"]["core_hours"]  # there is one block
    assert plan["dataflow"] == {"machines": 5, "vcpus": 4, "vcpus_at_work": 1, "start_with": 1}
    printed = workplace.plan("--machines", "5", "--set", "beam.machine_type=n2-standard-8").out
    assert "on 5 machines of 8 vCPUs\n" in printed
    assert "a vCPU as fast as a core here" in printed
    assert "there is work for 1 vCPU only: the run has 1 block; a smaller input.slice_bytes or " in printed
    assert "compressed file" not in printed
    (workplace.folder / "corpus/a.txt").rename(workplace.folder / "corpus/a.txt.gz")
    workplace.write("corpus/a.txt.gz", gzip.compress(b"one line\n" * 3))
    assert "1 compressed file: as many threads read, and all encode" in workplace.plan("--machines", "5").out


def test_machines_share_the_blocks():
    time = _dataflow(Machines(5, 8), core_hours=80.0, num_blocks=1_000)
    assert (time.vcpus_at_work, time.hours) == (40, 2.0)
    starts = [_dataflow(Machines(20, 8), core_hours=80.0, num_blocks=n).start_with for n in (10, 1_000, 100_000)]
    assert starts == [1, 6, 20]


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("--machines", "0"), "'0' is not a positive integer"),
        (("--input", "nowhere/*"), "input.files: no file matches nowhere/*"),
        (("--set", "encoder.handle=nowhere"), "encoder.handle: nowhere"),
        (("--set", "views.tokens.layers=[9]"), "views.tokens.layers"),
        (("--no_such_option=1",), "no_such_option"),
    ],
)
def test_wrong_usage(workplace, arguments, printed):
    workplace.prepare("one line\n")
    assert printed in workplace.plan(*arguments, status=2).err
    assert not (workplace.folder / "out").exists()


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("width", ["24", "80", "200"])
def test_the_terminal(workplace, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    workplace.write("corpus/a.txt", "one line\n" * 30 + "a word \n" * 10 + "many words " * 200 + "\n")
    (workplace.folder / "corpus/[bold]\x1b[31m.txt").symlink_to("nowhere")
    workplace.configure()
    printed = workplace.plan(status=3).out
    assert "problem   corpus/[bold]\\x1b[31m.txt: No such file or directory" in printed
    assert "\x1b" not in printed
    assert "texts     41, of 41 records" in printed
    counted = "all of it was read: texts, tokens, rows and blocks are counted; bytes and time are estimates"
    assert counted in printed
    assert "1-8" in printed
    assert "max_seq_length" in printed or width == "24"


def test_no_text_at_all(workplace):
    workplace.prepare({"a.txt": " \n\n", "b.txt": ""})
    plan = planned(workplace, status=3)
    assert (values(plan)["records"], values(plan)["blank"], plan["views"]["tokens"]["bytes"]) == (2, 2, 0)
    assert plan["problems"] == [
        "nothing was embedded: 2 of 2 records are blank; check input.files and input.text_field"
    ]
    assert "nothing to encode" in workplace.plan(status=3).out


def test_plan_ends_as_the_run_does(workplace):
    workplace.finished({"a.txt": "one\n", "gone.txt": "two\n"})
    (workplace.folder / "corpus/gone.txt").unlink()
    workplace.write("corpus/bad.txt.gz", b"no gzip")
    strict = "--set", "input.max_missing=0"
    planned_problems = planned(workplace, *strict, status=3)["problems"]
    said = workplace.drive(*strict, status=3).out
    assert re.search(r"next +the same command with --prune-missing +deletes the rows of the missing files\n", said)
    assert re.search(r"\n +the same command again +once files are repaired, restored or left out, ", said)
    assert "UNK" not in said
    assert planned_problems == workplace.manifest()["problems"]
    assert planned_problems == [
        "corpus/bad.txt.gz: the compressed data is damaged (Error -3 while decompressing data: incorrect header check)",
        "corpus/gone.txt: is missing; its rows stay, because more files are missing than input.max_missing allows: "
        "restore them, raise it or give --prune-missing",
    ]
    workplace.write("rejects/a.txt", b"fine\n" * 8 + b"\xff\n")
    rejects = ("--input", "rejects/a.txt", "--output", "new")
    assert (
        "problem   1 of 9 records were rejected: more than max_reject_rate 0.01 allows"
        in workplace.plan(*rejects, status=3).out
    )
    workplace.drive(*rejects, status=3)
    workplace.plan(*rejects, "--set", "input.max_reject_rate=0.2")


# From here on the budget is too small to read the corpus whole.


def job_of(folder: Path, handle: str, pattern: str, *, view: dict[str, Any] | None = None, **settings: Any) -> Job:
    given = load.check(
        {
            "input": {"files": [str(folder / pattern)], "format": "text"} | settings,
            "encoder": {"handle": handle},
            "views": {"t": view or {"level": "token", "layers": [-1]}},
            "output": {"path": str(folder / "out")},
        },
        source="test",
    )
    return resolve(given)


def sampled(job: Job, budget: Budget, seed: int = 0) -> Estimate:
    return estimate(job, find_work(job), budget, seed)


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(["the", "river", "bank", "money", "unhappiness", "of", "walked"], k=count))


def long_tailed(rng: random.Random, count: int) -> list[str]:
    return [words(rng, min(max(int(rng.lognormvariate(2.5, 1.2)), 1), 3_000)) for _ in range(count)]


def lines(folder: Path, rng: random.Random) -> dict[str, Any]:
    (folder / "a.txt").write_text("\n".join(long_tailed(rng, 6_000)))
    return {}


def few_huge_and_many_small_files(folder: Path, rng: random.Random) -> dict[str, Any]:
    lines(folder, rng)
    for number in range(300):
        (folder / f"small-{number}.txt").write_text("".join(f"{words(rng, 3)}\n" for _ in range(rng.randint(1, 9))))
    return {}


def paragraphs(folder: Path, rng: random.Random) -> dict[str, Any]:
    texts = (text.replace(" ", "\n", 3) for text in long_tailed(rng, 6_000))
    (folder / "a.txt").write_text("\n\n".join(texts))
    return {"record": "paragraph"}


def objects(folder: Path, rng: random.Random) -> dict[str, Any]:
    for number in range(4):
        rows = ("" if rng.random() < 0.1 else json.dumps({"text": text}) for text in long_tailed(rng, 1_500))
        (folder / f"{number}.jsonl").write_text("\n".join(rows))
    return {"format": "jsonl"}


def whole_files(folder: Path, rng: random.Random) -> dict[str, Any]:
    for number, text in enumerate(long_tailed(rng, 800)):
        (folder / f"{number}.txt").write_text(text)
    return {"record": "file"}


def compressed(folder: Path, rng: random.Random) -> dict[str, Any]:
    kinds = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.compress}
    for number in range(36):
        ending = rng.choice(list(kinds))
        text = "\n".join(long_tailed(rng, rng.randint(400, 900))).encode()
        (folder / f"{number}.txt.{ending}").write_bytes(kinds[ending](text))
    return {}


def parquet(folder: Path, rng: random.Random) -> dict[str, Any]:
    for number in range(3):
        table = pa.table({"text": long_tailed(rng, 2_000)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=rng.choice([30, 50]))
    return {"format": "parquet"}


MAKERS = (lines, few_huge_and_many_small_files, paragraphs, objects, whole_files, compressed, parquet)


@pytest.mark.parametrize("make", MAKERS)
def test_estimates_are_close_and_unbiased(tmp_path, hf_uncased, make):
    settings = make(tmp_path, random.Random(7))
    job = job_of(tmp_path, hf_uncased, "*", **settings)
    whole = sampled(job, EVERYTHING)
    assert whole.is_whole
    budget = Budget((24 if make is compressed else 96) << 10, 300, range_bytes=4 << 10)
    samples = [sampled(job, budget, seed) for seed in range(12)]
    assert not any(sample.is_whole for sample in samples)
    for name in STATISTICS:
        truth = whole.statistic(name).value
        found = [sample.statistic(name).value for sample in samples]
        assert sum(found) / len(found) == pytest.approx(truth, rel=0.06), name
        assert found == pytest.approx([truth] * len(found), rel=0.3), name  # the lengths are skewed


def test_one_compressed_file_among_plain_ones(tmp_path, hf_uncased):
    rng = random.Random(5)
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("\n".join(words(rng, 8) for _ in range(600)))
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress("\n".join(words(rng, 8) for _ in range(2_700)).encode()))
    job = job_of(tmp_path, hf_uncased, "*")
    truth = sampled(job, EVERYTHING).statistic(metrics.TOKENS).value
    samples = [sampled(job, Budget(96 << 10, 100, range_bytes=3 << 10), seed) for seed in range(8)]
    assert not any(sample.is_whole for sample in samples)
    assert [sample.statistic(metrics.TOKENS).value for sample in samples] == pytest.approx([truth] * 8, rel=0.03)


def test_word_types_grow_less_than_the_text(tmp_path, hf_uncased):
    rng = random.Random(6)
    names = ["".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(5_000)]
    with open(tmp_path / "a.txt", "w") as file:
        for _ in range(20_000):
            file.write(f"the river bank {names[int(rng.paretovariate(0.8)) % len(names)]}\n")
    job = job_of(tmp_path, hf_uncased, "*", view={"level": "word_type", "layers": [-1]}, slice_bytes=16 << 10)
    truth = sampled(job, EVERYTHING).rows(job.views[0]).value
    found = [sampled(job, Budget(100 << 10, 100), seed).rows(job.views[0]).value for seed in range(3)]
    assert found == pytest.approx([truth] * 3, rel=0.15)


@pytest.mark.usefixtures("measured")
def test_word_types_with_a_minimum_and_groups_are_counted(workplace):
    rows = [("a", "the river"), ("a", "the river"), ("b", "the bank"), ("b", "the bank of the river")]
    workplace.write("corpus/a.jsonl", "".join(json.dumps({"key": k, "text": t}) + "\n" for k, t in rows))
    view = {"level": "word_type", "layers": [-1], "group_by": ["key"], "min_count": 2}
    workplace.configure(input={"keep_fields": {"key": "string"}}, views={"types": view})
    plan = planned(workplace)["views"]["types"]
    workplace.drive()
    assert plan["rows"] == workplace.manifest()["views"]["types"]["rows"] == 4
    sums = sum(path.stat().st_size for path in (workplace.folder / "out/_word_types/types").iterdir())
    assert plan["sums_bytes"] == pytest.approx(sums, rel=0.1)
    assert plan["bytes"] == pytest.approx(workplace.manifest()["views"]["types"]["bytes"], rel=0.1)


@pytest.mark.usefixtures("measured")
def test_texts_without_kept_words_are_blocks_too(workplace):
    rng = random.Random(8)
    lines = [words(rng, 12) + (" money" if number > 2_000 else "") for number in range(3_000)]
    workplace.write("corpus/a.txt", "\n".join(line.replace("bank", "of") for line in lines) + "\nthe bank\n")
    rare = {"level": "word", "layers": [1], "keep_words": ["bank"]}
    workplace.configure(input={"slice_bytes": 20_000}, views={"rare": rare})
    plan = planned(workplace)
    workplace.drive()
    view = workplace.manifest()["views"]["rare"]
    record = json.loads((workplace.folder / "out/_runs/1.json").read_text())
    assert plan["blocks"] == record["counts"]["blocks_written"] > 5
    assert (plan["views"]["rare"]["rows"], view["rows"]) == (1, 1)
    assert plan["views"]["rare"]["bytes"] == pytest.approx(view["bytes"], rel=0.1)


def test_many_files_are_not_all_opened(tmp_path, hf_uncased, monkeypatch):
    from layerbeam.transforms import storage

    rng = random.Random(3)
    for number in range(2_000):
        (tmp_path / f"{number:05d}.txt").write_text("".join(f"{words(rng, 5)}\n" for _ in range(rng.randint(1, 5))))
    opened = []
    real = storage.open_binary
    monkeypatch.setattr(storage, "open_binary", lambda path, *end: opened.append(path) or real(path, *end))
    job = job_of(tmp_path, hf_uncased, "*.txt")
    sample = sampled(job, Budget(16 << 20, 256))
    assert 0 < len(set(opened)) <= 275
    assert sample.statistic(TEXTS).value == pytest.approx(6_000, rel=0.03)
    assert sample.num_blocks == 1  # small files share blocks


def test_only_a_part_of_a_large_file_is_read(tmp_path, hf_uncased):
    path = tmp_path / "a.txt"
    line = b"a line that is repeated many times\n"
    with open(path, "wb") as file:
        for _ in range(40):
            file.write(line * 100_000)
    job = job_of(tmp_path, hf_uncased, "a.txt")
    sample = sampled(job, Budget(1 << 20, 64))
    assert sample.statistic(metrics.RECORDS).value == pytest.approx(4_000_000, rel=0.001)
    assert sample.in_sample(TEXT_BYTES) < 3 << 20
    assert os.path.getsize(path) > 100 << 20


def test_plan_refuses_what_run_refuses(workplace):
    workplace.prepare("the river\n")
    wrong = ("--set", "encoder.resource_hints={min_rma: 1GB}")
    printed = workplace.plan(*wrong, status=2).err
    assert printed.startswith("layerbeam: encoder.resource_hints.min_rma: 1GB: ")
    assert workplace.drive(*wrong, status=2).err == printed


def test_no_file_is_an_error(tmp_path, hf_uncased):
    with pytest.raises(UsageError, match="no file matches"):
        sampled(job_of(tmp_path, hf_uncased, "*.nothing"), EVERYTHING)


def test_a_text_that_just_fits_is_not_truncated():
    encoder = types.SimpleNamespace(max_position_embeddings=100, special=types.SimpleNamespace(around_text=2))
    job: Any = types.SimpleNamespace(encoder=encoder, sequences=types.SimpleNamespace(max_seq_length=100))
    lengths, weights = np.array([64, 66, 100, 102]), np.array([1.0, 2, 1, 1])
    assert _truncations(job, lengths, weights) == [
        Truncation(64, longer=0.8, tokens_lost=round((2 * 2 + 36 + 38) / 388, 6)),
        Truncation(100, longer=0.2, tokens_lost=round(2 / 388, 6)),
    ]


def test_very_many_files_are_announced(workplace, monkeypatch):
    """By `plan` and by `run`, before the first block, with what makes fewer."""
    from layerbeam.pipeline.forecast import estimate

    lines = [f"the river number {number} and the bank" for number in range(40)]
    views = {"texts": {"level": "text", "layers": [-1]}, "types": {"level": "word_type", "layers": [1]}}
    workplace.prepare("\n".join(lines), views=views, input={"slice_bytes": 200})
    assert not [hint for hint in planned(workplace)["hints"] if "files" in hint]
    monkeypatch.setattr(estimate, "MANY_FILES", 3)
    (hint,) = (hint for hint in planned(workplace)["hints"] if "files" in hint)
    assert re.match(
        r"texts: about \d+ files, one for each block: good for edits, slow to open for Spark, DuckDB and", hint
    )
    assert "Hugging Face's Hub takes 3 in a folder; `layerbeam export` makes few of them" in hint
    assert hint.endswith("output.target_part_bytes: 134217728 makes about 7 from the start")  # of 200 bytes of text
    (given,) = (h for h in planned(workplace, "--set", "output.target_part_bytes=2000")["hints"] if "files" in h)
    assert given.endswith("a larger output.target_part_bytes or input.slice_bytes makes fewer from the start")
    done = workplace.drive(arithmetic=True)
    assert hint in done.err
    assert len(layerbeam.open_run("out")["texts"].parts) > 3
    workplace.write("corpus/b.txt", "one more line\n")
    assert workplace.drive(arithmetic=True).err.count("`layerbeam export` makes few of them\n") == 1
