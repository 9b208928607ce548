"""What is to be drawn and what was: one SQLite file, whole at every moment. Standard library only.

In WAL mode a transaction that was committed survives a killed process. A picture is written before
its row, under a name that only depends on its job: killed in between, the job is drawn again over
the same file.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fleet import FleetError
from fleet.plan import Change, key

FILE, LOCK = "ledger.sqlite", "ledger.lock"
VERSION = 1
WAITING, DONE, FAILED = "waiting", "done", "failed"
# Stages: pictures at once, or in two parts (staged.py); a fit (fitting.py).
DRAW, START, FINISH, FIT = STAGES = "draw", "start", "finish", "fit"
CHUNK = 1000

TABLES = """
create table if not exists about (name text primary key, value text) without rowid;
create table if not exists jobs (
    number integer primary key, stage text, key text, changes text, state text default 'waiting',
    tries integer default 0, losses integer default 0, error text, unique (stage, key));
create index if not exists waiting on jobs (stage, state, number);
create table if not exists pictures (
    job integer, place integer, seed integer, prompt text, widgets text, score real,
    scores text, calls integer, extra_calls integer, seconds real, worker text, file text,
    finished real, primary key (job, place)) without rowid;
create table if not exists parts (
    job integer primary key, seed integer, score real, calls integer, ahead_calls integer,
    seconds real, worker text, file text) without rowid;
