"""TensorFlow and TF Text imported without the parts that nothing has used yet.

TensorFlow's import also imports Keras, which imports pandas, scikit-learn and matplotlib where these are installed: 1.4
of 3 seconds and 100 MB. TF Text's loads the kernels of all of its operations: 100 MB.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

# TensorFlow tolerates that this one cannot be imported, and imports it when `tf.keras` is used.
_REFUSED = "keras"
# These load when one of their names is used that is no module.
_POSTPONED = ("tensorflow_text", "tensorflow_text.python.ops")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """For the imports of one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._loaders: dict[str, importlib.abc.Loader] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in (_REFUSED, *_POSTPONED) or threading.get_ident() != self._thread:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            self._loaders[fullname], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        if spec.name == _REFUSED:
            raise ImportError(f"{_REFUSED} is imported when it is used", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        def load(name: str) -> Any:
            # `inspect` asks all modules for special names, and an import asks whether a module is there already.
            is_special = name.startswith("__") and name not in ("__all__", "__version__")
            if is_special or importlib.machinery.PathFinder.find_spec(f"{module.__name__}.{name}", module.__path__):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            del module.__getattr__
            self._loaders[module.__name__].exec_module(module)
            return getattr(module, name)

        module.__getattr__ = load  # type: ignore[method-assign]


@contextlib.contextmanager
def only_what_is_used() -> Iterator[None]:
    """While this is entered, imports of this thread postpone Keras, and what of TF Text is not imported by its name."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
