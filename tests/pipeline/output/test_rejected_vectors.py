"""A run with an encoder that has no vectors for some texts: rejected with the reason, and the rest verified."""

from __future__ import annotations

import json
import shutil

import pytest
from repository import DATA
from safetensors.numpy import load_file, save_file

VIEWS = {
    "tokens": {"level": "token", "layers": [-1]},
    "texts": {"level": "text", "layers": [0], "dtype": "float16"},
    "records": {"level": "record", "layers": [2]},
    "types": {"level": "word_type", "layers": [1]},
}


@pytest.fixture
def encoder(tmp_path):
    """The small encoder with a number in the vector of one word changed."""
    folder = tmp_path / "encoder"
    shutil.copytree(DATA / "hf_uncased", folder)

    def change(word: str, value: float) -> str:
        weights = load_file(folder / "model.safetensors")
        name = next(name for name in weights if name.endswith("word_embeddings.weight"))
        vocabulary = (folder / "vocab.txt").read_text().split("\n")
        table = weights[name].copy()
        table[vocabulary.index(word), 5] = value
        save_file(weights | {name: table}, folder / "model.safetensors")
        return str(folder)

    return change


@pytest.mark.parametrize("unit", ["record", "sentence"])
def test_a_word_of_which_the_encoder_has_nan(workplace, encoder, unit):
    text = "a good line. a river here.\nthe bank was there.\none river. the bank again. one street.\n\nthe end."
    workplace.write("corpus/a.txt", text)
    workplace.configure(
        encoder={"handle": encoder("bank", float("nan"))}, views=VIEWS, input={"unit": unit, "max_reject_rate": 1.0}
    )
    done = workplace.drive("--json")
    summary = json.loads(done.out)
    assert summary["rejects"] == {"the encoder gives NaN or infinite values": 2}
    assert {(reject["line"], reject["stage"]) for reject in workplace.rejects()} == {(1, "encode"), (2, "encode")}
    counts = workplace.manifest()["counts"]
    if unit == "record":
        assert (counts["records_read"], counts["embedded"], counts["rejected"]) == (5, 2, 2)
        assert workplace.rows("texts")["line"].to_pylist() == [0, 4]
    else:
        assert (counts["sentences_read"], counts["sentences_embedded"], counts["sentences_rejected"]) == (7, 5, 2)
        places = workplace.rows("texts").select(["line", "sentence"]).to_pylist()
        assert places == [
            {"line": line, "sentence": sentence} for line, sentence in [(0, 0), (0, 1), (2, 0), (2, 2), (4, 0)]
        ]
    assert "bank" not in workplace.rows("types")["word"].to_pylist()
    assert workplace.verify().out.endswith("pass\n")
    assert workplace.verify("--checksums").out.endswith("pass\n")


def test_an_encoder_of_nothing_but_nan_fails_the_run(workplace, encoder):
    workplace.prepare("a line\n", encoder={"handle": encoder("[PAD]", float("nan"))})
    workplace.drive()  # [PAD] is in no text, and its vector in none
    shutil.rmtree(workplace.folder / "out")
    weights = load_file(workplace.folder / "encoder/model.safetensors")
    name = next(name for name in weights if name.endswith("embeddings.LayerNorm.weight"))
    save_file(weights | {name: weights[name] * float("nan")}, workplace.folder / "encoder/model.safetensors")
    err = workplace.drive(status=1).err
    assert (
        "failed: ValueError: the encoder gives NaN or infinite values whatever the text: its weights are damaged" in err
    )


def test_a_batch_that_does_not_fit_is_reported(workplace, monkeypatch):
    from layerbeam.transforms.encode.forward import Forward

    real = Forward.__init__

    def small(self, encoder, num_threads=1):
        def encode(token_ids, lengths, segment_ids):
            if token_ids.size > 100:
                raise MemoryError
            return encoder(token_ids, lengths, segment_ids)

        encode.pad_id = encoder.pad_id
        real(self, encode, num_threads)

    workplace.write("corpus/a.txt", "some words of a line\n" * 3 + "others\n" * 3 + "and a third one\n" + "x y z\n" * 9)
    workplace.write("corpus/b.txt", "\n".join(f"line number {n} of many" for n in range(60)))
    workplace.configure(views={"t": {"level": "text", "layers": [3]}}, encoder={"batch_tokens": 400})
    workplace.drive("--output", "whole")
    monkeypatch.setattr(Forward, "__init__", small)
    done = workplace.drive()
    assert "did not fit in memory and had to be halved; a lower encoder.batch_tokens avoids that" in done.out
    assert workplace.verify().out.endswith("pass\n")
    assert workplace.manifest()["counts"] == workplace.manifest("whole")["counts"]


def test_more_than_a_thousandth_of_such_texts_is_accepted_only_by_a_setting(workplace, encoder):
    """The cause may be the hardware."""
    lines = [f"a good line {number}." for number in range(1000)]
    lines[3] = lines[500] = "the bank was there."
    workplace.write("corpus/a.txt", "\n".join(lines))
    workplace.configure(encoder={"handle": encoder("bank", float("nan"))}, views={"texts": VIEWS["records"]})
    failed = "the encoder failed on 2 of 1,000 records, more than 0.001: look at the reasons in rejects/"
    assert failed in workplace.drive(status=3).out
    workplace.drive("--set", "input.max_reject_rate=0.002")
    assert workplace.manifest()["counts"]["rejected_by_encoder"] == 2
    workplace.drive("--set", "input.max_reject_rate=0.001", status=3)
    lines[3] = "a good line."
    workplace.write("corpus/a.txt", "\n".join(lines))
    workplace.drive()
