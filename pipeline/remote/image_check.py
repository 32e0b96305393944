"""`python -m layerbeam.pipeline.remote.image_check`, the Dockerfile's last step: checks an image against its labels."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import layerbeam.pipeline
import layerbeam.transforms
from layerbeam.transforms.encoders import EncoderError, open_encoder
from layerbeam.transforms.encoders.formats import minilm

# A package that only the image for this device has: NVIDIA's library is from the extra `gpu`.
_DEVICES = {"gpu": "nvidia-cudnn-cu12", "tpu": "tensorflow-tpu"}
# Packages that an image may lack, with the modules that import them: az:// and PyTorch's datasets.
_OPTIONAL = ("obstore", "torch")


def wrong_versions(labels: argparse.Namespace) -> Iterator[str]:
    """What is installed in another version than the label says."""
    installed = {
        "version": metadata.version("layerbeam"),
        "apache-beam": metadata.version("apache-beam"),
        "tensorflow": metadata.version("tensorflow"),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "device": next((device for device, name in _DEVICES.items() if any(metadata.distributions(name=name))), "cpu"),
    }
    for name, found in installed.items():
        label = getattr(labels, name.replace("-", "_"))
        if label != found:
            yield f"label {name}: {label}, but installed is {found}"


def missing_files() -> Iterator[str]:
    """Files of layerbeam that were to be installed and are not there."""
    for file in metadata.files("layerbeam") or ():
        if not Path(file.locate()).exists():
            yield f"{file}: is missing"


def broken_modules() -> Iterator[str]:
    """Modules that cannot be imported, also those that a run imports late or never."""
    for package in (layerbeam.pipeline, layerbeam.transforms):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                if error.name not in _OPTIONAL:
                    yield f"{module.name}: cannot be imported: {error}"


def unusable_encoders(model: str) -> Iterator[str]:
    """Of `minilm` and of the folder `model`, if there is to be one."""
    try:
        if minilm.packaged_folder() is None:
            yield minilm.NOT_INSTALLED
        else:
            open_encoder("minilm")
        if model:
            open_encoder(model)
    except EncoderError as error:
        yield str(error)


def main() -> int:
    """0, or 1 where anything is wrong, which is printed."""
    parser = argparse.ArgumentParser(
        prog="python -m layerbeam.pipeline.remote.image_check", description=__doc__, allow_abbrev=False
    )
    for name in ("--version", "--apache-beam", "--python", "--tensorflow", "--device"):
        parser.add_argument(name, required=True, help="as the label of this name says")
    parser.add_argument("--model", default="", help="folder of an encoder that is to be in the image")
    labels = parser.parse_args()
    problems = [*wrong_versions(labels), *missing_files(), *broken_modules(), *unusable_encoders(labels.model)]
    for problem in problems:
        print(f"worker image: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
