"""Writes the example workflows and the blueprint, with each node's inputs as the server has them.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.make_workflows
"""

import json
import os
import sys
import tempfile
import uuid
from pathlib import Path
from typing import NamedTuple

from tools import server, workflow
from tools.places import REPOSITORY

EXAMPLES = REPOSITORY / "example_workflows"
BLUEPRINTS = REPOSITORY / "subgraphs"
TITLE, SLOT, WIDGET, GAP = 30, 20, 24, 30  # heights, as the front end draws them
# What a node shows below its widgets: a report, a picture, lines of text.
EXTRA = {"BayesDiff_KSampler": 420, "BayesDiff_SamplerCustom": 420, "BayesDiff_BestOfN": 420,
         "BayesDiff_ResampleFromTimestep": 160, "BayesDiff_RepairWhereUnsure": 160,
         "BayesDiff_UncertaintyScore": 160, "BayesDiff_UncertaintyScoreFilter": 420,
         "BayesDiff_LLLAFit": 370, "BayesDiff_LLLASave": 160, "BayesDiff_UncertaintyHeatmap": 520,
         "SaveImage": 230, "PreviewImage": 230, "MaskPreview": 230,
         "CLIPTextEncode": 90}
COLORS = {"BayesDiff_": ("#2a3343", "#1d2633"), "MarkdownNote": ("#432", "#653")}


class Output(NamedTuple):
    node: dict
    slot: int
    kind: str


class Node:
    """A node of a graph; node["name"] is one of its outputs."""

    def __init__(self, data: dict, info: dict):
        self.data, self._info = data, info

    def __getitem__(self, name: str) -> Output:
        slot = [each.lower() for each in self._info["output_name"]].index(name.lower())
        return Output(self.data, slot, self._info["output"][slot])


class Graph:
    """Nodes in columns, each column a titled group, filled from the top."""

    def __init__(self, name: str, object_info: dict):
        self.name, self._info = name, object_info
        self.nodes, self.links, self.groups = [], [], []
        self._x, self._y, self._width = 0, 0, 0

    def column(self, title: str, width: int = 320) -> None:
        self._close_column()
        self._x, self._y, self._width = self._x + self._width + 80, TITLE + 50, width
        self.groups.append({"id": len(self.groups) + 1, "title": title, "bounding": [],
                            "color": "#8ab4d1", "font_size": 24, "flags": {}})

    def _close_column(self) -> None:
        if self.groups:
            self.groups[-1]["bounding"] = [self._x - 20, 0, self._width + 40, self._y - TITLE]

    def note(self, text: str, height: int = 150) -> None:
        self._place("MarkdownNote", height, [], [], [text], title="Note")

    def add(self, kind: str, title: str | None = None, models: list[dict] | None = None,
            **given) -> Node:
        info = self._info[kind]
        known = workflow.ports(info)
        if wrong := given.keys() - known.keys():
            raise ValueError(f"{kind} has no input {', '.join(wrong)}")
        names = workflow.widgets(info)
        values = [self._value(name, *known.get(name, (None, None)), given) for name in names]
        inputs = [{"name": name, "type": port, "link": None} for name, (port, _) in known.items()
                  if name not in names]
        outputs = [{"name": name, "type": port, "slot_index": slot, "links": []}
                   for slot, (name, port) in enumerate(zip(info["output_name"], info["output"]))]
        shown = [name for name in names if not known.get(name, (None, {}))[1].get("advanced")]
        height = SLOT * max(len(inputs), len(outputs)) + WIDGET * len(shown) + 20
        data = self._place(kind, height + EXTRA.get(kind, 0), inputs, outputs, values, title)
        if models:
            data["properties"]["models"] = models
        for slot, port in enumerate(inputs):
            if port["name"] in given:
                self._link(given[port["name"]], data, slot)
        return Node(data, info)

    @staticmethod
    def _value(name: str, kind: str | None, options: dict | None, given: dict):
        if name == workflow.CONTROL:
            return "fixed"
        if name in given:
            return given[name]
        return options["default"] if "default" in options else options["options"][0]

    def _place(self, kind, height, inputs, outputs, values, title=None) -> dict:
        known = kind.startswith("BayesDiff_")
        data = {"id": len(self.nodes) + 1, "type": kind, "pos": [self._x, self._y],
                "size": [self._width, height], "flags": {}, "order": len(self.nodes), "mode": 0,
                "inputs": inputs, "outputs": outputs,
                "properties": {"Node name for S&R": kind,
                               "cnr_id": "bayesdiff" if known else "comfy-core"},
                "widgets_values": values}
        if title:
            data["title"] = title
        for start, (color, background) in COLORS.items():
            if kind.startswith(start):
                data.update(color=color, bgcolor=background)
        self._y += height + TITLE + GAP
        self.nodes.append(data)
        return data

    def _link(self, source: Output, target: dict, slot: int) -> None:
        number = len(self.links) + 1
        self.links.append([number, source.node["id"], source.slot, target["id"], slot, source.kind])
        source.node["outputs"][source.slot]["links"].append(number)
        target["inputs"][slot]["link"] = number

    def saved(self) -> dict:
        self._close_column()
        return {"id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"bayesdiff/{self.name}")), "revision": 0,
                "last_node_id": len(self.nodes), "last_link_id": len(self.links),
                "nodes": self.nodes, "links": self.links, "groups": self.groups, "config": {},
                "extra": {}, "version": 0.4}


