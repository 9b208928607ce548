"""A ledger as a table: a row for each picture, a column for each score and each varied widget."""

import csv
import json
from pathlib import Path

from fleet import FleetError
from fleet.ledger import Ledger, Picture
from fleet.sideways import replaced

PLAIN = [name for name in Picture._fields if name not in ("widgets", "scores")]


def write(book: Ledger, path: Path) -> int:
    """How many rows it has."""
    if path.suffix not in (".csv", ".parquet"):
        raise FleetError(f"{path.name} is neither a .csv nor a .parquet: name the file so")
    rows = [_flat(picture) for picture in book.pictures()]
    columns = list(dict.fromkeys(name for row in rows for name in row)) or PLAIN
    with replaced(path) as part:
        (_as_csv if path.suffix == ".csv" else _as_parquet)(part, rows, columns)
    return len(rows)


def _flat(picture: Picture) -> dict:
    return {**{name: getattr(picture, name) for name in PLAIN},
            **{f"widget {name}": value for name, value in json.loads(picture.widgets).items()},
            **{f"score {name}": value for name, value in json.loads(picture.scores).items()}}


def _as_csv(path: Path, rows: list[dict], columns: list[str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)


def _as_parquet(path: Path, rows: list[dict], columns: list[str]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise FleetError("Parquet needs pyarrow: pip install pyarrow, or export to .csv"
                         ) from error
    types = {"seed": pyarrow.uint64()}
    pyarrow.parquet.write_table(pyarrow.table(
        {name: pyarrow.array([row.get(name) for row in rows], types.get(name))
         for name in columns}), path)
