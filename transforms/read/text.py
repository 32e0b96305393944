"""Lines, paragraphs or a whole file decoded as records, in any encoding with the line end of ASCII."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.blocks import Int64Array
from layerbeam.transforms.commits import BlockId, Rejected
from layerbeam.transforms.input.lines import binary_array, record_bounds
from layerbeam.transforms.read.records import Records, lone_surrogate
from layerbeam.transforms.settings import RecordFormat


@dataclasses.dataclass
class DecodedRecords:
    """The R records of a block that are valid text, with their bytes: `starts`, `stops`, `line` are int64 [R]."""

    texts: pa.StringArray
    starts: Int64Array
    stops: Int64Array
    line: Int64Array
    rejected: list[Rejected]


def decode_text(block: BlockId, raw: bytes, record_format: RecordFormat) -> Records:
    """The block's lines, paragraphs or file as records."""
    decoded = decode(block, raw, record_format)
    texts = decoded.texts
    if record_format.record == "paragraph" and b"\r" in raw:
        texts = pc.replace_substring(texts, "\r\n", "\n")
    return Records(texts, decoded.line, decoded.rejected)


def decode(block: BlockId, raw: bytes, record_format: RecordFormat) -> DecodedRecords:
    """The block's records as text. Invalid bytes are replaced, or their record is rejected."""
    record = record_format.record if record_format.format == "text" else "line"
    starts, stops, line = record_bounds(block, raw, record, record_format.encoding)
    pieces = binary_array(np.frombuffer(raw, np.uint8), starts, stops)
    if record_format.encoding == "utf-8":
        try:
            return DecodedRecords(pieces.cast(pa.string()), starts, stops, line, [])
        except pa.ArrowInvalid:
            pass
    texts, reasons = _decode_each((piece.as_py() for piece in pieces), record_format)
    rejected = [
        Rejected(block.file.path, int(line[index]), block.first_byte + int(starts[index]), "read", reason, raw_record)
        for index, reason in reasons.items()
        for raw_record in (pieces[index].as_py(),)
    ]
    keep = np.array([text is not None for text in texts], bool)
    kept = pa.array([text for text in texts if text is not None], pa.string())
    return DecodedRecords(kept, starts[keep], stops[keep], line[keep], rejected)


def _decode_each(pieces: Iterable[bytes], record_format: RecordFormat) -> tuple[list[str | None], dict[int, str]]:
    """(texts, reasons of rejects) one by one, for other encodings and the rare block that is not all UTF-8."""
    name = "UTF-8" if record_format.encoding == "utf-8" else record_format.encoding
    texts: list[str | None] = []
    reasons = {}
    for index, piece in enumerate(pieces):
        text, reason = None, None
        try:
            text = piece.decode(
                record_format.encoding, "strict" if record_format.invalid_bytes == "reject" else "replace"
            )
            reason = lone_surrogate(text)
        except UnicodeDecodeError as error:
            reason = f"invalid {name}: {error.reason} at byte {error.start} (0x{piece[error.start]:02x})"
        if reason is not None:
            text, reasons[index] = None, reason
        texts.append(text)
    return texts, reasons
