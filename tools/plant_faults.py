"""Plants small faults in the product, and prints which test finds each of them.

    python tools/plant_faults.py [-m MARKS] [--near] [NAME ...]

Each fault is planted alone, in a copy of the working tree, and the tests named with it run until one fails. The faults
that these do not find are planted together, and all tests run; those that fail then run with each of the faults alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
SECONDS, SECONDS_OF_ALL = 600, 7200

# Two lines each: name, file, and the tests that are likely to find it; the old text and the new one. The old text is in
# the file once; ⏎ is a line end in it.
FAULTS = r"""
small-file-alone transforms/slice/slices.py pipeline/run/test_small_files.py::test_which_files_are_together
    and is_whole and share <= _SMALL): ==> and is_whole and share < _SMALL):
mark-cut-in-two transforms/input/text.py transforms/input/test_text.py::test_byte_order_mark_before_paragraphs
    step = max(slice_bytes, len(UTF8_MARK) + 1) ==> step = slice_bytes
carriage-return-at-end transforms/input/text.py transforms/input/test_lines.py::test_carriage_return_before_line_feed_is_line_end
    & (stops < ends) & (data[stops - 1] ==> & (data[stops - 1]
pair-is-no-text transforms/input/parquet.py transforms/input/test_parquet.py::test_both_texts_of_pairs_fill_a_block
    [] if record_format.pair_field is None else [record_format.pair_field] ==> []
number-with-underscore transforms/input/delimited.py test_import_rules.py::test_doctests[layerbeam.transforms.input.delimited]
    and "_" not in given else None ==> else None
reject-without-spaces transforms/input/delimited.py pipeline/run/test_delimited.py::test_bad_rows_are_rejected_with_line_and_reason
    pa.array([row.raw.rstrip( ==> pa.array([row.raw.rstrip().rstrip(
inexact-integer transforms/input/jsonl.py transforms/input/test_jsonl.py::test_kept_fields_of_another_type
    abs(value) <= EXACT and value.is_integer() ==> value.is_integer()
edit-moves-more transforms/input/cuts.py transforms/input/test_cuts.py::test_a_block_has_as_many_tokens_as_an_edit_may_cost
    min(most_tokens, limits.edit_tokens) ==> most_tokens
blank-first-of-pair transforms/read/block.py transforms/input/test_jsonl.py::test_pairs_of_two_fields
    full |= ~is_blank(result.pairs) ==> full &= True
share-of-reader transforms/read/block.py transforms/read/test_last_block.py::test_the_last_block_and_no_other_is_last
    if number % readers == reader: ==> if number % readers == reader or readers > 7:
source-at-file-start transforms/parts/block_store.py pipeline/output/test_changes.py::test_a_byte_order_mark_that_moves_into_the_text
    target.num_lines and (held.first_byte == 0) == (target.first_byte == 0) ==> target.num_lines
names-that-print-alike transforms/parts/write.py pipeline/output/test_work.py::test_files_whose_names_print_alike_give_no_rows_to_others
    for file in commit.inputs}) < len(commit.files): ==> for file in commit.inputs}) < 0:
second-segment-cut-off transforms/tokenize/sequences.py transforms/tokenize/test_sequences.py::test_a_pair_without_room_for_its_second_text
    segment_ids[row_splits[1:][is_pair] - number] = 1 ==> segment_ids[row_splits[1:][counts_second > 0] - number] = 1
word-begins-in-prompt transforms/tokenize/sequences.py transforms/tokenize/test_sequences.py::test_a_piece_of_prompt_and_text_begins_with_the_text
    word_char=shown(np.maximum(pieces.word_char - shift, 0), is_word) ==> word_char=shown(pieces.word_char - shift, is_word)
character-in-two-chunks transforms/tokenize/chunks.py transforms/tokenize/test_chunks.py::test_no_cut_within_a_piece_that_ends_after_the_next_one
    np.maximum.accumulate(end)[:-1] ==> end[:-1]
long-word-in-first-window transforms/encode/windows.py transforms/encode/test_encode_block.py::test_a_word_longer_than_a_window
    (context < 0, pieces), alone, ==> (context < 0, pieces), 0 * alone,
reason-of-overflow transforms/encode/block.py transforms/encode/test_isolate.py::test_what_float16_cannot_hold_is_rejected
    faults = dict.fromkeys(overflowing_texts(view, tokens, vectors[view.name]), reason) | faults ==> faults = faults | dict.fromkeys(overflowing_texts(view, tokens, vectors[view.name]), reason)
encoder-blames-texts transforms/encode/isolate.py transforms/encode/test_isolate.py::test_an_encoder_that_fails_on_everything_blames_no_text
    except UnencodableTextsError as error:⏎            check_encoder() ==> except UnencodableTextsError as error:
end-of-module-name transforms/encoders/adapter.py transforms/encoders/test_adapter.py::test_other_configurations_are_refused
    f".{module}".endswith(f".{name}") ==> module.endswith(name)
order-of-rejects transforms/write/block.py pipeline/run/test_small_files.py::test_each_reject_stays_with_its_file
    sorted(rejected, key=lambda reject: numbers[reject.file]) ==> rejected
parts-of-fewer-texts transforms/write/block.py pipeline/run/test_added_view.py::test_view_that_rejects_a_text
    is_kept = earlier is not None and earlier.counts.items() <= counts.items() ==> is_kept = earlier is not None
once-in-example transforms/parts/tfrecord.py transforms/parts/test_part_formats.py::test_examples_are_those_of_protobuf
    rows[start : start + 1 if is_once else stop] ==> rows[start : start + 1 if is_once and not isinstance(rows, list) else stop]
checksum-cut-off transforms/parts/tfrecord.py transforms/parts/test_part_formats.py::test_a_part_without_the_end_of_its_last_checksum
    if end + _CHECKSUM_BYTES > len(pending): ==> if end > len(pending):
empty-compressed-file transforms/storage/compression.py transforms/input/test_lines.py::test_an_empty_file_is_no_compressed_one
    if stream is not None or not begun: ==> if stream is not None:
short-write transforms/storage/files.py transforms/storage/test_create_whole.py::test_a_disk_that_loses_bytes_creates_nothing
    _check_size(unfinished, len(data)) ==> pass
read-behind-end transforms/storage/store.py transforms/storage/test_storage.py::test_reading_behind_the_end_does_not_move_the_end
    and (data or start == 0): ==> and True:
folder-among-files transforms/storage/listing.py transforms/storage/test_storage.py::test_the_files_of_a_folder_are_not_the_folders_in_it
    if entry.name.startswith(prefix) and entry.is_file()) ==> if entry.name.startswith(prefix))
whole-file-for-range transforms/storage/hf_store.py transforms/storage/test_hf_store.py::test_a_server_that_gives_whole_files
    return data if answer.status_code != 200 or not asked else data[start:end] ==> return data
branch-like-commit transforms/storage/hf_store.py transforms/storage/test_hf_store.py::test_a_branch_whose_name_begins_like_a_commit
    _COMMIT.fullmatch(place.revision) ==> _COMMIT.match(place.revision)
contradiction-of-chunks pipeline/config/rules.py pipeline/run/test_chunk_unit.py::test_settings_that_do_not_fit
    given.unit == "chunk" and chunk.overlap > chunk.tokens // 2: ==> given.unit == "chunk" and chunk.overlap > chunk.tokens:
rejects-in-identity pipeline/config/job.py pipeline/output/test_commits.py::test_a_lost_record_of_the_run_does_not_hide_other_settings
    for name in ("files", "max_missing", "max_reject_rate"): ==> for name in ("files", "max_missing"):
damaged-is-valid pipeline/output/catalog.sql pipeline/dataset/test_integrity.py::test_a_flipped_bit_is_found_and_rewritten
    OR (attempt = 0 AND path IN (SELECT path FROM damaged)) ==> OR (attempt < 0 AND path IN (SELECT path FROM damaged))
other-settings-are-live pipeline/output/catalog.sql pipeline/output/test_changes.py::test_a_later_attempt_with_other_settings_commits_the_same_blocks
    ORDER BY fingerprint <> (SELECT fingerprint FROM run), attempt DESC) AS place ==> ORDER BY attempt DESC) AS place
