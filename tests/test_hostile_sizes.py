"""Expressions over what others wrote take linear time: a megabyte of the worst. In quadratic time some do not end."""

from __future__ import annotations

import types

import pytest

from layerbeam.pipeline.config.load import parse_yaml
from layerbeam.pipeline.errors import root_cause
from layerbeam.pipeline.output.rejects import remedy
from layerbeam.transforms.encoders.formats.saved_model import interface
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.input.content import format_by_content
from layerbeam.transforms.storage.errors import reason_of_service
from layerbeam.transforms.storage.store import Store


def fill(start: str, unit: str, end: str = "") -> str:
    return start + unit * (1_000_000 // len(unit)) + end


@pytest.mark.parametrize(
    ("function", "text", "begins"),
    [
        (remedy, fill("field `a", "` is "), "None"),
        (remedy, fill("field `a", "` is b, not int64", "x"), "None"),
        (layout.is_part_path, fill("", "a/"), "False"),
        (layout.block_of, fill("s/", "-000000000000", "\nx"), "-000000000000"),
        (layout.file_name, fill("", ".gz"), "gz.gz"),
        (reason_of_service, fill("", '"message":'), "message"),
        (reason_of_service, fill("GET ", ":"), "GET :::"),
        (root_cause, RuntimeError(fill("", "a.")), "a.a.a."),
        (format_by_content, fill('{"', '\\"').encode(), "None"),
        (parse_yaml, fill("", "a "), "a a a a"),
    ],
)
def test_a_megabyte_of_the_worst(function, text, begins):
    assert str(function(text)).startswith(begins)


def test_saved_model_outputs_are_ordered_by_number():
    names = [fill("", "1", "a3"), "layer2_2x", "9_layer_1"]
    outputs = interface._encoder_outputs({("encoder_outputs", name): (None, None, 4) for name in names})
    assert [name for _, name in outputs] == names[::-1]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("gs://b/*-*-*-*-*-*-*.txt", ["a-b-c-d-e-f-g.txt"]),
        ("gs://b/**-*-*-*-*-*/*.txt", ["a-b-c-d-e-f/ä.txt"]),
        ("gs://b/?-[a-c]-[!d]*", ["a-b-c-d-e-f-g.txt"]),
        ("gs://b/*.t[x", []),
    ],
)
def test_pattern_with_many_stars_for_names_in_a_store(pattern, found):
    names = ["-" * 1000, "a-b-c-d-e-f-g.txt", "a-b-c-d-e-f/ä.txt", "a-b-c-d-e-f/ä.txt\n"]
    files = [InputFile(f"gs://b/{name}", 1, 0.0) for name in names]
    store = types.SimpleNamespace(list=lambda prefix: (file for file in files if file.path.startswith(prefix)))
    assert [file.path.removeprefix("gs://b/") for file in Store.match(store, pattern)] == found
