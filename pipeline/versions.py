"""Versions of Python and of the packages that decide the output: recorded in the manifest, compared on workers."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

_PACKAGES = ("layerbeam", "apache-beam", "tensorflow", "tensorflow-text", "numpy", "pyarrow", "sentencex")
# Workers need exactly these versions: objects are pickled between the processes, and each release of sentencex changes
# some sentences.
_SAME = ("layerbeam", "apache-beam", "sentencex")
# Of these, workers need the same minor version. TensorFlow's decides the vectors' last bits.
_SAME_MINOR = ("python", "tensorflow", "tensorflow-text")
# The only TensorFlow for TPUs that layerbeam supports: the package tensorflow-tpu has no later version.
TPU_TENSORFLOW = "2.20"
# By minor version of TensorFlow: the Dockerfile's DEVICE, and what installs this version.
_IMAGES = {"2.21": "cpu or gpu", TPU_TENSORFLOW: "tpu"}
_CONSTRAINTS = {"2.21": "constraints.txt", TPU_TENSORFLOW: "constraints-tf220.txt"}


class VersionError(RuntimeError):
    """Packages that do not fit each other, or a worker that has others than the program that built the pipeline."""


def minor_of(version: str) -> str:
    """The first two numbers of a version.

    >>> minor_of("2.21.0")
    '2.21'
    """
    return ".".join(version.split(".")[:2])


def versions() -> dict[str, str]:
    """The versions in this process. VersionError if TensorFlow and TF Text do not fit."""
    found = {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}
    tensorflow, text = found["tensorflow"], found["tensorflow-text"]
    if minor_of(tensorflow) != minor_of(text):
        # pip never does that by itself: each TF Text requires the TensorFlow of its minor version.
        raise VersionError(
            f"tensorflow {tensorflow} and tensorflow-text {text} are installed, and both need the same minor version; "
            f"run: pip install tensorflow=={minor_of(tensorflow)}.* tensorflow-text=={minor_of(tensorflow)}.*"
        )
    return found


def check_versions(expected: Mapping[str, str]) -> None:
    """Raises VersionError if this process differs from `expected` in a way that matters."""
    here = versions()
    wrong = [name for name in _SAME if here[name] != expected[name]]
    wrong += [name for name in _SAME_MINOR if minor_of(here[name]) != minor_of(expected[name])]
    if wrong:
        differences = ", ".join(f"{name} {here[name]} instead of {expected[name]}" for name in wrong)
        image, theirs = "", ""
        if "tensorflow" in wrong:
            wanted, found = minor_of(expected["tensorflow"]), minor_of(here["tensorflow"])
            image = f" (the Dockerfile's DEVICE for TensorFlow {wanted} is {_IMAGES.get(wanted, 'none')})"
            theirs = f" ({_CONSTRAINTS[found]} has them)" if found in _CONSTRAINTS else ""
        raise VersionError(
            f"the worker {platform.node()} has {differences}, with which the run was started: give the workers an "
            f"image with the same versions{image}, or start the run with theirs{theirs}"
        )


def tpu_mistake() -> str | None:
    """Why this program cannot start a run on TPUs: its TensorFlow is not the one of their image; None if it can."""
    here = versions()["tensorflow"]
    if minor_of(here) == TPU_TENSORFLOW:
        return None
    return (
        "encoder.device: is tpu, and the image for TPUs (the Dockerfile's DEVICE=tpu) has TensorFlow "
        f"{TPU_TENSORFLOW}, as tensorflow-tpu has no later version; this program has {here}: "
        f"install {_CONSTRAINTS[TPU_TENSORFLOW]}, or start the run from that image's template"
    )
