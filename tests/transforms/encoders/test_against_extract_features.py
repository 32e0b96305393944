"""Google's checkpoints and their TF Hub exports against what google-research's extract_features.py wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from float_bounds import Bounded, bounded_layers
from repository import DATA

from layerbeam.transforms.encode.block import pad_batch
from layerbeam.transforms.encode.windows import cut_sequences
from layerbeam.transforms.encoders import EncoderSource, load_encoder, load_weights, open_encoder
from layerbeam.transforms.flow.blocks import TextBlock, TokenBlock
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.settings import EncodeSettings, SequenceSettings
from layerbeam.transforms.tokenize.sequences import tokenize_block
from layerbeam.transforms.tokenize.wordpiece import WordPiece


def split_pair(line: str) -> tuple[str, str | None]:
    first, found, second = line.rpartition(" ||| ")
    return (first, second) if found else (line, None)


def read_pairs(source: EncoderSource) -> TokenBlock:
    """input.txt as extract_features.py reads it: lines stripped, split at the last ` ||| `, 32 tokens."""
    lines = (DATA / "input.txt").read_text(encoding="utf-8").split("\n")
    firsts, seconds = zip(*(split_pair(line.strip()) for line in lines), strict=True)
    zeros = np.zeros(len(lines), np.int32)
    block = TextBlock(
        files=(FileRange(InputFile("input.txt", 0, 0.0), 0, len(lines), 0, 0, ""),),
        texts=pa.array(firsts, pa.string()),
        line=np.arange(len(lines)),
        sentence=zeros,
        offset=zeros,
        counts={},
        rejected=[],
        pairs=pa.array(seconds, pa.string()),
        pair_offset=zeros,
    )
    return tokenize_block(block, WordPiece(source.vocabulary, source.do_lower_case), SequenceSettings(32))


Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def bounds() -> Callable[[str, Arrays], list[Bounded]]:
    """How far the layers of these inputs may be off, whatever the format of the encoder."""
    known: dict[str, list[Bounded]] = {}

    def bounds_of(case: str, inputs: Arrays) -> list[Bounded]:
        if case not in known:
            source = open_encoder(str(DATA / f"google_{case}"))
            known[case], _ = bounded_layers(source.architecture, load_weights(source), *inputs)
        return known[case]

    return bounds_of


@pytest.mark.parametrize("kind", ["google", "zip", "tfhub"])
@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_tokens_and_layers(tmp_path, monkeypatch, bounds, case, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = DATA / f"{'tfhub' if kind == 'tfhub' else 'google'}_{case}"
    handle = zipped(folder, tmp_path / f"{case}_L-3_H-64_A-4") if kind == "zip" else folder
    source = open_encoder(str(handle))
    tokens = read_pairs(source)
    encoder = load_encoder(source, layers=[3, 2, 1], pooler=False)
    sequences = cut_sequences(tokens.contexts, np.arange(15), EncodeSettings(max_seq_length=32))
    inputs = pad_batch(sequences, np.arange(15), encoder.pad_id)
    layers, _ = encoder(*inputs)
    bounded = bounds(case, inputs)
    with (DATA / f"extract_features_{case}.jsonl").open() as lines:
        expected = [json.loads(line) for line in lines]
    assert len(expected) == 15
    assert tokens.segment_ids.any()
    for row, start, end in zip(expected, tokens.row_splits[:-1], tokens.row_splits[1:], strict=True):
        features = row["features"]
        assert [source.vocabulary[token] for token in tokens.token_ids[start:end]] == [f["token"] for f in features]
        for place, layer in enumerate((-1, -2, -3)):
            assert {f["layers"][place]["index"] for f in features} == {layer}
            values = [f["layers"][place]["values"] for f in features]
            bound = 2 * bounded[4 + layer].bound[start:end] + 5e-7  # they have 6 decimals, from TensorFlow 1.15
            assert (np.abs(layers[4 + layer][start:end] - values) <= bound).all()


def zipped(folder: Path, target: Path) -> Path:
    """A .zip as Google's: the files one folder deep, in a folder of the zip's name."""
    shutil.copytree(folder, target.parent / "zipped" / target.name)
    return Path(shutil.make_archive(str(target), "zip", target.parent / "zipped", target.name))
