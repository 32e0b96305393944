"""All ways to embed in a Beam pipeline, over one list of texts.

python embed_ways.py ENCODER TEXTS.json OUTPUT_FOLDER [Beam's options]: writes `vectors-00000-of-00001`, a line of JSON
[way, number, vector] for each text and way.
"""

from __future__ import annotations

import atexit
import gc
import json
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
from apache_beam.ml.transforms.base import MLTransform
from apache_beam.options.pipeline_options import PipelineOptions

import layerbeam

VIEW = {"level": "text", "layers": [-1], "pooling": "mean"}
COLUMN = "layer_3"


def embed_text(pairs: Any, encoder: str, **settings: Any) -> Any:
    embedded = pairs | layerbeam.EmbedText(encoder=encoder, views={"v": VIEW}, **settings)
    return embedded | "take" >> beam.MapTuple(lambda number, views: (number, views["v"][COLUMN][0].tolist()))


def across_bundles(pairs: Any, encoder: str) -> Any:
    return embed_text(pairs, encoder, max_delay_seconds=0.2)


def embed_rows(pairs: Any, encoder: str) -> Any:
    rows = pairs | "as rows" >> beam.Map(lambda pair: beam.Row(number=int(pair[0]), text=str(pair[1])))
    embedded = rows | layerbeam.EmbedRows(encoder=encoder, views={"v": VIEW})
    return embedded | "take" >> beam.Map(lambda row: (row.number, list(row.v)))


def run_inference(pairs: Any, encoder: str) -> Any:
    handler = KeyedModelHandler(layerbeam.ModelHandler(encoder=encoder, views={"v": VIEW}, rejects="return"))
    take = beam.MapTuple(lambda number, result: (number, result.inference["v"][COLUMN][0].tolist()))
    return pairs | RunInference(handler) | "take" >> take


def ml_transform(pairs: Any, encoder: str, artifacts: str) -> Any:
    rows = pairs | "as dicts" >> beam.MapTuple(lambda number, text: {"number": number, "text": text})
    embed = MLTransform(write_artifact_location=artifacts)
    embed = embed.with_transform(layerbeam.Embeddings(["text"], encoder=encoder, view=VIEW))
    return rows | embed | "take" >> beam.Map(lambda row: (row["number"], row["text"]))


def all_ways(pairs: Any, encoder: str, artifacts: str) -> dict[str, Any]:
    """(number, vector) of each text, by the name of the way."""
    return {
        "EmbedText": pairs | "EmbedText" >> beam.ptransform_fn(embed_text)(encoder),
        "across-bundles": pairs | "across bundles" >> beam.ptransform_fn(across_bundles)(encoder),
        "EmbedRows": pairs | "EmbedRows" >> beam.ptransform_fn(embed_rows)(encoder),
        "RunInference": pairs | "RunInference" >> beam.ptransform_fn(run_inference)(encoder),
        "MLTransform": pairs | "MLTransform" >> beam.ptransform_fn(ml_transform)(encoder, artifacts),
    }


def main(encoder: str, texts: str, output: str, *options: str) -> None:
    with beam.Pipeline(options=PipelineOptions([*options, "--save_main_session"])) as pipeline:
        pairs = pipeline | beam.Create(list(enumerate(json.loads(Path(texts).read_text())))) | beam.Reshuffle()
        ways = all_ways(pairs, encoder, f"{output}/artifacts")
        lines = [found | f"as JSON {name}" >> beam.Map(to_json, name) for name, found in ways.items()]
        _ = lines | beam.Flatten() | beam.io.WriteToText(f"{output}/vectors", num_shards=1)


def to_json(pair: tuple[int, list[float]], name: str) -> str:
    return json.dumps([name, *pair])


if __name__ == "__main__":
    atexit.register(gc.freeze)  # without it, the program can wait forever at its end: see docs/in_beam.md
    main(*sys.argv[1:])
