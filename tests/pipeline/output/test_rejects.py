"""The settings that are named against frequent rejects."""

from __future__ import annotations

import pytest

from layerbeam.pipeline.output.rejects import frequent_remedies, remedy


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("field `n` is a number with a fraction, not int64", "set input.keep_fields: {n: float64}"),
        ("field `n` is a string, not int64", "set input.keep_fields: {n: string}"),
        ("field `n` is a boolean, not float64", "set input.keep_fields: {n: bool}"),
        ("field `n` is a number, not a string", "set input.keep_fields: {n: float64}"),
        (
            "field `n` is an array, not a string",
            "remove n from input.keep_fields, or convert it in the files; "
            "with input.words: given it may be list<string>",
        ),
        ("field `body` is an array, not a string", "set input.words: given"),
        ("field `body` is a string, not an array", "set input.words: in_text"),
        ("field `n` is a number, not an array", "set input.keep_fields: {n: float64}"),
        ("field `n` does not fit in int64", "set input.keep_fields: {n: float64}"),
        ("field `n` does not fit in float64", "remove n from input.keep_fields, or convert it in the files"),
        ("field `n`: invalid UTF-8: invalid start byte", "set input.invalid_bytes: replace"),
        ("field `body` is missing", "set input.text_field to the field with the text"),
        ("field `body` is an object, not a string", "set input.text_field to the field with the text"),
        ("over max_seq_length 64", "set encoder.long_text: truncate or window"),
        ("the encoder gives NaN or infinite values", None),
    ],
)
def test_remedy(reason, expected):
    assert remedy(reason, "body") == expected


def test_remedies_of_several_reasons_are_counted_together_and_rare_ones_left_out():
    rejects = {"invalid UTF-8: invalid start byte": 2, "invalid UTF-8: unexpected end of data": 2, "over max": 90}
    rejects |= {"is not valid JSON: Expecting value": 3}
    (line,) = frequent_remedies(rejects, 100)
    assert line.startswith("4 rejected records: set input.encoding: cp1252 or latin-1")
