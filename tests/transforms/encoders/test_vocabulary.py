from __future__ import annotations

import pytest

from layerbeam.transforms.encoders.source import lower_cases


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("uncased_L-12_H-768_A-12", True),
        ("cased_L-12_H-768_A-12", False),
        ("wwm_cased_L-24_H-1024_A-16", False),
        ("chinese_L-12_H-768_A-12", True),
        ("multi_cased_L-12_H-768_A-12", False),
        ("BERT-Base-Uncased", True),
        ("cased_L-24_H-1024_A-16", False),
        ("wwm_uncased_L-24_H-1024_A-16", True),
        ("multilingual_L-12_H-768_A-12", True),
    ],
)
def test_casing_from_the_name(name, expected):
    assert lower_cases([name], ["a", "B"]) == (expected, f"the name {name}")


def test_casing_from_the_vocabulary():
    assert lower_cases(["model"], ["[CLS]", "[unused1]", "a", "##b"]) == (True, "a guess from the vocabulary")
    assert lower_cases(["model"], ["[CLS]", "a", "##B"]) == (False, "a guess from the vocabulary")


def test_the_nearest_name_decides():
    assert lower_cases(["4", "bert_cased", "uncased"], []) == (False, "the name bert_cased")
