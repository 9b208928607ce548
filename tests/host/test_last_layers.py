"""Each row of the table of last layers, proven on the host's own classes built small.

The whole way is run: a MODEL of the host, its sampling, the tap, and the layer's own weights on the
features that the tap read. Sizes are odd where the network pads, images and prompts come in unequal
numbers, so that tokens in a wrong order cannot pass.
"""

import inspect
import math
from functools import cache
from typing import NamedTuple

import comfy.model_patcher
import comfy.supported_models
import pytest
import torch

import nodes as host_nodes
from tools import tiny_models

CFG = 4.0
CPU = torch.device("cpu")
UNET = dict(image_size=32, in_channels=4, out_channels=4, model_channels=32, num_res_blocks=[1],
            channel_mult=[1], transformer_depth=[1], transformer_depth_output=[0, 0],
            transformer_depth_middle=-1, context_dim=12, use_spatial_transformer=True)
FLUX = dict(image_model="flux", in_channels=16, out_channels=16, vec_in_dim=8, context_in_dim=12,
            hidden_size=16, mlp_ratio=2.0, num_heads=1, depth=1, depth_single_blocks=1,
            axes_dim=[4, 6, 6], theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True,
            txt_ids_dims=[])
LUMINA = dict(patch_size=2, in_channels=16, dim=16, n_layers=1, n_refiner_layers=1, n_heads=1,
              n_kv_heads=1, multiple_of=8, qk_norm=True, cap_feat_dim=12, axes_dims=[4, 6, 6],
              axes_lens=[1, 64, 64])
Z_IMAGE = {**LUMINA, "dim": 256, "n_heads": 16, "n_kv_heads": 16, "z_image_modulation": True,
           "time_scale": 1000.0, "pad_tokens_multiple": 32}
QWEN = dict(patch_size=2, in_channels=64, out_channels=16, num_layers=1, attention_head_dim=16,
            num_attention_heads=1, joint_attention_dim=12, axes_dims_rope=(4, 6, 6))
WAN = dict(patch_size=(1, 2, 2), text_len=16, in_dim=16, dim=16, ffn_dim=16, freq_dim=16,
           text_dim=12, out_dim=16, num_heads=1, num_layers=1)
HUNYUAN = dict(in_channels=16, out_channels=16, vec_in_dim=8, context_in_dim=12, hidden_size=16,
               mlp_ratio=2.0, num_heads=1, depth=1, depth_single_blocks=1, axes_dim=[4, 6, 6],
               theta=256, patch_size=[1, 2, 2], qkv_bias=True, guidance_embed=True, byt5=False,
               meanflow=False, use_cond_type_embedding=False, vision_in_dim=None,
               meanflow_sum=False)
COSMOS = dict(max_img_h=16, max_img_w=16, max_frames=8, in_channels=16, out_channels=16,
              patch_spatial=2, patch_temporal=1, model_channels=48, num_blocks=1, num_heads=1,
              mlp_ratio=1.0, crossattn_emb_channels=12, pos_emb_cls="rope3d", use_adaln_lora=True,
              adaln_lora_dim=8, extra_per_block_abs_pos_emb=False)
CHROMA = dict(in_channels=64, out_channels=64, context_in_dim=12, hidden_size=16, mlp_ratio=2.0,
              num_heads=1, depth=1, depth_single_blocks=1, axes_dim=[4, 6, 6], theta=10000,
              patch_size=2, qkv_bias=True, in_dim=64, out_dim=16, hidden_dim=16, n_layers=1,
              txt_ids_dims=[], vec_in_dim=None)
HIDREAM = dict(patch_size=2, in_channels=16, out_channels=16, num_layers=1, num_single_layers=1,
               attention_head_dim=16, num_attention_heads=1, caption_channels=[12, 12],
               text_emb_dim=8, num_routed_experts=2, num_activated_experts=1,
               axes_dims_rope=(4, 6, 6), llama_layers=[0, 1])
KREA = dict(features=16, tdim=16, txtdim=16, heads=1, kvheads=1, multiplier=1, layers=1, patch=2,
            channels=16, txtlayers=2, txtheads=1, txtkvheads=1)
