"""Kept fields that come from the path of the file, by a regular expression with one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.flow.blocks import TextBlock
from layerbeam.transforms.flow.commits import printable
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views.view import ViewSpec


def value_of_path(expression: str, path: str) -> str | None:
    """What the group matches at the first match in a path; None if there is no match, or the group is empty.

    The expression is RE2's: the time is linear in the path. ArrowInvalid if RE2 cannot read it.

    >>> value_of_path("corpus/([^/]+)/", "corpus/tang/1.txt"), value_of_path("song/(.+)", "corpus/tang/1.txt")
    ('tang', None)
    """
    # A prefix and a suffix for all of the path, so that only the group is left.
    whole, path = f"(?s)^.*?(?:{expression}).*$", printable(path)
    if not pc.match_substring_regex(path, whole).as_py():
        return None
    return pc.replace_substring_regex(path, whole, r"\1", max_replacements=1).as_py() or None


def add_path_fields(block: TextBlock, record_format: RecordFormat) -> TextBlock:
    """The block of one file, with the fields of its path."""
    for name, expression in record_format.path_fields.items():
        value = pa.scalar(value_of_path(expression, block.files[0].file.path), pa.string())
        block.fields[name] = pa.repeat(value, len(block.texts))
    return block


def path_values(record_format: RecordFormat, views: Sequence[ViewSpec], path: str) -> tuple[Any, ...]:
    """What rows have of the path of their file, besides the column `file`: only files with equal ones exchange rows."""
    is_key = any("file" in view.group_by for view in views)
    fields = (value_of_path(expression, path) for expression in record_format.path_fields.values())
    return (*fields, path if is_key else None)
