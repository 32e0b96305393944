"""Versions of Python and the packages that decide what comes out: recorded in the manifest, compared on workers."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

_PACKAGES = ("layerbeam", "apache-beam", "tensorflow", "tensorflow-text", "numpy", "pyarrow")
# A worker must have the very same of these: objects go from one to the other as they are in memory.
_SAME = ("layerbeam", "apache-beam")
# And of these the same but for the last number.
_SAME_MINOR = ("python", "tensorflow", "tensorflow-text")


class VersionError(RuntimeError):
    """A worker has other software than the program that built the pipeline."""


def versions() -> dict[str, str]:
    """Of this process."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}


def minor(version: str) -> str:
    """The first two numbers.

    >>> minor("3.11.7")
    '3.11'
    """
    return ".".join(version.split(".")[:2])


def check_versions(expected: Mapping[str, str]) -> None:
    """VersionError where this process has others than `expected`, in a way that matters."""
    here = versions()
    wrong = [name for name in _SAME if here[name] != expected[name]]
    wrong += [name for name in _SAME_MINOR if minor(here[name]) != minor(expected[name])]
    if wrong:
        differences = ", ".join(f"{name} {here[name]} and not {expected[name]}" for name in wrong)
        raise VersionError(
            f"the worker {platform.node()} has {differences}, which the run was started with: give the workers an "
            "image of the same versions, or start the run with theirs"
        )
