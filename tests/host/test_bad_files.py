"""Damaged and hostile files: each is refused in words, and none is taken for something else."""

import io
import json
import os
import pickle
import random
import tarfile
import time
import zipfile

import pytest
import torch
from safetensors.torch import load, save

from tools.reports import SOAK

MUTATIONS = 1500 if SOAK else 200
SECONDS = 1.0  # of this process alone, however busy the machine is
NASTY = ["", " ", "nan", "inf", "-1", "1e999", "0x10", "9" * 5000, "None", "../..", "\x00",
         "\u0663", "[" * 50_000, '{"a":' * 50_000, "x" * 2_000_000, "\ud7ff", "[]" * 300_000]


class Sound:
    """A sound file and its parts."""

    def __init__(self, whole: bytes):
        self.whole, self.tensors = whole, load(whole)
        self.header_ends = 8 + int.from_bytes(whole[:8], "little")
        self.header = json.loads(whole[8:self.header_ends])
        self.words = self.header["__metadata__"]

    def with_header(self, header: dict) -> bytes:
        return self.with_text(json.dumps(header))

    def with_text(self, text: str) -> bytes:
        text = text.encode()
        return len(text).to_bytes(8, "little") + text + self.whole[self.header_ends:]

    def again(self, words: dict | None = None, **tensors) -> bytes:
        """With other parts and no checksum, so that it takes more than that to refuse them."""
        words = {k: v for k, v in (words or self.words).items() if k != "checksum"}
        return save({**self.tensors, **tensors}, metadata=words)


def flipped(whole: bytes, start: int, end: int, dice: random.Random) -> bytes:
    damaged = bytearray(whole)
    damaged[dice.randrange(start, end)] ^= 1 << dice.randrange(8)
    return bytes(damaged)


def truncated(sound, dice):
    return sound.whole[:dice.randrange(len(sound.whole))]


def longer(sound, dice):
    return sound.whole + dice.randbytes(dice.randrange(1, 99))


def bit_of_the_length(sound, dice):
    return flipped(sound.whole, 0, 8, dice)


def bit_of_the_header(sound, dice):
    return flipped(sound.whole, 8, sound.header_ends, dice)


def bit_of_the_data(sound, dice):
    return flipped(sound.whole, sound.header_ends, len(sound.whole), dice)


def noise_in_the_middle(sound, dice):
    start = dice.randrange(len(sound.whole))
    noise = dice.randbytes(dice.randrange(1, 400))
    return (sound.whole[:start] + noise + sound.whole[start + len(noise):])[:len(sound.whole)]


def another_shape(sound, dice):
    name = dice.choice(sorted(sound.tensors))
    tensor = sound.tensors[name]
    shapes = [tensor[:-1], tensor[None], tensor.flatten()[:0], torch.cat([tensor, tensor]),
              tensor.flatten()[0], torch.zeros(3, 0, 5).to(tensor)]
    return sound.again(**{name: dice.choice(shapes).contiguous().clone()})


def another_type(sound, dice):
    name = dice.choice(sorted(sound.tensors))
    kinds = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8,
             torch.bool, torch.complex64, torch.float8_e4m3fn} - {sound.tensors[name].dtype}
    return sound.again(**{name: sound.tensors[name].to(dice.choice(sorted(kinds, key=str)))})


def not_finite(sound, dice):
    name = dice.choice(sorted(name for name, tensor in sound.tensors.items()
                              if tensor.is_floating_point()))
    tensor = sound.tensors[name].clone()
    tensor.flatten()[dice.randrange(tensor.numel())] = dice.choice([torch.nan, torch.inf,
                                                                    -torch.inf])
    return sound.again(**{name: tensor})


def nasty_word(sound, dice):
    # Any text will do as the name of the pack's version; only too long or odd ones are refused.
    name = dice.choice(sorted(set(sound.words) - {"checksum", "pack_version", "family", "layer"}))
    return sound.again({**sound.words, name: dice.choice(NASTY)})


def word_missing(sound, dice):
    name = dice.choice(sorted(set(sound.words) - {"checksum"}))
    return sound.again({k: v for k, v in sound.words.items() if k != name})


def huge_header(sound, dice):
    if dice.random() < 0.5:
        return dice.choice([2**31, 2**40, 2**63, 2**64 - 1]).to_bytes(8, "little") + b"{"
    return sound.with_text(" " * 9_000_000 + json.dumps(sound.header))


def huge_size(sound, dice):
    name = dice.choice(sorted(sound.tensors))
    entry = {**sound.header[name]}
    if dice.random() < 0.5:
        entry["shape"] = [dice.choice([2**31, 2**62, 2**64]) for _ in entry["shape"]]
    else:
        entry["data_offsets"] = [entry["data_offsets"][0], dice.choice([2**40, 2**63, 2**64])]
    return sound.with_header({**sound.header, name: entry})


def odd_json(sound, dice):
    return sound.with_text(dice.choice([
        "[" * 200_000, '{"a":' * 200_000, "{" * 10, "null", "[]", "7", '"x"', "{}", "",
        json.dumps({f"t{i}": i for i in range(50_000)}), json.dumps({"__metadata__": ["x"] * 9}),
        json.dumps({"__metadata__": {"format": {"deep": {}}}}), "\x00" * 50,
        json.dumps({**sound.header, "__metadata__": {**sound.words, "settings": "[" * 10**6}})]))


