"""Prompts and latents for tiny models, by the host's own data-set node."""

import json

import pytest
import torch

from tests.server.graphs import CONTEXT, SIZES


@pytest.fixture(scope="session")
def data_sets(server):
    write_data_sets(server.base)


def write_data_sets(base):
    """As the host's Save Training Dataset writes them; older hosts look in the output folder."""
    for name, size in SIZES.items():
        torch.manual_seed(0)
        data = {"latents": [{"samples": torch.randn(1, *size)} for _ in range(2)],
                "conditioning": [[[torch.randn(1, 4, CONTEXT[name]),
                                   {"pooled_output": torch.randn(1, 64)}]] for _ in range(2)]}
        for folder in (base / "datasets" / name, base / "output" / name):
            folder.mkdir(parents=True)
            torch.save(data, folder / "shard_0000.pkl")
            (folder / "metadata.json").write_text(json.dumps({"num_samples": 2}))
