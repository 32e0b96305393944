"""LoRA adapters, merged into an encoder's weights when these are loaded: W + scale B A.

Those of peft have a folder of their own. Those of jina-embeddings-v3 are in the encoder's own files, as its authors
save them: each tensor holds all adapters, and tables of embeddings have A and B, too.

Source: Hu et al., https://arxiv.org/abs/2106.09685; the files are those of peft 0.21, and of `modeling_lora.py` in
jinaai/xlm-roberta-flash-implementation at Hugging Face.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.config_file import ConfigFile, EncoderError, first_line, shown
from layerbeam.transforms.encoders.fetch.locate import locate
from layerbeam.transforms.encoders.formats.huggingface import current_names, hash_tensors, list_tensors, tensor_reader
from layerbeam.transforms.encoders.formats.safetensors_file import FLOATS
from layerbeam.transforms.encoders.formats.weights import Tensor, empty_aligned
from layerbeam.transforms.encoders.source import AdaptedKernel, Adapter, EncoderSource
from layerbeam.transforms.flow.blocks import Float32Array
from layerbeam.transforms.hardware import tf

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
_OWN_TENSOR = re.compile(r"(?P<module>.+)\.parametrizations\.weight\.0\.lora_(?P<part>[AB])")
_READ = (
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"),
    *("target_modules", "exclude_modules", "layers_to_transform"),
)
# These say where an adapter comes from or how it was trained.
_NOT_DECISIVE = (
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version"),
    *("lora_dropout", "init_lora_weights", "eva_config", "layers_pattern"),
    *("megatron_core", "qalora_group_size", "runtime_config"),
)
# Others, such as pissa, change the encoder's own weights before training.
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
_LAYER = re.compile(r"\.(\d+)(?=\.)")
_ROWS = 1 << 14  # that are merged at once


class AdapterError(EncoderError):
    """An adapter cannot be used: its handle, file, field, what was found, what is allowed."""


def own_adapters(source: EncoderSource) -> list[str]:
    """The names of the adapters in an encoder's own files."""
    if source.kind != "huggingface":
        return []
    names = _config_file(source).fields.get("lora_adaptations")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _config_file(source: EncoderSource) -> ConfigFile:
    return ConfigFile(source.handle, Path(source.folder, "config.json"))


def add_adapter(source: EncoderSource, handle: str) -> EncoderSource:
    """The encoder with an adapter, from its headers and a hash of its values. AdapterError if it cannot be used.

    `handle`: of a folder, or the name of one of `own_adapters`.
    """
    if source.architecture is None or source.kind == "savedmodel":
        raise AdapterError(
            f"{handle}: an adapter needs an encoder as Hugging Face or Google release it; {source.handle} is a "
            "SavedModel, which verify calls as it is"
        )
    own_handles = own_adapters(source)
    try:
        config: _Config
        if handle in own_handles:
            config, files = _OwnConfig(source, own_handles, handle), source.weight_files
        else:
            folder = _folder(handle, own_handles)
            config, files = _PeftConfig(ConfigFile(handle, folder / _CONFIG)), (str(folder / _WEIGHTS),)
        shapes = source.architecture.weight_shapes(pooler=source.has_pooler)
        kernels = tuple(_find_kernels(source.architecture, config, shapes, list_tensors(handle, files)))
        tensors = {f"{kernel.name}/A": kernel.a for kernel in kernels}
        tensors |= {f"{kernel.name}/B": kernel.b for kernel in kernels}
        values = hash_tensors(handle, files, tensors)
    except OSError as error:
        raise AdapterError(f"{handle}: {error.filename}: cannot be read: {error.strerror or error}") from error
    except EncoderError as error:
        raise AdapterError(str(error)) from error
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise AdapterError(f"{handle}: cannot be read ({reason}); download it again") from error
    scales = sorted((kernel.name, kernel.scale) for kernel in kernels)
    decisive = json.dumps([source.fingerprint, values, scales])
    return dataclasses.replace(
        source,
        adapter=Adapter(handle, kernels),
        fingerprint=hashlib.sha256(decisive.encode()).hexdigest(),
    )


def _folder(handle: str, own_handles: Sequence[str]) -> Path:
    """The folder of an adapter of peft. EncoderError, which names the encoder's own adapters, if it is none."""
    try:
        folder = locate(handle).folder
    except EncoderError as error:
        instead = f"; the encoder's own adapters are {', '.join(own_handles)}" if own_handles else ""
        raise EncoderError(f"{error}{instead}") from error
    if not (folder / _CONFIG).is_file():
        raise EncoderError(f"{handle}: {folder / _CONFIG} is missing; an adapter is a folder that peft has saved")
    return folder


