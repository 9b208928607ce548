"""Models as large as users have them, with random weights, in a real server: the shipped workflow
beside the stock sampler. Half an hour on one core; `python run.py test full` writes
docs/full_size.md.
"""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.server.graphs import node
from tools import server as real_server
from tools import workflow
from tools.make_workflows import EXAMPLES
from tools.places import REPOSITORY, cache_folder
from tools.server import ask, run_prompt

GB = 1e9
LIMIT = 1800  # seconds that a prompt may take
CALIBRATE, FLUX = "6 Calibrate your checkpoint", "7 Flux"
DATA = {"data": node("LoadTrainingDataset", folder_name="prompts")}


class Family(NamedTuple):
    label: str
    drawn: str
    steps: int
    memory: float  # gigabytes that have to be free
    disk: float
    prompt: tuple[int, ...] = ()  # shape of a prompt's tokens, where no text encoder makes it
    latent: tuple[int, ...] = ()  # shape of a latent to fit on, where the model draws none itself
    options: tuple[str, ...] = ()  # of the server
    check: str = "auto"  # which is off at so few steps


FAMILIES = {
    "sd15 fp8": Family("SD1.5, U-Net in fp8", "128 x 128", 3, 5, 4, latent=(1, 4, 16, 16),
                       options=("--fp8_e4m3fn-unet",), check="quick"),
    "sd15": Family("SD1.5", "512 x 512", 2, 7, 4),
    "sdxl": Family("SDXL", "256 x 256", 2, 11, 9, latent=(1, 4, 32, 32),
                   options=("--fp16-unet",)),
    "flux 4B": Family("Flux's width, a third of its depth", "128 x 128", 2, 8, 6,
                      prompt=(1, 32, 4096), latent=(1, 16, 16, 16)),
    "wan": Family("Wan 2.1, 1.3 B", "17 frames of 64 x 64", 2, 9, 5, prompt=(1, 32, 4096),
                  latent=(1, 16, 5, 8, 8)),
}


