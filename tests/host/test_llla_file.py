"""LLLA Save and Load: the same bits back, and nothing but a sound file accepted."""

import os
import pickle
import stat
import time
from pathlib import Path

import folder_paths
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

from tools.places import REPOSITORY

TENSORS = ["ggn", "energy_sums", "energy_counts", "sketch", "sketch_sigmas", "fingerprint"]


def save_node(pack, made, prefix="mine", folder="models", overwrite=False):
    return pack.llla.BayesDiffLLLASave.execute(made, prefix, folder, overwrite).args[0]


def load_node(pack, file, structure="as fitted", prior="as fitted", prior_precision=1.0,
              temperature=1.0):
    return pack.llla.BayesDiffLLLALoad.execute(file, structure, prior, prior_precision,
                                               temperature)


def files(folder: Path):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("folder", ["models", "output"])
def test_a_saved_posterior_comes_back_bit_for_bit(pack, fits, place, structure, folder):
    made = fits[structure]
    loaded = load_node(pack, save_node(pack, made, folder=folder)).args[0]
    for name in TENSORS:
        assert torch.equal(getattr(loaded, name), getattr(made, name))
        assert getattr(loaded, name).dtype == getattr(made, name).dtype
    assert loaded._replace(posterior=None, **dict.fromkeys(TENSORS))._asdict() \
        == made._replace(posterior=None, **dict.fromkeys(TENSORS))._asdict()
    phi = torch.randn(2, 6, made.about.shape.features)
    assert torch.equal(loaded.posterior.predictive_variance(phi),
                       made.posterior.predictive_variance(phi))


def test_the_header_says_what_the_file_is(pack, fits, place):
    path = place / "models" / save_node(pack, fits["full"])
    with safe_open(path, framework="pt") as file:
        words = file.metadata()
    assert words["format"] == "bayesdiff-llla" and words["format_version"] == "1"
    assert words["family"] == "Wan" and words["layer"] == "diffusion_model.head.head"
    assert words["features"] == "32" and words["latents"] == "5"
    assert words["pack_version"] in (REPOSITORY / "pyproject.toml").read_text()
    assert '"seed": 1' in words["settings"] and len(words["fingerprint"]) == 16


def test_settings_can_be_changed_after_loading(pack, fits, place):
    made = fits["full"]
    file = save_node(pack, made)
    loaded = load_node(pack, file, structure="diagonal", prior="fixed", prior_precision=4.0,
                       temperature=0.5).args[0]
    expected = 0.5 / (made.ggn.diagonal() + 4.0)
    assert torch.allclose(loaded.posterior.variance, expected)
    evidence = load_node(pack, file, prior="evidence").args[0]
    assert evidence.posterior.prior_precision != 1.0
    with pytest.raises(pack.BayesDiffError, match="the diagonal only"):
        load_node(pack, save_node(pack, fits["diagonal"]), structure="full")


def test_load_shows_text_plot_and_numbers(pack, fits, place):
    out = load_node(pack, save_node(pack, fits["full"]))
    assert "effective degrees of freedom" in out.ui["text"][0] and out.ui["images"]
    assert {"sigma", "variance"} == out.ui["bayesdiff"][0].keys()


def test_a_counter_keeps_older_files_and_overwrite_replaces(pack, fits, place):
    full, thin = fits["full"], fits["diagonal"]
    assert [save_node(pack, full), save_node(pack, thin), save_node(pack, full, overwrite=True),
            save_node(pack, thin, "mine.safetensors", overwrite=True)] == [
        "mine_00001_.safetensors", "mine_00002_.safetensors", "mine.safetensors",
        "mine.safetensors"]
    assert load_node(pack, "mine.safetensors").args[0].about.structure == "diagonal"
    assert load_node(pack, "mine_00001_.safetensors").args[0].about.structure == "full"
    assert len(files(place)) == 3


