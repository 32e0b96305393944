"""Settings of the stages as plain values. Imports no NumPy, Arrow or Beam, so a configuration is checked at once."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, GetCoreSchemaHandler, TypeAdapter

REQUIRED = dataclasses.MISSING
# What checks plain values against a type. Use `validate_python` on what `json.loads` gives: pydantic's own JSON parser
# refuses lone surrogates, which stand for the bytes of local paths that are not UTF-8.
adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)

# Secrets in addresses are refused: an output names its input and its encoder, and may be published.
_PASSWORD = re.compile(r"^([a-z][-a-z0-9+.]*://)[^/@]*:[^/@]*@", re.IGNORECASE)
# Of presigned addresses, shared access signatures, and links with a token.
_PARAMETER = re.compile(r"[?&#]([^=&#/]*(?:sig|token|key|secret|passw|credential|auth)[^=&#/]*)=[^&#]", re.IGNORECASE)

FieldType = Literal["string", "int64", "float64", "bool", "list<string>", "list<int64>", "list<float64>", "list<bool>"]


def element_of(type_: str) -> str:
    """The type of a value: of a field of lists, of its elements.

    >>> element_of("list<int64>"), element_of("string")
    ('int64', 'string')
    """
    return type_.removeprefix("list<").removesuffix(">")


def _check_field(given: Any) -> Any:
    """The field as it is. ValueError with one plain sentence, where pydantic has one for each allowed type."""
    if isinstance(given, dict) and given.keys() == {"path"} and isinstance(given["path"], str):
        try:
            groups = re.compile(given["path"]).groups
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"path is no regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"path has {groups} groups; put the part to keep in one, as in 'corpus/([^/]+)/'")
    elif given not in get_args(FieldType):
        raise ValueError(
            "should be 'string', 'int64', 'float64', 'bool', for given words 'list<string>' and so on, or a mapping "
            "such as {path: 'corpus/([^/]+)/'}"
        )
    return given


Field = Annotated[FieldType | dict[Literal["path"], str], BeforeValidator(_check_field)]
# `auto`, in a configuration only: found from the names and first bytes of the files before anything is read.
Format = Literal["auto", "text", "jsonl", "parquet", "csv", "tsv", "conllu", "conll"]


def setting(default: Any, meaning: str, **facts: Any) -> Any:
    """A dataclass field that is a setting of the configuration, with its meaning.

    `facts`: `ge`, `le` and `min_length` limit the value. `only`: the levels of a view or the formats of an input that
    have the setting; as a mapping, with the values that each of them allows.
    """
    metadata = {"description": meaning, **facts}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Settings:
    """Base of the dataclasses that pydantic reads from a configuration: no unknown settings, no converted values."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        inner: Any = handler.resolve_ref_schema(schema)
        inner["strict"] = False  # a strict dataclass accepts instances only, no mappings; its values stay strict
        return schema


def check_encoding(encoding: str) -> str:
    """Python's name of the codec. ValueError where a line end in it is not the byte 0x0A: files are cut there."""
    try:
        name = codecs.lookup(encoding).name
        line_end = "a\r\nb".encode(name)
    except (LookupError, UnicodeError, ValueError):
        raise ValueError(f"Python knows no text encoding {encoding}; for example utf-8, latin-1, cp1252") from None
    if name == "utf-8-sig":
        return "utf-8"  # a byte order mark is dropped anyway
    if name.startswith(("utf-16", "utf-32")):
        raise ValueError(
            f"{encoding} is not read: a line end is not one byte in it; convert the files, for example with "
            f"`iconv -f {name.upper()} -t UTF-8`"
        )
    others = (bytes([byte]).decode(name, "ignore") for byte in range(256) if byte != 0x0A)
    if line_end != b"a\r\nb" or any("\n" in character for character in others):
        raise ValueError(f"{encoding} is not read: a line end in it is not the byte 0x0A; convert the files to UTF-8")
    return name


