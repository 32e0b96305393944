from __future__ import annotations

import pickle
import textwrap

import pytest
import yaml
from repository import DATA
from tables import cases

from layerbeam.pipeline.config import load, schema
from layerbeam.pipeline.config.job import expand_layers, resolve
from layerbeam.pipeline.config.rules import COLUMN_NAMES
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.views.view import ViewSettings

MINIMAL = """
input:
  files: [corpus/*.txt]
views:
  tokens:
    level: token
    layers: [-1, -2..-4]
output:
  path: out/demo
"""


def mistakes(change: str) -> str:
    """The error message for the minimal configuration with this YAML merged into it."""
    settings = yaml.safe_load(MINIMAL)

    def merge(into: dict, more: dict) -> None:
        for key, value in more.items():
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                merge(into[key], value)
            else:
                into[key] = value

    merge(settings, yaml.safe_load(textwrap.dedent(change)))
    with pytest.raises(UsageError) as error:
        load.check(settings, source="c.yaml")
    return str(error.value)


def test_defaults():
    loaded = load.check(yaml.safe_load(MINIMAL), source="c.yaml")
    assert loaded.encoder.handle == "minilm"
    assert (loaded.encoder.max_seq_length, loaded.encoder.batch_tokens) == (None, 1024)
    assert (loaded.input.slice_bytes, loaded.output.target_part_bytes) == (1_048_576, None)
    assert loaded.views["tokens"].layers == [-1, "-2..-4"]
    assert loaded.views["tokens"].combine == "separate"