finished-with-orphans pipeline/output/work.py pipeline/output/test_work.py::test_what_a_late_attempt_leaves_is_work_for_the_next_run
    and work.catalog.is_as_listed() ==> and True
limit-is-reached pipeline/output/catalog.sql pipeline/run/test_limit.py
    WHERE records > max_records; ==> WHERE records >= max_records;
commit-of-damage-stays pipeline/output/work.py pipeline/output/test_work.py::test_a_late_commit_of_a_damaged_part
    storage.delete_files(output_path, map(layout.commit_path, blocks)) ==> pass
end-of-newer-run pipeline/output/finish.py pipeline/output/test_finish.py::test_parts_of_a_newer_attempt_stay
    manifest = self._describe(catalog, totals, left_out)⏎        self._refuse_if_superseded() ==> manifest = self._describe(catalog, totals, left_out)
reject-rate-reached pipeline/output/finish.py pipeline/output/test_finish.py::test_as_many_rejects_as_are_allowed
    elif by_encoder > of_encoder * records: ==> elif by_encoder >= of_encoder * records:
repaired-stays-damaged pipeline/dataset/integrity.py pipeline/dataset/test_integrity.py::test_a_folder_that_was_restored_is_not_rewritten
    storage.delete_files(output_path, [layout.DAMAGED]) ==> pass