create table if not exists faults (at real, worker text, job integer, words text);
"""


class Job(NamedTuple):
    number: int
    stage: str
    changes: list[Change]
    tries: int  # failures of its own
    losses: int  # workers that were lost with it


class Picture(NamedTuple):
    """One row. Seeds are kept as SQLite has them, 64 bits with a sign; `seed_in` and `seed_out`."""

    job: int
    place: int  # in its batch
    seed: int | None
    prompt: str
    widgets: str  # JSON, NODE.WIDGET -> value, the seed left out
    score: float | None  # the sampler's own
    scores: str  # JSON, all of them by name
    calls: int | None
    extra_calls: int | None
    seconds: float
    worker: str
    file: str
    finished: float


class Part(NamedTuple):
    """A result that is no picture yet: a run that was left at a step, or a share of a fit."""

    job: int
    seed: int | None
    score: float | None
    calls: int | None
    ahead_calls: int | None  # of these only to look ahead, which a whole run does not
    seconds: float
    worker: str
    file: str


def seed_in(seed: int | None) -> int | None:
    return seed - 2**64 if seed is not None and seed >= 2**63 else seed


def seed_out(seed: int | None) -> int | None:
    return seed + 2**64 if seed is not None and seed < 0 else seed


class Ledger:
    def __init__(self, connection: sqlite3.Connection):
        self._db = connection

    def close(self) -> None:
        self._db.close()

    # What it is about

    def about(self, name: str) -> str | None:
        found = self._db.execute("select value from about where name = ?", (name,)).fetchone()
        return found and found[0]

    def tell(self, **words: str) -> None:
        with self._db:
            self._db.executemany("insert or replace into about values (?, ?)", words.items())

    # What is to be done

    def plan(self, stage: str, jobs: Iterable[list[Change]]) -> int:
        """Adds what is not there yet; how many that were."""
        before = self._db.total_changes
        with self._db:
            self._db.executemany(
                "insert or ignore into jobs (stage, key, changes) values (?, ?, ?)",
                ((stage, key(changes), json.dumps(changes)) for changes in jobs))
        return self._db.total_changes - before

    def waiting(self, stage: str) -> Iterator[Job]:
        """In order, a chunk at a time, so that a million of them take no memory."""
        last = -1
        while found := self._db.execute(
                "select number, stage, changes, tries, losses from jobs where stage = ? and"
                " state = 'waiting' and number > ? order by number limit ?",
                (stage, last, CHUNK)).fetchall():
            last = found[-1][0]
            for number, stage, changes, tries, losses in found:
                yield Job(number, stage, [Change(*c) for c in json.loads(changes)], tries, losses)

    def retry_failed(self) -> None:
        with self._db:
            self._db.execute("update jobs set state = 'waiting', tries = 0, losses = 0 where"
                             " state = 'failed'")

    def counts(self, stage: str) -> dict[str, int]:
        found = dict(self._db.execute("select state, count(*) from jobs where stage = ? group by"
                                      " state", (stage,)))
        return {state: found.get(state, 0) for state in (WAITING, DONE, FAILED)}

    # What was done

    def record(self, rows: list[Picture], parts: list[Part] = ()) -> None:
        """Results of jobs that are done with this, all or none of them."""
        with self._db:
            self._db.executemany(
                f"insert or replace into pictures values ({','.join('?' * len(Picture._fields))})",
                (row._replace(seed=seed_in(row.seed)) for row in rows))
            self._db.executemany("insert or replace into parts values (?, ?, ?, ?, ?, ?, ?, ?)",
                                 (part._replace(seed=seed_in(part.seed)) for part in parts))
            self._db.executemany("update jobs set state = 'done' where number = ?",
                                 {(row.job,) for row in [*rows, *parts]})

    def fault(self, worker: str, job: Job | None, words: str, state: str = WAITING) -> None:
        with self._db:
            self._db.execute("insert into faults values (?, ?, ?, ?)",
                             (time.time(), worker, job and job.number, words))
            if job:
                self._db.execute("update jobs set tries = ?, losses = ?, error = ?, state = ?"
                                 " where number = ? and state != 'done'",
                                 (job.tries, job.losses, words, state, job.number))

    # What there is to tell

    def pictures(self) -> Iterator[Picture]:
        for row in self._db.execute("select * from pictures order by job, place"):
            picture = Picture(*row)
            yield picture._replace(seed=seed_out(picture.seed))

    def parts(self) -> list[Part]:
        found = (Part(*row) for row in self._db.execute("select * from parts order by job"))
        return [part._replace(seed=seed_out(part.seed)) for part in found]

    def changes(self, stage: str) -> dict[int, list[Change]]:
        """Of each job, by its number."""
        return {number: [Change(*c) for c in json.loads(changes)] for number, changes in
                self._db.execute("select number, changes from jobs where stage = ?", (stage,))}

    def failures(self) -> list[tuple[int, list[Change], int, str]]:
        return [(number, [Change(*c) for c in json.loads(changes)], tries + losses, error)
                for number, changes, tries, losses, error in self._db.execute(
                    "select number, changes, tries, losses, error from jobs where state = 'failed'"
                    " order by number")]

    def faults(self) -> list[tuple[float, str, int | None, str]]:
        return self._db.execute("select * from faults order by at").fetchall()


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30)
    try:
        connection.execute("pragma journal_mode = wal")
    except sqlite3.DatabaseError as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError):  # it is locked, or the disk is full
            raise
        raise FleetError(f"{path} is no ledger, or a damaged one ({error}): choose another folder"
                         ) from error
    connection.execute("pragma synchronous = normal")
    return connection


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    """The ledger of a folder, for one driver alone; made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    # Another file's lock, so that others may read the ledger meanwhile. It ends with the process.
    lock = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)
    try:
        try:
            lock.execute("begin exclusive")
        except sqlite3.OperationalError as error:
            raise FleetError(f"another fleet is at work in {folder}: wait for it, stop it, or"
                             " choose another folder") from error
        with contextlib.closing(_connected(folder / FILE)) as connection:
            connection.executescript(TABLES)
            ledger = Ledger(connection)
            version = ledger.about("version")
            if version not in (None, str(VERSION)):
                raise FleetError(f"{folder / FILE} is of version {version}, {VERSION} was expected:"
                                 " choose another folder")
            ledger.tell(version=str(VERSION))
            yield ledger
    finally:
        lock.close()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Ledger]:
    """The ledger of a folder as it stands at one moment, while a driver may be at work."""
    if not (folder / FILE).is_file():
        raise FleetError(f"{folder} holds no {FILE}: give the folder that a fleet wrote to")
    with contextlib.closing(_connected(folder / FILE)) as connection:
        connection.execute("begin")
        yield Ledger(connection)


def told(folder: Path, name: str) -> str | None:
    """What a folder's ledger is about, if there is one."""
    if not (folder / FILE).is_file():
        return None
    with read_only(folder) as book:
        return book.about(name)
