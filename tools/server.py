"""A real ComfyUI server with this pack in it, on 127.0.0.1. Standard library only."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.places import REPOSITORY

BOOT_SECONDS = 180
PACK = "ComfyUI-BayesDiff"


class ServerFailed(Exception):
    """The server did not come up, or a prompt failed on it."""

    def __init__(self, words: str, body: object = None):
        super().__init__(words)
        self.body = body  # of an HTTP error, where it is JSON


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def prepare(base: Path) -> None:
    """A base directory whose custom_nodes holds this checkout, as a git clone would."""
    link = base / "custom_nodes" / PACK
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.resolve() == REPOSITORY:
        return
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        shutil.rmtree(link)
    try:
        link.symlink_to(REPOSITORY, target_is_directory=True)
    except OSError:  # Windows without the right to make links
        shutil.copytree(REPOSITORY, link, ignore=shutil.ignore_patterns(".git", "__pycache__"))


@contextmanager
def running(host: Path, python: Path, base: Path, *, port: int = 0, on_cpu: bool = True,
            log: Path | None, options: list[str] = (), before: list[str] = (),
            seconds: float = BOOT_SECONDS) -> Iterator[str]:
    """Yields the server's address once it answers; stops the server afterwards.

    Its output goes to `log`, or to the terminal if that is None. `before` runs the server's
    command; its stdin is closed when this process is gone.
    """
    prepare(base)
    port = port or free_port()
    if _answers(port):
        raise ServerFailed(f"port {port} is in use by another program: stop it, or choose another"
                           " with --port")
    # A set COMFYUI_PATH and PYTHONPATH are for us, not for the server.
    environ = {k: v for k, v in os.environ.items() if k not in ("COMFYUI_PATH", "PYTHONPATH")}
    command = [*before, str(python), str(host / "main.py"), "--base-directory", str(base), "--port",
               str(port), "--listen", "127.0.0.1", "--disable-api-nodes",
               *(["--cpu"] if on_cpu else []), *options]
    output = open(log, "w") if log else None
    process = subprocess.Popen(command, cwd=host, env=environ, stdout=output, stderr=output,
                               stdin=subprocess.PIPE if before else None)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(address, process, log, seconds)
        yield address
    finally:
        _stop(process)
        if output:
            output.close()


def wait() -> None:
    """Blocks until Ctrl-C."""
    while True:
        time.sleep(1)


def _wait_until_up(address: str, process: subprocess.Popen, log: Path | None,
                   seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise ServerFailed(f"ComfyUI stopped with code {process.returncode} while starting"
                               + _tail(log))
        try:
            urllib.request.urlopen(address + "/system_stats", timeout=5).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise ServerFailed(f"ComfyUI did not answer within {seconds:.0f} s" + _tail(log))


def _tail(log: Path | None) -> str:
    return "" if log is None else ":\n" + "\n".join(log.read_text().splitlines()[-15:])


def _stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(address: str, path: str, body: dict | None = None, seconds: float = 60) -> dict:
    """GET, or POST of a JSON body; an HTTP error becomes ServerFailed with the server's words."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data=data,
                                     headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        words, body = error.read().decode(errors="replace"), None
        with suppress(ValueError):
            body = json.loads(words)
        raise ServerFailed(f"{path}: HTTP {error.code}: {words}", body) from error


def run_prompt(address: str, prompt: dict, seconds: float = 300,
               extra_data: dict | None = None) -> dict:
    """Queues an API-format prompt, waits for it, and gives its outputs by node."""
    body = {"prompt": prompt, "extra_data": extra_data or {}}
    answer = ask(address, "/prompt", body)
    number = answer["prompt_id"]
    if answer["node_errors"]:  # the host leaves out what depends on these and runs the rest
        raise ServerFailed(f"refused in part: {json.dumps(answer['node_errors'])}")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        entry = ask(address, f"/history/{number}").get(number)
        if entry:
            return outputs_of(entry)
        time.sleep(0.2)
    raise ServerFailed(f"the prompt did not finish within {seconds:.0f} s")


def outputs_of(entry: dict) -> dict:
    """What a prompt's entry in /history holds, by node; its error is raised."""
    if entry["status"]["completed"]:
        return entry["outputs"]
    errors = [m[1] for m in entry["status"]["messages"] if m[0].startswith("execution_")]
    failed = [m for m in errors if "exception_message" in m] or errors
    words = failed[-1].get("exception_message", failed[-1]) if failed else entry["status"]
    raise ServerFailed(f"the prompt failed: {words}")
