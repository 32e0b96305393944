"""TensorFlow and TF Text without what nothing uses; whatever is used later is there."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest
from repository import python

from layerbeam.transforms.hardware import only_what_is_used

IMPORTED = """
import sys
from layerbeam.transforms.hardware import import_tensorflow, import_tensorflow_text

tf = import_tensorflow()
import_tensorflow_text("fast_wordpiece_tokenizer")
import inspect
inspect.getmodule(inspect)  # asks every module for its file
assert "keras" not in sys.modules
assert "tensorflow_text.python.ops.bert_tokenizer" not in sys.modules
"""
KERAS = """
from tensorflow.keras import layers
assert layers.Dense(2)(tf.ones([1, 3])).shape == (1, 2)
assert tf.keras.layers.Dense is layers.Dense
"""
TEXT = """
import tensorflow_text as text
tokenizer = text.FastWordpieceTokenizer(['[UNK]', 'a'], no_pretokenization=True)
own = sys.modules['tensorflow_text.python.ops.fast_wordpiece_tokenizer']
assert isinstance(tokenizer, own.FastWordpieceTokenizer)
from tensorflow_text import WhitespaceTokenizer, keras
assert WhitespaceTokenizer().tokenize('a b').numpy().tolist() == [b'a', b'b']
assert issubclass(keras.layers.ToDense, tf.keras.layers.Layer)
assert text.__version__ and len([name for name in dir(text) if name[0] != '_']) > 50
"""


@pytest.mark.slow
def test_keras_and_tensorflow_text_are_whole_when_they_are_used():
    """And no import, tensorflow_hub's included, writes to standard output, which is for the command's results."""
    assert python("".join([IMPORTED, KERAS, TEXT, "import tensorflow_hub"])) == ""


def test_other_threads_import_what_they_want(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "keras.py").touch()
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))
    del sys.modules["keras"]
    with only_what_is_used():
        with pytest.raises(ImportError, match="keras is imported when it is used"):
            __import__("keras")
        thread = threading.Thread(target=__import__, args=("keras",))
        thread.start()
        thread.join()
    assert sys.modules["keras"].__file__ == str(tmp_path / "keras.py")