KANDINSKY = dict(in_visual_dim=16, out_visual_dim=16, in_text_dim=12, in_text_dim2=8, time_dim=16,
                 model_dim=16, ff_dim=16, patch_size=(1, 2, 2), num_text_blocks=1,
                 num_visual_blocks=1, axes_dims=(4, 6, 6))
POOLED = {"pooled_output": (1, 8)}


class Spec(NamedTuple):
    network_class: str  # under comfy.ldm
    config: str  # of comfy.supported_models
    network: dict
    latent: tuple[int, ...]
    extras: dict = {}  # of the prompts: shapes, values, or functions of the number of tokens
    context: int = 12  # width of a prompt's tokens


U_NET = "modules.diffusionmodules.openaimodel.UNetModel"
SCATTERED = {  # the image's tokens are neither first nor last, or lie on a wider grid
    "wan_fun": Spec("wan.model.WanModel", "WAN21_FunControl2V", {**WAN, "in_dim_ref_conv": 16},
                    (16, 3, 4, 6), {"reference_latents": [(1, 16, 1, 4, 6)]}),
    "krea2_edit": Spec("krea2.model.SingleStreamDiT", "Krea2", KREA, (16, 1, 9, 7),
                       {"reference_latents": [(1, 16, 1, 5, 6)],
                        "reference_latents_method": "index"}, context=32),
    "hidream_edit": Spec("hidream.model.HiDreamImageTransformer2DModel", "HiDream", HIDREAM,
                         (16, 9, 7), {**POOLED, "conditioning_llama3": (1, 2, 5, 12),
                                      "concat_latent_image": (1, 16, 9, 7)}),
}
CASES = {
    "sd15": Spec(U_NET, "SD15", {**UNET, "num_heads": 8}, (4, 9, 7)),
    "sd15_inpaint": Spec(U_NET, "SD15", {**UNET, "num_heads": 8, "in_channels": 9}, (4, 9, 7)),
    "sd2": Spec(U_NET, "SD20", {**UNET, "model_channels": 64, "use_linear_in_transformer": True},
                (4, 9, 7)),
    "sdxl": Spec(U_NET, "SDXL",
                 {**UNET, "model_channels": 64, "use_linear_in_transformer": True,
                  "num_classes": "sequential", "adm_in_channels": 2816}, (4, 9, 7),
                 {"pooled_output": (1, 1280)}),
    "svd": Spec(U_NET, "SVD_img2vid",
                {**UNET, "in_channels": 8, "model_channels": 64, "use_linear_in_transformer": True,
                 "num_classes": "sequential", "adm_in_channels": 768,
                 "use_temporal_attention": True, "use_temporal_resblock": True,
                 "extra_ff_mix_layer": True, "merge_strategy": "learned_with_images",
                 "merge_factor": 0.0, "video_kernel_size": [3, 1, 1]}, (4, 9, 7),
                {"concat_latent_image": (1, 4, 9, 7)}),
    "sd3": Spec("modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper", "SD3",
                dict(input_size=None, in_channels=16, patch_size=2, depth=1, pos_embed_max_size=8,
                     num_patches=64, adm_in_channels=8,
                     context_embedder_config={"target": "torch.nn.Linear", "params": {
                         "in_features": 12, "out_features": 64}}), (16, 9, 7), POOLED),
    "flux": Spec("flux.model.Flux", "Flux", FLUX, (16, 9, 7), POOLED),
    "flux_kontext": Spec("flux.model.Flux", "Flux", FLUX, (16, 9, 7),
                         {**POOLED, "reference_latents": [(1, 16, 5, 6), (1, 16, 3, 3)]}),
    "flux_fill": Spec("flux.model.Flux", "FluxInpaint", {**FLUX, "in_channels": 96}, (16, 9, 7),
                      {**POOLED, "concat_latent_image": (1, 16, 9, 7),
                       "concat_mask": (1, 1, 9, 7)}),
    "flux2": Spec("flux.model.Flux", "Flux2",
                  {**FLUX, "image_model": "flux2", "in_channels": 128, "out_channels": 128,
                   "vec_in_dim": None, "axes_dim": [4, 4, 4, 4], "patch_size": 1,
                   "qkv_bias": False, "txt_ids_dims": [3], "global_modulation": True,
                   "mlp_silu_act": True, "ops_bias": False, "default_ref_method": "index",
                   "ref_index_scale": 10.0}, (128, 5, 3),
                  {**POOLED, "reference_latents": [(1, 128, 2, 3)]}),
    "chroma": Spec("chroma.model.Chroma", "Chroma", CHROMA, (16, 9, 7), POOLED),
    "lumina2": Spec("lumina.model.NextDiT", "Lumina2", LUMINA, (16, 9, 7)),
    "z_image": Spec("lumina.model.NextDiT", "ZImage", Z_IMAGE, (16, 9, 7)),
    "z_image_omni": Spec("lumina.model.NextDiT", "ZImage", Z_IMAGE, (16, 9, 7),
                         {"reference_latents": [(1, 16, 4, 6)]}),
    "qwen_image": Spec("qwen_image.model.QwenImageTransformer2DModel", "QwenImage", QWEN,
                       (16, 1, 9, 7)),
    "qwen_image_edit": Spec("qwen_image.model.QwenImageTransformer2DModel", "QwenImage", QWEN,
                            (16, 1, 9, 7), {"reference_latents": [(1, 16, 1, 5, 6)]}),
    "qwen_image_layered": Spec("qwen_image.model.QwenImageTransformer2DModel", "QwenImage", QWEN,
                               (16, 3, 9, 7)),
    "wan": Spec("wan.model.WanModel", "WAN21_T2V", WAN, (16, 3, 5, 7)),
    "wan_i2v": Spec("wan.model.WanModel", "WAN21_I2V", {**WAN, "in_dim": 36}, (16, 3, 5, 7),
                    {"concat_latent_image": (1, 16, 3, 5, 7)}),
    "wan_phantom": Spec("wan.model.WanModel", "WAN21_T2V", WAN, (16, 3, 5, 7),
                        {"time_dim_concat": (1, 16, 2, 5, 7)}),
    "wan_bernini": Spec("wan.model.WanModel", "WAN21_T2V", WAN, (16, 3, 5, 7),
                        {"context_latents": [(1, 16, 2, 5, 7)]}),
    "wan22": Spec("wan.model.WanModel", "WAN22_T2V", {**WAN, "in_dim": 48, "out_dim": 48},
                  (48, 3, 5, 7)),
    "wan_vace": Spec("wan.model.VaceWanModel", "WAN21_Vace",
                     {**WAN, "vace_layers": 1, "vace_in_dim": 96}, (16, 3, 4, 6)),
    "wan_camera": Spec("wan.model.CameraWanModel", "WAN21_Camera",
                       {**WAN, "model_type": "camera_t2v"}, (16, 3, 5, 7)),
    "wan_humo": Spec("wan.model.HumoWanModel", "WAN21_HuMo", {**WAN, "audio_token_num": 1},
                     (16, 3, 4, 6), {"reference_latents": [(1, 16, 1, 4, 6)]}),
    "wan_animate": Spec("wan.model_animate.AnimateWanModel", "WAN22_Animate", WAN, (16, 3, 5, 7)),
    "wan_s2v": Spec("wan.model.WanModel_S2V", "WAN22_S2V", WAN, (16, 3, 4, 6),
                    {"reference_latents": [(1, 16, 1, 4, 6)]}),
    "hunyuan_video": Spec("hunyuan_video.model.HunyuanVideo", "HunyuanVideo", HUNYUAN,
                          (16, 3, 4, 6), POOLED),
    "hunyuan_video_i2v": Spec("hunyuan_video.model.HunyuanVideo", "HunyuanVideoI2V",
                              {**HUNYUAN, "in_channels": 33}, (16, 3, 4, 6),
                              {**POOLED, "concat_latent_image": (1, 16, 3, 4, 6)}),
    "hunyuan_image": Spec("hunyuan_video.model.HunyuanVideo", "HunyuanImage21",
                          {**HUNYUAN, "in_channels": 64, "out_channels": 64, "vec_in_dim": None,
                           "axes_dim": [8, 8], "patch_size": [1, 1]}, (64, 5, 3)),
    "cosmos": Spec("cosmos.model.GeneralDIT", "CosmosT2V",
                   {**COSMOS, "extra_per_block_abs_pos_emb": True, "affline_emb_norm": True,
                    "extra_per_block_abs_pos_emb_type": "learnable",
                    "block_x_format": "THWBD"}, (16, 3, 4, 6)),
    "cosmos_predict2": Spec("cosmos.predict2.MiniTrainDIT", "CosmosT2IPredict2", COSMOS,
                            (16, 3, 5, 7)),
    "anima": Spec("anima.model.Anima", "Anima", COSMOS, (16, 1, 5, 7)),
    "pixart": Spec("pixart.pixartms.PixArtMS", "PixArtSigma",
                   dict(input_size=8, patch_size=2, in_channels=4, hidden_size=24, depth=1,
                        num_heads=1, mlp_ratio=1.0, caption_channels=12, pred_sigma=True,
                        pe_interpolation=1), (4, 36, 32)),
    "aura_flow": Spec("aura.mmdit.MMDiT", "AuraFlow",
                      dict(in_channels=4, out_channels=4, patch_size=2, dim=16, n_layers=2,
                           n_double_layers=1, n_heads=1, global_conddim=16, cond_seq_dim=12,
                           max_seq=64), (4, 9, 7)),
    "ltxv": Spec("lightricks.model.LTXVModel", "LTXV",
                 dict(in_channels=128, cross_attention_dim=16, attention_head_dim=16,
                      num_attention_heads=1, caption_channels=12, num_layers=1), (128, 3, 5, 7),
                 {"attention_mask": lambda tokens: torch.ones(1, tokens, dtype=torch.int)}),
    "hidream": Spec("hidream.model.HiDreamImageTransformer2DModel", "HiDream", HIDREAM,
                    (16, 9, 7), {**POOLED, "conditioning_llama3": (1, 2, 5, 12)}),
    "krea2": Spec("krea2.model.SingleStreamDiT", "Krea2", KREA, (16, 1, 9, 7), context=32),
    "kandinsky5": Spec("kandinsky5.model.Kandinsky5", "Kandinsky5",
                       {**KANDINSKY, "visual_embed_dim": 33 * 4}, (16, 3, 4, 6), POOLED),
    "kandinsky5_image": Spec("kandinsky5.model.Kandinsky5", "Kandinsky5Image",
                             {**KANDINSKY, "visual_embed_dim": 16 * 4}, (16, 4, 6), POOLED),
}


