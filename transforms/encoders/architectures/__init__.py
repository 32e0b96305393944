"""The architectures that a Hugging Face folder may have: one class per file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from layerbeam.transforms.encoders.architectures.albert import Albert
from layerbeam.transforms.encoders.architectures.architecture import Architecture
from layerbeam.transforms.encoders.architectures.bert import Bert
from layerbeam.transforms.encoders.architectures.deberta import Deberta
from layerbeam.transforms.encoders.architectures.distilbert import DistilBert
from layerbeam.transforms.encoders.architectures.electra import Electra
from layerbeam.transforms.encoders.architectures.eurobert import EuroBert
from layerbeam.transforms.encoders.architectures.gemma3 import Gemma3
from layerbeam.transforms.encoders.architectures.gte import Gte
from layerbeam.transforms.encoders.architectures.jina_v3 import JinaV3
from layerbeam.transforms.encoders.architectures.modernbert import ModernBert
from layerbeam.transforms.encoders.architectures.mpnet import MPNet
from layerbeam.transforms.encoders.architectures.nomic_bert import NomicBert
from layerbeam.transforms.encoders.architectures.qwen3 import Qwen3
from layerbeam.transforms.encoders.architectures.roberta import Roberta
from layerbeam.transforms.encoders.config_file import ConfigFile

__all__ = ["ARCHITECTURES", "Architecture", "Bert", "model_type_of", "read_architecture"]

ARCHITECTURES: tuple[type[Architecture], ...] = (
    *(Bert, DistilBert, Albert, Electra, Roberta, MPNet, Deberta),
    *(ModernBert, NomicBert, Gte, JinaV3, EuroBert, Qwen3, Gemma3),
)
_BY_TYPE: Mapping[str, type[Architecture]] = {name: kind for kind in ARCHITECTURES for name in kind.model_types}


def model_type_of(config: ConfigFile) -> str | None:
    """The `model_type` of a config.json or, if it has none that is known, that of its `architectures`."""
    given, classes = config.fields.get("model_type"), config.fields.get("architectures")
    names = [given] if given else classes if isinstance(classes, list) else []
    known = {_plain(name): name for name in _BY_TYPE}
    found = {known.get(_plain(re.sub(r"((LMHead|PreTrained)?Model|For[A-Z]\w*)$", "", str(name)))) for name in names}
    return found.pop() if len(found) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def read_architecture(config: ConfigFile) -> Architecture:
    """The architecture that a config.json describes. EncoderError for one that is not supported."""
    kind = _BY_TYPE.get(model_type_of(config) or "")
    if kind is Roberta and config.fields.get("position_embedding_type") == "rotary":  # as the authors of JinaV3 say
        kind = JinaV3
    if kind is None:
        titles = " and ".join(", ".join(kind.title for kind in ARCHITECTURES).rsplit(", ", 1))
        add = "" if config.fields.get("model_type") else "add the one of this encoder, or "
        raise config.wrong("model_type", f"one of {', '.join(_BY_TYPE)} ({titles})", add)
    return kind.read(config)
