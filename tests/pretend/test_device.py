"""The pretended device refuses what CUDA refuses, and counts."""

import pytest
import torch

from tests.pretend import device


def there(*shape):
    return torch.ones(shape, device="cuda")


@pytest.mark.parametrize("mixed, words", [
    (lambda: there(3) + torch.ones(3), "same device"),
    (lambda: torch.ones(3) * there(1)[0], "same device"),
    (lambda: torch.cat([there(3), torch.ones(3)]), "same device"),
    (lambda: torch.stack([there(1)[0], torch.tensor(1.0)]), "same device"),
    (lambda: there(3) + there(3).to("cuda:1"), "same device"),
    (lambda: there(2, 3) @ torch.ones(3, 2), "same device"),
    (lambda: torch.where(there(3) > 0, torch.ones(3), there(3)), "same device"),
    (lambda: there(3).add_(torch.ones(3)), "same device"),
    (lambda: torch.ones(3)[there(1).long()], "indices should be"),
    (lambda: torch.randn(3, device="cuda", generator=torch.Generator()), "generator"),
    (lambda: torch.randn(3, generator=torch.Generator(device="cuda")), "generator"),
    (lambda: there(3).numpy(), "to numpy"),
])
def test_what_cuda_refuses_is_refused(mixed, words):
    with pytest.raises((RuntimeError, TypeError), match=words):
        mixed()


def test_what_cuda_takes_is_taken_and_gives_the_cpus_numbers():
    x, y = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3).to("cuda")
    y[0] = 9
    y[torch.tensor([1])] *= torch.tensor(2.0)  # an index and a number may stay on the CPU
    y[:, 1:].square_()
    x[0], x[1] = 9, x[1] * 2
    x[:, 1:].square_()
    assert y.device == y.new_tensor([1.0]).device == y.new_zeros(2).device == torch.device("cuda:0")
    assert y.tolist() == x.tolist() and torch.equal(y.cpu(), x)
    assert torch.randn(3, device="cuda", generator=torch.Generator("cuda")).device == y.device


def test_launches_waits_bytes_and_memory_are_counted():
    with device.counting() as found:
        x = torch.ones(1000).to("cuda")  # 1 launch, 4000 bytes
        y = (x + 1).view(10, 100)[:5].T  # 1 launch: views are none
        float(y.sum())  # 1 launch, 1 wait
        y.cpu(), y[0].tolist()  # a launch, two waits, 2000 + 20 bytes
        del x
    outside = found[0].outside
    assert outside.launches == 1 + 1 + 1 + 1 + 1  # reading a number is one of its own
    assert (outside.stalls, outside.to_device, outside.from_device) == (3, 4000, 2020)
    assert outside.peak == 8004
    before = device.MACHINE.live
    del y
    assert device.MACHINE.live == before - 4000


@pytest.mark.parametrize("hollow", [False, True])
def test_products_of_a_network_are_counted_and_if_hollow_not_worked_out(hollow):
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3, padding=1), torch.nn.Flatten(2),
                                  torch.nn.Linear(64, 7)).to("cuda")
    x = torch.ones(2, 3, 8, 8, device="cuda")
    with torch.inference_mode(), device.counting(network, hollow) as found:
        answer = network(x)
    assert answer.shape == (2, 5, 7) and bool(answer.cpu().any()) != hollow
    assert found[0].network.flops == 2 * (2 * 5 * 64 * 27 + 2 * 5 * 64 * 7)
    assert network(x).cpu().any()  # by itself it works again


def test_a_full_card_is_out_of_memory_as_torch_says_it():
    with device.card_of(1e-6), pytest.raises(torch.cuda.OutOfMemoryError):
        there(1000)
    assert there(1000).sum() == 1000
