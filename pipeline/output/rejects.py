"""The rejects of a run by reason, and the settings that would avoid the frequent ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from layerbeam.transforms import storage
from layerbeam.transforms.parts import read_rejects

# A larger share of the records is a mistake in the settings rather than in some records.
_FREQUENT_SHARE = 0.03
_TYPES = {"a number": "float64", "a number with a fraction": "float64", "a string": "string", "a boolean": "bool"}
_WRONG_TYPE = re.compile(
    r"field `(?P<field>.+)` is (?P<found>[^`]+), not (?P<type>int64|float64|bool|a string|an array)"
)
# By the beginning of the reason.
_REMEDIES = {
    "invalid UTF-8": "set input.encoding: cp1252 or latin-1 if the files are not UTF-8, or invalid_bytes: replace",
    "invalid ": "remove input.encoding if the files are UTF-8, set another one, or invalid_bytes: replace",
    "is not valid JSON": "set input.format if the files are not JSON Lines, with one object on each line",
    "is not a JSON object": "write each record as an object on its own line; `jq -c '.[]'` converts an array",
    "over max_seq_length": "set encoder.long_text: truncate or window",
}


def count_rejects(output_path: str, paths: Iterable[str]) -> dict[str, int]:
    """{reason: number of rejected records}, the most frequent first. `paths`: of the parts of rejects."""
    reasons: Counter[str] = Counter()
    for path in paths:
        for reject in read_rejects(storage.join(output_path, path)):
            reasons[reject.kind if reject else "(damaged record)"] += 1
    return dict(reasons.most_common())


def remedy(reason: str, text_field: str | list[str] = "text") -> str | None:
    """What to set so that records are not rejected for this reason; None if no setting helps.

    >>> remedy("field `size` is a number with a fraction, not int64")
    'set input.keep_fields: {size: float64}'
    """
    wrong = _WRONG_TYPE.fullmatch(reason)
    text_fields = [text_field] if isinstance(text_field, str) else text_field
    if wrong and "an array" in (wrong["found"], wrong["type"]):
        is_list = wrong["found"] == "an array"
        if wrong["field"] in text_fields:
            return f"set input.words: {'given' if is_list else 'in_text'}"
        if is_list:
            given = f"list<{wrong['type'].removeprefix('a ')}>"
            return f"{_remove(wrong['field'])}; with input.words: given it may be {given}"
        return f"set input.keep_fields: {{{wrong['field']}: {_TYPES.get(wrong['found'], 'string')}}}"
    field = re.match(r"field `(.+?)`(?: is (missing)|: invalid| does not fit in (int64|float64))", reason)
    if wrong and wrong["field"] not in text_fields:
        type_ = _TYPES.get(wrong["found"])
        return f"set input.keep_fields: {{{wrong['field']}: {type_}}}" if type_ else _remove(wrong["field"])
    if wrong or (field and field[2]):
        return "set input.text_field to the field with the text"
    if field and field[3]:
        wider = "float64" if field[3] == "int64" else "string"
        return f"set input.keep_fields: {{{field[1]}: {wider}}}" if wider == "float64" else _remove(field[1])
    if field:
        return "set input.invalid_bytes: replace"
    return next((text for start, text in _REMEDIES.items() if reason.startswith(start)), None)


def _remove(field: str) -> str:
    return f"remove {field} from input.keep_fields, or convert it in the files"


def frequent_remedies(rejects: Mapping[str, int], records: int, text_field: str | list[str] = "text") -> list[str]:
    """What to set against each reason that holds for more than a few per cent of the records.

    >>> frequent_remedies({"field `text` is missing": 9, "over max_seq_length 64": 1}, 100)
    ['9 rejected records: set input.text_field to the field with the text']
    """
    counts: Counter[str] = Counter()
    for reason, count in rejects.items():
        counts[remedy(reason, text_field) or ""] += count
    return [
        f"{count:,} rejected record{'s' if count > 1 else ''}: {text}"
        for text, count in counts.most_common()
        if text and count > _FREQUENT_SHARE * records
    ]
