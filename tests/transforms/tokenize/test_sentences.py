from __future__ import annotations

import numpy as np
import pytest
from corpora import read_file, read_sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from layerbeam.transforms.flow import metrics
from layerbeam.transforms.input.content import contradiction
from layerbeam.transforms.settings import LINES, BlockLimits


def sentences(block) -> list[tuple[int, int, int, str]]:
    return list(
        zip(block.line.tolist(), block.sentence.tolist(), block.offset.tolist(), block.texts.to_pylist(), strict=True)
    )


def test_sentences_with_their_place_in_the_record(corpus):
    (block,) = read_sentences(corpus("  One é. Two!\nThree?  (Four.) “Five!” six\n"))
    assert sentences(block) == [
        (0, 0, 2, "One é."),
        (0, 1, 9, "Two!"),
        (1, 0, 0, "Three?"),
        (1, 1, 8, "(Four.) “Five!” six"),
    ]


def test_blank_records_have_no_sentence_or_are_one(corpus):
    path = corpus("One. Two.\n\n \u00a0\nThree.\n")
    (block,) = read_sentences(path)
    assert sentences(block) == [(0, 0, 0, "One."), (0, 1, 5, "Two."), (3, 0, 0, "Three.")]
    assert (block.counts[metrics.EMBEDDED], block.counts[metrics.BLANK]) == (2, 2)
    assert (block.counts[metrics.SENTENCES], block.counts[metrics.SENTENCES_EMBEDDED]) == (3, 3)
    (block,) = read_sentences(path, blank="keep")
    assert sentences(block)[2:] == [(1, 0, 0, ""), (2, 0, 0, " \u00a0"), (3, 0, 0, "Three.")]
    assert (block.counts[metrics.EMBEDDED], block.counts[metrics.SENTENCES]) == (4, 5)


def test_block_of_blank_records_only(corpus):
    (block,) = read_sentences(corpus("\n\n"))
    assert sentences(block) == []
    assert metrics.unbalanced(block.counts) is None


def test_many_sentences_end_a_block(corpus):
    path = corpus(("One two three. " * 20 + "\n") * 4)
    limits = BlockLimits(1 << 30, 1 << 30, 8, 128, sentence_bytes=80)
    assert [block.files[0].num_lines for block in read_sentences(path, limits)] == [2, 2]


def test_fields_go_with_each_sentence(corpus):
    path = corpus('{"text": "One. Two.", "n": 1}\n{"text": "Three.", "n": null}\n')
    (block,) = read_sentences(path, format="jsonl", keep_fields={"n": "int64"})
    assert block.fields["n"].to_pylist() == [1, 1, None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples, which write over one another."""
    return tmp_path_factory.mktemp("any")


@settings(max_examples=100)
@given(
    st.lists(
        st.text(st.sampled_from('aDé漢😀.!?…。 \u00a0\u2003\u3000\u2028\t\r\x85\0\u0301")“”「」'), max_size=30),
        max_size=6,
    ).filter(lambda records: contradiction("\n".join(records).encode(), LINES) is None),
)
def test_sentences_cover_all_but_white_space(folder, records):
    path = folder / "a.txt"
    path.write_bytes("\n".join(records).encode())
    records = [record.removesuffix("\r") for record in records]
    for block in read_sentences(path):
        left = {number: list(record) for number, record in enumerate(records)}
        for line, _, offset, text in sentences(block):
            assert text.strip() == text != ""
            assert records[line][offset : offset + len(text)] == text
            left[line][offset : offset + len(text)] = [" "] * len(text)
        assert not any("".join(rest).strip() for rest in left.values())
        assert metrics.unbalanced(block.counts) is None
        assert np.all(np.diff(block.line) >= 0)


def test_balance_of_sentences():
    counts = {"records_read": 1, "embedded": 1, "sentences_read": 3, "sentences_embedded": 2}
    assert metrics.unbalanced(counts) == (
        "sentences_read 3 != sentences_embedded 2 + sentences_blank_skipped 0 + sentences_filtered 0 + "
        "sentences_rejected 0"
    )
    assert metrics.unbalanced(counts | {"sentences_filtered": 1}) is None


@pytest.mark.parametrize("read", [read_file, read_sentences])
def test_nothing_but_empty_texts(corpus, read):
    (block,) = read(corpus("\n\n\n"), blank="keep")
    assert block.texts.to_pylist() == ["", "", ""]
