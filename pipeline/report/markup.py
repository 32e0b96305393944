"""Text as markup: the template passes every value through `escape`, so text of a corpus cannot become markup."""

from __future__ import annotations

import html
import unicodedata

from layerbeam.pipeline.cli.console import escape_control

# Bidirectional controls would reorder the text around them.
_DIRECTION_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class Html(str):
    """Markup that is inserted as it is: Jinja2 asks for `__html__`."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def escape(text: object) -> object:
    r"""Markup that shows any text; control characters, bidirectional controls and surrogates as escape sequences.

    >>> escape("<b>\0\u202e")
    '&lt;b&gt;\\x00\\u202e'
    """
    if hasattr(text, "__html__"):
        return text
    visible = "".join(
        f"\\u{ord(c):04x}" if unicodedata.bidirectional(c) in _DIRECTION_CONTROLS or "\ud800" <= c <= "\udfff" else c
        for c in escape_control(str(text))
    )
    return Html(html.escape(visible))