MISTAKES = """
input: {recrod: line}
    input.recrod: unknown setting; did you mean `record`?
encodr: {}
    encodr: unknown setting; did you mean `encoder`?
views: {tokens: {layer: 3}}
    views.tokens.layer: unknown setting; did you mean `layers`?
output: {x: 1}
    output.x: unknown setting; known here: path, target_part_bytes
output: null
    output: should be a mapping of settings; given: None
views: {tokens: {keep_words: [1]}}
    views.tokens.keep_words: should be a list of words or the name of a file; 1 is not a word: quote it, as in ['3',
    'true']; given: [1]
encoder: {handle: ''}
    encoder.handle: is empty
views: {Tokens: {level: token, layers: [1]}}
    views.Tokens: differs from views.tokens in case only, and both are one folder on macOS; rename one
views: {Rejects: {level: token, layers: [1]}}
    views.Rejects: the name Rejects is reserved; rename the view
input: {files: []}
    input.files: is empty; at least one is needed
encoder: {max_seq_length: 2}
    encoder.max_seq_length: should be greater than or equal to 3; given: 2
encoder: {max_seq_length: '64'}
    encoder.max_seq_length: should be a valid integer; given: '64'
views: {tokens: {level: tokens}}
    views.tokens.level: should be 'token', 'word', 'text', 'record' or 'word_type'; given: 'tokens'
views: {tokens: {layers: [a]}}
    views.tokens.layers: 'a' is neither a layer's number nor a range such as 0..12; given: ['a']
views: {tokens: {layers: -1}}
    views.tokens.layers: should be all or a list of layers, for example [-1], [-4..-1] or [0..12]; given: -1
views: {_x: {level: text, layers: all}}
    views._x: a view's name is also a folder's: letters, digits, `_` and `-`, without `_` or `-` at its start
views: {rejects: {level: text, layers: all}}
    views.rejects: the name rejects is reserved; rename the view
views: {tokens: {pooling: mean}}
    views.tokens.pooling: level token has no such setting (it belongs to word and text)
views: {tokens: {level: text, pooling: first}}
    views.tokens.pooling: is first; level text allows cls, pooler, last, mean, max, mean_max, mean_sqrt_len,
    weighted_mean, none
views: {tokens: {level: text, pooling: pooler}}
    views.tokens.layers: pooling pooler reads the last layer; remove `layers`
views: {t: {level: text}}
    views.t.layers: is missing; for example [-1], [-4..-1] or all
views: {t: {level: text, layers: [1], format: tfrecord, dtype: float16}}
    views.t.dtype: is float16, which a tf.train.Example cannot hold: use float32 or int8, or format parquet
input: {format: xml}
    input.format: should be 'auto', 'text', 'jsonl', 'parquet', 'csv', 'tsv', 'conllu' or 'conll'; given: 'xml'
input: {unit: sentence, language: no}
    input.language: should be 'am', 'ar', 'bg', 'bn', 'ca', 'da', 'de', 'el', 'en', 'es', 'fi', 'fr', 'gu', 'he', 'hi',
    'hy', 'it', 'ja', 'kk', 'kn', 'ml', 'mr', 'my', 'nl', 'pa', 'pl', 'pt', 'ru', 'sk', 'ta', 'te', 'uk', 'ur' or 'zh';
    given: False; YAML reads `off` and `no` so: quote the word, as in language: 'no'; sentencex reads any
    other language by the rules of English: set language: en for that
input: {unit: sentence, language: ko}
    input.language: should be 'am', 'ar', 'bg', 'bn', 'ca', 'da', 'de', 'el', 'en', 'es', 'fi', 'fr', 'gu', 'he', 'hi',
    'hy', 'it', 'ja', 'kk', 'kn', 'ml', 'mr', 'my', 'nl', 'pa', 'pl', 'pt', 'ru', 'sk', 'ta', 'te', 'uk', 'ur' or 'zh';
    given: 'ko'; sentencex reads any other language by the rules of English: set language: en for that
input: {format: jsonl, id_field: on}
    input.id_field: should be a valid string; given: True; YAML reads `on` and `yes` so: quote the word, as in
    id_field: 'on'
input: {format: csv, escape: '"'}
    input.escape: " is already input.quote or input.delimiter; two quotes for one need no escape
input: {format: jsonl, text_field: []}
    input.text_field: should be the name of a field, or a list of names; given: []
input: {format: jsonl, text_field: [a, a]}
    input.text_field: should name each field once; given: ['a', 'a']
input: {format: tsv, quote: "\t"}
    input.quote: \t is already input.delimiter
input: {format: csv, quote: none}
    input.quote: should be one ASCII character, null or auto; given: 'none'
input: {encoding: utf_16_le}
    input.encoding: utf_16_le is not read: a line end is not one byte in it; convert the files, for example with `iconv
    -f UTF-16-LE -t UTF-8`; given: 'utf_16_le'
input: {encoding: cp037}
    input.encoding: cp037 is not read: a line end in it is not the byte 0x0A; convert the files to UTF-8; given: 'cp037'
input: {encoding: utf8mb4}
    input.encoding: Python knows no text encoding utf8mb4; for example utf-8, latin-1, cp1252; given: 'utf8mb4'
input: {encoding: base64}
    input.encoding: Python knows no text encoding base64; for example utf-8, latin-1, cp1252; given: 'base64'
input: {unit: sentence, sentences: pysbd}
    input.sentences: should be sentencex or your own module:function, such as my_package.text:split;
    given: 'pysbd'
input: {language: de}
    input.language: is for sentences and chunks that end at them; set unit, or remove it
input: {sentences: "textwrap:wrap"}
    input.sentences: is for sentences and chunks that end at them; set unit, or remove it
input: {unit: sentence, sentences: "textwrap:wrap", language: de}
    input.language: is for sentencex only, and input.sentences is textwrap:wrap; remove it
input: {format: text, id_field: id}
    input.id_field: format text has no such setting (it belongs to jsonl, parquet, csv, tsv and conllu)
input: {format: parquet, encoding: latin-1}
    input.encoding: format parquet has no such setting (it belongs to text, jsonl, csv, tsv, conllu and conll)
input: {format: jsonl, record: paragraph}
    input.record: format jsonl has no such setting (it belongs to text)
input: {format: jsonl, pair_field: b, unit: sentence}
    input.pair_field: a pair is one text; remove it, or set unit: record
{input: {pair_separator: ' ||| '}, encoder: {long_text: window}}
    input.pair_separator: windows are for single texts; remove it, or set encoder.long_text: truncate
input: {pair_separator: ''}
    input.pair_separator: is empty; give the characters between the two texts, or null
input: {format: jsonl, pair_field: text}
    input.pair_field: text is already input.text_field
input: {format: jsonl, keep_fields: {_x: string}}
    input.keep_fields._x: a column's name is not empty and has no `_` at its start
input: {format: jsonl, keep_fields: {Year: int64, year: int64}}
    input.keep_fields.year: differs from Year in case only
input: {format: jsonl, keep_fields: {year: int32}}
    input.keep_fields.year: should be 'string', 'int64', 'float64', 'bool', for given words 'list<string>' and so on, or
    a mapping such as {path: 'corpus/([^/]+)/'}; given: 'int32'
input: {format: jsonl, keep_fields: {tags: list<string>}}
    input.keep_fields.tags: a list has a value for each word; set words: given; of conllu and conll give the type of one
    value, such as string
input: {format: csv, words: given}
    input.words: format csv has no such setting (it belongs to jsonl and parquet)
input: {format: conllu, unit: sentence}
    input.unit: a sentence splitter knows nothing of the words that are given; leave records whole, or set chunk
input: {format: jsonl, words: given, pair_field: b}
    input.pair_field: a text whose words are given has no second text; remove it
input: {format: jsonl, words: given, text_field: [a, b]}
    input.text_field: several fields are joined as texts, not as words; name one
input: {format: conll, column_names: [token, ner]}
    input.column_names: is ['token', 'ner']; give one of them the name word
input: {keep_fields: {period: {path: 'corpus/'}}}
    input.keep_fields.period: path has 0 groups; put the part to keep in one, as in 'corpus/([^/]+)/'; given: {'path':
    'corpus/'}
input: {keep_fields: {period: {path: '(a'}}}
    input.keep_fields.period: path is no regular expression: missing ), unterminated subpattern at position 0; given:
    {'path': '(a'}
input: {keep_fields: {period: {path: '(?=a)(b)'}}}
    input.keep_fields.period: path is no regular expression of RE2: Invalid regular expression: invalid perl operator:
    (?=
input: {format: text, keep_fields: {year: int64}}
    input.keep_fields.year: format text has no fields, only {path: ...}
encoder: {length_buckets: [64, 32]}
    encoder.length_buckets: is [64, 32]; give ascending lengths, such as [32, 64, 128]
encoder: {length_buckets: []}
    encoder.length_buckets: is []; give ascending lengths, such as [32, 64, 128]
encoder: {length_buckets: [32, 64], max_seq_length: 128}
    encoder.length_buckets: ends with 64, but max_seq_length is 128: longer texts would have no bucket; add 128
encoder: {xla: true}
    encoder.xla: compiles for each shape of a batch; set encoder.length_buckets, such as [32, 64, 128]
encoder: {compute_dtype: int8, xla: true, length_buckets: [128]}
    encoder.compute_dtype: int8 is not for XLA, which has no such products: remove `xla`, or take float32
encoder: {compute_dtype: int8, device: gpu}
    encoder.compute_dtype: int8 is for processors, and device is gpu: take bfloat16 or float32
input: {format: jsonl, keep_fields: {id: string}}
    input.keep_fields.id: the output has a column of this name; rename the field
input: {format: jsonl, keep_fields: {Line: string}}
    input.keep_fields.Line: the output has a column of this name; rename the field
input: {format: jsonl, keep_fields: {layer_12: string}}
    input.keep_fields.layer_12: the output has a column of this name; rename the field
input: {format: jsonl, keep_fields: {embedding: string}}
    input.keep_fields.embedding: the output has a column of this name; rename the field
input: {format: jsonl, keep_fields: {layer_3_scale: string}}
    input.keep_fields.layer_3_scale: the output has a column of this name; rename the field
input: {format: jsonl, keep_fields: {embedding_std: string}}
    input.keep_fields.embedding_std: the output has a column of this name; rename the field
"""


