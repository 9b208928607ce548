"""Hundreds of prompts on one server, with cancels at random: none is lost, and memory stays."""

import asyncio
import json
import random
import statistics
import sys
import threading
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.conftest import Server, write_tiny_models
from tests.server.conftest import write_data_sets
from tests.server.graphs import STEPS, fit_prompt, graph, node
from tools import server as real_server
from tools.server import ask, run_prompt

PROMPTS, WARM = 500, 50
MOST_WAITING = 12
MOST_FILES = 2000  # for the browser, of which each prompt has a dozen
FLAT = 0.02
ENDS = {"execution_success": "success", "execution_interrupted": "interrupted",
        "execution_error": "error"}


class Tab(threading.Thread):
    """A browser tab, as the server sees it: hears how its prompts end."""

    def __init__(self, address: str, name: str):
        super().__init__(daemon=True)
        self.name, self.ended, self._closed = name, {}, threading.Event()
        self._address = address.replace("http", "ws") + f"/ws?clientId={name}"
        self.start()

    def run(self):
        asyncio.run(self._listen())

    async def _listen(self):
        async with aiohttp.ClientSession() as session, session.ws_connect(self._address) as socket:
            while not self._closed.is_set():
                try:
                    message = await socket.receive(timeout=0.5)
                except asyncio.TimeoutError:
                    continue
                if message.type == aiohttp.WSMsgType.TEXT:
                    said = json.loads(message.data)
                    if said["type"] in ENDS:
                        self.ended[said["data"]["prompt_id"]] = ENDS[said["type"]]

    def close(self):
        self._closed.set()
        self.join(10)


class Load:
    """Queues prompts one by one and cancels some."""

    def __init__(self, server: Server, seed: int):
        self.server, self.dice = server, random.Random(seed)
        self.tabs = [Tab(server.address, name) for name in ("first", "second")]
        self.owner, self.deleted, self.history, self.memory = {}, set(), {}, []
        self._process = next(child for child in psutil.Process().children()
                             if str(server.base) in child.cmdline())

    def run(self, prompts, cancels=True) -> None:
        for number, prompt in enumerate(prompts):
            tab = self.tabs[number % 2]
            body = {"prompt": prompt, "client_id": tab.name}
            self.owner[ask(self.server.address, "/prompt", body)["prompt_id"]] = tab
            if cancels and self.dice.random() < 0.12:
                ask(self.server.address, "/interrupt", {})
            if cancels and self.dice.random() < 0.12:
                self._delete_one()
            self._wait(MOST_WAITING)
            self._take_history()
            self.memory.append(self._process.memory_info().rss)
        self._wait(0)
        self._take_history()

    def _delete_one(self) -> None:
        waiting = ask(self.server.address, "/queue")["queue_pending"]
        if waiting:
            chosen = self.dice.choice(waiting)[1]
            ask(self.server.address, "/queue", {"delete": [chosen]})
            self.deleted.add(chosen)

    def _take_history(self) -> None:
        """The server keeps every graph with its outputs, which would hide a leak of ours."""
        found = ask(self.server.address, "/history")
        ask(self.server.address, "/history", {"delete": list(found)})
        self.history |= found

    def _wait(self, most: int) -> None:
        end = time.monotonic() + 300
        while ask(self.server.address, "/prompt")["exec_info"]["queue_remaining"] > most:
            assert time.monotonic() < end, "the queue does not move"
            time.sleep(0.02)

    def ends(self) -> dict[str, int]:
        """How many prompts ended how. Each has ended, and its tab was told so."""
        time.sleep(1)
        for tab in self.tabs:
            tab.close()
        counts = {}
        for number, tab in self.owner.items():
            if number in self.history:
                told = [ENDS[kind] for kind, _ in self.history[number]["status"]["messages"]
                        if kind in ENDS]
                (end,) = told
                assert tab.ended[number] == end
            else:
                assert number in self.deleted, "a prompt was lost"
                end = "deleted"
            counts[end] = counts.get(end, 0) + 1
        return counts

    def growth(self) -> float:
        """Resident memory of the last prompts against that of the first ones after WARM."""
        early, late = self.memory[WARM:2 * WARM], self.memory[-WARM:]
        return statistics.median(late) / statistics.median(early) - 1


