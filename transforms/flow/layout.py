"""The name of every file and folder in an output folder, declared once."""

from __future__ import annotations

import hashlib
import re

# What a finished run leaves next to the folders of its views.
MANIFEST = "manifest.json"
PARTS = "parts.jsonl"
SUCCESS = "_SUCCESS"
REJECTS = "rejects"
WORD_SUMS = "_word_types"  # per view of level word_type: the sums of each block
RUNS = "_runs"
NORMALIZER = "_normalizer.json"  # of the tokenizer, if the library tokenizers cuts the texts
REPORT = "report.html"
CARD = "README.md"  # that of a dataset on the Hub: `layerbeam publish` writes it
DAMAGED = "_damaged.json"  # parts that `verify --checksums` found changed: the next run rewrites them

# What lies there until a run has ended.
COMMITS = "_commits"
LOCK = "_lock"

# What a run writes and deletes in without looking where it leads to: none of them may be a link.
OWN_FOLDERS = (COMMITS, RUNS, REJECTS, WORD_SUMS)

# File names without their suffix: the part of a view without rows, and the table of a word_type view.
EMPTY = "empty"
WORD_TYPES = "word_types"

# Of 16 digits, two of ten million files with one stem have the same with a probability of 3 in a million; of 8, two of
# 77,000 files have with a probability of one half.
_HASH_DIGITS = 16

# Of a view with very many files, where it is published: a folder for those whose SHA-256 begins so. No view has a dot.
SUBFOLDER = r"sha256\.[0-9a-f]{1,2}"

# The name of any part of a view, without suffix: see `part_name`, or of the part without rows.
PART_NAME = rf"(?:.+-[0-9a-f]{{{_HASH_DIGITS}}}-\d{{12}}-[0-9a-f]{{{_HASH_DIGITS}}}|{EMPTY})"


def file_name(path: str) -> str:
    """The start of the names of all parts of an input file: its stem and 16 hex digits of the SHA-256 of its path.

    The stem is the file's name without its suffixes, at most 64 letters, digits, `.`, `_` and `-`: valid on any file
    system. The hash separates files with the same stem.

    >>> file_name("corpus/part 1.txt.gz")
    'part_1-0986df41cbcb9eb9'
    """
    name = re.split(r"[/\\]", path)[-1]
    name = re.sub(r"\.(gz|bz2|zst)$", "", name)
    name = re.sub(r"(?<=.)\.[^.]*$", "", name)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")
    key = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH_DIGITS]
    return f"{name[:64] or 'file'}-{key}"


def block_name(path: str, first_line: int) -> str:
    """The name of a block's commit, and the start of the names of its parts and rejects; unique in a run.

    >>> block_name("corpus/part 1.txt.gz", 650)
    'part_1-0986df41cbcb9eb9-000000000650'
    """
    return f"{file_name(path)}-{first_line:012d}"


def part_name(block: str, sha256: str) -> str:
    """The name of a part of a block without suffix: equal bytes meet in one name, other bytes never replace them.

    >>> part_name("a-0986df41cbcb9eb9-000000000650", "ba7816bf8f01cfea...")
    'a-0986df41cbcb9eb9-000000000650-ba7816bf8f01cfea'
    """
    return f"{block}-{sha256[:_HASH_DIGITS]}"


def is_part_path(path: str) -> bool:
    """Whether a path from a file that anybody may have written names a file in the folder of a view.

    >>> [is_part_path(path) for path in ("t/x.parquet", "_word_types/t/x.parquet", "t/../x", "/etc/passwd", "a/b/c")]
    [True, True, False, False, False]
    >>> is_part_path("t/sha256.0f/x.parquet")
    True
    """
    return bool(re.fullmatch(rf"(?:{WORD_SUMS}/)?[^/]+/(?:{SUBFOLDER}/)?[^/]+", path)) and ".." not in path.split("/")


def output_folder_of(part: str) -> str:
    """The output folder of a part of a view, from the part's whole path.

    >>> output_folder_of("out/1/tokens/x.parquet"), output_folder_of("out/1/tokens/sha256.0f/x.parquet")
    ('out/1', 'out/1')
    """
    return re.sub(rf"/?[^/]+(?:/{SUBFOLDER})?/[^/]+$", "", part)


def block_of(part: str) -> str:
    """The name of the block of a part.

    >>> block_of("tokens/a-0986df41cbcb9eb9-000000000650-ba7816bf8f01cfea.parquet")
    'a-0986df41cbcb9eb9-000000000650'
    >>> block_of("rejects/a-0986df41cbcb9eb9-000000000650.jsonl")
    'a-0986df41cbcb9eb9-000000000650'
    """
    return re.sub(r"(?s)^.*/|(?<=-\d{12})[-.].*$", "", part)


def commit_path(block: str) -> str:
    return f"{COMMITS}/{block}.json"


def rejects_path(part: str) -> str:
    return f"{REJECTS}/{part}.jsonl"


def run_path(number: int) -> str:
    return f"{RUNS}/{number}.json"


def alive_path(number: int) -> str:
    """The heartbeat file of an attempt: its time counts."""
    return f"{RUNS}/{number}.alive"


def work_path(number: int) -> str:
    """The work list of an attempt: the input files, and what is left to do of them."""
    return f"{RUNS}/{number}.work.jsonl"


def content_index_path(number: int, sha256: str) -> str:
    """The commits of earlier runs, for the workers of an attempt; its work list names it."""
    return f"{RUNS}/{number}.known-{sha256[:_HASH_DIGITS]}"


def sums_path(number: int) -> str:
    """The paths of all sums of words, while an attempt makes tables of them."""
    return f"{RUNS}/{number}.sums.jsonl"


def names_path(number: int, sha256: str) -> str:
    """The names of all files in `_commits`, while the workers of an attempt compact these."""
    return f"{RUNS}/{number}.names-{sha256[:_HASH_DIGITS]}.jsonl"


def changes_path(number: int, after: str) -> str:
    """What an attempt changed in the index. `after`: the SHA-256 of the new one, or the start of it."""
    return f"{RUNS}/{number}.changes-{after[:_HASH_DIGITS]}.jsonl"


def canaries_path(fingerprint: str) -> str:
    """The canary texts with their vectors, until they are in the manifest."""
    return f"{RUNS}/canaries-{fingerprint}.json"


def parse_changes_name(name: str) -> tuple[int, str] | None:
    """(the number of an attempt, the start of the SHA-256 of the new index) of a file of `_runs`; None for others.

    >>> parse_changes_name("3.changes-0986df41cbcb9eb9.jsonl"), parse_changes_name("3.json")
    ((3, '0986df41cbcb9eb9'), None)
    """
    match = re.fullmatch(r"([0-9]+)\.changes-([0-9a-f]+)\.jsonl", name)
    return None if match is None else (int(match[1]), match[2])


def attempt_of_list(name: str) -> tuple[int, str] | None:
    """(the number of an attempt, the path) of a file of `_runs` that only its workers need; None for other files.

    >>> attempt_of_list("3.work.jsonl"), attempt_of_list("3.json")
    ((3, '_runs/3.work.jsonl'), None)
    """
    match = re.fullmatch(r"([0-9]+)\.(?:known-[0-9a-f]+|(?:work|sums|names-[0-9a-f]+)\.jsonl)", name)
    return None if match is None else (int(match[1]), f"{RUNS}/{name}")
