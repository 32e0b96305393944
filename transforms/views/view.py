"""What a view is: its settings, columns and widths. `columns` makes the vectors and tables."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import PureWindowsPath
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator

from layerbeam.transforms.settings import REQUIRED, Settings, setting

Level = Literal["token", "word", "text", "record", "word_type"]
NumberTypeName = Literal["float32", "float16", "int8"]
FileFormat = Literal["parquet", "tfrecord", "jsonl"]
Combine = Literal["separate", "sum", "mean", "concat"]
WordPooling = Literal["first", "last", "mean", "sum", "max"]
TextPooling = Literal["cls", "pooler", "last", "mean", "max", "mean_max", "mean_sqrt_len", "weighted_mean", "none"]
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def _check_layers(layers: Any) -> Any:
    """The layers as they are. ValueError with one plain sentence, where pydantic has one for each allowed type."""
    if layers == "all" or layers is None:
        return layers
    items = layers if isinstance(layers, list) else []
    for item in items:
        if not (type(item) is int or (isinstance(item, str) and _RANGE.fullmatch(item))):
            raise ValueError(f"{item!r} is neither a layer's number nor a range such as 0..12")
    if not items:
        raise ValueError("should be all or a list of layers, for example [-1], [-4..-1] or [0..12]")
    return layers


def _check_forms(forms: Any) -> Any:
    items = forms if isinstance(forms, list) else [forms]
    wrong = [form for form in items if not isinstance(form, str)]
    if forms is not None and wrong:
        # YAML reads 3, true and yes as a number and as truth values.
        raise ValueError(
            f"should be a list of words or the name of a file; {wrong[0]!r} is not a word: quote it, as in "
            "['3', 'true']"
        )
    return forms


def leaves_folder(path: str) -> bool:
    """Whether a relative path leads out of its folder, on any system, or is none.

    >>> leaves_folder("2_Dense"), leaves_folder("a/../2_Dense"), leaves_folder("C:2_Dense")
    (False, True, True)
    """
    inside = PureWindowsPath(path)  # it knows the separators of all systems
    return bool(inside.anchor) or ".." in inside.parts or "\0" in path


def _check_dense(folders: list[str]) -> list[str]:
    for folder in folders:
        if folder == WITHIN_ENCODER:
            continue
        if not PureWindowsPath(folder).parts or leaves_folder(folder):
            raise ValueError(
                f"{folder!r} is not a folder within the encoder's; give its name there, without .., such as 2_Dense"
            )
    return folders


# The folder of a Dense module whose weights are among the encoder's own, as Stanford's ColBERT has them.
WITHIN_ENCODER = "."


def is_aggregated(level: str) -> bool:
    """Whether the rows of this level are made at the end of the run, from all blocks."""
    return level == "word_type"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewSettings(Settings):
    """One thing to keep from the forward pass. Each view is a dataset of its own."""

    level: Level = setting(REQUIRED, "what one row is")
    layers: Annotated[Sequence[int | str] | Literal["all"] | None, BeforeValidator(_check_layers)] = setting(
        None,
        "integers and ranges such as 0..12, or all; 0 is the embedding layer's output, -1 the encoder's last block",
    )
    layer_numbering: Literal["hidden_states", "extract_features"] = setting(
        "hidden_states",
        "what layer 0 is: the embedding layer's output, or, as in extract_features.py, the first block",
    )
    combine: Combine = setting("separate", "how several layers become columns")
    words: Literal["basic", "whitespace"] = setting(
        "basic", "what a word is, unless the input gives its words", only=("word", "word_type")
    )
    pooling: Literal[WordPooling, TextPooling] | None = setting(
        None,
        "how the vectors of several tokens become one; none: a text's row has a list of them; null: for texts of the "
        "last layer as the model's own files say, with their dense and normalize, else mean",
        only={"word": get_args(WordPooling), "text": get_args(TextPooling)},
    )
    keep_words: Annotated[Sequence[str] | str | None, BeforeValidator(_check_forms)] = setting(
        None, "list or file: rows for these forms only", only=("token", "word", "word_type")
    )
    match_case: bool = setting(False, "whether keep_words is case-sensitive", only=("token", "word", "word_type"))
    include_text: bool = setting(False, "adds the text to each row", only=("token", "word"))
    special_tokens: bool = setting(
        True,
        "token: keep rows of [CLS] and [SEP]; text: include them in pooling, or in the list",
        only=("token", "text"),
    )
    skip_tokens: list[str] = setting(
        [],
        "entries of the encoder's vocabulary whose vectors are left out; text: for pooling none",
        only=("token", "text"),
    )
    group_by: list[str] = setting(
        [], "one row per form and value of these kept fields, or of file", only=("word_type",)
    )
    min_count: int = setting(
        1, "forms that occur less often have no row; with group_by: less often in the group", ge=1, only=("word_type",)
    )
    dense: Annotated[list[str], AfterValidator(_check_dense)] | None = setting(
        None,
        "linear layers after pooling, in this order: folders of Dense modules in the encoder's folder, such as "
        "2_Dense; . is the layer among the encoder's own weights, as in Stanford's ColBERT; null: see pooling",
        only=("token", "word", "text"),
    )
    truncate_dim: int | None = setting(None, "keep the first n dimensions of the result", ge=1)
    normalize: bool | None = setting(None, "scale to unit length, as the last step; null: see pooling, else false")
    dtype: NumberTypeName = setting("float32", "number type of the vectors in the file")
    format: FileFormat = setting("parquet", "file format")
    compress: bool = setting(True, "tfrecord, jsonl: with gzip; parquet: with zstd")

    @property
    def aggregates(self) -> bool:
        """Whether the rows are made at the end of the run, from all blocks."""
        return is_aggregated(self.level)

    @property
    def has_word_rows(self) -> bool:
        """Whether a block's rows are words."""
        return self.level in ("word", "word_type")

    @property
    def uses_pooler(self) -> bool:
        return self.level == "text" and self.pooling == "pooler"

    @property
    def has_vector_lists(self) -> bool:
        """Whether a row is a text with a list of its tokens' vectors."""
        return self.level == "text" and self.pooling == "none"

    @property
    def has_token_vectors(self) -> bool:
        """Whether each vector is that of one token."""
        return self.level == "token" or self.has_vector_lists

    @property
    def is_extract_features(self) -> bool:
        """Whether the view is written as extract_features.py writes it: tokens, their layers separate."""
        return (self.format, self.level, self.combine) == ("jsonl", "token", "separate")


