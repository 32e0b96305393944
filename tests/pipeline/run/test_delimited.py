"""CSV and TSV through the whole pipeline: rows, places, bad rows, resuming."""

from __future__ import annotations

import base64
import csv
import gzip
import io

import pytest

VIEWS = {"t": {"level": "text", "layers": [2], "pooling": "mean"}}
NO_QUOTES = "set input.quote: null if quotes are part of the texts"
FIELDS = {"text_field": "body", "id_field": "key", "keep_fields": {"year": "int64", "label": "string"}}


def rows_of(count: int) -> list[list[str]]:
    """Every third text has a line break, quotes or a comma in it."""
    bodies = ["one river", "two\nlines, and a comma", 'say "three"\r\n\r\nagain']
    return [[f"k{n}", f"{bodies[n % 3]} {n}", "" if n % 5 == 0 else f"{1900 + n}.0", "é"] for n in range(count)]


def as_csv(rows: list[list[str]], **options) -> bytes:
    file = io.StringIO()
    csv.writer(file, **options).writerows([["key", "body", "year", "label"], *rows])
    return file.getvalue().encode()


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_rows_with_line_breaks_for_any_workers(workplace, ending):
    rows = rows_of(120)
    data = as_csv(rows, delimiter="\t" if ending == "tsv" else ",")
    workplace.write(f"corpus/a.{ending}", gzip.compress(data) if ending == "csv.gz" else data)
    quoting = {"quote": '"'} if ending == "tsv" else {}
    workplace.configure(input=FIELDS | quoting | {"slice_bytes": 500}, views=VIEWS)
    workplace.plan()
    workplace.drive()
    workplace.run("--workers", "2", "--output", "two")
    assert workplace.files() == workplace.files("two")
    assert (workplace.folder / "out/parts.jsonl").read_text().count("\n") > 5
    found = workplace.rows("t")
    assert found["text"].to_pylist() == [row[1] for row in rows]
    assert found["id"].to_pylist() == [row[0] for row in rows]
    assert found["year"].to_pylist() == [None if n % 5 == 0 else 1900 + n for n in range(120)]
    lines = data.decode().split("\n")
    assert [lines[line].split("\t" if ending == "tsv" else ",")[0] for line in found["line"].to_pylist()] == [
        row[0] for row in rows
    ]
    assert workplace.verify().out.endswith("pass\n")
    assert "records   120 read = 120 embedded" in workplace.show().out
    assert "nothing to do" in workplace.drive().err


def test_appended_rows_and_changed_names(workplace):
    data = as_csv(rows_of(60))
    path = workplace.write("corpus/a.csv", data)
    workplace.configure(input=FIELDS | {"slice_bytes": 280}, views=VIEWS)
    workplace.drive()
    before = {name: digest for name, digest in workplace.files().items() if name.startswith("t/")}
    assert len(before) == 6
    path.write_bytes(data + as_csv(rows_of(3)).split(b"\r\n", 1)[1])
    workplace.drive()
    after = workplace.files()
    assert [name for name in sorted(before) if before[name] != after.get(name)] == [
        max(before)
    ]  # the last block is longer
    workplace.assert_equals_fresh()
    # The same rows under another order of names are other records.
    path.write_bytes(data.replace(b"key,body,year,label", b"key,label,year,body"))
    workplace.drive()
    assert set(workplace.rows("t")["text"].to_pylist()) == {"é"}


