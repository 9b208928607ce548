"""What `python -m fleet` understands."""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fleet import FleetError, cluster, export, fitting, ledger, plan, staged
from fleet.cluster import Crew
from fleet.driver import FIRST_SECONDS, LEAST_SECONDS, RETRIES, Driver, Pace
from fleet.ledger import DRAW, FINISH, FIT, START, Ledger
from fleet.worker import START_SECONDS, Order, Place

PICTURES = "pictures"
HEEDED_SECONDS = 3
# Of bayesdiff_core/filtering.py, which needs torch: the others go by pictures of a graph.
CRITERIA = ["mean + z sigma", "drop top percent", "keep n", "threshold"]


class Stop:
    """Ctrl-C: while a driver asks for it, it ends in order; else, or asked twice, at once."""

    def __init__(self):
        self._asked, self._heeded = False, 0.0
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, self._ask)

    def _ask(self, *_) -> None:
        at_once = self._asked or time.monotonic() - self._heeded > HEEDED_SECONDS
        self._asked = True
        if at_once:
            raise KeyboardInterrupt

    def __call__(self) -> bool:
        self._heeded = time.monotonic()
        return self._asked


def draw(options) -> int:
    found = plan.read(options.workflow)
    varied = plan.variations(options.seeds, options.set, options.csv)
    with fleet_at_work(options) as (crew, stop):
        graph = plan.graph(found, crew.object_info(), options.seed_widget)
        plan.check_saver(graph, options.save)
        jobs = varied.jobs(graph)
        with recorded(options, graph, DRAW) as book:
            tell_start(book, DRAW, book.plan(DRAW, jobs), crew)
            crew.take(Order(graph, options.save, options.pictures))
            whole = driver_of(options, book, crew, graph, picture_folder(options), stop).run(DRAW)
            return tell_end(book, DRAW, whole, options)


def best(options) -> int:
    """All seeds to the stop, then the best ones to the end."""
    if not 0.05 <= options.stop_at <= 0.95:
        raise FleetError(f"--stop-at is {options.stop_at:g}, 0.05 to 0.95 was expected")
    found = plan.read(options.workflow, (staged.SAMPLER,))
    varied = plan.variations(options.seeds, options.set, options.csv)
    with fleet_at_work(options) as (crew, stop):
        object_info = crew.object_info()
        graph = plan.graph(found, object_info, options.seed_widget)
        plan.check_saver(graph, options.save)
        start, finish = staged.graphs(graph, object_info, options.stop_at, options.rank_by)
        jobs = varied.jobs(graph)
        kind = f"best of N at {options.stop_at:g} by {options.rank_by}"
        with recorded(options, graph, kind) as book:
            tell_start(book, START, book.plan(START, jobs), crew)
            folder = made(options.output / staged.PARTS)
            crew.take(Order(start, file=staged.FILE, named=staged.name_of(graph)))
            if not driver_of(options, book, crew, graph, folder, stop).run(START):
                return tell_end(book, START, False, options)
            changes = book.changes(START)
            chosen = staged.best(book.parts(), graph, changes, options.keep)
            tell_start(book, FINISH, book.plan(FINISH, [changes[part.job] for part in chosen]),
                       crew)
            crew.take(Order(finish, options.save, options.pictures,
                            named=staged.name_of(graph)))
            files = staged.files_for(book.parts(), folder, changes)
            whole = driver_of(options, book, crew, graph, picture_folder(options), stop,
                              files).run(FINISH)
            if whole:
                print(staged.savings(book, chosen))
            return tell_end(book, FINISH, whole, options)


def fit(options) -> int:
    found = plan.read(options.workflow, (fitting.FIT,))
    with fleet_at_work(options) as (crew, stop):
        graph = fitting.graph(plan.runnable(found, crew.object_info())[0])
        # A cluster that has lost or won a machine goes on with the parts that were begun.
        parts = options.parts or int(
            ledger.told(options.output, "parts") or fitting.usual_parts(graph, crew.size))
        jobs = list(fitting.jobs(graph, parts))
        with recorded(options, graph, f"fit in {parts} parts") as book:
            book.tell(parts=str(parts))
            tell_start(book, FIT, book.plan(FIT, jobs), crew)
            folder = made(options.output / staged.PARTS)
            crew.take(Order(graph, file=fitting.FILE, named=fitting.NAME))
            whole = driver_of(options, book, crew, graph, folder, stop).run(FIT)
            code = tell_end(book, FIT, whole, options)
            if code == 0:
                target = options.output / fitting.POSTERIOR
                print("\n".join(fitting.merged([folder / part.file for part in book.parts()],
                                               target)))
                print(f"posterior of {parts} parts: {target}")
            return code