def test_the_list_refreshes_and_a_changed_file_is_noticed(pack, fits, place):
    node = pack.llla.BayesDiffLLLALoad

    def listed():
        folder_paths.cache_helper.clear()
        return node.GET_SCHEMA().inputs[0].options

    assert listed() == []
    save_node(pack, fits["full"], overwrite=True)
    save_node(pack, fits["full"], folder="output", overwrite=True)
    assert listed() == ["mine.safetensors", "[output] mine.safetensors"]
    for file in listed():
        before = node.fingerprint_inputs(file=file, structure="full")
        assert before == node.fingerprint_inputs(file=file, structure="full")
        time.sleep(0.02)
        save_node(pack, fits["full"], folder="output" if "output" in file else "models",
                  overwrite=True)
        assert node.fingerprint_inputs(file=file, structure="full") != before
    assert node.fingerprint_inputs(file="gone.safetensors") is None


@pytest.mark.parametrize("prefix", ["a/b", "a\\b", "../up", "", "  ", ".hidden", "x" * 101, "a:b",
                                    "a\nb", "..", "/abs"])
def test_bad_names_are_refused_and_nothing_is_written(pack, fits, place, prefix):
    for folder in ("models", "output"):
        with pytest.raises(pack.BayesDiffError, match="filename_prefix is .* plain name"):
            save_node(pack, fits["full"], prefix, folder)
    assert files(place) == []


def test_unwritable_folder_is_told_and_the_old_file_stays(pack, fits, place, monkeypatch):
    path = place / "models" / save_node(pack, fits["full"], overwrite=True)
    old = path.read_bytes()
    if os.geteuid() == 0:  # root writes anywhere, so the folder is taken away instead
        blocked = place / "file"
        blocked.write_text("not a folder")
        with pytest.raises(pack.BayesDiffError, match="cannot be written.*writable"):
            pack.llla_file.write(fits["diagonal"], blocked / "mine.safetensors")
    else:
        path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(pack.BayesDiffError, match="cannot be written.*writable"):
            save_node(pack, fits["diagonal"], overwrite=True)
        path.parent.chmod(stat.S_IRWXU)

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError("in use")))
        with pytest.raises(pack.BayesDiffError, match="cannot be written: in use"):
            save_node(pack, fits["diagonal"], overwrite=True)
    assert path.read_bytes() == old

    def full_disk(tensors, name, metadata):
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(pack.safe_file, "save_file", full_disk)
    with pytest.raises(pack.BayesDiffError, match="No space left"):
        save_node(pack, fits["diagonal"], overwrite=True)
    assert path.read_bytes() == old and files(path.parent) == ["mine.safetensors"]


# ---- files that are no posterior


@pytest.fixture
def refused(pack, place):
    def refuse(content, words):
        path = place / "models" / "bad.safetensors"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            save_file(*content, path)
        with pytest.raises(pack.BayesDiffError, match=words):
            load_node(pack, path.name)
    return refuse


@pytest.fixture
def parts(pack, fits, place):
    """Tensors and header of a sound file, without the checksum, which would refuse all changes."""
    path = place / "models" / save_node(pack, fits["full"], "sound")
    with safe_open(path, framework="pt") as file:
        words = {k: v for k, v in file.metadata().items() if k != "checksum"}
        return {name: file.get_tensor(name).clone() for name in file.keys()}, words


def stored(tensors, words):
    return save(tensors, metadata=words)


@pytest.mark.parametrize("content, words", [
    (b"", "it is empty"),
    (b"\x00" * 7, "not a safetensors file, or it is truncated"),
    (b"hello, this is text, no tensors at all", "not a safetensors file"),
    (pickle.dumps({"ggn": [1.0] * 50}), "pickle .* never opened"),
    (b"PK\x03\x04" + b"\x00" * 60, "pickle or an archive"),
    (b"\x02\x00\x00\x00\x00\x00\x00\x00{}", "not a posterior that LLLA Save wrote"),
])
def test_foreign_files_are_refused(refused, content, words):
    refused(content, words)


def test_a_pickled_torch_file_renamed_is_refused(refused, tmp_path):
    torch.save({"ggn": torch.ones(3)}, tmp_path / "x.pt")
    refused((tmp_path / "x.pt").read_bytes(), "pickle or an archive")


