"""A node pack for tests alone, with the habits of well-known ones: written anew, by what these do
and not by how. docs/neighbours.md says which pack has which habit."""

import json
import time
import urllib.request

import comfy.samplers
import execution
import torch
from comfy.k_diffusion import sampling as k_diffusion
from comfy_api.latest import ComfyExtension, io
from comfy_execution.graph_utils import GraphBuilder

Node = io.ComfyNode  # by another name: Manager lists classes that inherit from that one by its own
Anything = io.AnyType


# ---- a sampler pack: names in KSampler's list, one buffer for all estimates, late reports

def sample_standin_2s(model, x, sigmas, extra_args=None, callback=None, disable=None):
    """Two stages a step; tells the state after a step, and a view of its buffer."""
    ones, stages = x.new_ones([len(x)]), torch.zeros(2, *x.shape, dtype=x.dtype, device=x.device)
    for i, (sigma, after) in enumerate(zip(sigmas, sigmas[1:])):
        stages[0] = model(x, sigma * ones, **extra_args)
        d = (x - stages[0]) / sigma
        if after > 0:
            middle = (sigma * after).sqrt()
            halfway = x + (middle - sigma) * d
            stages[1] = model(halfway, middle * ones, **extra_args)
            d = (halfway - stages[1]) / middle
        x = x + (after - sigma) * d
        callback({"i": i, "x": x, "sigma": sigma, "sigma_next": after, "denoised": stages[0]})
    callback({"i": i + 1, "x": x, "sigma": after, "sigma_next": after, "denoised": stages[0]})
    return x


def add_samplers():
    name = "standin_2s"
    if name not in comfy.samplers.KSampler.SAMPLERS:
        comfy.samplers.KSampler.SAMPLERS.append(name)
        setattr(k_diffusion, f"sample_{name}", sample_standin_2s)


# ---- an adapter that sends names of its own through a combo's link

class SchedulerAdapter(Node):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="StandIn_SchedulerAdapter", inputs=[io.String.Input("name")],
                         outputs=[io.AnyType.Output()])

    @classmethod
    def execute(cls, name):
        return io.NodeOutput(name)


# ---- a guider whose scale falls from step to step

class FallingGuider(comfy.samplers.CFGGuider):
    def predict_noise(self, x, timestep, model_options={}, seed=None):
        sigmas = model_options["transformer_options"]["sample_sigmas"]
        share = float((sigmas > timestep[0]).sum()) / (len(sigmas) - 1)
        return comfy.samplers.sampling_function(
            self.inner_model, x, timestep, self.conds["negative"], self.conds["positive"],
            self.cfg + (1 - self.cfg) * share, model_options=model_options, seed=seed)


class FallingCFG(Node):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="StandIn_FallingCFG", outputs=[io.Guider.Output()], inputs=[
            io.Model.Input("model"), io.Conditioning.Input("positive"),
            io.Conditioning.Input("negative"), io.Float.Input("cfg")])

    @classmethod
    def execute(cls, model, positive, negative, cfg):
        guider = FallingGuider(model)
        guider.set_conds(positive, negative)
        guider.set_cfg(cfg)
        return io.NodeOutput(guider)


# ---- nodes that take anything: batch, collect, index, switch, loop

class BatchAnything(Node):
    """Tuples and lists grow, tensors and latents are joined, all else is added up."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="StandIn_BatchAnything", outputs=[Anything.Output()], inputs=[
            Anything.Input("one", optional=True), Anything.Input("two", optional=True)])

    @classmethod
    def execute(cls, one=None, two=None):
        if one is None or two is None:
            return io.NodeOutput(two if one is None else one)
        if isinstance(one, torch.Tensor):
            return io.NodeOutput(torch.cat([one, two]))
        if isinstance(one, dict):
            return io.NodeOutput({**one, "samples": torch.cat([one["samples"], two["samples"]])})
        if isinstance(one, int | float):
            return io.NodeOutput([one, two])
        if isinstance(one, list) and isinstance(two, int | float):
            return io.NodeOutput([*one, two])
        return io.NodeOutput(one + two)


class CollectAnything(Node):
    """A list in one value, as a loop's accumulator holds it; what is a tuple is taken apart."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="StandIn_CollectAnything", outputs=[Anything.Output()], inputs=[
            Anything.Input("before", optional=True), Anything.Input("item")])

    @classmethod
    def execute(cls, item, before=None):
        items = list(item) if isinstance(item, tuple) else [item]
        return io.NodeOutput([*(before or []), *items])