def check_splitter(name: str) -> str:
    """ValueError unless it is sentencex or has the form module:function."""
    module, _, function = name.partition(":")
    if name == "sentencex" or all(map(str.isidentifier, [*module.split("."), function])):
        return name
    raise ValueError("should be sentencex or your own module:function, such as my_package.text:split")


# The languages that sentencex has rules and tests for. It reads any other by the rules of English, without a message.
Language = Literal[
    "am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "he", "hi", "hy", "it", "ja", "kk",
    "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te", "uk", "ur", "zh",
]  # fmt: skip
USUAL_DELIMITER = {"csv": ",", "tsv": "\t"}
_DELIMITED = tuple(USUAL_DELIMITER)
_FIELDS = ("jsonl", "parquet", *_DELIMITED)
# Formats of sentences as lists of words, and the columns of a word. Source: https://universaldependencies.org/format
WORD_COLUMNS = {
    "conllu": ["id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"],
    "conll": ["word", "tag"],
}
_PACK_BLOCKS = 4


def _check_character(given: str | None) -> str | None:
    if given is not None and (len(given) != 1 or not given.isascii() or given in "\r\n"):
        raise ValueError("should be one ASCII character, or null")
    return given


def _check_text_field(given: Any) -> Any:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("should be the name of a field, or a list of names")
    if len({*names}) < len(names):
        raise ValueError("should name each field once")
    return given


def _check_quote(given: str | None) -> str | None:
    try:
        return given if given == "auto" else _check_character(given)
    except ValueError:
        raise ValueError("should be one ASCII character, null or auto") from None


