"""TensorFlow and TF Text without what nothing uses; whatever is used later is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTED = """
import sys, threading
from layerbeam.transforms.hardware import import_tensorflow, import_tensorflow_text

tf = import_tensorflow()
import_tensorflow_text("fast_wordpiece_tokenizer")
import_tensorflow_text("state_based_sentence_breaker_op").StateBasedSentenceBreaker()
import inspect
inspect.getmodule(inspect)  # asks every module for its file
assert "keras" not in sys.modules
assert "tensorflow_text.python.ops.bert_tokenizer" not in sys.modules
"""


def run(*lines: str) -> None:
    subprocess.run([sys.executable, "-c", "\n".join([IMPORTED, *lines])], check=True, timeout=120)


@pytest.mark.nightly
def test_keras_is_imported_when_it_is_used():
    run(
        "from tensorflow.keras import layers",
        "assert layers.Dense(2)(tf.ones([1, 3])).shape == (1, 2)",
        "assert tf.keras.layers.Dense is layers.Dense",
    )


@pytest.mark.nightly
def test_tensorflow_text_is_whole_when_it_is_used():
    run(
        "import tensorflow_text as text",
        "tokenizer = text.FastWordpieceTokenizer(['[UNK]', 'a'], no_pretokenization=True)",
        "own = sys.modules['tensorflow_text.python.ops.fast_wordpiece_tokenizer']",
        "assert isinstance(tokenizer, own.FastWordpieceTokenizer)",
        "from tensorflow_text import WhitespaceTokenizer, keras",
        "assert WhitespaceTokenizer().tokenize('a b').numpy().tolist() == [b'a', b'b']",
        "assert issubclass(keras.layers.ToDense, tf.keras.layers.Layer)",
        "assert text.__version__ and len([name for name in dir(text) if name[0] != '_']) > 50",
    )


@pytest.mark.nightly
def test_other_threads_import_what_they_want():
    run(
        "from layerbeam.transforms.hardware import only_what_is_used",
        "with only_what_is_used():",
        "    thread = threading.Thread(target=lambda: __import__('keras'))",
        "    thread.start()",
        "    thread.join()",
        "assert 'keras' in sys.modules",
    )