class FirstOfAny(Node):
    """The first input that is not None."""

    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="StandIn_FirstOfAny", outputs=[Anything.Output()], inputs=[
            Anything.Input("one", optional=True), Anything.Input("two", optional=True)])

    @classmethod
    def execute(cls, one=None, two=None):
        return io.NodeOutput(two if one is None else one)


class LoopOverSeeds(Node):
    """Samples seed after seed in a graph that it makes while it runs, and batches what comes out:
    latents, trajectories, scores."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StandIn_LoopOverSeeds", enable_expand=True,
            outputs=[io.Latent.Output(), Anything.Output(), Anything.Output()],
            inputs=[io.Model.Input("model"), io.Conditioning.Input("positive"),
                    io.Latent.Input("latent"), io.Int.Input("seed"), io.Int.Input("rounds")])

    @classmethod
    def execute(cls, model, positive, latent, seed, rounds):
        graph, sofar = GraphBuilder(), [None, None, None]
        for at in range(rounds):
            run = graph.node("BayesDiff_KSampler", model=model, positive=positive,
                             negative=positive, latent_image=latent, seed=seed + at, steps=4,
                             cfg=3.0, sampler_name="standin_2s", scheduler="normal", denoise=1.0,
                             mode="auto", check="off")
            sofar = [run.out(slot) if one is None else graph.node(
                "StandIn_BatchAnything", one=one, two=run.out(slot)).out(0)
                for slot, one in zip((0, 2, 3), sofar)]
        return io.NodeOutput(*sofar, expand=graph.finalize())


# ---- a collector that runs the part of the graph before it on another server too

class DistributedCollector(Node):
    """Sends what leads to its input to a worker with another seed, and adds what it saves."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StandIn_DistributedCollector", outputs=[io.Image.Output()],
            inputs=[io.Image.Input("images"), io.String.Input("worker", default=""),
                    io.String.Input("seed_node", default="")],
            hidden=[io.Hidden.prompt, io.Hidden.unique_id])

    @classmethod
    def execute(cls, images, worker="", seed_node=""):
        if not worker:
            return io.NodeOutput(images)
        prompt = _part_before(cls.hidden.prompt, cls.hidden.unique_id)
        prompt[seed_node]["inputs"]["seed"] += 1
        source = prompt.pop(cls.hidden.unique_id)["inputs"]["images"]
        prompt["sent"] = {"class_type": "StandIn_Send", "inputs": {"images": source}}
        outputs = _run(worker, prompt)
        found = torch.tensor(outputs["sent"]["pixels"][0])
        return io.NodeOutput(torch.cat([images, found.to(images)]))


class Send(Node):
    @classmethod
    def define_schema(cls):
        return io.Schema(node_id="StandIn_Send", inputs=[io.Image.Input("images")],
                         is_output_node=True)

    @classmethod
    def execute(cls, images):
        return io.NodeOutput(ui={"pixels": [images.tolist()]})


def _part_before(prompt, node):
    """What this node needs, and no more: nodes behind it stay on the master."""
    found, left = {}, [node]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = json.loads(json.dumps(prompt[name]))
            left += [link[0] for link in prompt[name]["inputs"].values() if isinstance(link, list)]
    return found


def _run(worker, prompt):
    """On 127.0.0.1 alone: waits for a minute at most."""
    def ask(path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{int(worker)}{path}",
                                         data=body and json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    number = ask("/prompt", {"prompt": prompt})["prompt_id"]
    for _ in range(300):
        entry = ask(f"/history/{number}").get(number)
        if entry:
            return entry["outputs"]
        time.sleep(0.2)
    raise TimeoutError("the worker did not answer within a minute")


# ---- a busy server: a run is told to be done some time before /history has it

def be_slow_to_write_history():
    write = execution.PromptQueue.task_done

    def task_done(*args, **kwargs):
        time.sleep(0.3)
        return write(*args, **kwargs)

    execution.PromptQueue.task_done = task_done


class StandIns(ComfyExtension):
    async def get_node_list(self):
        add_samplers()
        be_slow_to_write_history()
        return [SchedulerAdapter, FallingCFG, BatchAnything, CollectAnything, FirstOfAny,
                LoopOverSeeds, DistributedCollector, Send]


async def comfy_entrypoint():
    return StandIns()