def ours(dice: random.Random) -> dict:
    """One of several graphs, of one of several models."""
    name, mode = dice.choice(["sd3", "flux", "wan"]), dice.choice(["free", "light", "accurate"])
    custom = dice.random() < 0.3
    prompt = graph(name, mode, custom=custom)
    for key in ("save_stock", "save_ours", "save_var", "stock"):
        del prompt[key]
    if mode == "free":
        del prompt["ours"]["inputs"]["posterior"], prompt["fit"]
    if custom:
        prompt["noise"]["inputs"]["noise_seed"] = dice.randrange(2**32)
    else:
        prompt["ours"]["inputs"]["seed"] = dice.randrange(2**32)
    prompt["more"] = node("BayesDiff_ResampleFromTimestep", trajectory=["ours", 2], step=-1,
                          fraction=0.5, count=1, strength=0.3, strength_unit="noise level",
                          draw="deviations", seed=dice.randrange(2**32))
    prompt["told"] = node("PreviewAny", source=["more", 1])
    return prompt


def stock(dice: random.Random) -> dict:
    """The host's own nodes alone."""
    name = dice.choice(["sd3", "flux", "wan"])
    prompt = {key: part for key, part in graph(name, "free").items()
              if key in ("model", "data", "empty")}
    prompt["stock"] = node("KSampler", **{**STEPS, "seed": dice.randrange(2**32)},
                           model=["model", 0], positive=["data", 1], negative=["data", 1],
                           latent_image=["empty", 0])
    prompt["told"] = node("PreviewAny", source=["stock", 0])
    return prompt


def some(make, count: int, seed: int):
    dice = random.Random(seed)
    return [make(dice) for _ in range(count)]


@pytest.fixture
def started(host, tmp_path_factory):
    """A server with these options; all share one folder of models."""
    models = tmp_path_factory.getbasetemp() / "shared_models"
    if not models.exists():
        write_tiny_models(host, models / "diffusion_models")

    def start(*options):
        base = tmp_path_factory.mktemp("comfyui")
        (base / "models").symlink_to(models)
        write_data_sets(base)
        log = base / "server.log"
        return real_server.running(host, Path(sys.executable), base, log=log,
                                   options=list(options)), base, log
    return start


def loaded(started, make, count, *options, cancels=True) -> tuple[dict, float, Load]:
    running, base, log = started(*options)
    with running as address:
        load = Load(Server(address, log, base), seed=7)
        load.run(some(make, count, 3), cancels)
        counts = load.ends()
        run_prompt(address, fit_prompt("sd3"))  # it still works
    return counts, load.growth() if count > 3 * WARM else 0.0, load


def test_no_prompt_is_lost_and_memory_stays(started, tried):
    counts, growth, load = loaded(started, ours, PROMPTS)
    _, alone, _ = loaded(started, stock, 4 * WARM, cancels=False)
    plots = list((load.server.base / "temp").glob("*.png"))  # of fits, as the host previews images
    pictures = list((load.server.base / "temp" / "bayesdiff").iterdir())
    tried("queued prompts, cancelled at random, two tabs", PROMPTS, ends=json.dumps(counts),
          resident_memory_without_history=f"{growth:+.1%} (the host alone: {alone:+.1%}) of"
                                          f" {load.memory[-1] / 1e6:.0f} MB",
          temporary_files=f"{len(pictures)} for the browser, {len(plots)} plots of fits")
    assert sum(counts.values()) == PROMPTS and "error" not in counts
    assert min(counts.get(end, 0) for end in ("success", "interrupted", "deleted")) > 0
    assert growth < FLAT
    assert len(pictures) <= MOST_FILES and len(plots) <= PROMPTS
    assert not list(load.server.base.rglob("*.part"))


@pytest.mark.parametrize("options", [["--cache-none"], ["--cache-lru", "4"], ["--cache-classic"]],
                         ids=" ".join)
def test_every_cache_mode_works(started, tried, options):
    counts, _, _ = loaded(started, ours, 24, *options)
    assert sum(counts.values()) == 24 and "error" not in counts and counts["success"] > 10
    tried("prompts in other cache modes", 24)