def host_class(path: str):
    """A class of comfy.ldm; the test is skipped on a host that is too old to have it."""
    module, _, name = path.rpartition(".")
    found = getattr(pytest.importorskip(f"comfy.ldm.{module}"), name, None)
    return found or pytest.skip(f"this ComfyUI has no {path}")


@cache
def build(name: str):
    """A MODEL of the host with this small network inside, all of its weights random."""
    spec = {**CASES, **SCATTERED}[name]
    network_class = host_class(spec.network_class)
    config = getattr(comfy.supported_models, spec.config)(spec.network)
    config.unet_config.update(spec.network)  # over the defaults that the config put in
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model({}, "", device=CPU)
    assert type(model.diffusion_model) is network_class
    generator = torch.Generator().manual_seed(0)
    network = model.diffusion_model
    # SD3's positions are a buffer, and hold whatever was in memory.
    positions = [(key, each) for key, each in network.named_buffers() if key.endswith("pos_embed")]
    for key, weight in [*network.named_parameters(), *positions]:
        weight.data = tiny_models.random_weight(key, weight.shape, generator)
    return comfy.model_patcher.ModelPatcher(model, CPU, CPU)


def random(shape, seed):
    """Random values in place of each shape."""
    if isinstance(shape, list):
        return [random(one, seed + i) for i, one in enumerate(shape)]
    if not isinstance(shape, tuple):
        return shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def prompt(spec: Spec, tokens: int, seed: int):
    extras = {key: extra(tokens) if callable(extra) else random(extra, seed + 10)
              for key, extra in spec.extras.items()}
    return [[random((1, tokens, spec.context), seed), extras]]