def driver_of(options, book: Ledger, crew: Crew, graph, folder: Path | None, stop: Stop,
              files_for=lambda job: None) -> Driver:
    return Driver(book, crew, graph, folder, stop, options.retries,
                  Pace(options.timeout, options.least_timeout), files_for)


@contextlib.contextmanager
def fleet_at_work(options) -> Iterator[tuple[Crew, Stop]]:
    stop = Stop()
    place = place_of(options)
    with cluster.connected(options.address, options.workers, options.cpu) as (count, on_cpu):
        crew = Crew(cluster.comfyui_worker(place._replace(on_cpu=on_cpu)), count,
                    place.start_seconds)
        print(f"starting {count} ComfyUI server{'s' * (count > 1)} (10 to 60 s each)", flush=True)
        try:
            yield crew, stop
        finally:
            crew.stop()


def place_of(options) -> Place:
    named = options.comfyui or os.environ.get("COMFYUI_PATH") or os.environ.get("BAYESDIFF_HOST")
    if not named:
        raise FleetError("no ComfyUI is named: give --comfyui FOLDER, or set COMFYUI_PATH, or start"
                         " through run.py, which has one")
    host = absolute(named)
    if not options.address:
        if not (host / "main.py").is_file():
            raise FleetError(f"{host} holds no ComfyUI (main.py was expected): correct --comfyui")
        os.environ["COMFYUI_PATH"] = str(host)  # for workers of this machine
        if options.python:
            os.environ["COMFYUI_PYTHON"] = options.python
    python = options.python or os.environ.get("COMFYUI_PYTHON") or None
    base = str(absolute(options.base)) if options.base else None
    return Place(str(host), python, options.cpu, base, tuple(options.server_option),
                 options.start_timeout)


def absolute(path: str | Path) -> Path:
    """Its links stay as they are: another machine may have them elsewhere."""
    return Path(os.path.abspath(Path(path).expanduser()))


@contextlib.contextmanager
def recorded(options, graph: plan.Graph, kind: str) -> Iterator[Ledger]:
    """The output folder's ledger, if it is of this workflow."""
    mark = plan.mark(graph.prompt)
    with ledger.opened(options.output) as book:
        for name, now in (("workflow", mark), ("kind", kind)):
            then = book.about(name)
            if then not in (None, now):
                raise FleetError(f"{options.output} holds the results of another {name}: choose"
                                 " another folder with --output")
        book.tell(workflow=mark, kind=kind, name=options.workflow.name,
                  command=" ".join(sys.argv[1:]), pictures=options.pictures or PICTURES)
        if options.retry_failed:
            book.retry_failed()
        yield book


def picture_folder(options) -> Path | None:
    """None if the workers write them."""
    if options.pictures:
        return None
    return made(options.output / PICTURES)


def made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def tell_start(book: Ledger, stage: str, new: int, crew: Crew) -> None:
    counts = book.counts(stage)
    before = sum(counts.values()) - new
    print(f"{counts['waiting']} to do" + (f", {counts['done']} of {before} done before"
                                          if before else ""), flush=True)


def tell_end(book: Ledger, stage: str, whole: bool, options) -> int:
    counts = book.counts(stage)
    failures = book.failures()
    for number, changes, tries, error in failures[:10]:
        print(f"failed: job {number} ({_short(changes)}) after {tries} tries: {error}",
              file=sys.stderr)
    if len(failures) > 10:
        print(f"... and {len(failures) - 10} more, in the ledger", file=sys.stderr)
    print(f"{counts['done']} done, {counts['failed']} failed, {counts['waiting']} left:"
          f" {options.output}")
    if not whole:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    return 1 if failures else 0


