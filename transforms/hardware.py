"""TensorFlow, loaded once per process with its threads and device set before its first operation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.abc
import importlib.machinery
import logging
import math
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

# TensorFlow tolerates that this one cannot be imported, and imports it when `tf.keras` is used.
_REFUSED = "keras"
# These load when one of their names is used that is no module.
_POSTPONED = ("tensorflow_text", "tensorflow_text.python.ops")
_LOCK = threading.Lock()
# Sets of instructions with which oneDNN has kernels of its own, the newest first.
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")


class DeviceError(RuntimeError):
    """TensorFlow does not see the requested device."""


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a worker process may use.

    `num_threads`: blocks, and batches, that are processed at once, each in a thread; None for as many as cores.
    `device`: auto, cpu, gpu or tpu. `encoder_process`: the address of the process of this machine that encodes, and
    has this hardware; None: each process encodes.
    """

    num_threads: int | None = 1
    device: str = "auto"
    encoder_process: bytes | None = None

    @property
    def threads(self) -> int:
        """The number of threads in this process."""
        return self.num_threads or cores()


def cores() -> int:
    """Number of cores that this process may use: of its CPU set, and of its cgroups' quota, rounded up."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, max(math.ceil(cpu_quota()), 1)) if sys.platform == "linux" else available


def cpu_quota(root: Path = Path("/")) -> float:
    """CPUs that the cgroups (v1 and v2) of this process allow; 2^31 without a limit. `root`: for tests."""
    quota = float(1 << 31)
    for group, is_first_version in _cgroups(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first_version else ("cpu.max",)
        with contextlib.suppress(OSError):
            limit, period = " ".join((group / name).read_text().strip() for name in names).split()
            if limit not in ("max", "-1"):
                quota = min(quota, int(limit) / int(period))
    return quota


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still use: of the machine, and of its cgroups; None if that is not known.

    Cached files count as free. `root`: for tests.
    """
    left: list[int] = []
    with contextlib.suppress(OSError, KeyError):
        left.append(_numbers(root / "proc/meminfo")["MemAvailable:"] << 10)
    for group, is_first_version in _cgroups(root, "memory"):
        limit, used, prefix = ("memory.max", "memory.current", "")
        if is_first_version:
            limit, used, prefix = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        with contextlib.suppress(OSError, KeyError, ValueError):  # "max" is no limit
            room = int((group / limit).read_text()) - int((group / used).read_text())
            cached = _numbers(group / "memory.stat")
            left.append(room + cached[f"{prefix}active_file"] + cached[f"{prefix}inactive_file"])
    return max(min(left), 0) if left else None


def _numbers(file: Path) -> dict[str, int]:
    """{the first word of a line: the second}, where that is a number."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of the cgroups of this process, the innermost first, and whether they are of version 1."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            group = top / path.lstrip("/")
            # In a container the path is often the host's, and the container's own limit is at the top.
            for folder in (group, *group.parents):
                yield folder, bool(controllers)
                if folder == top:
                    break


def instructions(processors: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The instruction sets of this machine's processor, as Linux names them; None if they are not known."""
    try:
        lines = processors.read_text().splitlines()
    except OSError:
        return None
    return next((frozenset(line.split()) for line in lines if line.startswith("flags")), None)


