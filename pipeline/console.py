"""Figures and text for the terminal; imports nothing heavy."""

from __future__ import annotations

import contextlib
import contextvars
import io
import os
import shlex
import shutil
import sys
import threading
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, cast


def plain_console(**settings: Any) -> Any:
    """The terminal: what comes from a corpus is never read as markup, and a reader who left is an error as usual."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    class PlainConsole(Console):
        def render_str(self, text: str, **settings: Any) -> Any:
            return super().render_str(escape_control(text), **settings)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def print_section(self, heading: str, lines: Iterable[str]) -> None:
            """Print lines below each other, the first one after the heading."""
            for number, line in enumerate(lines):
                self.print(f"{'' if number else heading:10}{line}")

        def print_table(
            self,
            headings: Sequence[str],
            rows: Iterable[Sequence[str]],
            *,
            left: Collection[str],
            title: str = "",
            **column: Any,
        ) -> None:
            """Print a table; its columns are aligned to the right unless they are among `left`."""
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left")
            for heading in headings:
                table.add_column(heading, justify="left" if heading in left else "right", **column)
            for row in rows:
                table.add_row(*row)
            self.print(table)

    return PlainConsole(highlight=False, markup=False, **settings)


def escape_control(text: str, keep: str = "\t\n") -> str:
    r"""The text without what would steer a terminal: control characters, but those in `keep`, as `\x1b`.

    >>> print(escape_control("a\033[2Jb"))
    a\x1b[2Jb
    """
    return "".join(c if c in keep or unicodedata.category(c) != "Cc" else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str) -> str:
    r"""The same for a name or value of others in a line: its tabs and line ends do not end the line.

    >>> print(one_line("a\nb: {}\u2028"))
    a\x0ab: {}\u2028
    """
    return "".join(f"\\u{ord(c):04x}" if c in "\u2028\u2029" else c for c in escape_control(text, keep=""))


def size_text(size: float) -> str:
    """
    >>> size_text(6_600_000_000), size_text(1_500), size_text(12)
    ('6.6 GB', '1.5 kB', '12 bytes')
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def duration_text(seconds: float) -> str:
    """
    >>> duration_text(12.3), duration_text(160), duration_text(300), duration_text(6_000), duration_text(7_000)
    ('12 s', '3 min', '5 min', '1.7 h', '1.9 h')
    >>> duration_text(20_000), duration_text(200_000), duration_text(500_000)
    ('5.6 h', '2.3 days', '5.8 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def count_noun(count: int, noun: str, plural: str | None = None) -> str:
    """
    >>> count_noun(1, "file"), count_noun(2000, "file"), count_noun(2, "batch", "batches")
    ('1 file', '2,000 files', '2 batches')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def command_name() -> str:
    """How this shell starts the command: `layerbeam` if that is on PATH, else its path, such as .venv/bin/layerbeam."""
    script = Path(sys.executable).with_name("layerbeam")
    found = shutil.which("layerbeam")
    if found is not None and os.path.realpath(found) == os.path.realpath(script):
        return "layerbeam"
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m layerbeam"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def python_command(code: str) -> list[str]:
    """The command that executes code in this Python, without modules from the current folder."""
    return [sys.executable, "-P", "-c", code]


_HIDES_STATUS = contextvars.ContextVar("hides_status", default=False)


@contextlib.contextmanager
def hide_status(hidden: bool) -> Iterator[None]:
    """Hides status messages and progress, if asked to; warnings and errors are shown."""
    token = _HIDES_STATUS.set(hidden)
    try:
        yield
    finally:
        _HIDES_STATUS.reset(token)


def hides_status() -> bool:
    """Whether status messages and progress are hidden."""
    return _HIDES_STATUS.get()


def echo(message: str) -> None:
    """Print a status message to standard error; standard output is for results."""
    if not hides_status():
        echo_warning(message)


def echo_timed(message: str) -> None:
    """Print a status message of a run or plan, with the time if standard error is no terminal."""
    echo(message if sys.stderr.isatty() else f"{time.strftime('%H:%M:%S')} {message}")


def echo_warning(message: str) -> None:
    """Print a warning to standard error, also where status messages are hidden."""
    print(escape_control(message), file=sys.stderr)


def echo_error(message: str) -> None:
    """Print an error message to standard error, each line after the command's name."""
    for line in message.splitlines():
        echo_warning(f"layerbeam: {line}")


class MainThreadStream:
    """A stream that writes what the main thread prints and drops what other threads print.

    `stream` is the stream behind it, for a thread that may print.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = underlying(stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        return self.stream.write(text) if is_main else len(text)


def underlying(stream: TextIO) -> TextIO:
    """The stream itself, or the one behind a MainThreadStream."""
    return stream.stream if isinstance(stream, MainThreadStream) else stream


def only_main_thread_prints() -> contextlib.AbstractContextManager[Any]:
    """Drops what other threads print to standard error.

    Beam's threads print tracebacks before an error is raised, and those of other workers even later; one message is
    enough.
    """
    return contextlib.redirect_stderr(cast(TextIO, MainThreadStream(sys.stderr)))


def quiet(verbose: bool) -> contextlib.AbstractContextManager[Any]:
    """Hides what Beam prints to standard error while a pipeline runs, unless `verbose`."""
    return contextlib.nullcontext() if verbose else contextlib.redirect_stderr(io.StringIO())
