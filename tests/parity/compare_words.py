"""Compares given words with the results of expect_words.py.

Of a treebank, every layer of every word must be within 1e-5 of what a loop with transformers gives, and so many words
must be cut off. Of hostile sentences, token ids and the word of each token must be those of transformers. BERT's
WordPiece follows Google's code: a word that this cuts in another way must be cut as it says.

Runs in the main environment: python compare_words.py FOLDER; exit status 1 if anything differs.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import yaml

from layerbeam import __version__
from layerbeam.pipeline.cli.main import main
from layerbeam.transforms.encoders import IN_TEXT, open_encoder
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.views.number_types import as_matrix

MAX_SEQ_LENGTH = 64
TOLERANCE = 1e-5
# Sentences without a word that Google's code and transformers cut in two ways.
LEAST_EQUAL = 1_500


def run(folder: Path, name: str, settings: dict[str, Any], view: dict[str, Any]) -> pa.Table:
    """`layerbeam run`; returns the rows of the view."""
    encoder = {"handle": str(folder / "encoder"), "max_seq_length": MAX_SEQ_LENGTH, "special_in_text": "token"}
    config = {"input": settings, "encoder": encoder, "views": {"rows": view}, "output": {"path": str(folder / name)}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    shutil.rmtree(folder / name, ignore_errors=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["run", str(path)], version=__version__)
    if status:
        sys.exit(f"{folder.name}: {name} ended with status {status}\n{said.getvalue()}")
    return ds.dataset(folder / name / "rows", format="parquet").to_table().combine_chunks()


def largest_difference(folder: Path, expected: np.lib.npyio.NpzFile) -> float:
    """The largest difference in all layers of all words of the treebank. Exits if the words are others."""
    treebank = {
        "files": [str(folder.parent / "treebank.conllu")],
        "id_field": "sent_id",
        "keep_fields": {"xpos": "int64"},
    }
    rows = run(folder, "treebank", treebank, {"level": "word", "layers": "all"})
    order = np.lexsort((rows["word_index"].to_numpy(), rows["id"].cast(pa.int64()).to_numpy()))
    rows = rows.take(pa.array(order)).combine_chunks()
    found = rows["id"].cast(pa.int64()).to_numpy(), rows["word_index"].to_numpy()
    if not np.array_equal(found, [expected["sentence"], expected["word"]]):
        sys.exit(f"{folder.name}: {len(found[0])} words of the treebank, and not the {len(expected['word'])} expected")
    assert np.array_equal(rows["xpos"].to_numpy(), found[1] + 1), "a word has the columns of another one"
    lost = json.loads((folder / "treebank" / "manifest.json").read_text())["counts"]["words_lost:rows"]
    assert lost == expected["lost"] > 0, lost
    layers = [as_matrix(rows[f"layer_{layer}"].combine_chunks()) for layer in range(len(expected["vectors"]))]
    return float(np.abs(np.stack(layers) - expected["vectors"]).max())


def hostile_differences(folder: Path, expected: np.lib.npyio.NpzFile) -> tuple[int, int]:
    """(sentences that differ from what they should be, sentences in which Google's code differs from transformers)."""
    path = folder / "hostile.jsonl"
    settings = {"files": [str(path)], "words": "given", "text_field": "tokens", "blank": "keep"}
    rows = run(folder, "hostile", settings, {"level": "token", "layers": [0], "truncate_dim": 1})
    order = np.lexsort((rows["token_index"].to_numpy(), rows["line"].to_numpy()))
    line, ids, words = (rows[name].to_numpy()[order] for name in ("line", "token_id", "word_index"))
    bounds = np.searchsorted(line, np.arange(len(expected["hostile_splits"])))
    source = open_encoder(str(folder / "encoder"))
    google = ReferenceWordPiece(source.vocabulary, True, in_text=IN_TEXT) if folder.name == "bert" else None
    wrong = others = 0
    for number, text in enumerate(path.read_text().splitlines()):
        theirs, ours = slice(*expected["hostile_splits"][number : number + 2]), slice(*bounds[number : number + 2])
        wanted = list(
            zip(expected["hostile_words"][theirs].tolist(), expected["hostile_ids"][theirs].tolist(), strict=True)
        )
        found = list(zip(words[ours].tolist(), ids[ours].tolist(), strict=True))
        if found != wanted and google is not None:
            given = json.loads(text)["tokens"]
            pieces = [(index, piece) for index, word in enumerate(given) for piece in google.tokenize(word)]
            others += 1
            wanted = [wanted[0], *pieces[: MAX_SEQ_LENGTH - 2], wanted[-1]]
        wrong += found != wanted
    return wrong, others


def compare(output: str) -> int:
    """Print the differences; returns the exit status."""
    failed = False
    print(f"{'encoder':14} {'words':>7} {'largest difference':>19} {'hostile sentences that differ':>30}")
    for folder in sorted(path.parent for path in Path(output).glob("*/expected.npz")):
        expected = np.load(folder / "expected.npz")
        difference = largest_difference(folder, expected)
        wrong, others = hostile_differences(folder, expected)
        total = len(expected["hostile_splits"]) - 1
        as_google = f" ({others} cut as Google's code does)" if others else ""
        print(
            f"{folder.name:14} {len(expected['word']):7,} {difference:19.1e} {f'{wrong} of {total:,}':>30}{as_google}"
        )
        failed |= not difference <= TOLERANCE or wrong > 0 or total - others < LEAST_EQUAL
    print(f"allowed: {TOLERANCE}, and no sentence: {'FAILED' if failed else 'passed'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(compare(*sys.argv[1:]))