@functools.cache
def made_with() -> str:
    """What computes here, on which the last bits of vectors depend: `tensorflow 2.21.0 on avx2`."""
    processor = next(filter((instructions() or frozenset()).__contains__, _INSTRUCTIONS), platform.machine())
    if "tensorflow" in sys.modules:
        gpus, tpus = (tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU"))
        names = [tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus[:1]]
        processor = next(iter([*names, *("TPU" for _ in tpus)]), processor)
    return f"tensorflow {metadata.version('tensorflow')} on {processor}"


def slow_bfloat16(compute_dtype: str, processors: Path = Path("/proc/cpuinfo")) -> str | None:
    """What to know before products in bfloat16 run on this machine; None if they are not known to be slow."""
    if compute_dtype != "bfloat16":
        return None
    known = instructions(processors)
    if known is None or known & {"avx512_bf16", "amx_bf16"}:
        return None
    if any(tf.config.list_physical_devices(kind) for kind in ("GPU", "TPU")):
        return None
    return (
        f"compute_dtype: bfloat16 is several times slower than float32 on {platform.node()}, whose processor has no "
        "bfloat16 instructions; take float32, or a processor with AVX-512 BF16 or AMX"
    )


def import_tensorflow() -> Any:
    """The module `tensorflow`, without Keras until that is used; its threads are not changed.

    Hides what the import prints (about oneDNN, CUDA), unless it fails or INFO is logged.
    """
    quiet = not logging.getLogger().isEnabledFor(logging.INFO)
    if platform.machine() == "x86_64":
        # TensorFlow's default only where the processor has AVX-512 VNNI or the like. With AVX2 alone (AMD EPYC, Zen 3)
        # it made BERT-base's blocks 1.15 times as fast in batches of 1,008 tokens, 1.4 to 1.6 times in those of 504.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with _LOCK:
        with (
            _silenced() if quiet and "tensorflow" not in sys.modules else contextlib.nullcontext(),
            only_what_is_used(),
        ):
            import tensorflow as tf
        if quiet:
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
        return tf


def import_tensorflow_text(module: str) -> Any:
    """The module `tensorflow_text.python.ops.<module>`."""
    import_tensorflow()
    with _LOCK, only_what_is_used():
        return importlib.import_module(f"tensorflow_text.python.ops.{module}")


class _TensorFlow:
    """The module `tensorflow`, imported at the first use of an attribute: the import takes 3 s and 540 MB."""

    @functools.cached_property
    def _module(self) -> Any:
        return import_tensorflow()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


tf: Any = _TensorFlow()


def load_tensorflow(hardware: Hardware) -> Any:
    """The module `tensorflow`, set up for this hardware. DeviceError if TensorFlow does not see the device.

    One thread within an operation: with more, small batches give other bits, so a row would depend on the machine's
    cores. As many operations at once as Python threads: with one, the calls wait for each other.
    """
    tf = import_tensorflow()
    # Where TensorFlow has already run an operation, its settings can no longer change.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(hardware.threads)
    with contextlib.suppress(RuntimeError):
        if hardware.device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)  # otherwise TensorFlow allocates all of it at once
    # TF32 has 10 bits of mantissa, and float32 means float32. For speed there is compute_dtype: bfloat16.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    if hardware.device == "tpu":
        _start_tpus(tf)
    elif hardware.device != "auto" and not tf.config.get_visible_devices(hardware.device.upper()):
        raise DeviceError(_unseen(tf, hardware.device))
    return tf


def placement(device: str) -> AbstractContextManager[Any]:
    """The device scope for variables; a compiled function runs where its variables are."""
    return import_tensorflow().device("/TPU:0") if device == "tpu" else contextlib.nullcontext()


def _start_tpus(tf: Any) -> None:
    """Initialize the TPUs of this machine, once per process."""
    with _LOCK:
        if tf.config.list_logical_devices("TPU"):
            return
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except Exception as error:  # TensorFlow has many exceptions for a missing or broken TPU
            # TensorFlow puts the cause last, before indented lines about the graph.
            causes = [line for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
            raise DeviceError(f"{_unseen(tf, 'tpu')} ({''.join(causes[-1:]):.100})") from error


def _unseen(tf: Any, device: str) -> str:
    devices = [device for device in tf.config.list_physical_devices() if device.device_type != "TPU_SYSTEM"]
    seen = ", ".join(device.name for device in devices) or "nothing"
    return (
        f"encoder.device: {device}, and TensorFlow {tf.__version__} sees none on {platform.node()}, only {seen}; "
        "fix the driver, image or accelerator, or set encoder.device to auto or cpu"
    )


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Hide standard error at the level of the file descriptor: these lines are from C++, before any logging."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as aside:
        saved = os.dup(2)
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except BaseException:
            aside.seek(0)
            os.write(saved, aside.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


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
    """While this is entered, imports of this thread postpone Keras, and what of TF Text is not imported by its name.

    TensorFlow's import also imports Keras, which imports pandas, scikit-learn and matplotlib where these are installed:
    1.4 of 3 seconds and 100 MB. TF Text's loads the kernels of all of its operations: 100 MB.
    """
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
