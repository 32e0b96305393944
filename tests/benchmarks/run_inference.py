"""Beam's RunInference with the graph of TF Hub's BERT: a pipeline built from standard components.

python run_inference.py export CONFIG.json FOLDER
    needs tf-models-official on PYTHONPATH, which built TF Hub's models
python run_inference.py run FOLDER VOCABULARY TEXTS.json
    prints JSON; vectors are computed and not written
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

BATCH_SIZE = 32
MAX_SEQ_LENGTH = 128
LAYERS = (-1, -2, -3, -4)


def export(config: str, folder: str) -> None:
    """Write a SavedModel of this size with random weights."""
    import tensorflow as tf
    from official.nlp.modeling.networks.bert_encoder import BertEncoderV2

    with open(config) as file:
        sizes = json.load(file)
    encoder = BertEncoderV2(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        num_attention_heads=sizes["num_attention_heads"],
        inner_dim=sizes["intermediate_size"],
        inner_activation=lambda x: tf.nn.gelu(x, approximate=True),
        max_sequence_length=sizes["max_position_embeddings"],
    )
    spec = tf.TensorSpec([None, None], tf.int32)
    inputs = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), spec)
    model = tf.Module()
    model.encoder = encoder
    model.encode = tf.function(encoder, input_signature=[inputs])
    tf.saved_model.save(model, folder)


def run(folder: str, vocabulary: str, path: str) -> dict[str, float]:
    """Seconds for all texts, after a warm-up over a few of them."""
    import apache_beam as beam
    import tensorflow as tf
    import tensorflow_text as text
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.ml.inference.tensorflow_inference import TFModelHandlerTensor

    from layerbeam.pipeline.run.engines import local_runner

    with open(vocabulary) as file:
        words = file.read().splitlines()
    with open(path) as file:
        texts = json.load(file)
    ends = [words.index("[CLS]"), words.index("[SEP]")]

    class Encoder:  # RunInference takes a weak reference, so it needs an instance of a class
        def __init__(self) -> None:
            self.model = tf.saved_model.load(folder)
            self.tokenizer = text.FastBertTokenizer(words, lower_case_nfd_strip_accents=True)

    class Handler(TFModelHandlerTensor):
        def load_model(self) -> Any:
            return Encoder()

        def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> Any:
            ids = model.tokenizer.tokenize(tf.stack(batch))[:, : MAX_SEQ_LENGTH - 2]
            ids, types = text.combine_segments([ids], *ends)
            mask = tf.sequence_mask(ids.row_lengths(), dtype=tf.int32)
            inputs = {"input_word_ids": ids.to_tensor(), "input_mask": mask, "input_type_ids": types.to_tensor()}
            layers = model.model.encode({name: tf.cast(values, tf.int32) for name, values in inputs.items()})
            real = tf.cast(mask, tf.bool)
            vectors = [tf.boolean_mask(layers["encoder_outputs"][k], real).numpy() for k in LAYERS]
            return [len(vectors[0])] + [0] * (len(batch) - 1)

    def once(texts: list[str]) -> float:
        local = local_runner([])
        handler = Handler("unused", min_batch_size=BATCH_SIZE, max_batch_size=BATCH_SIZE)
        started = time.perf_counter()
        with beam.Pipeline(runner=local.runner, options=local.options) as pipeline:
            _ = (
                pipeline
                | beam.Create(texts)
                | beam.Reshuffle()
                | beam.Map(tf.constant)
                | RunInference(handler)
                | beam.combiners.Count.Globally()
            )
        return time.perf_counter() - started

    few = once(texts[:BATCH_SIZE])
    return {"seconds": once(texts) - few, "lines": len(texts)}


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(*sys.argv[2:])
    else:
        print(json.dumps(run(*sys.argv[2:])))