@dataclasses.dataclass(frozen=True)
class DenseModule:
    """A linear layer after pooling: the activation of the product of a vector and the weights, plus the bias.

    `folder`: in the encoder's folder; WITHIN_ENCODER: its weights are among the encoder's own. `in_features`,
    `out_features`: values in one vector before and after it. `activation`: identity, tanh, relu, gelu (with erf) or
    sigmoid. `sha256`: of its weights.
    """

    folder: str
    in_features: int
    out_features: int
    has_bias: bool
    activation: str
    sha256: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewSpec(ViewSettings):
    """A view's settings and what the encoder and the input add to them.

    `layers`: from 0 to L, each once, in the order given; empty for the pooler. `given_layers`: the same as written,
    -1 for the last. `hidden_size`: H of the encoder. `dense_modules`: those that `dense` names, as
    `encoders.open_dense` gives them. `skip_token_ids`: the ids of `skip_tokens`, in this order. `fields`: name and type
    of the columns copied from the input.
    """

    name: str
    layers: tuple[int, ...]
    hidden_size: int
    pooling: Literal[WordPooling, TextPooling] = "mean"
    dense: list[str] = dataclasses.field(default_factory=list)
    normalize: bool = False
    keep_words: tuple[str, ...] | None = None
    given_layers: tuple[int, ...] = ()
    dense_modules: tuple[DenseModule, ...] = ()
    skip_token_ids: tuple[int, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        opened = [module.folder for module in self.dense_modules]
        if opened != self.dense:
            raise ValueError(f"view {self.name}: dense is {self.dense}, and dense_modules are {opened}: give the same")
        if len(self.skip_token_ids) != len(self.skip_tokens):
            raise ValueError(
                f"view {self.name}: skip_tokens are {self.skip_tokens}, and skip_token_ids {self.skip_token_ids}: give "
                "the id of each"
            )

    @property
    def key_fields(self) -> list[tuple[str, str]]:
        """Name and type of the columns in `group_by`."""
        return [field for field in (("file", "string"), *self.fields) if field[0] in self.group_by]

    @property
    def vector_columns(self) -> tuple[str, ...]:
        """Names of the vector columns, in order."""
        if self.uses_pooler:
            return ("pooled_output",)
        if self.combine == "separate":
            return tuple(f"layer_{layer}" for layer in self.layers)
        return ("embedding",)

    @property
    def pooled_width(self) -> int:
        """Values in one vector before the dense modules."""
        full = self.hidden_size * (len(self.layers) if self.combine == "concat" else 1)
        return full * 2 if self.pooling == "mean_max" else full

    @property
    def full_width(self) -> int:
        """Values in one vector before it is truncated."""
        return self.dense_modules[-1].out_features if self.dense_modules else self.pooled_width

    @property
    def width(self) -> int:
        """Values in one vector."""
        return min(self.truncate_dim or self.full_width, self.full_width)


def has_sums_by_field(views: Iterable[ViewSpec]) -> bool:
    """Whether a view has sums of words for each value of a field: then rows depend on more than texts and places."""
    return any(view.aggregates and view.group_by for view in views)


def needed_layers(views: Iterable[ViewSpec]) -> tuple[int, ...]:
    """The layers that any of the views reads, ascending."""
    return tuple(sorted({layer for view in views for layer in view.layers}))


def needed_dense(views: Iterable[ViewSpec]) -> tuple[DenseModule, ...]:
    """The dense modules that any of the views has, each once."""
    return tuple(dict.fromkeys(module for view in views for module in view.dense_modules))


def needs_pooler(views: Iterable[ViewSpec]) -> bool:
    """Whether any of the views reads the pooled output."""
    return any(view.uses_pooler for view in views)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column next to the vectors: its name, Arrow type, the levels that have it, and its meaning."""

    name: str
    type: str
    levels: str
    meaning: str


_IN_RECORD = "token word text"

COLUMNS = (
    Column("file", "string", f"{_IN_RECORD} record", "the input file, as the glob matched it"),
    Column("line", "int64", f"{_IN_RECORD} record", "the record's first line in its file, from 0"),
    Column("sentence", "int32", _IN_RECORD, "index of the text in its record; 0 if the record is the text"),
    Column("start", "int32", _IN_RECORD, "first code point in the record; -1 for special tokens"),
    Column("end", "int32", _IN_RECORD, "code point after the last; -1 for special tokens"),
    Column("token_index", "int32", "token", "index of the token in the text; 0 is [CLS]"),
    Column(
        "word_index",
        "int32",
        "token word",
        "index of the word in the text, of given words in the record; -1 for special tokens",
    ),
    Column("token", "string", "token", "the WordPiece"),
    Column("token_id", "int32", "token", "its id in the vocabulary"),
    Column("segment_id", "int8", "token", "0, and 1 in the second text of a pair"),
    Column("word", "string", "word word_type", "the record's own characters; word_type: as normalized"),
    Column("text", "string", "text", "the text, of a pair the first one; with include_text the row's own text"),
    Column("num_tokens", "int32", "word text", "tokens kept, without special ones; word: tokens pooled"),
    Column("num_dropped", "int32", "text", "tokens lost to max_seq_length"),
    Column("num_unknown", "int32", "text", "tokens that are [UNK]"),
    Column("num_texts", "int32", "record", "texts of the record that were embedded"),
    Column("count", "int64", "word_type", "number of occurrences of the word"),
)
