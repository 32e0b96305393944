"""The page's markup: whatever is not made here is escaped, so text of a corpus cannot become markup."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence

from layerbeam.pipeline.cli.console import escape_control

# What turns the direction of the text around it, unless it is shown as an escape.
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_EMPTY_ELEMENTS = ("meta", "link")


class Html(str):
    """Markup that is safe as it stands. Made by `tag` and `join`; of a constant or of an own plot by name."""

    __slots__ = ()


def escape(text: object) -> Html:
    r"""Any text as markup that shows it; control characters and turns of direction as escapes.

    >>> escape("<b>\0\u202e")
    '&lt;b&gt;\\x00\\u202e'
    """
    if isinstance(text, Html):
        return text
    shown = "".join(
        f"\\u{ord(c):04x}" if unicodedata.bidirectional(c) in _DIRECTIONS or "\ud800" <= c <= "\udfff" else c
        for c in escape_control(str(text))
    )
    return Html(html.escape(shown))


def join(parts: Iterable[object]) -> Html:
    """Parts one after the other, each escaped unless it is markup."""
    return Html("".join(escape(part) for part in parts))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element. `class_` is class, `aria_label` aria-label; True is an attribute without value, None none.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY_ELEMENTS:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def foreign(text: object) -> Html:
    """Text of a corpus, of whatever direction, that does not turn what stands around it."""
    return tag("bdi", text)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    numbers: Sequence[str] = (),
    row_ids: Sequence[str] = (),
) -> Html:
    """A table that scrolls within itself; `numbers`: headings of the columns that stand right. With `row_ids` rows can
    be pointed at, and gone through by arrow keys."""
    right = [name in numbers for name in head]
    body = []
    for number, row in enumerate(rows):
        cells = [tag("td", cell, class_="n" if is_right else None) for cell, is_right in zip(row, right, strict=True)]
        body.append(
            tag("tr", *cells, id=row_ids[number], tabindex=-1 if number else 0) if row_ids else tag("tr", *cells)
        )
    headings = [
        tag("th", name, scope="col", class_="n" if is_right else None)
        for name, is_right in zip(head, right, strict=True)
    ]
    return tag(
        "div",
        tag("table", tag("caption", caption), tag("thead", tag("tr", *headings)), tag("tbody", *body)),
        class_="scroll",
        role="region",
        aria_label=caption,
        tabindex=0,
    )


def folded(summary: str, *children: object) -> Html:
    """What is there for who wants it."""
    return tag("details", tag("summary", summary), *children)


def figure(plot: object, how_to_read: object, *more: object, class_: str | None = None) -> Html:
    """A plot with what says how to read it, and its table below."""
    return tag("figure", plot, tag("figcaption", how_to_read), *more, class_=class_)


def panels(plots: Iterable[tuple[str, Html]], class_: str = "panels") -> Html:
    """Plots side by side, as many as there is room for, each under its heading."""
    return tag("div", *(tag("div", tag("h4", name), plot, class_="panel") for name, plot in plots), class_=class_)


def lacking(what: str) -> Html:
    """The one line of a section that the run has nothing for."""
    return tag("p", what, class_="lacking")
