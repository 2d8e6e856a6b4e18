"""Prints results as JSON, YAML and tables. Pure except for the final write.

Structured logging of the command line: to standard error, as text or as JSON lines.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.text import human_bytes as human_bytes

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from tandem.spec import AnyResource


PIPE_WIDTH = 240
"""Width in characters of a table that goes to a file or pipe."""


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ScanOutput(StrEnum):
    """The output formats of `tandem scan`."""

    TABLE = "table"
    JSON = "json"
    ARROW = "arrow"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Output format.")]


def prepare_streams() -> None:
    """Let no character and no closed stream end a command: characters that the encoding of a stream
    lacks are escaped, and what is written to a closed stream is lost."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def standard_output() -> Iterator[None]:
    """Ends the command where standard output cannot be written, as on a full disk. A pipe that its
    reader has closed is another matter."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # Python would try again when it exits
        why = error.strerror or error
        sys.stderr.write(f"Error: standard output cannot be written: {why}\n")
        raise typer.Exit(1) from error


def write(text: str) -> None:
    """Write a result to standard output."""
    with standard_output():
        sys.stdout.write(text)
        sys.stdout.flush()


def _only_ascii() -> bool:
    """Whether standard output may lack characters: as JSON and YAML escape them, any reader of
    these knows them."""
    return not (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf8")


def blocks(found: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> Group:
    """A block per title: its lines of name and value, without those whose value is empty."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for title, lines in found:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=10)
        grid.add_column(overflow="fold")
        for name, value in lines:
            if value:
                grid.add_row(f"  {name}", Text(value))
        parts += [Text(title, style="bold"), grid, Text("")]
    return Group(*parts)


def print_data(data: Any, output: Output) -> None:
    """Print plain data as one JSON or YAML document."""
    if output is Output.YAML:
        import yaml

        write(yaml.safe_dump(data, sort_keys=False, allow_unicode=not _only_ascii()))
    else:
        write(json.dumps(data, indent=2, ensure_ascii=_only_ascii()) + "\n")


def print_documents(resources: Iterable[AnyResource]) -> None:
    """Print resources as YAML documents, as `tandem run -f` takes them."""
    import yaml

    manifests = [each.manifest() for each in resources]
    write(yaml.safe_dump_all(manifests, sort_keys=False, allow_unicode=not _only_ascii()))


def print_table(table: Table | Group) -> None:
    """Print a table to standard output, as wide as the terminal. In a file or pipe nothing is cut
    off, and no line ends with blanks."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    if console.is_terminal:
        with standard_output():
            console.print(table)
        return
    text = io.StringIO()
    Console(file=text, width=PIPE_WIDTH).print(table)
    write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def terminal_width() -> int:
    """Characters of a line of standard output, if that is a terminal; else `PIPE_WIDTH`."""
    from rich.console import Console

    console = Console(file=sys.stdout)
    return console.width if console.is_terminal else PIPE_WIDTH


def natural_width(table: Table) -> int:
    """Characters of the widest line of a table in which nothing is wrapped."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    # A width of the console counts for nothing where TERM is `dumb`.
    unlimited = console.options.update(max_width=10_000)
    return Measurement.get(console, unlimited, table).maximum


NEVER_BROKEN = 14
"""Names in a table's first column of at most so many characters stay on one line: a segment's
name has 14. So do words of that length in other columns, as far as the table can be so wide."""


def table_of(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    keep_empty: bool = False,
) -> Table:
    """A table; columns that hold numbers are aligned to the right. A column without a single
    value is left out (unless there are no rows at all, or by `keep_empty`): most tables are then
    readable in 80 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if rows and not keep_empty:
        filled = [i for i in range(len(columns)) if any(row[i] not in (None, "") for row in rows)]
        columns = [columns[i] for i in filled]
        rows = [[row[i] for i in filled] for row in rows]
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, name in enumerate(columns):
        values = [row[index] for row in rows if row[index] is not None]
        numeric = bool(values) and all(
            isinstance(value, int | float | decimal.Decimal | ByteSize) for value in values
        )
        table.add_column(
            name,
            justify="right" if numeric else "left",
            overflow="fold",
            # Names are meant to be copied: they are not broken unless they are too long.
            no_wrap=index == 0 and all(len(str(value)) <= NEVER_BROKEN for value in values),
            min_width=_longest_word(map(str, values)),
        )
    for row in rows:
        # Text, not markup: `[...]` in the data is data.
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    return table


def _longest_word(texts: Iterable[str]) -> int:
    """Of those that are not broken."""
    lengths = (len(word) for text in texts for word in text.split())
    return max((length for length in lengths if length <= NEVER_BROKEN), default=0)


class ByteSize(int):
    """A number of bytes that prints with a unit."""

    def __str__(self) -> str:
        return human_bytes(int(self))


def utc(milliseconds: int | None) -> str:
    """Unix milliseconds as RFC 3339 in UTC; "" for none."""
    if milliseconds is None:
        return ""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds % 1000:03d}Z"


def people_time(milliseconds: int | None) -> str:
    """Unix milliseconds to the second, for tables: `2026-11-21 15:45:53`, in UTC."""
    return utc(milliseconds).partition(".")[0].replace("T", " ")


def json_value(value: Any) -> Any:
    """A cell of a table as JSON: types that JSON lacks become text, as Spark's `to_json` writes
    them (decimals and 64-bit integers keep every digit)."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value


def json_line(row: Mapping[str, Any]) -> str:
    """One row as one line of JSON."""
    return json.dumps(json_value(row), ensure_ascii=_only_ascii(), separators=(",", ":")) + "\n"


def configure(*, json: bool, verbose: bool) -> None:
    """Configure structlog, once a module that logs imports it: most commands log nothing, and it
    takes as long to import as they take to run. Only warnings are shown unless `verbose`: progress
    bars and the final table show what users need."""

    def apply() -> None:
        _configure(json=json, verbose=verbose)

    if "structlog" in sys.modules:
        apply()
    else:
        sys.meta_path.insert(0, _OnImport("structlog", apply))


class _OnImport:
    """Finds one module, and calls a function after its import."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, _path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, None, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def _configure(*, json: bool, verbose: bool) -> None:
    import structlog

    level = logging.INFO if json or verbose else logging.WARNING
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Look up standard error for each line: tests replace it, and the old one may be closed.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