def sample(pack, name: str, record=None, negative_tokens: int = 5):
    """Two latents through one guided step: its x, sigma and denoised, and the tap's features."""
    spec, calls = {**CASES, **SCATTERED}[name], []
    tap = pack.feature_tap.FeatureTap(record or pack.last_layers.last_layer_of(build(name)))
    model = tap.attach(build(name))
    model.set_model_sampler_post_cfg_function(lambda call: calls.append(call) or call["denoised"])
    host_nodes.common_ksampler(model, 7, 1, CFG, "euler", "normal", prompt(spec, 5, 1),
                               prompt(spec, negative_tokens, 2),
                               {"samples": random((2, *spec.latent), 3)})
    (call,) = calls
    return *(call[key] for key in ("input", "sigma", "denoised")), \
        pack.feature_tap.guided(tap.take(), CFG, call["input"].shape)


@pytest.mark.parametrize("negative_tokens", [5, 35])
@pytest.mark.parametrize("name", CASES)
def test_layer_applied_to_guided_features_gives_the_models_output(pack, name, negative_tokens):
    model = build(name)
    record = pack.last_layers.last_layer_of(model)
    layer, sampling = (model.get_model_object(path) for path in (record.path, "model_sampling"))
    x, sigma, denoised, features = sample(pack, name, negative_tokens=negative_tokens)
    output = layer(features)
    grid = record.sign * record.to_grid(output, x.shape)
    assert output.shape[1 if record.shape.kernel else -1] == record.outputs
    assert features.ndim == (4 if record.shape.kernel else 3)
    assert grid.shape == x.shape and grid.std() > 0.01
    torch.testing.assert_close(sampling.calculate_denoised(sigma, grid, x), denoised,
                               rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_wrong_row_is_refused_at_the_first_call(pack, name):
    rows = pack.last_layers
    record = rows.last_layer_of(build(name))
    other = {rows.PQC: rows.CPQ, rows.CPQ: rows.PQC, rows.FIRST: rows.LAST, rows.LAST: rows.FIRST}
    wrong = [record._replace(sign=-record.sign)]
    if math.prod(record.patch) > 1:
        wrong.append(record._replace(layout=other[record.layout]))
    if record.place == rows.LAST or "reference_latents" in CASES[name].extras:
        wrong.append(record._replace(place=other[record.place]))
    if record.padded_to > 1:
        wrong.append(record._replace(padded_to=1))
    for row in wrong:
        with pytest.raises(pack.BayesDiffError, match="is not the output .*trajectory variance"):
            sample(pack, name, row)


@pytest.mark.parametrize("name", SCATTERED)
def test_variant_with_its_tokens_elsewhere_is_refused_at_the_first_call(pack, name):
    model = build(name)
    pack.last_layers.last_layer_of(model)  # its class has a row
    network = model.get_model_object("diffusion_model")
    if name == "krea2_edit" and "ref_latents" not in inspect.signature(network.forward).parameters:
        pytest.skip("Krea2 takes no reference latents in this ComfyUI")
    with pytest.raises(pack.BayesDiffError, match="is not the output .*trajectory variance"):
        sample(pack, name)


def test_every_class_of_the_table_has_a_case(pack):
    classes = {path for family in pack.last_layers.FAMILIES for path in family.classes}
    assert classes == {spec.network_class for spec in CASES.values()}


@pytest.mark.parametrize("network_class", [
    "chroma_radiance.model.ChromaRadiance", "pixeldit.model.PixDiT_T2I", "pixeldit.pid.PidNet",
    "lumina.model.NextDiTPixelSpace", "hidream_o1.model.HiDreamO1Transformer",
    "lightricks.av_model.LTXAVModel", "wan.model.SCAILWanModel", "wan.ar_model.CausalWanModel",
    "wan.model_wandancer.WanDancerModel"])
def test_network_without_one_last_affine_layer_is_offered_trajectory_variance(pack, network_class):
    found = host_class(network_class)
    model = build("flux").clone()
    model.add_object_patch("diffusion_model", found.__new__(found))  # only its class is asked
    with pytest.raises(pack.BayesDiffError, match=f"{network_class}.*Use trajectory variance"):
        pack.last_layers.last_layer_of(model)