class Graphs:
    """Of one family: each a prompt in the API's format."""

    def __init__(self, name: str, object_info: dict):
        self.name, self.family, self._info = name, FAMILIES[name], object_info
        made = {"flux 4B": self._flux, "wan": self._wan}.get(name, self._calibrate)
        self.light = made()
        self._sampler = self._of("BayesDiff_KSampler") or self._of("BayesDiff_SamplerCustom")
        self.light[self._sampler]["inputs"]["mode"] = "light"
        self.light["latent"] = node("SaveLatent", samples=[self._sampler, 0],
                                    filename_prefix="ours")

    def _shipped(self, name: str) -> dict:
        """The example as it is, but for what is set here."""
        return workflow.api_prompt(workflow.read(EXAMPLES / f"{name}.json"), self._info)

    def _calibrate(self) -> dict:
        self.light = self._shipped(CALIBRATE)
        side = int(self.family.drawn.split()[0])
        if self.name == "sdxl":
            self._set("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors")
        self._set("EmptyLatentImage", width=side, height=side)
        self._set("BayesDiff_KSampler", steps=self.family.steps, check=self.family.check)
        if not self.family.latent:  # the model's own samples are 20 steps, whatever they are for
            self._set("BayesDiff_LLLAFit", num_latents=8, size=128)
            return self.light
        self._set("BayesDiff_LLLAFit", num_latents=2, latents=["data", 0])
        return {**self.light, **copy.deepcopy(DATA)}

    def _flux(self) -> dict:
        self.light = self._shipped(FLUX)
        for kind in ("DualCLIPLoader", "CLIPTextEncode"):
            del self.light[self._of(kind)]
        self._set("FluxGuidance", conditioning=["data", 1])
        self._set("UNETLoader", weight_dtype="fp8_e4m3fn")
        self._set("EmptySD3LatentImage", width=128, height=128)
        self._set("BayesDiff_LLLAFit", num_latents=2, latents=["data", 0])
        self._set("BasicScheduler", steps=self.family.steps)
        return {**self.light, **copy.deepcopy(DATA)}

    def _wan(self) -> dict:
        prompts = {"positive": ["data", 1], "negative": ["data", 1]}
        kinds = {
            "model": ("UNETLoader", {"unet_name": "wan2.1_t2v_1.3B_fp16.safetensors"}),
            "vae": ("VAELoader", {"vae_name": "wan_2.1_vae.safetensors"}),
            "empty": ("EmptyHunyuanLatentVideo", {"width": 64, "height": 64, "length": 17}),
            "fit": ("BayesDiff_LLLAFit", {"model": ["model", 0], "positive": ["data", 1],
                                          "latents": ["data", 0], "num_latents": 2}),
            "save": ("BayesDiff_LLLASave", {"posterior": ["fit", 0]}),
            "sampler": ("BayesDiff_KSampler", {
                "model": ["model", 0], **prompts, "latent_image": ["empty", 0],
                "posterior": ["fit", 0], "steps": self.family.steps, "cfg": 6.0,
                "sampler_name": "euler", "scheduler": "simple"}),
            "picture": ("VAEDecode", {"samples": ["sampler", 0], "vae": ["vae", 0]}),
            "heat": ("BayesDiff_UncertaintyHeatmap", {
                "trajectory": ["sampler", 2], "vae": ["vae", 0], "image": ["picture", 0]}),
            "overlay": ("SaveImage", {"images": ["heat", 0]})}
        return {**copy.deepcopy(DATA), **{key: node(kind, **{**self._defaults(kind), **given})
                                          for key, (kind, given) in kinds.items()}}

    def _defaults(self, kind: str) -> dict:
        found = {}
        for name, (port, options) in workflow.ports(self._info[kind]).items():
            if port in workflow.WIDGETS and not options.get("forceInput"):
                found[name] = options.get("default", (options.get("options") or [""])[0])
        return found

    def _of(self, kind: str) -> str | None:
        return next((key for key, each in self.light.items() if each["class_type"] == kind), None)

    def _set(self, kind: str, **inputs) -> None:
        self.light[self._of(kind)]["inputs"].update(inputs)

    def loading(self) -> dict:
        """Weights in memory, and nothing drawn yet."""
        source = [self._of("CheckpointLoaderSimple") or self._of("UNETLoader"), 0]
        return self._needed({**self.light, "told": node("PreviewAny", source=source)}, ["told"])

    def stock(self) -> dict:
        """The same picture by the host's own sampler."""
        prompt = copy.deepcopy(self.light)
        ours = prompt[self._sampler]
        kind = {"BayesDiff_KSampler": "KSampler"}.get(ours["class_type"], "SamplerCustomAdvanced")
        known = workflow.ports(self._info[kind])
        prompt[self._sampler] = node(kind, **{name: value for name, value in ours["inputs"].items()
                                              if name in known})
        decoded = self._of("VAEDecode")
        prompt["seen"] = node("PreviewImage", images=[decoded, 0])
        prompt["latent"]["inputs"]["filename_prefix"] = "stock"
        return self._needed(prompt, ["latent", "seen"])

    def shipped(self) -> dict:
        """Fits, keeps the posterior, draws in mode light and shows the map."""
        if not self._of("BayesDiff_LLLASave"):
            fit = self._of("BayesDiff_LLLAFit")
            self.light["keep"] = node("BayesDiff_LLLASave",
                                      **{**self._defaults("BayesDiff_LLLASave"),
                                         "posterior": [fit, 0]})
        return self.light

    def accurate(self, posterior: str) -> dict:
        """With the posterior out of its file; keeps the trajectory, and shows nothing."""
        prompt = copy.deepcopy(self.light)
        prompt["file"] = node("BayesDiff_LLLALoad", **{**self._defaults("BayesDiff_LLLALoad"),
                                                       "file": posterior})
        prompt[self._sampler]["inputs"].update(mode="accurate", check="off",
                                               posterior=["file", 0])
        prompt["keep"] = node("BayesDiff_TrajectorySave", trajectory=[self._sampler, 2],
                              filename_prefix="full", overwrite=True)
        return self._needed(prompt, ["latent", "keep"])

    @staticmethod
    def again(trajectory: str) -> dict:
        """The last state of a trajectory out of its file."""
        return {"file": node("BayesDiff_TrajectoryLoad", file=trajectory),
                "end": node("BayesDiff_TrajectoryAtStep", trajectory=["file", 0], step=-1,
                            fraction=1.0),
                "latent": node("SaveLatent", samples=["end", 0], filename_prefix="again")}

    @staticmethod
    def _needed(prompt: dict, wanted: list[str]) -> dict:
        """Those nodes, and what they need."""
        found, waiting = {}, list(wanted)
        while waiting:
            key = waiting.pop()
            if key not in found:
                found[key] = prompt[key]
                waiting += [value[0] for value in prompt[key]["inputs"].values()
                            if isinstance(value, list)]
        return found


class Cost(NamedTuple):
    seconds: float  # of the server's CPU time
    memory: float  # gigabytes, the most


