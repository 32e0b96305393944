"""`layerbeam encoder` without an encoder: a list of well-known ones."""

from __future__ import annotations

import json
import re

import pytest

from layerbeam.pipeline.encoder.known_encoders import KNOWN
from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.encoders.architectures import ARCHITECTURES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_has_a_known_encoder(architecture):
    assert [known for known in KNOWN if known.model_type in architecture.model_types]


def test_every_known_encoder_can_be_opened():
    model_types = {name for architecture in ARCHITECTURES for name in architecture.model_types}
    assert {known.model_type for known in KNOWN} <= model_types
    assert len({known.handle for known in KNOWN}) == len(KNOWN)
    for known in KNOWN:
        assert known.handle == "minilm" or re.fullmatch(r"hf://[\w-]+/[\w.-]+", known.handle)


def test_facts_of_the_default():
    minilm, source = KNOWN[0], open_encoder("minilm")
    assert (minilm.handle, minilm.layers, minilm.hidden_size) == (
        "minilm",
        source.num_hidden_layers,
        source.hidden_size,
    )
    assert source.describe()["architecture"].lower() == minilm.model_type


def test_the_list(workplace):
    out = workplace.encoder().out
    assert re.search(r"^BERT \(model_type bert\)\n  minilm +23 M +6x384  WordPiece +Apache-2\.0$", out, re.MULTILINE)
    assert re.search(r"^  hf://BAAI/bge-m3 +568 M  24x1024  Unigram +MIT$", out, re.MULTILINE)
    assert len(re.findall("^  ", out, re.MULTILINE)) == len(KNOWN)
    assert max(map(len, out.split("\n")[:-5])) < 100
    listed = json.loads(workplace.encoder("--json").out)
    assert listed["ModernBERT"]["model_types"] == ["modernbert"]
    assert listed["ModernBERT"]["encoders"][0] == {
        "handle": "hf://answerdotai/ModernBERT-base",
        "model_type": "modernbert",
        "parameters": 149,
        "layers": 22,
        "hidden_size": 768,
        "tokenizer": "byte-level BPE",
        "licence": "Apache-2.0",
    }


def test_arguments_without_an_encoder(workplace):
    assert workplace.encoder("--adapter", "x", status=2).err == (
        "layerbeam: --adapter: give the encoder for which it was trained, too\n"
    )
    assert "neither layerbeam nor Beam has such an option" in workplace.encoder("--fast", status=2).err
