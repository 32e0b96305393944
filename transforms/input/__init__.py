"""Input formats: one class for each."""

from layerbeam.transforms.input.conll import ConllInput, ConlluInput
from layerbeam.transforms.input.delimited import CsvInput, TsvInput
from layerbeam.transforms.input.input_format import INPUT_FORMATS
from layerbeam.transforms.input.jsonl import JsonLinesInput
from layerbeam.transforms.input.parquet import ParquetInput
from layerbeam.transforms.input.text import TextInput

__all__ = ["INPUT_FORMATS"]

INPUT_FORMATS |= {
    "text": TextInput(),
    "jsonl": JsonLinesInput(),
    "parquet": ParquetInput(),
    "csv": CsvInput(),
    "tsv": TsvInput(),
    "conllu": ConlluInput(),
    "conll": ConllInput(),
}