def test_bad_rows_are_rejected_with_line_and_reason(workplace):
    workplace.write(
        "corpus/a.csv",
        b"\xef\xbb\xbfn,text\r\n"
        b'1,"one\ntwo"\r\n'
        b"2,three,four \t\r\n"
        b'3,"five" six\r\n'
        b"x,seven\r\n"
        b"\r\n"
        b"5,\xff\r\n"
        b"6,\r\n"
        b'7,5" wide\r\n'
        b'8,"never closed \r\n9,ten \r\n',
    )
    workplace.configure(input={"keep_fields": {"n": "int64"}, "max_reject_rate": 1.0}, views=VIEWS)
    workplace.drive()
    assert [(row["n"], row["line"], row["text"]) for row in workplace.rows("t").to_pylist()] == [
        (1, 1, "one\ntwo"),
        (7, 9, '5" wide'),
    ]
    rejects = workplace.rejects()
    assert [(reject["line"], base64.b64decode(reject["raw"]), reject["reason"]) for reject in rejects] == [
        (3, b"2,three,four \t", "has 3 fields, not 2"),
        (4, b'3,"five" six', f"is not valid CSV: ',' expected after '\"'; {NO_QUOTES}"),
        (5, b"x,seven", "field `n` is not int64"),
        (7, b"5,\xff", "field `text`: invalid UTF-8: invalid start byte at byte 0"),
        (10, b'8,"never closed \r\n9,ten ', f"is not valid CSV: a quote is opened and not closed; {NO_QUOTES}"),
    ]
    assert workplace.manifest()["counts"]["blank_skipped"] == 2
    assert workplace.verify().out.endswith("pass\n")


def test_delimiter_quote_and_names(workplace):
    workplace.write("corpus/a.csv", 'one "river;1\n"two;2\n')
    given = {"delimiter": ";", "quote": None, "column_names": ["text", "n"], "keep_fields": {"n": "int64"}}
    workplace.configure(input=given, views=VIEWS)
    workplace.drive()
    assert workplace.rows("t")["text"].to_pylist() == ['one "river', '"two']
    assert workplace.rows("t")["n"].to_pylist() == [1, 2]


def test_pairs(workplace):
    workplace.write("corpus/a.csv", "text,reply\none,two\nthree,\n")
    workplace.configure(input={"pair_field": "reply"}, views={"tokens": {"level": "token", "layers": [1]}})
    workplace.drive()
    assert workplace.manifest()["counts"]["embedded"] == 2
    assert workplace.rows().column("segment_id").to_pylist().count(1) == 2  # two, [SEP]


def test_missing_column_and_empty_files(workplace):
    done = workplace.finished({"a.csv": "body,n\none,1\n", "b.csv": "", "c.csv": "text\n"}, status=3, views=VIEWS)
    assert "problem   corpus/a.csv: has no column `text`; it has: body, n" in done.out
    assert workplace.manifest()["counts"].get("records_read", 0) == 0
    assert "problem   corpus/a.csv: has no column `text`; it has: body, n" in workplace.plan(status=3).out


HEADERS = {
    "other names": ("book,texts", "text_field", "has no column `text`; it has: book, texts; did you mean `texts`?"),
    "semicolons": ("book;text", "text_field", 'has no column `text`; it has: book;text; set input.delimiter: ";"'),
    "tabs": ("book\ttext", "text_field", 'has no column `text`; it has: book\ttext; set input.delimiter: "\\t"'),
    "bars": ("book|text", "text_field", 'has no column `text`; it has: book|text; set input.delimiter: "|"'),
    "semicolons and quotes": (
        '"a, b";"text"',
        "delimiter",
        "its first row, with the names of the columns, is not valid CSV: ',' expected after '\"'; "
        'set input.delimiter: ";"',
    ),
}


@pytest.mark.parametrize("header", HEADERS)
def test_file_without_the_column_is_refused_before_the_start(workplace, header):
    row, setting, problem = HEADERS[header]
    workplace.prepare({"a.csv": f"{row}\na,b\n"}, views=VIEWS)
    expected = (
        f"layerbeam: input.{setting}: corpus/a.csv: {problem}\nlayerbeam: `layerbeam run --force` starts anyway\n"
    )
    assert workplace.drive(status=2).err == expected
    assert workplace.plan(status=2).err == expected
    assert not (workplace.folder / "out/_runs").exists()
    assert f"problem   corpus/a.csv: {problem[:20]}" in workplace.drive("--force", status=3).out


def test_every_configured_column_is_looked_for(workplace):
    workplace.write("corpus/a.csv", "text,labels\nb,c\n")
    workplace.write("corpus/b.csv", "text,text,label\nb,b,c\n")
    workplace.configure(input={"keep_fields": {"label": "string"}}, views=VIEWS)
    assert workplace.drive(status=2).err.startswith(
        "layerbeam: input.keep_fields: corpus/a.csv: has no column `label`; it has: text, labels; did you mean `labels`"
    )
    (workplace.folder / "corpus/a.csv").unlink()
    assert workplace.drive(status=2).err.startswith(
        "layerbeam: input.text_field: corpus/b.csv: has 2 columns `text`; it has: text, text, label\n"
    )
    workplace.write("corpus/c.csv", "text,label\nb,c\n")
    assert "problem   corpus/b.csv: has 2 columns `text`" in workplace.drive(status=3).out


