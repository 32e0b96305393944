"""TensorFlow, loaded once per process with its threads set before its first operation."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

_LOCK = threading.Lock()


def import_tensorflow() -> Any:
    """The module `tensorflow`, with its threads as they are.

    What the import prints (about oneDNN, CUDA) is kept from the terminal, unless it fails or INFO is logged.
    """
    quiet = not logging.getLogger().isEnabledFor(logging.INFO)
    with _LOCK:
        with _silenced() if quiet and "tensorflow" not in sys.modules else contextlib.nullcontext():
            import tensorflow as tf
        if quiet:
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
        return tf


def load_tensorflow(num_threads: int) -> Any:
    """The module `tensorflow`, set up for `num_threads` batches at once with one thread each.

    One thread within an operation: with more, other bits come out of small batches, so a row would depend on the
    machine's cores. As many operations at once as Python threads call: with one, the calls queue up behind each other.
    """
    tf = import_tensorflow()
    # In a process where somebody has already used TensorFlow the threads are as they are.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(max(num_threads, 1))
    return tf


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Standard error put aside at the level of the file descriptor: these lines come from C++, before any logging."""
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
