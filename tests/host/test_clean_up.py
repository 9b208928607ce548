"""Whatever happens, the user's model is left as it was: after a fault or an interrupt at each call
of the network in turn, extra calls included, and at each decode."""

import gc
import itertools

import comfy.samplers
import folder_paths
import pytest
import torch
from comfy import model_management
from comfy_extras import nodes_custom_sampler as stock_nodes

from tools.reports import SOAK


class Trouble(Exception):
    pass


def fault():
    raise Trouble


def out_of_memory():
    raise model_management.OOM_EXCEPTION("a fault that was asked for")


def interrupt():
    """The host throws it at the network's next layer, or where we look for it."""
    model_management.interrupt_current_processing(True)


class Strike:
    """While it is entered, acts at one call of a module; what is thrown ends here."""

    def __init__(self, module, action, at: int):
        self._module, self._action, self._left, self.struck = module, action, at, False

    def __enter__(self):
        self._handle = self._module.register_forward_pre_hook(self._see)
        return self

    def _see(self, module, inputs):
        self._left -= 1
        if not self._left:
            self.struck = True
            self._action()

    def __exit__(self, kind, error, trace):
        self._handle.remove()
        model_management.interrupt_current_processing(False)
        expected = (Trouble, model_management.OOM_EXCEPTION,
                    model_management.InterruptProcessingException)
        return kind is not None and issubclass(kind, expected)


def trace(model):
    """Everything of the user's model that a run could leave something on."""
    network = model.get_model_object("diffusion_model")
    touched = [(name, kind) for name, module in network.named_modules()
               for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "forward")
               if vars(module).get(kind)]
    kept = ("wrappers", "callbacks", "model_options", "injections", "attachments",
            "additional_models", "object_patches", "patches", "hook_patches")
    return touched, [repr(getattr(model, name, None)) for name in kept]


def live_tensors():
    gc.collect()
    sizes = [thing.nbytes for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return len(sizes), sum(sizes)


KSAMPLER = ("model", "seed", "steps", "cfg", "sampler_name", "scheduler", "positive", "negative",
            "latent_image")


def widgets(node, **inputs):
    """The node's own defaults, and what is given."""
    return {**{port.id: port.default for port in node.GET_SCHEMA().inputs
               if getattr(port, "default", None) is not None}, **inputs}


# ---- what may be struck: each gives the module that is struck and a run


def sampling(mode, sampler="euler"):
    def prepare(pack, case, llla, vae):
        case.sampler = sampler
        node = pack.samplers.BayesDiffKSampler
        inputs = dict(zip(KSAMPLER, (case.model, *case.options())), posterior=llla, mode=mode,
                      skip_interval=0, deviations=2 if mode == "paper" else 0)
        return case.layer()[1], lambda: node.execute(**widgets(node, **inputs)).args
    return prepare


def custom(pack, case, llla, vae):
    node = pack.samplers.BayesDiffSamplerCustom
    inputs = (stock_nodes.RandomNoise.execute(7)[0],
              stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, 4.0)[0],
              stock_nodes.KSamplerSelect.execute("heun")[0],
              stock_nodes.BasicScheduler.execute(case.model, "normal", 3, 1.0)[0], case.latent)
    return case.layer()[1], lambda: node.execute(*inputs, llla, **widgets(node, mode="accurate"))


def fitting(pack, case, llla, vae):
    settings = pack.fit.Settings("diagonal", 12, "uniform", 0.25, 1)

    def run():
        own = pack.fit.own_samples(case.model, [case.positive], case.latent["samples"] * 0,
                                   settings._replace(latents=1))
        pack.fit.fit(case.model, [case.positive], own, settings)
    return case.model.get_model_object("diffusion_model"), run


def best_of_n(pack, case, llla, vae):
    return case.model.get_model_object("diffusion_model"), \
        lambda: pack.best_of_n.BayesDiffBestOfN.execute(
            case.model, *case.options(), case.denoise, n=3, keep=1, drop_at=0.7,
            drop_schedule="once", seed_stride=1,
            rank_by="variance, accurate", uncertainty_seed=5, keep_steps=3, posterior=llla)


