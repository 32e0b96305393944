"""Versions of Python and of the packages that decide the output: recorded in the manifest, compared on workers."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

_PACKAGES = ("layerbeam", "apache-beam", "tensorflow", "tensorflow-text", "numpy", "pyarrow")
# Workers need exactly these versions: objects are pickled between the processes.
_SAME = ("layerbeam", "apache-beam")
# Of these, workers need the same minor version.
_SAME_MINOR = ("python", "tensorflow", "tensorflow-text")


class VersionError(RuntimeError):
    """A worker has other software than the program that built the pipeline."""


def versions() -> dict[str, str]:
    """The versions in this process."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}


def minor(version: str) -> str:
    """The first two numbers of a version.

    >>> minor("3.11.7")
    '3.11'
    """
    return ".".join(version.split(".")[:2])


def check_versions(expected: Mapping[str, str]) -> None:
    """Raises VersionError if this process differs from `expected` in a way that matters."""
    here = versions()
    wrong = [name for name in _SAME if here[name] != expected[name]]
    wrong += [name for name in _SAME_MINOR if minor(here[name]) != minor(expected[name])]
    if wrong:
        differences = ", ".join(f"{name} {here[name]} instead of {expected[name]}" for name in wrong)
        raise VersionError(
            f"the worker {platform.node()} has {differences}, with which the run was started: give the workers an "
            "image with the same versions, or start the run with theirs"
        )
