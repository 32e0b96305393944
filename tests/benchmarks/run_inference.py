"""Beam's RunInference: with the graph of TF Hub's BERT, built from standard components, and with layerbeam's handler.

python run_inference.py export CONFIG.json FOLDER
    needs tf-models-official on PYTHONPATH, which built TF Hub's models
python run_inference.py standard FOLDER VOCABULARY TEXTS.json
python run_inference.py layerbeam ENCODER TEXTS.json
    print JSON; vectors of the last four layers are computed and not written

Both get batches of texts of similar length, as Beam makes them: `SortAndBatchElements`, and the handler's own.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

BATCH_SIZE = 32
BATCH_CHARACTERS = 4096
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


def standard(folder: str, vocabulary: str, texts: str) -> dict[str, float]:
    import apache_beam as beam
    import tensorflow as tf
    import tensorflow_text as text
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.ml.inference.tensorflow_inference import TFModelHandlerTensor

    with open(vocabulary) as file:
        words = file.read().splitlines()
    ends = [words.index("[CLS]"), words.index("[SEP]")]

    class Encoder:  # RunInference takes a weak reference, so it needs an instance of a class
        def __init__(self) -> None:
            self.model = tf.saved_model.load(folder)
            self.tokenizer = text.FastBertTokenizer(words, lower_case_nfd_strip_accents=True)

    class Handler(TFModelHandlerTensor):
        def load_model(self) -> Any:
            return Encoder()

        def run_inference(self, batch: Any, model: Any, inference_args: Any = None) -> Any:
            ids = model.tokenizer.tokenize(tf.constant(batch))[:, : MAX_SEQ_LENGTH - 2]
            ids, types = text.combine_segments([ids], *ends)
            mask = tf.sequence_mask(ids.row_lengths(), dtype=tf.int32)
            inputs = {"input_word_ids": ids.to_tensor(), "input_mask": mask, "input_type_ids": types.to_tensor()}
            layers = model.model.encode({name: tf.cast(values, tf.int32) for name, values in inputs.items()})
            real = tf.cast(mask, tf.bool)
            vectors = [tf.boolean_mask(layers["encoder_outputs"][k], real).numpy() for k in LAYERS]
            return [len(vectors[0])] + [0] * (len(batch) - 1)

    batches = beam.transforms.util.SortAndBatchElements(1, BATCH_SIZE, BATCH_CHARACTERS)
    return measure(texts, batches | RunInference(Handler("unused").with_no_batching()))


def layerbeam(encoder: str, texts: str) -> dict[str, float]:
    from apache_beam.ml.inference.base import RunInference

    from layerbeam import ModelHandler
    from layerbeam.transforms.hardware import cores

    views = {"tokens": {"level": "token", "layers": list(LAYERS)}}
    return measure(texts, RunInference(ModelHandler(encoder=encoder, views=views, num_threads=cores())))


def measure(path: str, infer: Any) -> dict[str, float]:
    """Seconds for all texts, without those for the first few of them."""
    import apache_beam as beam

    from layerbeam.pipeline.run.engines import local_runner

    with open(path) as file:
        texts = json.load(file)

    def once(texts: list[str]) -> float:
        local = local_runner([])
        started = time.perf_counter()
        with beam.Pipeline(runner=local.runner, options=local.options) as pipeline:
            _ = pipeline | beam.Create(texts) | beam.Reshuffle() | infer | beam.combiners.Count.Globally()
        return time.perf_counter() - started

    once(texts[:BATCH_SIZE])  # may leave the encoder loaded
    few = once(texts[:BATCH_SIZE])
    return {"seconds": once(texts) - few, "lines": len(texts)}


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    if program == "export":
        export(*arguments)
    else:
        print(json.dumps({"standard": standard, "layerbeam": layerbeam}[program](*arguments)))