class Watched:
    """What the server's process takes while a prompt runs."""

    def __init__(self, address: str, base: Path):
        self.address, self.base = address, base
        self._process = next(child for child in psutil.Process().children()
                             if str(base) in child.cmdline())

    def run(self, prompt: dict) -> tuple[dict, Cost]:
        most, done = [0.0], threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                most[0] = max(most[0], self._memory())

        thread, before = threading.Thread(target=watch, daemon=True), self._seconds()
        thread.start()
        try:
            outputs = run_prompt(self.address, prompt, seconds=LIMIT)
        finally:
            done.set()
            thread.join()
        return outputs, Cost(round(self._seconds() - before, 1), round(most[0] / GB, 3))

    def _memory(self) -> float:
        """Without the files that are mapped, which the system takes back when it likes."""
        found = self._process.memory_info()
        return found.rss - getattr(found, "shared", 0)

    def _seconds(self) -> float:
        return sum(self._process.cpu_times()[:2])

    def latent(self, outputs: dict) -> torch.Tensor:
        file, = outputs["latent"]["latents"]
        return load_file(self.base / "output" / file["subfolder"] / file["filename"])[
            "latent_tensor"]

    def precision(self) -> str:
        """As the host says it in its log."""
        log = (self.base / "server.log").read_text()
        weights, worked = re.search(r"model weight dtype (\S+), manual cast: (\S+)", log).groups()
        return " as ".join(dict.fromkeys(one.replace("torch.", "") for one in (weights, worked)
                                         if one != "None"))


@pytest.fixture
def base():
    """A scratch folder that is gone afterwards."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="full_") as folder:
        yield Path(folder)


def enough(family: Family, folder: Path) -> None:
    for words, needed, free in (
            ("memory", family.memory, psutil.virtual_memory().available / GB),
            ("disk", family.disk, shutil.disk_usage(folder).free / GB)):
        if free < needed:
            pytest.skip(f"{family.label} needs {needed:.0f} GB of {words}, {free:.1f} are free")


def write_files(host: Path, name: str, base: Path) -> dict:
    """The checkpoint, and a latent with a prompt where the model makes none itself."""
    family = FAMILIES[name]
    told = subprocess.run([sys.executable, "-m", "tools.full_models", name, str(base / "models")],
                          check=True, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "BAYESDIFF_HOST": str(host)}, timeout=LIMIT).stdout
    if family.latent:
        generator = torch.Generator().manual_seed(0)
        tokens, pooled, latent = (torch.randn(shape, generator=generator) for shape in
                                  (family.prompt or (1, 1, 1), (1, 768), family.latent))
        data = {"latents": [{"samples": latent}],
                "conditioning": [[[tokens, {"pooled_output": pooled}]]]}
        folder = base / "datasets" / "prompts"
        folder.mkdir(parents=True)
        torch.save(data, folder / "shard_0000.pkl")
        (folder / "metadata.json").write_text(json.dumps({"num_samples": 1}))
    return json.loads(told.splitlines()[-1])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_shipped_workflow_runs_and_draws_the_stock_picture(host, base, name, tried):
    family, started = FAMILIES[name], time.monotonic()
    found = {"picture": family.drawn, "steps": family.steps}
    try:
        enough(family, base)
        found |= write_files(host, name, base)
        with real_server.running(host, Path(sys.executable), base, log=base / "server.log",
                                 options=list(family.options)) as address:
            _tried(Watched(address, base), name, found)
    finally:
        found["wall"] = round(time.monotonic() - started)
        tried(family.label, len(found.get("costs", {})), **found)


def _tried(server: Watched, name: str, found: dict) -> None:
    graphs, costs = Graphs(name, ask(server.address, "/object_info")), {}
    found["costs"] = costs  # what is in it when something breaks is told, too
    _, costs["load"] = server.run(graphs.loading())
    found["precision"] = server.precision()
    outputs, costs["stock"] = server.run(graphs.stock())
    stock = server.latent(outputs)
    assert torch.isfinite(stock).all() and stock.std() > 0
    outputs, costs["light"] = server.run(graphs.shipped())
    assert torch.equal(server.latent(outputs), stock)
    posterior, = (path for path in (server.base / "models" / "llla").iterdir())
    outputs, costs["accurate"] = server.run(graphs.accurate(posterior.name))
    assert torch.equal(server.latent(outputs), stock)
    file, = outputs["keep"]["bayesdiff_report"]
    outputs, _ = server.run(graphs.again(file["file"]))
    assert torch.allclose(server.latent(outputs), stock, rtol=0, atol=1e-5 * float(stock.std()))
    found["files"] = round(posterior.stat().st_size / 1e6)