def two_tensors_in_one_place(sound, dice):
    one, other = dice.sample(sorted(sound.tensors), 2)
    return sound.with_header({**sound.header, one: sound.header[other]})


def foreign_safetensors(sound, dice):
    names = [f"blocks.{i}.weight" for i in range(dice.randrange(1, 20))]
    words = dice.choice([{"format": "pt"}, {}, None, {"format": "bayesdiff-llla"}, sound.words])
    return save({name: torch.zeros(dice.randrange(9), 3) for name in names}, metadata=words)


class Bomb:
    def __reduce__(self):
        return os.abort, ()  # nobody can miss that it was opened


def pickled(sound, dice):
    file = io.BytesIO()
    thing = {"ggn": Bomb(), "x": dice.random()}
    if dice.random() < 0.5:
        return pickle.dumps(thing, protocol=dice.randrange(6))
    torch.save({"x": torch.ones(dice.randrange(9))}, file)
    return file.getvalue()


def archive(sound, dice):
    file = io.BytesIO()
    if dice.random() < 0.5:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("../../bomb", bytes(dice.choice([10, 5_000_000])))
    else:
        with tarfile.open(fileobj=file, mode=dice.choice(["w", "w:gz", "w:xz"])) as made:
            made.addfile(tarfile.TarInfo("/bomb"))
    return file.getvalue()


def noise_alone(sound, dice):
    return dice.randbytes(dice.choice([0, 1, 7, 8, 9, 1000, 100_000]))


MUTATORS = [truncated, longer, bit_of_the_length, bit_of_the_header, bit_of_the_data,
            noise_in_the_middle, another_shape, another_type, not_finite, nasty_word, word_missing,
            huge_header, huge_size, odd_json, two_tensors_in_one_place, foreign_safetensors,
            pickled, archive, noise_alone]


def loaded(pack, file):
    return pack.llla.BayesDiffLLLALoad.execute(file, "as fitted", "as fitted", 1.0, 1.0).args[0]


def same(one, other) -> bool:
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
               for (name, a), b in zip(one._asdict().items(), other._asdict().values())
               if name != "posterior")


@pytest.mark.parametrize("mutate", MUTATORS, ids=lambda mutate: mutate.__name__)
def test_a_mutated_posterior_is_refused_or_means_the_same(pack, fits, place, tried, mutate):
    path = place / "models" / "x.safetensors"
    pack.llla_file.write(fits["full"], path)
    count, seen = mutated(pack, path, mutate, lambda: loaded(pack, path.name))
    tried("mutated LLLA files", count, **seen)
    assert sorted(p.name for p in place.rglob("*")) == ["models", "output", path.name]


