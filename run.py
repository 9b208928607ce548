#!/usr/bin/env python
"""Everything a developer or a newcomer runs. Standard library only.

    python run.py demo                  the story of the pack, in a real ComfyUI
    python run.py test                  all tests (or: core host pretend server neighbours
                                        browser fleet)
    python run.py test --all-hosts      host and server tests on every known ComfyUI
    python run.py test soak             the long ones, under half an hour
    python run.py test full             models as large as real ones, about as long
    python run.py serve                 ComfyUI with this pack, in your browser
    python run.py fleet FILE --seeds 0:1000 --output DIR
                                        many pictures on many servers (docs/fleet.md)
    python run.py bench accuracy        a benchmark of benchmarks/
    python run.py setup                 only set up
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 - before any import that needs it
    sys.exit(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}:"
             " run it with another, for example python3.12 run.py")

from tools import browser, environment, reports, server
from tools.places import REPOSITORY, cache_folder

TIERS = ["core", "host", "pretend", "server", "neighbours", "browser", "fleet"]
FOLDERS = {"fleet": "cluster"}  # of tests, where it is not the tier's name: that is a package
# Beside the newest host, these on the oldest: each group is a process of its own.
ON_THE_OLDEST = [["server/test_server.py", "server/test_llla.py", "server/test_workflows.py"],
                 ["host/test_pack.py", "host/test_bit_identity.py"]]
# These run beside the others, a core for each lane: they take about as long. In this order: a fleet
# starts servers of its own, which would be in the way of the browser, the last of the others.
BESIDE = ("pretend", "fleet", "host", "oldest host")
SOAK = [["host/test_bad_files.py", "host/test_clean_up.py", "host/test_numbers.py"], ["soak"]]


def main() -> int:
    options = _parse()
    signal.signal(signal.SIGTERM, _stop)  # a polite kill cleans up as Ctrl-C does
    # A script's background job has this one ignored, and so would all that it starts.
    signal.signal(signal.SIGINT, _stop)
    # Else PyTorch's threads wait for each other busily, for minutes where others have a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        host = environment.host_folder(options.host_version)
        python = environment.python_for(host, development=options.command in (test, bench))
        return options.command(options, host, python) or 0
    except (environment.SetupError, browser.BrowserMissing, server.ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def setup(options, host, python) -> None:
    print(f"ComfyUI  {host}\nPython   {python}")


def demo(options, host, python) -> int:
    arguments = ["--output", str(options.output.resolve()), "--name", options.name, *options.readme,
                 *(() if options.seed is None else ("--seed", str(options.seed)))]
    return _run(python, ["-m", "tools.demo", *arguments], host)


def test(options, host, python) -> int:
    """Core tests run where no host can be imported, which proves that the core needs none."""
    if options.all_hosts:
        return _test_all_hosts(options)
    if "soak" in options.tiers:
        return _soak(options, host, python)
    if "full" in options.tiers:
        return _full(options, host, python)
    tiers = TIERS if options.tiers in ([], ["all"]) else options.tiers
    if options.no_browser:
        tiers = [tier for tier in tiers if tier != "browser"]
    environ = {}
    if "browser" in tiers:
        environ["BAYESDIFF_CHROMIUM"] = browser.chromium()
    # name, where, what: one after the other
    jobs = [(tier, None if tier == "core" else host,
             _with_ray(python, environ, development=True) if tier == "fleet" else python,
             [FOLDERS.get(tier, tier)]) for tier in tiers]
    if not (options.tiers or options.pytest_options or options.host_version
            or os.environ.get("COMFYUI_PATH")):
        oldest = environment.host_folder(next(iter(environment.HOSTS)))
        jobs += [("oldest host", oldest, environment.python_for(oldest, development=True), group)
                 for group in ON_THE_OLDEST]

    def start(job, output):
        name, where, interpreter, paths = job
        print(f"== {name} tests on {(where or host).name}", file=output, flush=True)
        return _start_tests(options, where, interpreter, paths, environ, output=output)

    lanes = [[job for job in jobs if job[0] not in BESIDE],
             [job for name in BESIDE for job in jobs if job[0] == name]]
    if all(lanes):
        environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryFile("a+") as heard:
        failed = _side_by_side(_Lane(start, lanes[0]),
                               _Lane(start, lanes[1], heard if lanes[0] else None))
        heard.seek(0)
        print(heard.read(), end="", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


class _Lane:
    """Jobs one after the other; what they say may go to a file."""

    def __init__(self, start, jobs: Iterable, output=None, ended=lambda job: None):
        self._start, self._jobs, self._output, self._ended = start, jobs, output, ended
        self._running, self._stopped = None, False
        self.failed = []

    def run(self) -> None:
        for job in self._jobs:
            if self._stopped:
                return
            self._running = self._start(job, self._output)
            if self._running.wait():
                self.failed.append(job[0])
            if not self._stopped:
                self._ended(job)

    def stop(self) -> None:
        self._stopped = True
        if self._running:
            _let_finish(self._running)


def _side_by_side(first: _Lane, second: _Lane) -> list[str]:
    """The names of the jobs that failed."""
    thread = threading.Thread(target=second.run)
    thread.start()
    try:
        first.run()
        while thread.is_alive():
            thread.join(1)
    except KeyboardInterrupt:
        for lane in (first, second):
            lane.stop()
        raise
    return first.failed + second.failed


def _test_all_hosts(options) -> int:
    """A tier on each of two cores. Writes docs/compatibility.md anew as soon as a version is
    through, so that a long run is not lost."""
    tiers = options.tiers or ["host", "server"]
    places, found, over, lock = {}, {}, set(), threading.Lock()
    for version in environment.HOSTS:
        try:
            host = environment.host_folder(version)
            places[version] = host, environment.python_for(host, development=True)
        except environment.SetupError as error:
            print(f"error: ComfyUI {version}: {error}", file=sys.stderr)
            found[version] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def start(job, _):
            version, tier = job
            print(f"== {tier} tests on {version}: begun", flush=True)
            with (folder / f"{version} {tier}.log").open("w") as output:
                return _start_tests(options, *places[version], [tier], {"OMP_NUM_THREADS": "1"},
                                    ["--junitxml", str(folder / f"{version} {tier}.xml")], output)

        def ended(job):
            version, tier = job
            said = (folder / f"{version} {tier}.log").read_text()
            with lock:
                print(f"== {tier} tests on {version}", said, sep="\n", flush=True)
                over.add(job)
                if not all((version, each) in over for each in tiers):
                    return
                found[version] = [result for each in tiers for result
                                  in reports.results(folder / f"{version} {each}.xml")]
                reports.write_compatibility(
                    {each: found[each] for each in environment.HOSTS if each in found}, tiers,
                    " ".join(options.pytest_options[1:]))

        # Both lanes take from one list.
        jobs = iter([(version, tier) for version in places for tier in tiers])
        _side_by_side(_Lane(start, jobs, None, ended), _Lane(start, jobs, None, ended))
    return sum(not results or any(result.outcome == "failed" for result in results)
               for results in found.values())


def _soak(options, host, python) -> int:
    """The long versions of tests, on one core; writes docs/reliability.md."""
    environ = {"BAYESDIFF_SOAK": "1", "OMP_NUM_THREADS": "1"}
    found = [result for group in SOAK
             for result in _results(options, host, python, group, environ)]
    reports.write_reliability(found, host.name)
    return sum(result.outcome == "failed" for result in found) or not found


def _full(options, host, python) -> int:
    """Large models, on one core; writes docs/full_size.md, with -k the rows of those that ran."""
    found = _results(options, host, python, ["full"], {"OMP_NUM_THREADS": "1"})
    reports.write_full_size(found, host.name)
    return sum(result.outcome == "failed" for result in found) or not found


def _results(options, host, python, paths, environ) -> list[reports.Result]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.xml"
        _wait(_start_tests(options, host, python, paths, environ, ["--junitxml", str(file)]))
        return reports.results(file)


def _start_tests(options, host, python, paths, environ, more=(), output=None) -> subprocess.Popen:
    return _start(python, ["-m", "pytest", *(f"tests/{path}" for path in paths), "--rootdir",
                           "tests", "-c", "tests/pytest.ini", *more, *options.pytest_options],
                  host, environ, output)


def serve(options, host, python) -> None:
    with server.running(host, python, cache_folder() / "serve", port=options.port,
                        on_cpu=options.cpu, log=None) as address:
        print(f"\nComfyUI with BayesDiff: {address}   (Ctrl-C stops it)", flush=True)
        server.wait()


def fleet(options, host, python) -> int:
    environ = {"PYTHONPATH": str(REPOSITORY)}
    return _wait(_start(_with_ray(python, environ), ["-m", "fleet", *options.rest], host, environ,
                        folder=Path.cwd()))


def _with_ray(python: Path, environ: dict, development: bool = False) -> Path:
    """The Python for the driver and its workers; their servers keep the one without Ray."""
    environ["COMFYUI_PYTHON"] = str(python)
    return environment.python_for_fleet(development)


def bench(options, host, python) -> int:
    names = sorted(p.stem.removeprefix("bench_") for p in REPOSITORY.glob("benchmarks/bench_*.py"))
    if options.name not in names:
        raise environment.SetupError(f"no benchmark {options.name!r}: choose one of {names}")
    environ = {}
    if options.name == "fleet":
        python = _with_ray(python, environ, development=True)
    return _wait(_start(python, ["-m", f"benchmarks.bench_{options.name}", *options.rest], host,
                        environ))


def _run(python, arguments, host) -> int:
    return _wait(_start(python, arguments, host))


def _start(python, arguments, host, environ=None, output=None,
           folder=REPOSITORY) -> subprocess.Popen:
    environ = {**os.environ, **(environ or {}), "PYTHONUNBUFFERED": "1"}
    environ.pop("BAYESDIFF_HOST", None)
    if host is not None:
        environ["BAYESDIFF_HOST"] = str(host)
    return subprocess.Popen([str(python), *arguments], cwd=folder, env=environ, stdout=output,
                            stderr=output)


def _wait(process: subprocess.Popen) -> int:
    try:
        return process.wait()
    except KeyboardInterrupt:
        _let_finish(process)
        raise


def _stop(*_) -> None:
    raise KeyboardInterrupt


def _let_finish(process: subprocess.Popen) -> None:
    """It may have a server to stop. A terminal's Ctrl-C reached it too; a signal to us did not."""
    if _ended(process, 5):
        return
    process.send_signal(signal.CTRL_C_EVENT if os.name == "nt" else signal.SIGINT)
    if not _ended(process, 20):
        process.kill()