@pytest.mark.parametrize(("change", "message"), cases(MISTAKES))
def test_mistakes_say_how_to_fix_them(change, message):
    assert mistakes(change) == f"c.yaml: {message}"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("utf8", "utf-8"),
        ("UTF-8-SIG", "utf-8"),
        ("latin-1", "iso8859-1"),
        ("windows-1252", "cp1252"),
        ("koi8-r", "koi8-r"),
        ("shift_jis", "shift_jis"),
    ],
)
def test_encodings_by_the_name_of_the_codec(given, name):
    settings = yaml.safe_load(MINIMAL)
    settings["input"]["encoding"] = given
    assert load.check(settings, source="c.yaml").input.encoding == name


@pytest.mark.parametrize(
    ("section", "setting"), [("encoder", "handle"), ("encoder", "adapter"), ("input", "files"), ("output", "path")]
)
@pytest.mark.parametrize("address", ["s3://me:hidden42@bucket/a", "az://bucket/a?sp=r&sig=hidden42"])
def test_secrets_in_addresses_are_refused_and_not_shown(section, setting, address):
    settings = yaml.safe_load(MINIMAL)
    settings.setdefault(section, {})[setting] = address
    with pytest.raises(UsageError) as error:
        load.check(settings, source="c.yaml")
    assert str(error.value).startswith(f"c.yaml: {section}.{setting}: {address[:5]}")
    assert "hidden42" not in str(error.value)


