"""Results pages: JSON written whole or not at all, and a table on the terminal."""

import json

from tools.places import REPOSITORY


def write(name: str, rows: list[dict], **rest) -> None:
    target = REPOSITORY / "benchmarks" / "results" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    part = target.with_suffix(".part")
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    extra = "".join(f',\n {json.dumps(k)}: {json.dumps(v)}' for k, v in rest.items())
    part.write_text(f'{{"rows": [\n{lines}\n ]{extra}}}\n')
    part.replace(target)
    show(rows)
    print(f"written to {target.relative_to(REPOSITORY)}")


def read(name: str) -> dict:
    """What an earlier run wrote; without rows where there was none."""
    target = REPOSITORY / "benchmarks" / "results" / f"{name}.json"
    return json.loads(target.read_text()) if target.exists() else {"rows": []}


def show(rows: list[dict]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = [columns, *([str(row.get(c, "")) for c in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
