"""Tables of cases as text: what is given, and below it, indented, the message."""

from __future__ import annotations

import re


def cases(table: str) -> list[tuple[str, str]]:
    """(what is given, message) of each case. A message that is too long for a line goes on in the next one."""
    found = (case.split("\n    ") for case in re.split(r"\n(?=\S)", table.strip()))
    return [(given, " ".join(message)) for given, *message in found]
