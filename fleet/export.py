"""A ledger as a table: a row for each picture, a column for each score and each varied widget."""

import csv
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from fleet import FleetError
from fleet.ledger import Ledger, Picture
from fleet.sideways import replaced

PLAIN = [name for name in Picture._fields if name not in ("widgets", "scores")]
CHUNK = 10_000  # rows in memory


def write(book: Ledger, path: Path) -> int:
    """How many rows it has. The ledger is read twice, so that its size takes no memory."""
    if path.suffix not in (".csv", ".parquet"):
        raise FleetError(f"{path.name} is neither a .csv nor a .parquet: name the file so")
    columns, count = {name: set() for name in PLAIN}, 0
    for row in _rows(book):
        count += 1
        for name, value in row.items():
            columns.setdefault(name, set()).add(_kind(value))
    with replaced(path) as part:
        (_as_csv if path.suffix == ".csv" else _as_parquet)(part, _rows(book), columns)
    return count


def _kind(value) -> type:
    """Whole numbers that need more than 64 bits with a sign are words, as no column holds both."""
    return str if isinstance(value, int) and not -2**63 <= value < 2**63 else type(value)


def _rows(book: Ledger) -> Iterator[dict]:
    for picture in book.pictures():
        yield {**{name: getattr(picture, name) for name in PLAIN},
               **{f"widget {name}": value for name, value in json.loads(picture.widgets).items()},
               **{f"score {name}": value for name, value in json.loads(picture.scores).items()}}


def _as_csv(path: Path, rows: Iterator[dict], columns: dict[str, set]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)


def _as_parquet(path: Path, rows: Iterator[dict], columns: dict[str, set]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise FleetError("Parquet needs pyarrow: pip install pyarrow, or export to .csv"
                         ) from error

    def kind(name: str, types: set):
        types = types - {type(None)}
        if name == "seed":
            return pyarrow.uint64()
        if types == {bool}:
            return pyarrow.bool_()
        if types == {int}:
            return pyarrow.int64()
        return pyarrow.float64() if types and types <= {int, float} else pyarrow.string()

    schema = pyarrow.schema([(name, kind(name, types)) for name, types in columns.items()])

    def column(field, chunk: list[dict]):
        values = [row.get(field.name) for row in chunk]
        if field.type == pyarrow.string():  # words and numbers in one column: all as words
            values = [value if value is None else str(value) for value in values]
        return pyarrow.array(values, field.type)

    with pyarrow.parquet.ParquetWriter(path, schema) as table:
        while chunk := list(itertools.islice(rows, CHUNK)):
            table.write_table(pyarrow.table([column(field, chunk) for field in schema],
                                            schema=schema))