class MergedWeights(Mapping[str, Float32Array]):
    """An encoder's weights with those of an adapter, each read and added at its access."""

    def __init__(self, adapter: Adapter, weights: Mapping[str, Float32Array]) -> None:
        self._weights = weights
        self._kernels = {kernel.name: kernel for kernel in adapter.kernels}
        files = {tensor.file for kernel in adapter.kernels for tensor in (kernel.a, kernel.b)}
        self._read = tensor_reader(adapter.handle, files)

    def __getitem__(self, name: str) -> Float32Array:
        weight, kernel = self._weights[name], self._kernels.get(name)
        if kernel is None:
            return weight
        a, b, scale = self._read(kernel.a), self._read(kernel.b), np.float32(kernel.scale)
        if name.endswith("/kernel"):
            a, b = a.T, b.T
        merged = empty_aligned(weight.shape)
        for start in range(0, len(merged), _ROWS):  # a table of words is large
            rows = slice(start, start + _ROWS)
            # By TensorFlow with one thread in an operation: the bits of NumPy's products may depend on the cores.
            with tf.device("/CPU:0"):
                added = np.asarray(tf.matmul(tf.constant(a[rows]), tf.constant(b)))
            merged[rows] = weight[rows] + scale * added
        return merged

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class _Config(abc.ABC):
    """What says how an adapter's tensors are added. EncoderError for one that computes something else."""

    has_tables: ClassVar[bool]  # of embeddings

    def __init__(self, file: ConfigFile, weights: str) -> None:
        self._file, self._fields, self._weights = file, file.fields, weights

    def tensor_refusal(self, name: str, what: str) -> EncoderError:
        """The error for a tensor or a module of the adapter."""
        return EncoderError(f"{self._file.handle}: {self._weights}: {name} {what}")

    @abc.abstractmethod
    def modules(self, found: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """{module: {A or B: its tensor}}."""

    @abc.abstractmethod
    def of_module(self, module: str) -> tuple[int, float]:
        """(rank, scale) of a module."""


class _OwnConfig(_Config):
    """One of the adapters in an encoder's own files."""

    has_tables = True

    def __init__(self, source: EncoderSource, names: Sequence[str], name: str) -> None:
        super().__init__(_config_file(source), source.weight_files[0])
        self._share = (names.index(name), len(names))

    def modules(self, found: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        count, modules = self._share[1], dict[str, dict[str, Tensor]]()
        for stored, tensor in found.items():
            if match := _OWN_TENSOR.fullmatch(stored):
                if tensor.dtype not in FLOATS or len(tensor.shape) != 3 or tensor.shape[0] != count:
                    raise self.tensor_refusal(stored, f"does not hold {count} matrices in {', '.join(FLOATS)}")
                part = tensor._replace(shape=tensor.shape[1:], share=self._share)
                modules.setdefault(match["module"], {})[match["part"]] = part
        return modules

    def of_module(self, module: str) -> tuple[int, float]:
        rank = self._file.integer("lora_rank")
        return rank, self._file.number("lora_alpha", 1, below=1e6) / rank


class _PeftConfig(_Config):
    """The configuration of an adapter of peft."""

    has_tables = False

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file, str(file.path.parent / _WEIGHTS))
        if self._fields.get("peft_type") != "LORA":
            raise self._refusal("peft_type", '"LORA"')
        if self._fields.get("bias", "none") != "none":
            raise self._refusal("bias", '"none"')
        if json.dumps(self._fields.get("init_lora_weights")) not in map(json.dumps, _INITS):
            raise self._refusal("init_lora_weights", f"one of {', '.join(map(json.dumps, _INITS))}")
        for name, value in self._fields.items():
            if value and name not in (*_READ, *_NOT_DECISIVE):
                raise self._refusal(name, "false, null or empty: only plain LoRA is added to weights")

    def _refusal(self, field: str, allowed: str) -> EncoderError:
        found = shown(self._fields.get(field))
        return EncoderError(f"{self._file.handle}: {self._file.path}: {field} is {found}; it must be {allowed}")

    def modules(self, found: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        modules: dict[str, dict[str, Tensor]] = {}
        for stored, tensor in found.items():
            match = _TENSOR.fullmatch(stored)
            if match is None or tensor.dtype not in FLOATS or len(tensor.shape) != 2:
                raise self.tensor_refusal(stored, f"is no matrix A or B of LoRA in {', '.join(FLOATS)}")
            modules.setdefault(match["module"], {})[match["part"]] = tensor
        return modules

    def _is_target(self, module: str) -> bool:
        """Whether peft puts an adapter at a module of this name."""
        layers = self._fields.get("layers_to_transform")
        if layers is not None and layers != []:
            numbers = _LAYER.findall(module)
            if not numbers or int(numbers[-1]) not in (layers if isinstance(layers, list) else [layers]):
                return False
        if self._fields.get("exclude_modules") and self._names("exclude_modules", module):
            return False
        return self._fields.get("target_modules") == "all-linear" or self._names("target_modules", module)

    def _names(self, field: str, module: str) -> bool:
        """Whether a field, a list of modules or a regular expression, names the module."""
        given = self._fields.get(field)
        if isinstance(given, str):
            return self._matches(field, given, module)
        if not isinstance(given, list):
            raise self._refusal(field, "a list of modules or a regular expression")
        return any(f".{module}".endswith(f".{name}") for name in given)

    def of_module(self, module: str) -> tuple[int, float]:
        if not self._is_target(module):
            raise self.tensor_refusal(module, "is not among target_modules, or left out: peft would not use it")
        rank, alpha = self._number("r", "rank_pattern", module), self._number("lora_alpha", "alpha_pattern", module)
        if not isinstance(rank, int):
            raise self._refusal("r", "an integer, as those of rank_pattern")
        return rank, alpha / (math.sqrt(rank) if self._fields.get("use_rslora") else rank)

    def _matches(self, field: str, pattern: str, module: str) -> bool:
        """Whether a regular expression of the adapter matches the whole name; by RE2, whose time has a bound."""
        try:
            found = pc.match_substring_regex(pa.scalar(module), f"^(?:{pattern})$")
        except pa.ArrowInvalid:
            raise self._refusal(field, "modules and regular expressions that RE2 knows") from None
        return bool(found.as_py())

    def _number(self, field: str, pattern: str, module: str) -> float:
        """The positive number of a field, or of the first pattern that matches the module."""
        given = self._fields.get(pattern) or {}
        if not isinstance(given, dict):
            raise self._refusal(pattern, "an object of modules and numbers")
        matching = (value for key, value in given.items() if self._matches(pattern, rf"(.*\.)?({key})", module))
        value: Any = next(matching, self._fields.get(field))
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self._refusal(field, f"a positive number, as those of {pattern}")
        return value


def _find_kernels(
    architecture: Architecture, config: _Config, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]
) -> Iterator[AdaptedKernel]:
    """What is added to each weight. EncoderError for what cannot be added. `shapes`: those of the encoder's weights."""
    names: dict[str, list[str]] = {}  # of one tensor, several if products share it
    for name, shape in shapes.items():
        if (name.endswith("/kernel") or config.has_tables) and len(shape) == 2:
            for theirs in architecture.spellings(name):
                names.setdefault(theirs, []).append(name)
    modules = config.modules(found)
    if not modules:
        raise config.tensor_refusal("it", "holds no tensor of an adapter")
    for module, parts in modules.items():
        stored_in = current_names(architecture, f"{module.removeprefix(architecture.prefix)}.weight")
        if not all(name in names for name in stored_in):
            some = ", ".join(name.removesuffix(".weight") for name in list(names)[:3])
            raise config.tensor_refusal(module, f"is no product of this {architecture.title}, such as {some}")
        rank, scale = config.of_module(module)
        kernels = [names.pop(name) for name in stored_in]  # a second one has another prefix
        width_in, width_out = shapes[kernels[0][0]]
        expected = {"A": (rank, width_in), "B": (width_out * len(stored_in), rank)}
        if not kernels[0][0].endswith("/kernel"):
            expected = {"A": (width_in, rank), "B": (rank, width_out)}
        given = {part: tensor.shape for part, tensor in parts.items()}
        if given != expected:
            raise config.tensor_refusal(module, f"has the shapes {given}; by encoder and rank they must be {expected}")
        for sharing, (_, share) in zip(kernels, parts["B"].shared_by(stored_in), strict=True):
            for name in sharing:
                yield AdaptedKernel(name, parts["A"], share, scale)