def read(workplace, content: str, name: str = "a.csv", status: int = 0, **given) -> list[str]:
    """The texts of a file with the columns id and text."""
    workplace.prepare({name: content}, input={"id_field": "id"} | given, views=VIEWS)
    workplace.drive(status=status, arithmetic=True)
    return workplace.rows("t")["text"].to_pylist()


def reasons(workplace) -> list[tuple[int, str]]:
    return [(reject["line"], reject["reason"]) for reject in workplace.rejects()]


def test_quotes_in_tsv_are_characters_unless_configured(workplace):
    texts = ['"The project', 'atomic bomb"', '"Well," she said, "go."', '" alone', '"all"']
    content = "id\ttext\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(texts))
    assert read(workplace, content, "a.tsv") == texts
    # A folder of the earlier default does not mix.
    workplace.drive("--set", "input.quote='\"'", "--output", "quoted", status=3)
    refused = workplace.drive("--output", "quoted", status=2).err
    assert 'input.quote: " -> not set' in refused


def test_a_tsv_file_with_quoting_names_the_setting(workplace):
    workplace.prepare({"a.tsv": '"id"\t"text"\n"1"\t"a"\n'}, views=VIEWS)
    assert """it has: "id", "text"; set input.quote: '"'\n""" in workplace.drive(status=2).err
    content = 'id\ttext\n1\t"two\nlines"\n2\tb\n'
    assert read(workplace, content, "a.tsv", 3) == ['"two', "b"]
    assert reasons(workplace) == [(2, """has 1 fields, not 2; set input.quote: '"' if fields are in quotes""")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_quote_cannot_hide_lines(workplace, name):
    """An open quote takes the rest of the file; one that is closed much later takes a hundred rows."""
    between = "," if name == "a.csv" else "\t"
    rows = [f"{n}{between}the river {n}" for n in range(300)]
    rows[100] = f'100{between}"the river 100'
    never = f"id{between}text\n" + "\n".join(rows) + "\n"
    texts = read(workplace, never, name, 3, quote='"')
    assert len(texts) == 100
    assert workplace.manifest()["problems"] == [
        "1 of 101 records were rejected (200 of 300 lines): more than max_reject_rate 0.01 allows"
    ]
    assert workplace.show().out.count(NO_QUOTES) == 1
    assert "records were rejected (200 of 300 lines): more than" in workplace.plan("--output", "new", status=3).out
    rows[200] += '"'
    workplace.write(f"corpus/{name}", f"id{between}text\n" + "\n".join(rows) + "\n")
    workplace.drive(status=3, arithmetic=True)
    assert workplace.manifest()["problems"] == [
        "1 of 200 records were rejected (101 of 300 lines): more than max_reject_rate 0.01 allows"
    ]
    assert reasons(workplace) == [(101, f"has lines in quotes that look like rows; {NO_QUOTES}")]


def test_long_texts_with_line_breaks_stay_texts(workplace):
    poem = "\n".join(["one, two", "three", "", "four, five, six"] * 30)
    assert read(workplace, f'id,text\n1,"{poem}"\n2,b\n') == [poem, "b"]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (r'"He said \"hi\" twice, ok"', 'He said "hi" twice, ok'),
        (r'"C:\new\table"', r"C:\new\table"),
        (r'"ends with \\"', "ends with \\"),
        ('"two ""old"" ones"', 'two "old" ones'),
        ('"a \\"line\nbreak\\""', 'a "line\nbreak"'),
    ],
)
def test_escape(workplace, field, text):
    assert read(workplace, f"id,text\n1,{field}\n2,b\n", escape="\\") == [text, "b"]


def test_escape_without_quotes_stands_before_delimiters(workplace):
    content = 'id,text\n1,a\\, b\\n "c\n2,d\n'
    assert read(workplace, content, escape="\\", quote=None) == ['a, b\\n "c', "d"]


