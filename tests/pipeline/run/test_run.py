"""The whole pipeline, text in and Parquet out, compared with the reference implementation and with published values."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import random_lines
from float_bounds import OF_TWO
from repository import DATA
from weights import in_float64, vectors

import layerbeam
from layerbeam.transforms.encoders import load_weights, open_encoder
from layerbeam.transforms.reference import forward
from layerbeam.transforms.tokenize.wordpiece import WordPiece

SMALL_BLOCKS = {"output": {"target_part_bytes": 100_000}, "input": {"slice_bytes": 1_500}}
SMALLER_BLOCKS = SMALL_BLOCKS | {"output": {"target_part_bytes": 50_000}}


# A corpus that gives several files, slices, blocks and batches.
LINES = random_lines(160)
CORPUS = {"a.txt": "\n".join(LINES[:100]) + "\n", "b.txt": "\r\n".join(LINES[100:])}


def one_at_a_time(texts: list[str], max_seq_length: int) -> Iterator[list[np.ndarray]]:
    """All layers [tokens, H] of each text, encoded individually in NumPy."""
    source = open_encoder(str(DATA / "hf_uncased"))
    weights = in_float64(load_weights(source))
    wordpiece = WordPiece(source.vocabulary, source.do_lower_case)
    for text in texts:
        pieces = wordpiece.tokenize(pa.array([text])).ids[: max_seq_length - 2]
        ids = np.concatenate([wordpiece.special.before, pieces, wordpiece.special.behind])
        layers, _ = forward(source.architecture, weights, ids, np.zeros_like(ids))
        yield layers


def test_layers_and_pooler_agree_with_transformers(workplace):
    workplace.finished(
        {"input.txt": (DATA / "input.txt").read_bytes()},
        encoder={"max_seq_length": 32},
        views={"tokens": {"level": "token", "layers": "all"}, "pooled": {"level": "text", "pooling": "pooler"}},
    )
    tokens, pooled = workplace.rows("tokens"), workplace.rows("pooled")
    reference = np.load(DATA / "transformers_uncased.npz")
    lines = sorted(int(name.removeprefix("ids_")) for name in reference.files if name.startswith("ids_"))
    assert len(lines) > 3
    for line in lines:
        of_line = tokens.filter(pa.compute.equal(tokens["line"], line))
        assert of_line["token_id"].to_pylist() == reference[f"ids_{line}"].tolist()
        for layer in range(4):
            np.testing.assert_allclose(
                vectors(of_line, f"layer_{layer}"), reference[f"hidden_{line}"][layer], atol=OF_TWO, rtol=0
            )
        of_line = pooled.filter(pa.compute.equal(pooled["line"], line))
        np.testing.assert_allclose(
            vectors(of_line, "pooled_output")[0], reference[f"pooler_{line}"], atol=OF_TWO, rtol=0
        )


def test_pipeline_equals_loop_over_texts(workplace):
    workplace.prepare(CORPUS, encoder={"max_seq_length": 24, "batch_tokens": 30}, **SMALL_BLOCKS)
    workplace.run()
    blocks = [own for block in layerbeam.open_run("out").blocks() for own in block.files]
    assert {block.file.path for block in blocks} == {"corpus/a.txt", "corpus/b.txt"}
    assert len(blocks) > 10
    slices = {(block.file.path, block.first_byte // 1_500) for block in blocks}
    assert len(slices) > 4
    rows = workplace.rows()
    tokens_of_block = rows.num_rows / len(blocks)
    assert tokens_of_block > 2 * 30  # several batches in each

    position = 0
    numbers = [number for number, text in enumerate(LINES) if text]
    for number, expected in zip(numbers, one_at_a_time([LINES[n] for n in numbers], max_seq_length=24), strict=True):
        size = len(expected[0])
        got = rows.slice(position, size)
        assert set(got["line"].to_pylist()) == {number if number < 100 else number - 100}
        for layer, values in enumerate(expected):
            np.testing.assert_allclose(vectors(got, f"layer_{layer}"), values, atol=OF_TWO, rtol=0)
        position += size
    assert position == rows.num_rows


def test_spans_refer_to_record(workplace):
    workplace.finished("Zoë’s naïve  CAFÉ…\n", views={"t": {"level": "token", "layers": [-1], "special_tokens": False}})
    rows = workplace.rows("t").to_pylist()
    record = "Zoë’s naïve  CAFÉ…"
    words = {}
    for row in rows:
        words[row["word_index"]] = words.get(row["word_index"], "") + record[row["start"] : row["end"]]
    assert list(words.values()) == ["Zoë", "’", "s", "naïve", "CAFÉ", "…"]


def test_minilm_separates_senses_of_bank(workplace):
    workplace.write(
        "corpus/bank.txt",
        "After stealing money from the bank vault, the bank robber was seen fishing on the Mississippi river bank.\n",
    )
    workplace.configure(
        encoder={"handle": "minilm"}, views={"t": {"level": "token", "layers": ["-4..-1"], "combine": "sum"}}
    )
    workplace.drive()
    rows = workplace.rows("t")
    vault, robber, river = vectors(rows.filter(pa.compute.equal(rows["token"], "bank")), "embedding")

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine(robber, vault) == pytest.approx(0.9406, abs=5e-4)
    assert cosine(robber, river) == pytest.approx(0.8887, abs=5e-4)
    assert cosine(vault, river) == pytest.approx(0.8879, abs=5e-4)


@pytest.mark.slow
def test_killed_run_resumes(workplace, monkeypatch):
    (workplace.folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(workplace.folder / "tmp"))
    views = {"tokens": {"level": "token", "layers": [-1, 0]}, "types": {"level": "word_type", "layers": [1]}}
    workplace.prepare("\n".join(random_lines(250)), views=views, **SMALLER_BLOCKS)
    with workplace.at_work(commits=5) as process:
        process.send_signal(signal.SIGKILL)
    assert not list((workplace.folder / "tmp").iterdir())
    commits = workplace.folder / "out" / "_commits"
    before = {path: path.stat().st_mtime_ns for path in commits.glob("*.json")}  # not what was being written
    files = [own for path in before for own in json.loads(path.read_text())["files"]]
    texts = sum(own["counts"]["embedded"] for own in files)
    assert not (workplace.folder / "out/_SUCCESS").exists()
    unfinished = workplace.show().out
    assert "out: unfinished: running, or killed" in unfinished
    assert "remains   about" in unfinished
    assert "first rows of tokens" in unfinished
    done = workplace.drive("--json")
    assert f"resuming: {texts:,} texts already embedded; the estimates below cover the rest\n" in done.err
    workplace.assert_equals_fresh()
    total = len(list(layerbeam.open_run("out").blocks()))
    again = json.loads((workplace.folder / "out/_runs/2.json").read_text())["counts"]["blocks_written"]
    assert again == total - len(before)
    assert 0 < again < total
    assert json.loads(done.out)["state"] == "complete"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on(workplace, number):
    longer = "\n".join(random_lines(2400))  # than what it does while it ends
    workplace.prepare(longer, **SMALLER_BLOCKS)
    with workplace.at_work(commits=5) as process:
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == 128 + number
    assert err.splitlines()[-1] == (
        "layerbeam: interrupted; completed blocks are kept: run the same command again to resume"
    )
    assert "Traceback" not in err
    assert "out: unfinished: interrupted" in workplace.show().out
    workplace.drive()
    workplace.assert_equals_fresh()


def test_only_new_and_changed_text_is_encoded(workplace):
    workplace.finished(CORPUS, **SMALL_BLOCKS)
    parts = {path: path.stat().st_mtime_ns for path in (workplace.folder / "out/tokens").iterdir()}
    assert "nothing to do" in workplace.drive().err
    with (workplace.folder / "corpus/a.txt").open("a") as file:
        file.write("one more line\n")
    os.utime(workplace.folder / "corpus/b.txt", (1, 1))  # touched, not changed
    workplace.drive()
    after = {path: path.stat().st_mtime_ns for path in (workplace.folder / "out/tokens").iterdir()}
    changed = [path.name for path in after if after[path] != parts.get(path)]
    assert len(changed) == 1
    assert changed[0].startswith("a-")
    workplace.assert_equals_fresh()
    assert "nothing to do" in workplace.drive().err


@pytest.mark.parametrize("limit", [[], ["--limit", "50"]])
def test_reread_finds_changes_that_size_and_time_hide(workplace, limit):
    workplace.prepare(CORPUS, **SMALL_BLOCKS)
    workplace.drive(*limit)
    before = workplace.files()
    workplace.drive(*limit, "--reread")
    assert workplace.files() == before

    path = workplace.folder / "corpus/a.txt"
    times, lines = path.stat(), path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], lines[4].upper().replace(" ", "a", 2), *lines[5:]]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    assert "nothing to do" in workplace.drive(*limit).err
    workplace.drive(*limit, "--reread")
    after = workplace.files()
    assert [name for name in after if name.startswith("tokens/") and name not in before] != []
    assert len(before.items() - after.items()) == 3  # a part, and the lists
    workplace.assert_equals_fresh(*limit)
    assert "nothing to do" in workplace.drive(*limit).err


@pytest.mark.parametrize("options", [[], ["--prune-missing"]])
@pytest.mark.parametrize("files", ["corpus", "corpus/*.txt", "corpus/a.txt"])
def test_without_any_input_a_finished_run_stays_as_it_is(workplace, files, options):
    """An empty mount, or a mistyped glob."""
    workplace.finished(CORPUS, **SMALL_BLOCKS)
    before = workplace.files()
    for path in (workplace.folder / "corpus").iterdir():
        path.unlink()
    refused = workplace.drive("--input", files, *options, status=2).err
    assert f"no file matches {files} (from " in refused
    assert workplace.files() == before


def test_equal_texts_are_encoded_once_and_all_written(workplace):
    workplace.finished("same words here\n" * 50, encoder={"batch_tokens": 10_000})
    rows = workplace.rows()
    tokens = rows.num_rows // 50
    first = vectors(rows.slice(0, tokens), "layer_3")
    np.testing.assert_array_equal(vectors(rows, "layer_3").reshape(50, tokens, 64), np.stack([first] * 50))
    assert json.loads((workplace.folder / "out/_runs/1.json").read_text())["counts"]["padded_tokens"] == tokens


def test_parquet_matches_documentation(workplace):
    views = {"tokens": {"level": "token", "layers": [3]}}
    workplace.prepare(CORPUS, views=views)
    workplace.drive(arithmetic=True)
    path = min((workplace.folder / "out/tokens").iterdir())
    file = pq.ParquetFile(path)
    assert file.schema_arrow.metadata[b"layerbeam.view"] == b"tokens"
    assert str(file.schema_arrow.field("layer_3").type) == "fixed_size_list<element: float not null>[64]"
    assert not any(field.nullable for field in file.schema_arrow)
    columns = {file.metadata.row_group(0).column(i).path_in_schema: i for i in range(file.metadata.num_columns)}
    vector = file.metadata.row_group(0).column(columns["layer_3.list.element"])
    assert not vector.has_dictionary_page
    assert vector.compression == "ZSTD"
    assert file.metadata.row_group(0).column(columns["token"]).has_dictionary_page


def test_parquet_without_compression_has_the_same_rows(workplace):
    views = {name: {"level": "token", "layers": [3], "compress": name == "zstd"} for name in ("zstd", "plain")}
    workplace.prepare(CORPUS, views=views)
    workplace.drive(arithmetic=True)
    tables = {name: pq.read_table(workplace.folder / "out" / name).replace_schema_metadata() for name in views}
    assert tables["zstd"].equals(tables["plain"])
    metadata = pq.ParquetFile(min((workplace.folder / "out/plain").iterdir())).metadata.row_group(0)
    assert {metadata.column(number).compression for number in range(metadata.num_columns)} == {"UNCOMPRESSED"}


def test_manifest_describes_run(workplace):
    workplace.write("corpus/a.txt", b"one two\n\n\xff\nthree four five six\n")
    workplace.configure(
        input={"max_reject_rate": 1.0}, encoder={"max_seq_length": 4}, views={"t": {"level": "text", "layers": [-1]}}
    )
    workplace.drive()
    manifest = workplace.manifest()
    assert manifest["schema_version"] == 1
    assert manifest["complete"] is True
    assert manifest["counts"] == {
        "blank_skipped": 1,
        "dropped_tokens": manifest["counts"]["dropped_tokens"],
        "embedded": 2,
        "filtered": 0,
        "records_read": 4,
        "rejected": 1,
        "tokens": 4,
        "truncated_texts": manifest["counts"]["truncated_texts"],
        "unknown_tokens": manifest["counts"]["unknown_tokens"],
    }
    assert manifest["views"]["t"]["rows"] == 2
    assert manifest["views"]["t"]["width"] == 64
    (entry,) = layerbeam.open_run("out", allow_incomplete=True).inputs()
    assert (entry["path"], entry["size"], entry["records"], entry["left_out"]) == ("corpus/a.txt", 31, 4, None)
    assert manifest["encoder"]["num_hidden_layers"] == 3
    assert manifest["settings"]["encoder"]["max_seq_length"] == 4
    assert "path" not in manifest["settings"]["output"]
    assert manifest["versions"].keys() >= {"python", "tensorflow", "apache-beam"}
