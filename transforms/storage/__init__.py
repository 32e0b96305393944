"""Files on this machine's disks, in stores and on Beam's file systems: list, read, write, delete.

A path with a scheme goes to `stores`, which imports Beam for the first such path: gs://, s3://, az:// and hf:// through
the store's own client, all others (`hdfs://`) through Beam's file systems. Every other path goes through the operating
system: Beam's glob skips names with a backslash, reads `[1]` in a literal path as a pattern, and its `delete` expands
patterns too.
"""

# All imports here are re-exports.
# ruff: noqa: F401
# mypy: implicit-reexport
from layerbeam.transforms.storage.compression import TruncatedFileError, is_compressed, read_chunks, whole_lines
from layerbeam.transforms.storage.files import (
    UNFINISHED,
    HashedWriter,
    copy_into,
    create_if_absent,
    delete_empty_folder,
    delete_files,
    delete_folder,
    delete_unfinished,
    flush,
    open_arrow,
    open_binary,
    parse_json,
    read_bytes,
    read_if_exists,
    read_json,
    unfinished_file,
    write_atomically,
)
from layerbeam.transforms.storage.hf_store import NOT_WRITTEN
from layerbeam.transforms.storage.listing import (
    FILES_AT_ONCE,
    PatternError,
    check_bucket,
    exists,
    file_names,
    file_sizes,
    find_change,
    find_files,
    is_absent,
    is_inside,
    is_local,
    is_unlisted,
    join,
    list_folder,
    list_tree,
    place_of,
    reason_of,
    stat_file,
    stat_if_exists,
    unlisted,
)
from layerbeam.transforms.storage.locking import locked_file
from layerbeam.transforms.storage.store import in_batches
from layerbeam.transforms.storage.stores import install_command, is_installed, pin, set_options, unsupported_reason