def test_another_safetensors_file_is_refused(refused):
    refused(stored({"weight": torch.ones(3)}, {"format": "pt"}), "format is 'pt'")


def test_truncated_files_are_refused_at_every_length(refused, parts):
    whole = stored(*parts)
    for part in (0.05, 0.3, 0.6, 0.99):
        refused(whole[:int(len(whole) * part)], "truncated|damaged|empty")
    refused(whole + b"more", "cannot be read")


@pytest.mark.parametrize("name, value, words", [
    ("format_version", "2", "format version 2, this pack reads 1"),
    ("format_version", "one", "format_version is 'one'"),
    ("features", "33", "ggn is F64 of shape"),
    ("features", "-1", "features is '-1' .* whole number"),
    ("features", "99999999999999999999999999", "features is .* whole number"),
    ("features", "40000", "features is '40000' .* smaller number"),
    ("kernel", "2", "kernel is '2' .* odd"),
    ("bias", "7", "bias is '7'"),
    ("outputs", "0", "outputs is '0'"),
    ("latents", "0", "latents is '0'"),
    ("latents", None, "latents is missing"),
    ("statistics", "kron", "statistics is 'kron' .* full, diagonal"),
    ("statistics", "diagonal", "ggn is F64 of shape"),
    ("structure", "", "structure is ''"),
    ("prior", "flat", "prior is 'flat'"),
    ("prior_precision", "nan", "prior_precision is 'nan'"),
    ("prior_precision", "0", "prior precision is 0.0"),
    ("temperature", "-1", "temperature is '-1'"),
    ("weight_norm", "inf", "weight_norm is 'inf'"),
    ("residual_sum", "many", "residual_sum is 'many'"),
    ("fingerprint", "0123", "fingerprint is '0123' .* as the rest"),
    ("settings", "{}", "settings is .* JSON list"),
    ("settings", "[" * 100_000, "settings is .* JSON list"),
    ("family", "x" * 201, "family is .* 1 to 200"),
    ("family", "a\x1b[31mred", "family is "),
])
def test_damaged_headers_are_refused_by_name(refused, parts, name, value, words):
    tensors, header = parts
    header = {k: v for k, v in {**header, name: value}.items() if v is not None}
    refused(stored(tensors, header), words)


@pytest.mark.parametrize("name, change, words", [
    ("ggn", lambda t: t.float(), "ggn is F32 .* F64"),
    ("ggn", lambda t: t[:-1].contiguous(), "ggn is F64 of shape"),
    ("ggn", lambda t: t * float("nan"), "not finite"),
    ("ggn", lambda t: -t, "negative sum of squares"),
    ("ggn", lambda t: t + t.max() * torch.ones_like(t).triu(1), "not symmetric"),
    ("ggn", lambda t: None, "holds the tensors"),
    ("extra", lambda t: torch.ones(2), "holds the tensors .*extra"),
    ("energy_sums", lambda t: t - 1, "negative noise energies"),
    ("energy_counts", lambda t: t[:5].contiguous(), "energy_counts is F64"),
    ("sketch", lambda t: t[:0].contiguous(), "sketch is F32 of shape"),
    ("sketch", lambda t: t[:-1].contiguous(), "different length"),
    ("sketch_sigmas", lambda t: t * 0, "not above 0"),
    ("fingerprint", lambda t: t.double(), "fingerprint is F64"),
])
def test_damaged_tensors_are_refused_by_name(refused, parts, name, change, words):
    tensors, header = parts
    changed = {**tensors, name: change(tensors.get(name))}
    refused(stored({k: v for k, v in changed.items() if v is not None}, header), words)


@pytest.mark.parametrize("file", ["../secret.safetensors", "gone.safetensors",
                                  "[output] ../secret.safetensors", "[output] gone.safetensors"])
def test_files_outside_the_folders_are_not_opened(pack, place, file):
    (place / "secret.safetensors").write_bytes(b"secret")
    with pytest.raises(pack.BayesDiffError, match="neither models/llla nor output/llla"):
        load_node(pack, file)