def _short(changes: list) -> str:
    words = ", ".join(f"{c.node}.{c.name}={c.value}" for c in changes)
    return words if len(words) < 80 else words[:80] + "..."


def export_ledger(options) -> int:
    with ledger.read_only(options.folder) as book:
        count = export.write(book, options.to)
    print(f"{count} rows: {options.to}")
    return 0


def choose(options) -> int:
    """Imported here: it needs torch, which the others do without."""
    from fleet import choosing, gallery
    with ledger.read_only(options.folder) as book:
        url = book.about("pictures") or PICTURES
        rule = choosing.filtering.Rule(options.criterion, z=options.z, percent=options.percent,
                                       keep=options.keep, threshold=options.threshold)
        choice = choosing.choose(book, rule, options.score, options.taught)
        title = book.about("name") or options.folder.name
    source = options.folder / (PICTURES if "://" in url else url)
    missing = [each for each in choice.pictures if not (source / each.picture.file).is_file()]
    if missing:
        raise FleetError(f"{len(missing)} of {len(choice.pictures)} pictures are not in {source},"
                         f" such as {missing[0].picture.file}: fetch them there first"
                         + (f", from {url}" if "://" in url else ""))
    choosing.write(choice, source, options.folder, options.copies)
    page = gallery.write(choice, source, options.folder, title)
    print("\n".join(choice.notes[:20]))
    kept = sum(each.kept for each in choice.pictures)
    print(f"{kept} kept, {len(choice.pictures) - kept} rejected by {choice.name}: {page}")
    return 0