lock-says-nothing pipeline/output/attempts.py pipeline/output/test_attempts.py::test_a_killed_local_run_is_no_obstacle_for_who_holds_the_file_lock pipeline/output/test_attempts.py pipeline/output/test_lock.py
    (locked and "runner" not in record) ==> ("runner" not in record)
incomplete-is-no-end pipeline/output/attempts.py pipeline/output/test_attempts.py::test_only_a_newer_attempt_that_has_finalized_the_folder_supersedes
    ended = record["state"] in ("done", "incomplete") ==> ended = record["state"] == "done"
beats-stay pipeline/output/lock.py pipeline/output/test_lock.py::test_a_refused_attempt_and_one_without_a_record_leave_nothing
    [layout.run_path(claim["run"]), layout.alive_path(claim["run"])] ==> [layout.run_path(claim["run"])]
page-before pipeline/dataset/index.py pipeline/dataset/test_index.py
    if self._page[0] != page: ==> if self._page[0] < page:
other-index-after pipeline/output/changes.py pipeline/output/test_changes.py::test_a_file_for_another_index_whose_name_begins_alike
    if header.after == after: ==> if header.after:
chain-goes-back pipeline/output/changes.py pipeline/output/test_changes.py::test_an_end_that_died_and_would_have_led_back
    and (last is None or one[0] <= last)) ==> )
cosine-of-shorter pipeline/verify/compare.py pipeline/verify/test_compare.py
    near = np.abs(found - expected) <= self.absolute ==> near = found - expected <= self.absolute
longer-than-limit pipeline/plan/plan.py pipeline/plan/test_plan.py::test_a_text_that_just_fits_is_not_truncated
    weights[lengths > limit].sum() ==> weights[lengths >= limit].sum()
offset-of-sentence pipeline/dataset/word_rows.py pipeline/report/test_report.py::test_a_word_in_a_later_sentence
    RowText(row["text"], row["start"]) ==> RowText(row["text"], 0)
last-row-in-next-piece pipeline/dataset/view.py pipeline/dataset/test_reader.py::test_one_part_of_any_format pipeline/dataset/test_reader.py
    if read > last_row: ==> if read >= last_row:
part-that-grew pipeline/dataset/view.py pipeline/dataset/test_reader.py::test_a_missing_or_damaged_part pipeline/dataset/test_reader.py
    if not part.sha256 or size == part.bytes: ==> if not part.sha256 or size >= part.bytes:
null-in-tensor pipeline/dataset/tf_dataset.py pipeline/dataset/test_reader.py::test_nulls_in_kept_fields
    elif column.null_count and not pa.types.is_floating(type_): ==> elif column.null_count and pa.types.is_boolean(type_):