@pytest.mark.parametrize("mutate", MUTATORS, ids=lambda mutate: mutate.__name__)
def test_a_mutated_trajectory_is_refused_or_means_the_same(pack, case, ksampler, place, tried,
                                                           mutate):
    _, trajectory = ksampler(case("sd3"))
    path = place / "output" / "bayesdiff_trajectories" / "x.safetensors"
    pack.trajectory_file.write(trajectory, *pack.recipes.packed(trajectory), path)
    load = pack.trajectory.BayesDiffTrajectoryLoad

    def read():
        found = load.execute(path.name).args[0]
        return found._replace(recipe=str(found.recipe._replace(sampler=None)))

    count, seen = mutated(pack, path, mutate, read)
    tried("mutated trajectory files", count, **seen)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def mutated(pack, path, mutate, read) -> tuple[int, dict]:
    """How often it was tried, and what was seen."""
    dice = random.Random(mutate.__name__)
    sound, made = Sound(path.read_bytes()), read()
    count, slowest, unchanged = -(-MUTATIONS // len(MUTATORS)), 0.0, 0
    for _ in range(count):
        path.write_bytes(mutate(sound, dice))
        began = time.process_time()
        try:
            found = read()
        except pack.BayesDiffError as error:
            assert path.name in str(error) and len(str(error)) < 2000
        else:
            assert same(found, made), "it was loaded as something else"
            unchanged += 1
        slowest = max(slowest, time.process_time() - began)
    assert slowest < SECONDS
    return count, {"unchanged": unchanged, "slowest": slowest}


def test_a_file_of_before_the_checksum_still_loads(pack, fits, place):
    path = place / "models" / "x.safetensors"
    pack.llla_file.write(fits["full"], path)
    path.write_bytes(Sound(path.read_bytes()).again())
    assert same(loaded(pack, path.name), fits["full"])


NAMES = ["../x.safetensors", "..\\x.safetensors", "a/../../x.safetensors", "./../x.safetensors",
         "{outside}", "/{outside}", "C:\\x.safetensors", "~/x.safetensors", "\x00",
         "x\x00.safetensors", "", ".", "..", "/", "x" * 5000, "models",
         "../models/../x.safetensors", "%2e%2e/x.safetensors", "file://{outside}",
         "link.safetensors", "links/x.safetensors", "circle.safetensors"]


@pytest.mark.parametrize("prefix", ["", "[output] ", "[output] ../", "[output] [output] "])
def test_names_and_links_that_leave_the_folder_are_not_followed(pack, fits, place, prefix):
    """Outside lies a sound file, so that following would succeed."""
    outside = place / "x.safetensors"
    pack.llla_file.write(fits["full"], outside)
    for folder in (place / "models", place / "output" / "llla"):
        folder.mkdir(exist_ok=True)
        (folder / "link.safetensors").symlink_to(outside)
        (folder / "links").symlink_to(place)
        (folder / "circle.safetensors").symlink_to(folder / "circle.safetensors")
    before = {path: path.lstat().st_mtime_ns for path in place.rglob("*")}
    for name in NAMES:
        file = prefix + name.replace("{outside}", str(outside))
        with pytest.raises(pack.BayesDiffError):
            loaded(pack, file)
        pack.llla.BayesDiffLLLALoad.fingerprint_inputs(file=file)
    assert {path: path.lstat().st_mtime_ns for path in place.rglob("*")} == before


def test_a_folder_that_is_a_link_itself_is_fine(pack, fits, place):
    pack.llla_file.write(fits["full"], place / "elsewhere" / "x.safetensors")
    (place / "models").rmdir()
    (place / "models").symlink_to(place / "elsewhere")
    assert same(loaded(pack, "x.safetensors"), fits["full"])


# ---- reference scores

def other_json(whole, dice):
    words = {**json.loads(whole)}
    name = dice.choice(sorted(set(words) - {"checksum"}))
    words[name] = dice.choice([None, {}, [], "x", 1e308, True, [[]], [None], ["1"], [True], 2, -1,
                               [1, {}], [10**400], 10**30])
    return json.dumps(words).encode()


def odd_number(whole, dice):
    odd = dice.choice(["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "9" * 5000, "0x1", "01"])
    return whole.replace(b"2.5", odd.encode())


def deep_or_large(whole, dice):
    return dice.choice([b"[" * 10**6, b'{"a":' * 10**5, b" " * 51_000_000, b"[1," * 10**5, b"\xff",
                        b'{"format": "bayesdiff-reference", "version": 1, "scores": 1}'])


@pytest.mark.parametrize("mutate", [
    lambda whole, dice: whole[:dice.randrange(len(whole))],
    lambda whole, dice: flipped(whole, 0, len(whole), dice),
    lambda whole, dice: dice.randbytes(dice.randrange(200)),
    other_json, odd_number, deep_or_large], ids=["cut", "bit", "noise", "json", "number", "deep"])
def test_a_mutated_reference_is_refused_or_means_the_same(pack, place, tried, mutate):
    scores, dice = [0.125, 1.0, 2.5, 1e-9, 1e9], random.Random(1)
    path = pack.reference_file.path_of("mine")
    pack.reference_file.add(path, scores)
    whole = path.read_bytes()
    count, unchanged, slowest = -(-MUTATIONS // 12), 0, 0.0
    for _ in range(count):
        path.write_bytes(mutate(whole, dice))
        began = time.process_time()
        try:
            assert pack.reference_file.read(path) == sorted(scores)
            unchanged += 1
        except pack.BayesDiffError as error:
            assert "mine.json cannot be used" in str(error)
        slowest = max(slowest, time.process_time() - began)
    assert slowest < SECONDS
    tried("mutated reference files", count, unchanged=unchanged, slowest=slowest)


@pytest.mark.parametrize("mutate", [
    lambda whole, dice: whole[:dice.randrange(len(whole))],
    lambda whole, dice: flipped(whole, 0, len(whole), dice),
    other_json, deep_or_large], ids=["cut", "bit", "json", "deep"])
def test_a_mutated_file_of_what_was_taught_is_refused_or_means_the_same(pack, place, tried, mutate):
    dice, path = random.Random(1), pack.taught_file.path_of("mine")
    run = pack.core.taught.run_of({"sum": [1.0, 2.0, 4.0, 7.0], "mean": [0.5, 0.1, 0.2, 0.3]},
                                  [0, 1], [2])
    pack.taught_file.write(path, [run])
    whole = path.read_bytes()
    count, unchanged = -(-MUTATIONS // 12), 0
    for _ in range(count):
        path.write_bytes(mutate(whole, dice))
        try:
            assert pack.taught_file.read(path) == [run]
            unchanged += 1
        except pack.BayesDiffError as error:
            assert "mine.json cannot be used" in str(error)
    tried("mutated files of what was taught", count, unchanged=unchanged)


def test_a_reference_that_links_elsewhere_is_not_followed(pack, place):
    elsewhere = place / "elsewhere.json"
    pack.reference_file.add(elsewhere, [1.0])
    whole = elsewhere.read_bytes()
    folder = place / "output" / "bayesdiff_reference"
    folder.mkdir()
    (folder / "mine.json").symlink_to(elsewhere)
    with pytest.raises(pack.BayesDiffError, match="leads out of its folder"):
        pack.reference_file.path_of("mine")
    assert elsewhere.read_bytes() == whole