def test_no_kept_field_may_have_the_name_of_a_column():
    from layerbeam.transforms.views.view import COLUMNS

    assert {column.name for column in COLUMNS} <= COLUMN_NAMES


def test_all_mistakes_at_once():
    said = mistakes("{input: {recrod: 1}, encoder: {max_seq_length: 1}}").splitlines()
    assert len(said) == 2


def test_every_setting_is_described():
    for section in schema.SECTIONS.values():
        for field in schema.fields_of(section):
            assert field.metadata["description"], field.name


def test_view_settings_reach_view_and_identity():
    settings = yaml.safe_load(MINIMAL) | {"encoder": {"handle": str(DATA / "hf_uncased")}}
    config = load.check(settings, source="c.yaml")
    job = resolve(config)
    names = {field.name for field in schema.fields_of(ViewSettings)}
    (view,) = pickle.loads(pickle.dumps(job.views))
    assert view == job.views[0]
    assert (view.name, view.layers, view.given_layers) == ("tokens", (3, 2, 1, 0), (-1, -2, -3, -4))
    assert names <= vars(view).keys()
    assert job.run_identity["settings"]["views"]["tokens"].keys() == names
    assert job.run_identity["identity"]["views"]["tokens"].keys() == names - {"layer_numbering"}


def test_fingerprint_has_splitter_and_language_of_sentences():
    def job_of(**given):
        settings = yaml.safe_load(MINIMAL) | {"encoder": {"handle": str(DATA / "hf_uncased")}}
        settings["input"] |= given
        return resolve(load.check(settings, source="c.yaml"))

    changes = [{}, {"language": "de"}, {"sentences": "textwrap:wrap"}]
    jobs = [job_of(unit="sentence", **change) for change in changes]
    assert len({job.run_identity["fingerprint"] for job in jobs}) == len(jobs)
    assert jobs[1].run_identity["identity"]["input"]["language"] == "de"
    assert not {"sentences", "language"} & job_of().run_identity["identity"]["input"].keys()


def test_overrides_and_files(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    loaded = load.load(str(path), {"encoder.max_seq_length": 64, "views.tokens.layers": "all", "output.path": "x"})
    assert (loaded.encoder.max_seq_length, loaded.views["tokens"].layers, loaded.output.path) == (64, "all", "x")
    with pytest.raises(UsageError, match=r"--set input\.files\.x: input\.files is not a section"):
        load.load(str(path), {"input.files.x": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not YAML"),
        ("- a", "a configuration has sections"),
        ("", "a configuration has sections"),
        ("a: !!python/object/apply:os.system ['true']", "is not YAML"),
        ("[" * 5_000, "is not YAML: maximum recursion depth exceeded"),
        ("a: 1" + ":1" * 1000 + ".0", "is not YAML: int too large"),
        (
            "\n".join(f"{n}: &a{n} [{f'*a{n - 1}, ' * 9 * (n > 0)}]" for n in range(30)),
            "make more than 1,000,000 values",
        ),
        ("a: &a [*a]", "make more than 1,000,000 values"),
        (
            "a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1}, ' * 9}]}}" for n in range(1, 30)),
            "make more than 1,000,000 values",
        ),
    ],
)
def test_files_that_are_not_configurations(tmp_path, content, message):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        load.load(str(path))