def status(options) -> int:
    with ledger.read_only(options.folder) as book:
        for stage in ledger.STAGES:
            counts = book.counts(stage)
            if any(counts.values()):
                print(f"{stage}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
        for at, worker, job, words in book.faults()[-options.faults:]:
            print(f"{time.strftime('%F %T', time.gmtime(at))}  {worker}  job {job}: {words}")
    return 0


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        arguments = ["draw", *arguments]
    parser = argparse.ArgumentParser(prog="fleet", description=(
        "Draws a workflow with BayesDiff nodes many times, on many ComfyUI servers."))
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, (function, summary, add) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(function=function)
        add(sub)
    options = parser.parse_args(arguments)
    if "output" in options and options.output is None:
        options.output = Path.cwd() / "output" / "fleet" / options.workflow.stem
    return options.function(options)


def add_drawing(sub) -> None:
    add_varied(sub)
    add_work(sub)
    sub.add_argument("--save", metavar="NODE", help="number or title of the node that saves the"
                     " pictures, if several do")
    sub.add_argument("--pictures", metavar="URL", type=_picture_url, help="where workers write"
                     " pictures themselves, any fsspec URL such as s3://bucket/run, or a folder"
                     " that all machines share (default: to the driver, which writes them to"
                     " OUTPUT/pictures)")


def _picture_url(words: str) -> str:
    """The same for every worker, wherever it runs; refused before anything is started."""
    try:
        import fsspec
        url = words if "://" in words else str(absolute(words))
        fsspec.core.url_to_fs(url)
    except Exception as error:  # no fsspec, nothing for this kind of URL, or its own errors
        raise FleetError(f"--pictures is {words!r}: {error}") from error
    return url


def _add_best(sub) -> None:
    add_drawing(sub)
    sub.add_argument("--keep", type=_count, required=True,
                     help="how many to finish, of each prompt")
    sub.add_argument("--stop-at", type=float, default=0.5, help="where all are ranked, as a share"
                     " of the steps (default: 0.5)")
    sub.add_argument("--rank-by", help="the score to rank by, lowest is best (default: Best of"
                     " N's own)")


def _add_fit(sub) -> None:
    sub.add_argument("workflow", type=Path, help="a workflow file with LLLA Fit in it")
    sub.set_defaults(pictures=None)
    add_work(sub)
    sub.add_argument("--parts", type=_count, help="how many (default: one for each worker,"
                     " with 8 latents or more)")


def add_varied(sub) -> None:
    sub.add_argument("workflow", type=Path, help="a workflow file, as ComfyUI saves or exports it")
    sub.add_argument("--seeds", help="FIRST:END, FIRST:END:STEP or a list such as 3,5,8")
    sub.add_argument("--seed-widget", metavar="NODE.WIDGET",
                     help="which widget gets the seeds, if there are several")
    sub.add_argument("--set", action="append", default=[], metavar="NODE.WIDGET=A|B",
                     help="values of another widget, every one with every seed; may be repeated")
    sub.add_argument("--csv", type=Path, help="a table with a column for each widget, a row for"
                     " each prompt or setting")


def add_work(sub) -> None:
    sub.add_argument("--output", type=lambda words: Path(words).resolve(),
                     help="folder of the ledger and the pictures; the same one goes on (default:"
                          " output/fleet/ and the workflow's name)")
    sub.add_argument("--workers", type=_count, help="how many servers (default: one for each GPU,"
                     " else 1)")
    sub.add_argument("--address", help="HOST:PORT of a Ray cluster (default: this machine alone)")
    sub.add_argument("--cpu", action="store_true", help="servers without a GPU, one CPU core each:"
                     " give --workers as many as there are cores to use")
    sub.add_argument("--comfyui", help="ComfyUI's folder, on each machine (default: COMFYUI_PATH)")
    sub.add_argument("--python", help="the Python that runs it (default: its own venv, else this)")
    sub.add_argument("--base", type=Path, help="folder with models, input and custom_nodes"
                     " (default: ComfyUI's)")
    sub.add_argument("--server-option", action="append", default=[], metavar="WORD",
                     help="for ComfyUI's command line, such as --server-option=--lowvram")
    sub.add_argument("--start-timeout", type=float, default=START_SECONDS, metavar="SECONDS",
                     help=f"for a server to start (default: {START_SECONDS})")
    sub.add_argument("--retries", type=_count, default=RETRIES,
                     help=f"how often a job may fail (default: {RETRIES})")
    sub.add_argument("--retry-failed", action="store_true",
                     help="try those again that failed for good")
    sub.add_argument("--timeout", type=float, default=FIRST_SECONDS, metavar="SECONDS",
                     help="for the first jobs; later ones get 20 times the usual pace"
                          f" (default: {FIRST_SECONDS})")
    sub.add_argument("--least-timeout", type=float, default=LEAST_SECONDS, metavar="SECONDS",
                     help=f"for any job (default: {LEAST_SECONDS})")


def _count(words: str) -> int:
    number = int(words)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{words} is less than 1")
    return number


def _add_export(sub) -> None:
    sub.add_argument("folder", type=Path)
    sub.add_argument("--to", type=Path, required=True, help="a .csv or .parquet file")


def _add_choose(sub) -> None:
    sub.add_argument("folder", type=Path)
    sub.add_argument("--criterion", default=CRITERIA[0], choices=CRITERIA,
                     help=f"as in Uncertainty Score Filter (default: {CRITERIA[0]})")
    sub.add_argument("--z", type=float, default=1.0)
    sub.add_argument("--percent", type=float, default=16.0)
    sub.add_argument("--keep", type=int, default=1, help="of each prompt")
    sub.add_argument("--threshold", type=float, default=0.0)
    sub.add_argument("--score", help="which score (default: the sampler's own)")
    sub.add_argument("--taught", type=Path, help="a file that Uncertainty Self-check taught:"
                     " its score is taken")
    sub.add_argument("--copies", action="store_true", help="copies in kept/ and rejected/, not"
                     " links")


def _add_status(sub) -> None:
    sub.add_argument("folder", type=Path)
    sub.add_argument("--faults", type=int, default=10, help="how many of the last ones to list")


COMMANDS = {
    "draw": (draw, "draw a workflow with many seeds or settings (the default command)",
             add_drawing),
    "best": (best, "start all seeds, finish only those that the model is surest of", _add_best),
    "fit": (fit, "fit a posterior, a share of the latents on each worker", _add_fit),
    "choose": (choose, "keep and reject by score, within prompts, and make a gallery page",
               _add_choose),
    "export": (export_ledger, "write a ledger as CSV or Parquet", _add_export),
    "status": (status, "what is done, what is left, what went wrong", _add_status),
}
