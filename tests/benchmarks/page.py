"""Tables that benchmarks write into README.md, next to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "README.md"


def write_table(name: str, lines: Sequence[str]) -> None:
    """Replace what is between `<!-- NAME: ... -->` and `<!-- end of NAME -->`."""
    written = "\n".join(lines)
    between = rf"(?s)(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)"
    page, count = re.subn(between, lambda found: f"{found[1]}{written}\n{found[2]}", PAGE.read_text())
    assert count == 1, f"{PAGE} has {count} places for the table {name}"
    PAGE.write_text(page)