def _ended(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
        return True
    except subprocess.TimeoutExpired:
        return False


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(function, summary):
        sub = commands.add_parser(function.__name__, help=summary)
        sub.set_defaults(command=function)
        sub.add_argument("--host-version", metavar="X.Y.Z",
                         help="ComfyUI version (default: COMFYUI_PATH if set, else"
                              f" {environment.DEFAULT_HOST}); one of"
                              f" {', '.join(environment.HOSTS)}")
        return sub

    command(setup, "make the environment and unpack the host, then stop")
    demoing = command(demo, "draw, find what is wrong, mend it: in a real ComfyUI")
    demoing.add_argument("--output", type=Path, default=REPOSITORY / "output", metavar="DIR",
                         help="where the pictures go (default: output/)")
    demoing.add_argument("--name", default="hand", choices=["hand", "die", "smiley"],
                         help="what to draw (default: hand)")
    demoing.add_argument("--seed", type=int, help="of the pictures (default: the templates')")
    demoing.add_argument("--readme", action="store_const", const=["--readme"], default=[],
                         help="also make the pictures of README.md, in docs/images")
    tests = command(test, "run the tests")
    tests.add_argument("tiers", nargs="*", choices=[*TIERS, "soak", "full", "all", []],
                       default=[], help="which tiers (default: all but soak and full)")
    tests.add_argument("--all-hosts", action="store_true",
                       help="on every known ComfyUI; writes docs/compatibility.md")
    tests.add_argument("--no-browser", action="store_true", help="leave the browser tier out")
    tests.add_argument("-k", dest="pytest_options", type=lambda words: ["-k", words], default=[],
                       help="only tests whose name matches")
    serving = command(serve, "start ComfyUI with this pack")
    serving.add_argument("--port", type=int, default=8188, help="port (default: 8188)")
    serving.add_argument("--cpu", action="store_true", help="do not use a GPU")
    at_work = command(fleet, "draw on many servers; see python run.py fleet draw --help")
    at_work.add_argument("rest", nargs=argparse.REMAINDER,
                         help="a workflow and options; or best, fit, choose, export, status")
    benching = command(bench, "run a benchmark")
    benching.add_argument("name", help="which one")
    benching.add_argument("rest", nargs=argparse.REMAINDER, help="options of the benchmark")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