others-of-pack-came pipeline/dataset/changes.py pipeline/output/test_changes.py::test_files_of_a_pack_that_are_as_before
    table.filter(pc.is_in(table["file"], pa.array(files))).select(names) ==> table.select(names)
order-of-equal-scores pipeline/dataset/nearest.py pipeline/dataset/test_nearest.py::test_equal_scores_are_in_the_order_of_the_rows
    np.lexsort((rows, -scores))[: self._k] ==> np.argsort(-scores)[: self._k]
more-rows-than-listed pipeline/dataset/batches.py pipeline/dataset/test_batches.py::test_damage
    if sum(sizes) != part.rows: ==> if sum(sizes) < part.rows:
tensors-not-aligned pipeline/dataset/export.py pipeline/dataset/test_export.py::test_tensors_are_aligned_as_other_readers_want_them
    (-len(text) % 8) ==> (len(text) % 8)
no-delay pipeline/embed/embed_text.py pipeline/embed/test_embed_text.py::test_wrong_settings pipeline/embed/test_embed_rows.py::test_wrong_settings
    max_delay_seconds is not None and max_delay_seconds <= 0: ==> max_delay_seconds is not None and max_delay_seconds < 0:
encoder-of-before pipeline/embed/model_handler.py pipeline/embed/test_model_handler.py::test_the_model_is_updated_by_a_side_input pipeline/embed/test_model_handler.py
    self._fingerprint = None ==> pass
key-is-text pipeline/embed/model_handler.py pipeline/embed/test_model_handler.py::test_a_batch_is_filled_to_a_number_of_tokens
    text = element[1] if isinstance(element, tuple) else element ==> text = element
old-parts-first pipeline/publish/publish.py pipeline/publish/test_publish.py::test_readers_find_rows_until_the_last_commit
    if batch[-1] == _HEADS[-1]: ==> if batch[0] == new[0]:
column-twice pipeline/init/inspect_input.py pipeline/init/test_init_input.py::test_a_column_that_is_there_twice
    if header.count(name) == 1 ==> if header.count(name)
half-line-of-sample pipeline/init/inspect_input.py pipeline/init/test_init_input.py::test_what_is_read_of_a_large_file_ends_with_a_line
    return sample[: sample.rfind(b"\n") + 1] or sample ==> return sample
other-fields-move-cuts transforms/input/jsonl.py transforms/input/test_cuts.py::test_blocks_of_records_end_by_their_texts
    return b"".join(found) if found else line ==> return line
long-fields-in-one-block transforms/input/text.py transforms/input/test_jsonl.py::test_long_fields_end_a_block
    weights = np.maximum(weights, lengths // _OTHER_FIELDS) ==> weights = np.maximum(weights, 1)
texts-without-pairs transforms/input/records.py pipeline/run/test_changed_fields.py::test_another_pair_is_another_text
    file_range.first_line, [texts, pairs]) ==> file_range.first_line, [texts])
old-fields-stay transforms/parts/write.py pipeline/run/test_changed_fields.py::test_other_fields_in_every_record
    return rows if self.texts is None else _with_fields(rows, self.texts) ==> return rows
sums-by-old-fields transforms/views/view.py pipeline/run/test_changed_fields.py::test_sums_by_a_field_are_made_anew
    any(view.aggregates and view.group_by for view in views) ==> False
chunk-for-each-block transforms/input/cuts.py transforms/input/test_cuts.py::test_any_content_is_cut_in_a_few_passes
    is_opened = place != self._place ==> is_opened = True
too-many-candidates transforms/input/cuts.py transforms/input/test_cuts.py::test_any_content_is_cut_in_a_few_passes
    is_known = all(one.is_complete for one in ranges[begins:fills]) ==> is_known = True
pack-without-end transforms/slice/slices.py pipeline/run/test_small_files.py::test_a_pack_has_as_many_tokens_as_four_blocks
    work.file.size, limits.of_packs, record_format) ==> work.file.size, limits, record_format)
monitor-of-another-host pipeline/output/attempts.py pipeline/output/test_attempts.py::test_what_a_monitor_is_told
    return beaten is not None and time.time() - beaten < _DEAD_AFTER_SECONDS ==> return beaten is not None