_Character = Annotated[str | None, AfterValidator(_check_character)]
_Quote = Annotated[str | None, AfterValidator(_check_quote)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkSettings(Settings):
    """How a record is cut into chunks."""

    tokens: int = setting(256, "tokens of the longest chunk, special tokens included", ge=8)
    overlap: int = setting(32, "tokens of a chunk, at most half, with which the next one begins again", ge=0)
    boundaries: Literal["sentence", "word"] = setting(
        "sentence",
        "where a chunk ends: at a sentence, if one ends in its last third, else at a word; or at a word",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordFormat(Settings):
    """What a record is and how it is read."""

    format: Format = setting("text", "what the files hold")  # noqa: RUF009
    record: Literal["line", "paragraph", "file"] = setting(
        "line", "what one record is; a worker holds a whole record in memory, even a file", only=("text",)
    )
    unit: Literal["record", "sentence", "chunk"] = setting("record", "what is embedded as one text")
    chunk: ChunkSettings = setting(ChunkSettings(), "how records are cut for unit: chunk")  # noqa: RUF009
    sentences: Annotated[str, AfterValidator(check_splitter)] = setting(
        "sentencex", "what splits sentences: sentencex, or your own function as module:function"
    )
    language: Language = setting("en", "the language of the texts, for sentencex")  # noqa: RUF009
    encoding: Annotated[str, AfterValidator(check_encoding)] = setting(
        "utf-8",
        "utf-8 or a single-byte encoding (latin-1, cp1252, ...); a UTF-8 byte order mark is dropped",
        only=("text", "jsonl", *_DELIMITED, *WORD_COLUMNS),
    )
    invalid_bytes: Literal["reject", "replace"] = setting(
        "reject",
        "a record with bytes that are invalid in the encoding: reject writes it to rejects/, and the run goes on; "
        "replace puts U+FFFD",
    )
    text_field: Annotated[str | list[str], BeforeValidator(_check_text_field)] = setting(  # noqa: RUF009
        "text",
        "the field with the text, meta.text for a field of an inner object; or a list such as [title, body], joined by "
        "blank lines",
        only=_FIELDS,
    )
    words: Literal["in_text", "given"] = setting(
        "in_text",
        "given: text_field holds a list of words, each of them one word whatever is in it; conllu and conll always do",
        only=("jsonl", "parquet"),
    )
    pair_field: str | None = setting(None, "the field with the second text of a pair", only=_FIELDS)
    pair_separator: str | None = setting(None, '" ||| " reads pairs as extract_features.py does', only=("text",))
    id_field: str | None = setting(
        None,
        "the field that is copied to the column `id`, in conllu a comment such as sent_id",
        only=(*_FIELDS, "conllu"),
    )
    keep_fields: dict[str, Field] = setting(  # noqa: RUF009
        {},
        "more fields to copy to the output, with their types; of given words also list<string> and so on, a value for "
        "each word, of which rows of words and tokens have their own; of every format also {path: EXPRESSION}: a "
        "string from the path of the file, what the one group of a regular expression (RE2) matches first, null "
        "without a match",
    )
    delimiter: _Character = setting(None, "what separates two fields; null: a comma, or a tab in tsv", only=_DELIMITED)  # noqa: RUF009
    quote: _Quote = setting(  # noqa: RUF009
        "auto", 'what encloses a field with line breaks; null: nothing; auto: `"` in csv, null in tsv', only=_DELIMITED
    )
    escape: _Character = setting(  # noqa: RUF009
        None, "what stands before a quote in a text, as \\ of Spark and MySQL; null: another quote", only=_DELIMITED
    )
    column_names: list[str] | None = setting(  # noqa: RUF009
        None,
        "null: the first row has them; conll: [word, tag]",
        only=(*_DELIMITED, "conll"),
        min_length=1,
    )
    max_record_bytes: int = setting(
        32 << 20,
        "a longer record is rejected: its bytes in the file, line ends included; of Parquet, those of its texts",
        ge=1,
        le=1 << 28,
    )
    blank: Literal["skip", "keep"] = setting("skip", "what happens to a record that is empty or only white space")

    @property
    def splitter(self) -> str | None:
        """What splits sentences; None if nothing does."""
        has_sentences = self.unit == "sentence" or (self.unit == "chunk" and self.chunk.boundaries == "sentence")
        return self.sentences if has_sentences else None

    @property
    def is_delimited(self) -> bool:
        return self.format in _DELIMITED

    @property
    def separator(self) -> str:
        """What separates two fields of a row."""
        return self.delimiter or USUAL_DELIMITER.get(self.format, ",")

    @property
    def quote_mark(self) -> str | None:
        """What encloses a field with line breaks; None if nothing does."""
        return (None if self.format == "tsv" else '"') if self.quote == "auto" else self.quote

    @property
    def has_fields(self) -> bool:
        return self.format in (*_FIELDS, *WORD_COLUMNS)

    @property
    def has_words(self) -> bool:
        """Whether a text is a list of words."""
        return self.words == "given" or self.format in WORD_COLUMNS

    @property
    def word_columns(self) -> list[str]:
        """The columns of a word, in formats of sentences as lists of words."""
        return (self.column_names if self.format == "conll" else None) or WORD_COLUMNS.get(self.format, [])

    @property
    def text_fields(self) -> list[str]:
        """The fields with the text: several are joined."""
        if self.word_columns:
            return ["form" if self.format == "conllu" else "word"]
        return [self.text_field] if isinstance(self.text_field, str) else self.text_field

    @property
    def fields_read(self) -> list[tuple[str, str]]:
        """(name, type) of each field that records have: texts, pair, id (its type is `id`) and kept fields."""
        texts = [(name, "list<string>" if self.has_words else "string") for name in self.text_fields]
        pair, id_ = (self.pair_field, "string"), (self.id_field, "id")
        kept = ((name, type_) for name, type_ in self.kept_types.items() if name not in self.path_fields)
        return [(name, type_) for name, type_ in (*texts, pair, id_, *kept) if name is not None]

    @property
    def kept_types(self) -> dict[str, str]:
        """The type of each kept field; `list<...>` of one that has a value for each word."""
        types = {name: given if isinstance(given, str) else "string" for name, given in self.keep_fields.items()}
        return types | {name: f"list<{types[name]}>" for name in self.word_columns if name in types}

    @property
    def path_fields(self) -> dict[str, str]:
        """The regular expression of each kept field that comes from the path of the file."""
        return {name: given["path"] for name, given in self.keep_fields.items() if not isinstance(given, str)}


LINES = RecordFormat()


BYTES_PER_TOKEN = 4  # of text, before it is tokenized


@dataclasses.dataclass(frozen=True)
class BlockLimits:
    """Limits of a block: the record that reaches one of them is its last, if none before it is (`input/cuts.py`).

    `text_bytes`: bytes of the file. `token_rows`, `text_rows`: rows of a view with one row per token or per text,
    estimated from the bytes, because the tokens are not known when a block is cut: a record of n bytes counts as 2 + n
    / `BYTES_PER_TOKEN` tokens, at most `max_seq_length`. `edit_tokens`: tokens of a block of consecutive records; an
    edit changes one or two of these. `sentence_bytes`: the assumed bytes from one text of a record to the next, if a
    record has several. `joins_files`: whether a block may hold several small files.
    """

    text_bytes: int = 1 << 20
    token_rows: int = 1 << 16
    text_rows: int = 1 << 16
    max_seq_length: int = 128
    sentence_bytes: int | None = None
    joins_files: bool = False
    edit_tokens: int = 1 << 14

    @property
    def of_packs(self) -> BlockLimits:
        """The limits of blocks of small files: four times the tokens, as an edit of one file costs that file only."""
        tokens = min(self.token_rows, _PACK_BLOCKS * self.edit_tokens)
        return dataclasses.replace(self, token_rows=tokens, edit_tokens=tokens)


@dataclasses.dataclass(frozen=True)
class EncodeSettings:
    """How texts are batched.

    `batch_tokens`: padded tokens in a batch. Texts longer than `max_seq_length` are encoded in windows, which share
    `window_overlap` tokens. `around`: the number of special tokens before and behind the text of each window.
    `length_buckets`: ascending. Batches are padded to these lengths and to powers of two of texts: few shapes.
    `only_full_batches`: with buckets, batches are padded to `batch_tokens`: one shape for each bucket.
    """

    batch_tokens: int = 1024
    max_seq_length: int = 128
    window_overlap: int = 0
    around: tuple[int, int] = (1, 1)
    length_buckets: tuple[int, ...] | None = None
    only_full_batches: bool = False


@dataclasses.dataclass(frozen=True)
class SequenceSettings:
    """How texts become sequences of at most `max_seq_length` tokens, special tokens included.

    `long_text`: a longer text is cut off, rejected, or kept whole and encoded in windows. `prompt`: put before each
    text; its tokens count, and have no place in the record. `records`: what they are split into first. `context`: what
    is encoded together: a text alone, its whole record, or with it so many texts on each side.
    """

    max_seq_length: int = 128
    long_text: Literal["truncate", "window", "reject"] = "truncate"
    prompt: str = ""
    records: RecordFormat = LINES
    context: Literal["text", "record"] | int = "text"

    def __post_init__(self) -> None:
        if self.max_seq_length < 3:
            raise ValueError(f"max_seq_length: {self.max_seq_length}; at least 3, since special tokens count")


def find_secret(address: str) -> str | None:
    """The address without its secret, and what to do; None if it has no secret.

    >>> find_secret("https://name:word@host/m.zip")
    'https://host/m.zip: the address has a password, which the output would name; download the file and give its path'
    >>> find_secret("s3://bucket/2026-*.txt"), find_secret("https://host/model.zip?download=1")
    (None, None)
    """
    if "://" not in address:
        return None
    shown, what = _PASSWORD.sub(r"\1", address), "a password"
    if parameter := _PARAMETER.search(shown):
        shown, what = shown.partition("?")[0].partition("#")[0], f"`{parameter[1]}`, a secret"
    if shown == address:
        return None
    is_web = shown.lower().startswith(("http://", "https://"))
    instead = "download the file and give its path" if is_web else "leave it out (docs/runners.md: keys of stores)"
    return f"{shown}: the address has {what}, which the output would name; {instead}"
