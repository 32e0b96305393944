"""Text as markup: the template passes every value through `escape`, so text of a corpus cannot become markup."""

from __future__ import annotations

import html
import re

from layerbeam.pipeline.console import escape_control

# Bidirectional controls, which would reorder the text around them, and surrogates, which UTF-8 does not have.
_INVISIBLE = re.compile("[\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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
    return Html(html.escape(_INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", escape_control(str(text)))))


def escape_code(message: str) -> Html:
    """Markup of a message with code between backticks.

    >>> escape_code("add `a: <b>`")
    'add <code>a: &lt;b&gt;</code>'
    """
    return Html(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(message))))


def escape_path(path: str) -> Html:
    """Markup of a path that may be broken after its slashes.

    >>> escape_path("a/b.txt")
    'a/<wbr>b.txt'
    """
    return Html(str(escape(path)).replace("/", "/<wbr>"))