def test_reject_names_the_escape(workplace):
    content = "id,text\n" + "".join(f"{n},the river\n" for n in range(9)) + '200,"He said \\"hi\\" twice"\n'
    assert len(read(workplace, content, status=3)) == 9
    what = "is not valid CSV: ',' expected after '\"'; set input.escape: '\\' if that stands before quotes in a text"
    assert reasons(workplace) == [(10, what)]
    assert what in workplace.show().out


def test_joined_files_with_their_names_again(workplace):
    one = "\ufeffid,text\n1,the bank\n"
    assert read(workplace, one + one.replace("1", "2") + "id,text\n3,text\n") == ["the bank", "the bank", "text"]
    assert workplace.rows("t")["id"].to_pylist() == ["1", "2", "3"]
    assert workplace.manifest()["counts"]["blank_skipped"] == 2
    workplace.write("words.csv", "text\ntext\n")
    workplace.configure(input={"files": "words.csv"}, views=VIEWS, output={"path": "words"})
    workplace.drive()
    assert workplace.rows("t", "words")["text"].to_pylist() == ["text"]  # a list of words


def test_blanks_before_quotes_are_named(workplace):
    read(workplace, 'id,text\n1, "plain"\n2, "the bank, a river"\n3," ""hi"" "\n', status=3)
    what = f"has a blank before the quote of a field; remove such blanks, or {NO_QUOTES}"
    assert reasons(workplace) == [(1, what), (2, what)]


@pytest.mark.parametrize(
    ("row", "quote", "advice"),
    [
        ('1, "the bank, a river"', None, "'\"' if fields are in quotes and no blanks are before the quotes"),
        ('1,"the bank, a river"', None, "'\"' if fields are in quotes"),
        ("1,'the bank, a river'", "auto", '"\'" if fields are in quotes'),
    ],
)
def test_quotes_that_are_not_read_are_named(workplace, row, quote, advice):
    read(workplace, f"id,text\n{row}\n2,bank\n", quote=quote, status=3)
    assert reasons(workplace) == [(1, f"has 3 fields, not 2; set input.quote: {advice}")]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "sep=;\nid;text\n1;b\n", "begins with the line sep=;, which only Excel reads; remove it and set in"),
        ("a.tsv", "\ufeffSEP=,\r\nid,text\r\n", "begins with the line sep=,, which only Excel reads"),
        (
            "a.csv",
            "id,text\r1,b\r",
            "has lines that end with a carriage return alone; convert it, for example with `tr",
        ),
        ("a.txt", "the bank\rthe river\r", "has lines that end with a carriage return alone"),
        ("a.jsonl", '{"text": "a"}\r{"text": "b"}\r', "has lines that end with a carriage return alone"),
        ("a.json", '{\n "text": "the bank"\n}\n', "looks like JSON objects over several lines, not text"),
        ("a.jsonl", '{"text": "a",\n "n": 1}\n', "looks like JSON objects over several lines, not JSON Lines"),
        ("a.json", '[\n "the bank",\n "a river"\n]\n', "looks like a JSON array, not text"),
    ],
)
def test_what_is_not_read_is_refused_by_name(workplace, name, content, problem):
    workplace.prepare({name: content}, views=VIEWS)
    assert f"corpus/{name} {problem}" in workplace.drive(status=2).err
    assert f"corpus/{name} {problem}" in workplace._call("init", "n.yaml", "--input", f"corpus/{name}", status=2).err


def test_texts_of_several_columns(workplace):
    workplace.prepare({"a.csv": "id,title,body\n1,The bank,It is steep.\n2,,Only this.\n3,,\n"}, views=VIEWS)
    fields = ["--set", "input.text_field=[title, body]", "--set", "input.id_field=id"]
    workplace.plan(*fields)
    workplace.drive(*fields)
    assert workplace.rows("t")["text"].to_pylist() == ["The bank\n\nIt is steep.", "Only this."]
    assert workplace.show().out.count("3 read = 2 embedded + 1 blank") == 1
    assert workplace.verify().out.endswith("pass\n")
    missing = workplace.drive("--set", "input.text_field=[title, text]", "--output", "new", status=2).err
    assert "input.text_field: corpus/a.csv: has no column `text`; it has: id, title, body" in missing