made-by-the-copier transforms/parts/write.py pipeline/run/test_scheduled.py::test_which_program_and_processor_encoded_what
    made_with=commit.made_with) ==> made_with="unknown")
"""  # noqa: E501


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("-m", dest="marks", metavar="MARKS", default="not slow", help="as of pytest")
    parser.add_argument("--near", action="store_true", help="run only the tests that are named with the faults")
    given = parser.parse_args()
    lines = FAULTS.strip().splitlines()
    faults = [parse(*both) for both in zip(lines[::2], lines[1::2], strict=True)]
    left = [fault for fault in faults if fault.name in given.names or not given.names]
    importlib.import_module("apache_beam")  # once for all children
    importlib.import_module("tensorflow")
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        left = [fault for fault in left if not is_found(fault, failing(tree, [fault], fault.tests, given.marks))]
        while left and not given.near:
            failed = failing(tree, left, [], given.marks, all_of_them=True)
            without = failing(tree, [], failed, given.marks, all_of_them=True) if failed else []
            near = [test for test in failed if test not in without and test.startswith("tests/")]
            found = {fault for fault in left if near and is_found(fault, failing(tree, [fault], near, given.marks))}
            left = [fault for fault in left if fault not in found]
            if not found:
                break
        print("".join(f"{fault.name}: not found\n" for fault in left), end="")


def parse(head: str, change: str) -> Fault:
    name, file, *tests = head.split()
    old, new = change.strip().replace("⏎", "\n").split(" ==> ")
    if (times := (ROOT / file).read_text().count(old)) != 1:
        sys.exit(f"{name}: the old text is in {file} {times} times")
    return Fault(name, file, old, new, tuple(f"tests/{test}" for test in tests))


def is_found(fault: Fault, failed: Sequence[str]) -> bool:
    if failed:
        print(f"{fault.name}: found by {failed[0]}", flush=True)
    return bool(failed)


def copy_tree(folder: Path) -> Path:
    """A copy of the files that git knows or would add, and next to it `layerbeam` in the layout of the wheel."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603
    for name in filter(lambda name: (ROOT / name).exists(), names.strip("\0").split("\0")):
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "tree" / name, follow_symlinks=False)
    package = folder / "package" / "layerbeam"
    package.mkdir(parents=True)
    for path in (*(folder / "tree/layerbeam").iterdir(), folder / "tree/pipeline", folder / "tree/transforms"):
        (package / path.name).symlink_to(path)
    return folder / "tree"


@contextlib.contextmanager
def planted(tree: Path, faults: Sequence[Fault]) -> Iterator[None]:
    before = {tree / fault.file: (tree / fault.file).read_text() for fault in faults}
    for fault in faults:
        write(tree / fault.file, (tree / fault.file).read_text().replace(fault.old, fault.new))
    yield
    for path, text in before.items():
        write(path, text)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


class Failures:
    """A plugin of pytest that lists the tests that fail."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")

    pytest_collectreport = pytest_runtest_logreport


def failing(
    tree: Path, faults: Sequence[Fault], tests: Sequence[str], marks: str, *, all_of_them: bool = False
) -> list[str]:
    """The first test that fails while these faults are planted, or all of them. No `tests`: of all tests."""
    failures = tree.with_name("failures")
    failures.write_text("")
    arguments = ["-q", "-p", "no:cacheprovider", "-m", marks, *([] if all_of_them else ["-x"]), *tests]
    with planted(tree, faults):
        child = os.fork()  # the modules of the product are not imported yet
        if not child:
            run_tests(tree, arguments, Failures(failures))
        end = time.monotonic() + (SECONDS_OF_ALL if all_of_them else SECONDS)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return [*failures.read_text().splitlines(), "the time limit"]
            time.sleep(0.05)
    return failures.read_text().splitlines()


def run_tests(tree: Path, arguments: list[str], plugin: Any) -> NoReturn:
    os.setsid()  # to be killed with all of its processes
    os.chdir(tree)
    output = os.open(tree.with_name("output"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    package = str(tree.with_name("package"))
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = package  # of the processes that tests start
    importlib.import_module("pytest").main(arguments, [plugin])
    os._exit(0)


if __name__ == "__main__":
    main()