# What the graphs share.

NOTHING = "nothing"  # of BayesDiff Demo Prompt
PICTURE = 64  # pixels a side, what the demo model draws
# Chosen because mistakes are among its first hands. Of its sixteen four are wrong; in bench demo
# three are on average.
SAMPLING = {"seed": 7, "steps": 20, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal"}
HEAT = {"grow": 4}  # pixels of the demo's pictures: two of its latent, as in bench truth
MENDING = {"denoise": 0.7, "tries": 4}
LARGE = {"upscale_method": "lanczos", "width": 256, "height": 256}


class Demo(NamedTuple):
    model: Node
    prompt: Node
    nothing: Node
    latent: Node

    def sampling(self) -> dict:
        """Links of a sampler."""
        return {"model": self.model["model"], "positive": self.prompt["conditioning"],
                "negative": self.nothing["conditioning"], "latent_image": self.latent["LATENT"]}


def _demo_model(graph: Graph, note: str, name: str, batch: int, height: int = 180) -> Demo:
    graph.column("1. The demo model", 280)
    graph.note(note, height)
    return Demo(graph.add("BayesDiff_DemoModel"), graph.add("BayesDiff_DemoPrompt", name=name),
                graph.add("BayesDiff_DemoPrompt", title="Negative prompt", name=NOTHING),
                graph.add("EmptyLatentImage", width=PICTURE, height=PICTURE, batch_size=batch))


def _picture(graph: Graph, latent: Output, vae: Output) -> Output:
    """Decoded, and large enough to be seen."""
    decoded = graph.add("VAEDecode", samples=latent, vae=vae)
    return graph.add("ImageScale", image=decoded["IMAGE"], **LARGE)["IMAGE"]


def see_what_went_wrong(graph: Graph) -> None:
    demo = _demo_model(graph, (
        "Press **Run**. A small model draws eight hands, and what glows is most likely to be"
        " wrong.\n\nPress the picture to see it without the glow, double-click to enlarge it, move"
        " the slider to watch it form. *Repair* under it draws the glowing part again."), "hand", 8)
    graph.column("2. Draw")
    sampler = graph.add("BayesDiff_KSampler", **demo.sampling(), **SAMPLING)
    graph.column("3. What glows is doubtful", 420)
    graph.add("BayesDiff_UncertaintyHeatmap", trajectory=sampler["trajectory"],
              vae=demo.model["vae"], value_range="shared", **HEAT)


def keep_the_good_ones(graph: Graph) -> None:
    demo = _demo_model(graph, (
        "Sixteen hands, sorted by how much the model doubts them; the most doubtful quarter is"
        " dropped.\n\nCompare pictures of one prompt only. Click pictures to pick them"
        " yourself; *wait_for_choice* lets the run wait for that."), "hand", 16)
    graph.column("2. Draw and decode")
    sampler = graph.add("BayesDiff_KSampler", **demo.sampling(), **SAMPLING)
    decoded = graph.add("VAEDecode", samples=sampler["latent"], vae=demo.model["vae"])
    graph.column("3. Sort and drop", 420)
    parted = graph.add("BayesDiff_UncertaintyScoreFilter", scores=sampler["scores"],
                       images=decoded["IMAGE"], latents=sampler["latent"],
                       criterion="drop top percent", percent=25.0)
    graph.column("4. Go on with what was kept", 360)
    large = graph.add("ImageScaleBy", title="Your upscaler", image=parted["kept_images"],
                      upscale_method="lanczos", scale_by=4.0)
    graph.add("SaveImage", title="Save kept", images=large["IMAGE"],
              filename_prefix="bayesdiff/kept")
    graph.add("PreviewImage", title="Rejected", images=parted["rejected_images"])


def mend_the_red_parts(graph: Graph) -> None:
    demo = _demo_model(graph, (
        "The glowing part of each hand is drawn again, four times, and the try that the model"
        " doubts least is kept. The rest stays as it is. The slider below the map goes from before"
        " to after.\n\nLook at the mask, and move"
        " *mask_threshold* and *grow* until it covers what you want drawn again."), "hand", 4)
    graph.column("2. Draw and decode")
    sampler = graph.add("BayesDiff_KSampler", **demo.sampling(), **SAMPLING)
    before = graph.add("VAEDecode", samples=sampler["latent"], vae=demo.model["vae"])["IMAGE"]
    graph.column("3. What glows is doubtful", 380)
    heat = graph.add("BayesDiff_UncertaintyHeatmap", trajectory=sampler["trajectory"],
                     image=before, **HEAT)
    graph.add("MaskPreview", title="Mask", mask=heat["mask"])
    graph.column("4. Draw that again", 380)
    again = graph.add("BayesDiff_RepairWhereUnsure", mask=heat["mask"],
                      **{**demo.sampling(), "latent_image": sampler["latent"]},
                      **{**SAMPLING, "seed": SAMPLING["seed"] + 1}, **MENDING)
    after = graph.add("VAEDecode", samples=again["latent"], vae=demo.model["vae"])["IMAGE"]
    graph.column("5. The same pictures, mended", 380)
    mended = graph.add("SaveImage", title="Save mended", images=after,
                       filename_prefix="bayesdiff/mended")
    # A slider below the map then goes from before to after (web/repair.js).
    sampler.data["properties"]["bayesdiff_compare"] = mended.data["id"]


def variations_from_a_step(graph: Graph) -> None:
    demo = _demo_model(graph, (
        "*Resample From Timestep* rewinds the picture to an earlier step, nudges it and finishes"
        " it again: with the same prompt, or with another one from there on.\n\nA smaller"
        " *fraction* leaves earlier and varies more."), "smiley", 1)
    vae = demo.model["vae"]
    graph.column("2. The original")
    sampler = graph.add("BayesDiff_KSampler", **demo.sampling(), **SAMPLING)
    graph.add("PreviewImage", title="Original", images=_picture(graph, sampler["latent"], vae))
    graph.column("3. Variations", 420)
    varied = graph.add("BayesDiff_ResampleFromTimestep", trajectory=sampler["trajectory"],
                       count=8, fraction=0.2, strength=0.5, draw="gaussian")
    graph.add("SaveImage", title="Save variations", images=_picture(graph, varied["latent"], vae),
              filename_prefix="bayesdiff/variation")
    graph.column("4. Another prompt from there on", 420)
    other = graph.add("BayesDiff_DemoPrompt", title="Other prompt", name="die")
    changed = graph.add("BayesDiff_ResampleFromTimestep", title="Resample with another prompt",
                        trajectory=sampler["trajectory"], positive=other["conditioning"], count=4,
                        fraction=0.1, strength=0.3)
    graph.add("SaveImage", title="Save changed", images=_picture(graph, changed["latent"], vae),
              filename_prefix="bayesdiff/changed")


def check_any_picture(graph: Graph) -> None:
    demo = _demo_model(graph, (
        "*Score An Image* needs no run of ours: here it checks what the stock KSampler drew."
        "\n\nFor pictures of your own put *Load Image* in the place of *VAE Decode*, and your"
        " model, its VAE and a fitting prompt in the place of the demo's."), "hand", 8)
    vae = demo.model["vae"]
    graph.column("2. Any pictures")
    stock = graph.add("KSampler", **demo.sampling(), **SAMPLING)
    picture = graph.add("VAEDecode", samples=stock["LATENT"], vae=vae)["IMAGE"]
    graph.column("3. Does the model doubt them?", 340)
    score = graph.add("BayesDiff_ScoreAnImage", model=demo.model["model"], image=picture, vae=vae,
                      positive=demo.prompt["conditioning"])
    graph.column("4. Where, and how much?", 420)
    graph.add("BayesDiff_UncertaintyHeatmap", variance=score["variance"], image=picture,
              value_range="shared")
    graph.add("BayesDiff_UncertaintyScoreFilter", scores=score["scores"], images=picture)


# With checkpoints of others: names and pages as in the host's own templates.

def _page(name: str, repository: str, folder: str, path: str = "") -> dict:
    return {"name": name, "directory": folder,
            "url": f"https://huggingface.co/{repository}/resolve/main/{path}{name}"}


SD15 = _page("v1-5-pruned-emaonly-fp16.safetensors", "Comfy-Org/stable-diffusion-v1-5-archive",
             "checkpoints")
SDXL = _page("sd_xl_base_1.0.safetensors", "stabilityai/stable-diffusion-xl-base-1.0",
             "checkpoints")
FLUX = _page("flux1-dev.safetensors", "Comfy-Org/flux1-dev", "diffusion_models")
CLIP_L = _page("clip_l.safetensors", "comfyanonymous/flux_text_encoders", "text_encoders")
T5 = _page("t5xxl_fp16.safetensors", "comfyanonymous/flux_text_encoders", "text_encoders")
AE = _page("ae.safetensors", "Comfy-Org/Lumina_Image_2.0_Repackaged", "vae", "split_files/vae/")


def calibrate_your_checkpoint(graph: Graph) -> None:
    graph.column("1. Your checkpoint")
    graph.note(
        "One-time calibration: *LLLA Fit* learns how sure your checkpoint normally is (SD1.5 here;"
        f" for SDXL choose [{SDXL['name']}]({SDXL['url']}), `size` and latent 1024). It needs no"
        " data: the model draws its own samples.\n\n*LLLA Save* keeps the result in models/llla;"
        " *LLLA Load* can take the place of both from then on. 64 latents are a start; prompts"
        " like those you will use are best.", 270)
    loader = graph.add("CheckpointLoaderSimple", models=[SD15], ckpt_name=SD15["name"])
    positive = graph.add("CLIPTextEncode", title="Prompt", clip=loader["CLIP"],
                         text="photo of a lighthouse on a rocky coast at sunset, waves")
    negative = graph.add("CLIPTextEncode", title="Negative prompt", clip=loader["CLIP"],
                         text="text, watermark")
    graph.column("2. Fit and keep a posterior", 360)
    fit = graph.add("BayesDiff_LLLAFit", model=loader["MODEL"], positive=positive["CONDITIONING"],
                    negative=negative["CONDITIONING"], size=512)
    graph.add("BayesDiff_LLLASave", posterior=fit["posterior"], filename_prefix="sd15")
    graph.column("3. Sample, with variance")
    latent = graph.add("EmptyLatentImage", width=512, height=512, batch_size=1)
    sampler = graph.add("BayesDiff_KSampler", model=loader["MODEL"],
                        positive=positive["CONDITIONING"], negative=negative["CONDITIONING"],
                        latent_image=latent["LATENT"], posterior=fit["posterior"], seed=0, steps=20,
                        cfg=7.0, sampler_name="euler", scheduler="normal", mode="light")
    graph.column("4. Where was it unsure?", 420)
    decoded = graph.add("VAEDecode", samples=sampler["latent"], vae=loader["VAE"])
    heat = graph.add("BayesDiff_UncertaintyHeatmap", trajectory=sampler["trajectory"],
                     vae=loader["VAE"], image=decoded["IMAGE"])
    graph.add("SaveImage", title="Save overlay", images=heat["overlay"],
              filename_prefix="bayesdiff/overlay")


def flux(graph: Graph) -> None:
    graph.column("1. Models")
    graph.note(
        "*BayesDiff Sampler Custom* stands where *SamplerCustomAdvanced* would and gives the"
        " identical picture.\n\n*LLLA Fit* runs once, for about 220 network calls; *LLLA Save* can"
        " keep it. Without *LLLA Fit* the map shows late changes and the check.\n\nTried with small"
        " models of Flux's class, not with the full-size one.", 230)
    model = graph.add("UNETLoader", models=[FLUX], unet_name=FLUX["name"], weight_dtype="default")
    clip = graph.add("DualCLIPLoader", models=[CLIP_L, T5], clip_name1=CLIP_L["name"],
                     clip_name2=T5["name"], type="flux")
    vae = graph.add("VAELoader", models=[AE], vae_name=AE["name"])
    graph.column("2. Prompt and posterior", 360)
    text = graph.add("CLIPTextEncode", title="Prompt", clip=clip["CLIP"],
                     text="a hand holding a small brass compass above an old map")
    prompt = graph.add("FluxGuidance", conditioning=text["CONDITIONING"], guidance=3.5)
    fit = graph.add("BayesDiff_LLLAFit", model=model["MODEL"],
                    positive=prompt["CONDITIONING"], empty_share=0.0, size=1024)
    graph.column("3. Sample, with variance")
    noise = graph.add("RandomNoise", noise_seed=0)
    guider = graph.add("BasicGuider", model=model["MODEL"], conditioning=prompt["CONDITIONING"])
    choice = graph.add("KSamplerSelect", sampler_name="euler")
    sigmas = graph.add("BasicScheduler", model=model["MODEL"], scheduler="simple", steps=20)
    latent = graph.add("EmptySD3LatentImage", width=1024, height=1024, batch_size=1)
    sampler = graph.add("BayesDiff_SamplerCustom", noise=noise["NOISE"], guider=guider["GUIDER"],
                        sampler=choice["SAMPLER"], sigmas=sigmas["SIGMAS"],
                        latent_image=latent["LATENT"], posterior=fit["posterior"], mode="light")
    graph.column("4. Where was it unsure?", 420)
    decoded = graph.add("VAEDecode", samples=sampler["latent"], vae=vae["VAE"])
    heat = graph.add("BayesDiff_UncertaintyHeatmap", trajectory=sampler["trajectory"],
                     vae=vae["VAE"], image=decoded["IMAGE"])
    graph.add("SaveImage", title="Save overlay", images=heat["overlay"],
              filename_prefix="bayesdiff/overlay")


# By the names that the template browser shows, in its order.
GRAPHS = {
    "1 See what went wrong": see_what_went_wrong,
    "2 Keep the good ones": keep_the_good_ones,
    "3 Mend the red parts": mend_the_red_parts,
    "4 Variations from a step": variations_from_a_step,
    "5 Check any picture": check_any_picture,
    "6 Calibrate your checkpoint": calibrate_your_checkpoint,
    "7 Flux": flux,
}


# The blueprint: a graph whose loose ends are the sockets of one node.

REPAIR = "Uncertainty-guided repair"
IN, OUT = -10, -20  # the front end's numbers for a subgraph's two ends


def blueprint(object_info: dict) -> dict:
    graph = Graph(REPAIR, object_info)
    graph.column("Where was it unsure?")
    heat = graph.add("BayesDiff_UncertaintyHeatmap", grow=16)  # two pixels of most latents
    graph.column("Redraw there")
    sampler = graph.add("BayesDiff_RepairWhereUnsure", mask=heat["mask"], steps=20, cfg=7.0,
                        scheduler="normal", denoise=0.7)
    decoded = graph.add("VAEDecode", samples=sampler["latent"])
    inside = graph.saved()
    ends = _Ends(inside, graph)
    for name, kind, targets in (
            ("model", "MODEL", [(sampler, "model")]),
            ("positive", "CONDITIONING", [(sampler, "positive")]),
            ("negative", "CONDITIONING", [(sampler, "negative")]),
            ("vae", "VAE", [(heat, "vae"), (decoded, "vae")]),
            ("latent", "LATENT", [(sampler, "latent_image")]),
            ("trajectory", "BAYESDIFF_TRAJECTORY", [(heat, "trajectory")])):
        ends.enter(name, kind, targets)
    for name, source in (("image", decoded["IMAGE"]), ("latent", sampler["latent"]),
                         ("overlay", heat["overlay"]), ("mask", heat["mask"])):
        ends.leave(name, source)
    shown = [(heat, "mask_threshold"), (heat, "grow"), (heat, "blur"), (sampler, "seed"),
             (sampler, "steps"), (sampler, "cfg"),
             (sampler, "sampler_name"), (sampler, "scheduler"), (sampler, "denoise"),
             (sampler, "tries")]
    return ends.as_node([[str(node.data["id"]), name] for node, name in shown])


class _Ends:
    """The two ends of a subgraph, and the node that stands for it."""

    def __init__(self, inside: dict, graph: Graph):
        self._inside, self._last = inside, inside["last_link_id"]
        self._links = [dict(zip(("id", "origin_id", "origin_slot", "target_id", "target_slot",
                                 "type"), link)) for link in inside["links"]]
        right = max(node["pos"][0] + node["size"][0] for node in inside["nodes"])
        self._places = {"inputs": -160, "outputs": right + 100}
        self.inputs, self.outputs = [], []

    def enter(self, name: str, kind: str, targets: list) -> None:
        numbers = []
        for node, port in targets:
            slot = [each["name"] for each in node.data["inputs"]].index(port)
            numbers.append(self._link(IN, len(self.inputs), node.data["id"], slot, kind))
            node.data["inputs"][slot]["link"] = numbers[-1]
        self._end("inputs", name, kind, numbers)

    def leave(self, name: str, source: Output) -> None:
        number = self._link(source.node["id"], source.slot, OUT, len(self.outputs), source.kind)
        source.node["outputs"][source.slot]["links"].append(number)
        self._end("outputs", name, source.kind, [number])

    def _link(self, origin, origin_slot, target, target_slot, kind) -> int:
        self._last += 1
        self._links.append({"id": self._last, "origin_id": origin, "origin_slot": origin_slot,
                            "target_id": target, "target_slot": target_slot, "type": kind})
        return self._last

    def _end(self, side: str, name: str, kind: str, numbers: list[int]) -> None:
        ends = getattr(self, side)
        ends.append({"id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"bayesdiff/{side}/{name}")),
                     "name": name, "type": kind, "linkIds": numbers,
                     "pos": [self._places[side], 220 + SLOT * len(ends)]})

    def as_node(self, shown: list) -> dict:
        inside = self._inside
        definition = {
            "id": inside["id"], "version": 1, "revision": 0, "name": REPAIR, "config": {},
            "state": {"lastGroupId": len(inside["groups"]), "lastNodeId": inside["last_node_id"],
                      "lastLinkId": self._last, "lastRerouteId": 0},
            "inputNode": {"id": IN, "bounding": [self._places["inputs"], 200, 120, 160]},
            "outputNode": {"id": OUT, "bounding": [self._places["outputs"], 200, 120, 120]},
            "inputs": self.inputs, "outputs": self.outputs, "widgets": [],
            "nodes": inside["nodes"], "groups": inside["groups"], "links": self._links,
            "extra": {}, "category": "bayesdiff",
            "description": "Draws again what the model doubted: the heat map's mask goes to a few"
                           " inpainting passes, and the surest one is kept. Look at the mask"
                           " before you trust it."}
        node = {"id": 1, "type": inside["id"], "title": REPAIR, "pos": [0, 0], "size": [340, 420],
                "flags": {}, "order": 0, "mode": 0,
                "inputs": [{"name": end["name"], "type": end["type"], "link": None}
                           for end in self.inputs],
                "outputs": [{"name": end["name"], "type": end["type"], "links": []}
                            for end in self.outputs],
                "properties": {"proxyWidgets": shown, "cnr_id": "bayesdiff"},
                "widgets_values": []}
        return {"revision": 0, "last_node_id": 1, "last_link_id": 0, "nodes": [node], "links": [],
                "version": 0.4, "definitions": {"subgraphs": [definition]}, "extra": {}}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, server.running(
            Path(os.environ["BAYESDIFF_HOST"]), Path(sys.executable), Path(folder),
            log=Path(folder) / "log") as address:
        object_info = server.ask(address, "/object_info")
    for name, build in GRAPHS.items():
        graph = Graph(name, object_info)
        build(graph)
        _write(EXAMPLES / f"{name}.json", graph.saved())
    _write(BLUEPRINTS / f"{REPAIR}.json", blueprint(object_info))


def _write(path: Path, saved: dict) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    print(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