SYNTAX = {
    "wrong bracket": (
        "a: 1\nb: {c: [1}\n",
        "line 2 is not YAML: expected ',' or ']', but got '}'",
        "b: {c: [1}",
        "         ^",
    ),
    "open bracket": (
        "b: [1,\n\nc: {d: e}\n",
        "line 1 is not YAML: expected ',' or ']', but got '<stream end>'",
        "b: [1,",
        "   ^",
    ),
    "open quote": ("b: 'x\nc: d\n", "line 1 is not YAML: found unexpected end of stream", "b: 'x", "   ^"),
    "tab": (
        "a:\n\tb: c\n",
        "line 2 is not YAML: found character '\\t' that cannot start any token; check the indentation (spaces, "
        "no tabs)",
        " b: c",
        "^",
    ),
    "indentation": (
        "a:\n  b: 1\n c: 2\n",
        "line 3 is not YAML: expected <block end>, but found '<block mapping start>'; check the indentation (spaces, "
        "no tabs)",
        " c: 2",
        " ^",
    ),
    "colon": (
        "a: b: c",
        "line 1 is not YAML: mapping values are not allowed here; a value with such a character, `*` or "
        "`: ` needs quotes",
        "a: b: c",
        "    ^",
    ),
    "star": (
        "input:\n  files: *.txt",
        "line 2 is not YAML: expected alphabetic or numeric character, but found '.'; a value with such a character, "
        "`*` or `: ` needs quotes",
        "  files: *.txt",
        "          ^",
    ),
    "control character": ("a: 1\nb: \x07", "line 2 is not YAML: special characters are not allowed", "b: \x07", "   ^"),
    "not UTF-8": (b"a: 1\nb: \xff\n", "line 2 is not YAML: invalid start byte", "b: \ufffd", "   ^"),
}


@pytest.mark.parametrize("case", SYNTAX)
def test_yaml_mistakes_show_the_line_and_the_place(case):
    given, message, line, mark = SYNTAX[case]
    with pytest.raises(UsageError) as error:
        load.parse_yaml(given if isinstance(given, bytes) else given.encode(), "c.yaml")
    assert str(error.value).split("\n") == [f"c.yaml: {message}", f"  {line}", f"  {mark}"]


def test_a_long_line_is_cut_around_the_place():
    with pytest.raises(UsageError) as error:
        load.parse_yaml("views: [" + "-1, " * 9_000 + "}" + "0, " * 9_000, "c.yaml")
    _, line, mark = str(error.value).split("\n")
    assert len(line) < 100
    assert line[mark.index("^")] == "}"


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory"):
        load.load(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("layers", "expanded"),
    [
        ([-1, -2], [6, 5]),
        (["0..6"], [0, 1, 2, 3, 4, 5, 6]),
        (["-4..-1"], [3, 4, 5, 6]),
        (["-1..-4"], [6, 5, 4, 3]),
        ([-7], [0]),
        ("all", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_layers_expand_in_the_order_given(layers, expanded):
    assert list(expand_layers(layers, 6)) == expanded


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([7], "there is no layer 7: the encoder has 6 Transformer blocks, so layers 0 to 6 or -7 to -1"),
        ([-8], "there is no layer -8: the encoder has 6 Transformer blocks, so layers 0 to 6 or -7 to -1"),
        ([-1, 6], r"layer 6 occurs twice \(6 and -1 are the same\)"),
    ],
)
def test_layers_that_do_not_exist_or_come_twice(layers, message):
    with pytest.raises(ValueError, match=message):
        expand_layers(layers, 6)


def test_layers_counted_as_extract_features_counts_them():
    assert expand_layers([-1, 0, "1..2"], 6, "extract_features") == {6: -1, 1: 0, 2: 1, 3: 2}
    assert list(expand_layers("all", 3, "extract_features")) == [1, 2, 3]
    for layer in (6, -7):
        message = f"there is no layer {layer}: the encoder has 6 Transformer blocks, so layers 0 to 5 or -6 to -1"
        with pytest.raises(ValueError, match=message):
            expand_layers([layer], 6, "extract_features")
    with pytest.raises(ValueError, match=r"layer 5 occurs twice \(5 and -1 are the same\)"):
        expand_layers([-1, 5], 6, "extract_features")


def test_repeated_keys(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL.replace("output:", "  s: {level: text}\n  s: {level: token}\noutput:"))
    with pytest.raises(UsageError) as error:
        load.load(str(path))
    assert str(error.value).splitlines() == [
        f"{path}: line 9 is not YAML: `s` occurs twice, in lines 8 and 9; remove one",
        "    s: {level: token}",
        "    ^",
    ]
    path.write_text(MINIMAL + "input: {}\n")
    with pytest.raises(UsageError, match="`input` occurs twice, in lines 2 and 10; remove one"):
        load.load(str(path))


def test_merged_keys_may_be_given_again():
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, x: 4}"
    assert load.parse_yaml(text)["c"] == {"x": 4, "y": 2}
