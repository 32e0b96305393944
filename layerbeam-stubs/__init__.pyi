# The types of layerbeam.py for who imports it: a single module cannot carry py.typed (PEP 561). `make test-package`
# compares this with what is there.
import os

from pipeline.embed_text import EmbedText as EmbedText
from pipeline.reader import Run

__all__ = ["EmbedText", "__version__", "open_run"]
__version__: str

def open_run(path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Run: ...
def main() -> int: ...
