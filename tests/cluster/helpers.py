"""What tests of the fleet share: a small workflow, the command line, who runs."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from PIL import Image

from fleet import ledger
from tools.places import REPOSITORY

PATIENCE = 240  # seconds for what takes a few: the machine may be busy
SECOND = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 200 * 2**20}


def dice(steps=12) -> dict:
    """A picture of the demo model, in the API format."""
    def node(kind, **inputs):
        return {"class_type": kind, "inputs": inputs}
    return {
        "1": node("BayesDiff_DemoModel"), "2": node("BayesDiff_DemoPrompt", name="die"),
        "3": node("BayesDiff_DemoPrompt", name="nothing"),
        "4": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "5": node("BayesDiff_KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0],
                  latent_image=["4", 0], seed=0, steps=steps, cfg=2.5, sampler_name="euler",
                  scheduler="normal", denoise=1.0, mode="free", check="off"),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 1]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="die")}


class one_thread:
    """As Ray gives a worker with one CPU: sums in another order would be other bits."""

    def __enter__(self):
        self._before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"

    def __exit__(self, *_):
        os.environ.pop("OMP_NUM_THREADS")
        if self._before:
            os.environ["OMP_NUM_THREADS"] = self._before


def pixels(file) -> bytes:
    return Image.open(io.BytesIO(file) if isinstance(file, bytes) else file).tobytes()


class Fleet:
    """The command line in a process of its own."""

    def __init__(self, *arguments, folder: Path):
        self.folder = folder
        self._log = open(folder.parent / f"{folder.name}.log", "a+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fleet", *map(str, arguments), "--output", str(folder)],
            cwd=REPOSITORY, stdout=self._log, stderr=self._log)

    def rows(self) -> list:
        try:
            with ledger.read_only(self.folder) as book:
                return list(book.pictures())
        except Exception:
            return []  # not there yet

    def until(self, count: int) -> None:
        wait_for(lambda: len(self.rows()) >= count or self.process.poll() is not None)
        assert len(self.rows()) >= count, self.said()

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()


def wait_for(condition, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def servers() -> list[psutil.Process]:
    """ComfyUI servers that workers on our cluster own."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any("bayesdiff-fleet-" in word for word in words) and "guard.py" not in words[1] \
                and _is_ours(process):
            found.append(process)
    return found


def _is_ours(process: psutil.Process) -> bool:
    try:
        # One that outlived its guard would have no parent of ours any more.
        return process.ppid() == 1 or any(parent.pid == os.getpid() for parent in process.parents())
    except psutil.NoSuchProcess:
        return False


def actor_of(server: psutil.Process) -> psutil.Process:
    """server <- guard <- worker"""
    return server.parent().parent()


def ours(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]
