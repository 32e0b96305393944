"""Versions of Python and of the packages that decide the output: recorded in the manifest, compared on workers."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from importlib import metadata

_PACKAGES = ("layerbeam", "apache-beam", "tensorflow", "tensorflow-text", "numpy", "pyarrow")
# Workers need exactly these versions: objects are pickled between the processes, and each release of sentencex changes
# some sentences.
_SAME = ("layerbeam", "apache-beam", "sentencex")
# Of these, workers need the same minor version.
_SAME_MINOR = ("python", "tensorflow", "tensorflow-text")


class VersionError(RuntimeError):
    """A worker has other software than the program that built the pipeline."""


def versions() -> dict[str, str]:
    """The versions in this process."""
    found = {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}
    with contextlib.suppress(metadata.PackageNotFoundError):  # it has no wheel for Python 3.10 on macOS
        found["sentencex"] = metadata.version("sentencex")
    return found


def check_versions(expected: Mapping[str, str]) -> None:
    """Raises VersionError if this process differs from `expected` in a way that matters."""
    here = versions()
    wrong = [name for name in _SAME if name in expected and here.get(name) != expected[name]]
    wrong += [name for name in _SAME_MINOR if here[name].split(".")[:2] != expected[name].split(".")[:2]]
    if wrong:
        differences = ", ".join(f"{name} {here.get(name, '(missing)')} instead of {expected[name]}" for name in wrong)
        raise VersionError(
            f"the worker {platform.node()} has {differences}, with which the run was started: give the workers an "
            "image with the same versions, or start the run with theirs"
        )