def resampling(pack, case, llla, vae):
    trajectory = sampling("accurate")(pack, case, llla, vae)[1]()[2]
    node = pack.resample.BayesDiffResample
    return case.layer()[1], lambda: node.execute(trajectory, **widgets(node, count=3))


def heat_map(pack, case, llla, vae):
    trajectory = sampling("accurate")(pack, case, llla, vae)[1]()[2]
    node = pack.heatmap.BayesDiffHeatmap
    inputs = widgets(node, trajectory=trajectory, vae=vae, method="pixel", draws=3, seed=1)

    @torch.inference_mode()  # as the host runs nodes
    def run():
        return node.execute(**inputs).args
    return vae.first_stage_model.taesd_decoder, run


MOST_CALLS = 60  # dpm_adaptive makes hundreds
PAPER = ("euler", "ddim", "dpm_2")
FEW = [("free", "dpm_fast"), ("free", "uni_pc"), ("light", "dpmpp_2m"), ("paper", "dpm_2"),
       ("accurate", "dpmpp_sde"), ("accurate", "euler_cfg_pp")]
ALL = [(mode, sampler) for sampler in comfy.samplers.SAMPLER_NAMES
       for mode in ("free", "light", "accurate", "paper")
       if (mode != "paper" or sampler in PAPER) and (mode == "free" or sampler != "dpm_adaptive")]
JOBS = {**{f"{mode}, euler": sampling(mode) for mode in ("free", "light", "accurate", "paper")},
        "custom": custom, "fit": fitting, "best of n": best_of_n, "resample": resampling,
        **{f"{mode}, {name}": sampling(mode, name) for mode, name in (ALL if SOAK else FEW)}}
CASES = [*(("sd3", name) for name in JOBS), ("sd15", "heat map"), ("sd15", "accurate, euler"),
         ("flux", "light, euler"), ("wan", "accurate, euler")]
JOBS["heat map"] = heat_map


@pytest.fixture
def prepared(pack, case, posterior_of, vae, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path))

    def prepare(model, name):
        made, plain = case(model), case(model)
        before = trace(made.model)
        assert before[0] == []
        return plain, *JOBS[name](pack, made, posterior_of(made), vae), before
    return prepare


@pytest.mark.parametrize("action", [fault, interrupt], ids=["fault", "interrupt"])
@pytest.mark.parametrize("model, name", CASES)
def test_nothing_is_left(prepared, tried, model, name, action):
    case, module, run, before = prepared(model, name)
    run()
    counting = SOAK and action is fault  # all tensors of the process are looked for
    stock, memory = case.stock()["samples"], live_tensors() if counting else None
    for at in range(1, MOST_CALLS):
        with Strike(module, action, at) as strike:
            run()
        assert trace(case.model) == before
        assert torch.equal(case.stock()["samples"], stock)
        if not strike.struck:
            break
    assert at > 3, "it was not struck at each call"
    assert not counting or live_tensors() == memory
    tried(f"{action.__name__} at each call of {len(JOBS)} ways to run", at - 1)


@pytest.mark.parametrize("model, name", [("sd3", "accurate, euler"), ("sd3", "paper, euler")])
def test_out_of_memory_at_any_call_is_told_and_leaves_nothing(prepared, tried, model, name):
    case, module, run, before = prepared(model, name)
    stock = case.stock()["samples"]
    advised = 0
    for at in itertools.count(1):
        with Strike(module, out_of_memory, at) as strike:
            try:
                run()
            except model_management.OOM_EXCEPTION as error:
                advised += "memory ran out in the extra calls" in str(error)
                raise
        assert trace(case.model) == before
        assert torch.equal(case.stock()["samples"], stock)
        if not strike.struck:
            break
    assert 0 < advised < at - 1  # in the sampler's own calls the host's words do
    tried("out of memory at each call", at - 1)


def test_out_of_memory_in_a_decode_gives_nearly_the_same_map_in_tiles(prepared):
    """The host decodes again in tiles, which changes the edges a little."""
    _, module, run, _ = prepared("sd15", "heat map")
    whole = run()[2]
    with Strike(module, out_of_memory, 2) as strike:
        tiled = run()[2]
    assert strike.struck and tiled.shape == whole.shape
    assert (tiled != whole).float().mean() < 0.1
