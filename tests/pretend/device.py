"""A GPU that only pretends: tensors that say they are on cuda:0, hold their numbers on the CPU and
refuse to mix with CPU tensors as CUDA does.

Whatever is asked of it is counted: kernels that a GPU would launch, the moments in which the CPU
would wait for it, bytes that cross, and how much memory lives on it. Counts do not depend on how
busy the machine is, so tests can assert them.

`install()` tells torch, before the host is imported, that the cards are there; the host then finds
them by itself, and none of its code is changed.
"""

import contextlib
import functools
import threading
import weakref
from types import SimpleNamespace
from typing import NamedTuple

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

CPU = torch.device("cpu")
GIB = 2**30
COPIES = {"aten._to_copy", "aten.copy_", "aten.copy"}
INDEXING = {"aten.index", "aten.index_put", "aten.index_put_", "aten._unsafe_index"}
STRICT = {"aten.cat", "aten.stack"}  # these take no number from the CPU either
# The CPU has to know the answer, or the size of it.
WAITS = {"aten._local_scalar_dense", "aten.equal", "aten.nonzero", "aten.masked_select",
         "aten._unique2", "aten.unique_dim", "aten.unique_consecutive"}
PRODUCTS = {"aten.convolution", "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"}
MEMORY_ONLY = {"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty",
               "aten.new_empty_strided", "aten.record_stream"}


class Counts(NamedTuple):
    launches: int = 0
    stalls: int = 0
    to_device: int = 0  # bytes
    from_device: int = 0
    peak: int = 0  # bytes, the most that lived on all cards at once
    flops: int = 0  # of matrix products, convolutions and attention


class Card:
    """Of one device: how large it is, and how much of it is taken."""

    def __init__(self, total: int):
        self.total, self.live = total, 0


class Machine:
    """All cards, and what was counted since the last reset. Network calls can be told apart by
    `inside`: what happens there is counted in `network`, not in `counts`. What a `hollow` network
    asks for is counted and not worked out: it gets zeros."""

    def __init__(self):
        self.cards: list[Card] = []
        self.current = 0
        self.inside = self.hollow = False
        self.reset()

    def reset(self) -> None:
        self.counts = dict.fromkeys(Counts._fields, 0)
        self.network = dict(self.counts)
        self.counts["peak"] = self.live

    @property
    def live(self) -> int:
        return sum(card.live for card in self.cards)

    def add(self, what: str, amount: int = 1) -> None:
        (self.network if self.inside else self.counts)[what] += amount

    def taken(self, card: Card, size: int) -> None:
        if card.live + size > card.total:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory (pretended): {size} bytes were"
                                              f" asked for, {card.live} of {card.total} are taken")
        card.live += size
        self.counts["peak"] = max(self.counts["peak"], self.live)


MACHINE = Machine()


class Lease:
    """The memory of one storage; it ends with the last tensor that looks at it."""

    _by_storage: "weakref.WeakValueDictionary[int, Lease]" = weakref.WeakValueDictionary()

    def __init__(self, card: Card, size: int):
        MACHINE.taken(card, size)
        self._card, self._size = card, size

    @classmethod
    def of(cls, inner: torch.Tensor, card: Card) -> "Lease":
        storage = inner.untyped_storage()
        found = cls._by_storage.get(storage._cdata)
        if found is None:
            found = cls(card, storage.nbytes())
            cls._by_storage[storage._cdata] = found
        return found

    def __del__(self):
        if hasattr(self, "_size"):  # not where it was refused
            self._card.live -= self._size


class PretendTensor(torch.Tensor):
    """Its numbers are in `inner`, on the CPU."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, index: int):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, layout=inner.layout, device=torch.device("cuda", index))
        made.inner, made.lease = inner, Lease.of(inner, MACHINE.cards[index])
        return made

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
        device = self.device if device is None else device
        return torch.tensor(data, dtype=dtype or self.dtype, device=device)

    def tolist(self):
        MACHINE.add("stalls")
        MACHINE.add("from_device", self.inner.nbytes)
        return self.inner.tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu()"
                        " to copy the tensor to host memory first.")

    __array__ = numpy

    def __repr__(self):
        return f"{self.inner!r} on {self.device}"

    def __deepcopy__(self, memo):
        return PretendTensor(self.inner.clone(), self.device.index)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatched(func, args, kwargs or {})


class PretendMode(TorchDispatchMode):
    """Sees what no tensor of the device takes part in: factories, and what is brought there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatched(func, args, kwargs or {})


class PretendGenerator(torch._C.Generator):
    """Knows which device it was made for; its numbers are the CPU's."""

    _devices: dict[int, torch.device] = {}  # torch hands on what is inside, not this object

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        cls._devices[made._cdata] = _placed(device)
        return made

    @classmethod
    def device_of(cls, generator) -> torch.device:
        return cls._devices.get(generator._cdata, CPU)

    def __del__(self):
        self._devices.pop(self._cdata, None)


def _placed(device) -> torch.device:
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", MACHINE.current)
    return device


def _dispatched(func, args: tuple, kwargs: dict):
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ours = [leaf for leaf in tensors if isinstance(leaf, PretendTensor)]
    target = next((_placed(leaf) for leaf in leaves if isinstance(leaf, torch.device)), None)
    name = str(func).rsplit(".", 1)[0]
    device = target or (ours[0].device if ours else CPU)
    _check_generator(name, kwargs.get("generator"), device)
    if not ours and device.type != "cuda":
        return func(*args, **kwargs)
    if name == "aten.is_pinned":
        return False
    if _is_composite(func):  # in inference mode these come whole
        with PretendMode():
            return func.decompose(*args, **kwargs)
    _check_devices(name, args, tensors, ours)
    if name in COPIES and target is None:
        device = args[0].device
    inner = tree_map(_inner, (args, kwargs))
    out = _product(func, *inner) if name in PRODUCTS else \
        _hollow(func, *inner) if ours and _is_hollow(name, func, target) else \
        func(*inner[0], **inner[1])
    _count(name, func, args, tensors, ours, device, out)
    known = {id(one.inner): one for one in ours} | {id(one): one for one in tensors}

    def outer(one):
        if not isinstance(one, torch.Tensor) or device.type == "cpu":
            return known.get(id(one), one)
        return known.get(id(one)) if id(one) in known else PretendTensor(one, device.index)

    return tree_map(outer, out)


@functools.cache
def _is_composite(func) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _product(func, args: tuple, kwargs: dict):
    out = (_hollow if MACHINE.hollow and MACHINE.inside else _accumulated)(func, args, kwargs)
    MACHINE.add("flops", flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
    return out


def _is_hollow(name: str, func, target) -> bool:
    """Whether zeros will do: not where the CPU waits for numbers or brings some, nor for views."""
    return MACHINE.hollow and MACHINE.inside and target is None and name not in WAITS | INDEXING \
        and not _is_view(func)


def _hollow(func, args: tuple, kwargs: dict):
    """Zeros of the answer's size, which take no memory until somebody looks at them.
    What would be written to stays as it is."""
    if func._schema.is_mutable:
        return args[0]
    out = func(*tree_map(_outline, args), **tree_map(_outline, kwargs))
    return tree_map(lambda one: _zeros(one.shape, one.dtype) if isinstance(one, torch.Tensor)
                    else one, out)


def _zeros(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """The system fills a page when it is looked at; torch.zeros fills all at once."""
    there = torch.from_numpy(numpy.zeros(shape.numel() * dtype.itemsize, numpy.uint8))
    return there.view(dtype).view(shape)


def _outline(leaf):
    return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf


def _accumulated(func, args: tuple, kwargs: dict):
    """In float32, as a GPU sums up products of 16 bits; a CPU may be slow at it or fail."""
    kind = next(leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
    if kind not in (torch.float16, torch.bfloat16):
        return func(*args, **kwargs)
    return func(*tree_map(_widened, args), **kwargs).to(kind)


def _widened(leaf):
    return leaf.float() if isinstance(leaf, torch.Tensor) else leaf


def _inner(leaf):
    if isinstance(leaf, PretendTensor):
        return leaf.inner
    return CPU if isinstance(leaf, torch.device) else leaf


def _check_generator(name, generator, device) -> None:
    if generator is not None and PretendGenerator.device_of(generator).type != device.type:
        raise RuntimeError(f"Expected a '{device.type}' device type for generator but found another"
                           f" ({name})")


def _check_devices(name, args, tensors, ours) -> None:
    """As CUDA refuses: a number of the CPU may take part, a tensor may not, nor another card's."""
    if name in COPIES or not ours:
        return
    if name in INDEXING:
        if not isinstance(args[0], PretendTensor):
            raise RuntimeError("indices should be either on cpu or on the same device as the"
                               f" indexed tensor ({args[0].device})")
        tensors = [args[0], *(one for one in args[1] if isinstance(one, PretendTensor)),
                   *(one for one in args[2:] if isinstance(one, torch.Tensor))]
    devices = {one.device for one in tensors if one.ndim or one.device != CPU or name in STRICT}
    if len(devices) > 1:
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two"
                           f" devices, {' and '.join(sorted(map(str, devices)))}! ({name}, shapes"
                           f" {[tuple(one.shape) for one in tensors]})")


def _count(name, func, args, tensors, ours, device, out) -> None:
    if name in WAITS or (name == "aten.index" and any(
            isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in args[1])):
        MACHINE.add("stalls")
    if name in COPIES:
        source = args[1] if name != "aten._to_copy" else args[0]
        if source.device.type == "cpu" != device.type:
            MACHINE.add("to_device", out.nbytes)
        elif source.device.type != "cpu" == device.type:
            MACHINE.add("from_device", out.nbytes)
            MACHINE.add("stalls")
    elif name in INDEXING:
        MACHINE.add("to_device", sum(one.nbytes for one in args[1] if isinstance(one, torch.Tensor)
                                     and not isinstance(one, PretendTensor)))
    if name not in MEMORY_ONLY and not _is_view(func):
        MACHINE.add("launches")


@functools.cache
def _is_view(func) -> bool:
    """Looks at its argument's memory and writes nothing."""
    schema = func._schema
    return any(one.alias_info is not None and not one.alias_info.is_write
               for one in schema.arguments) and not any(
        one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)


class Stream:
    """Everything is in order on one thread, so there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, device=None, priority=0):
        self.device = device

    def wait_stream(self, other) -> None:
        pass

    def synchronize(self) -> None:
        pass

    record_event = wait_event = wait_stream


class Properties(NamedTuple):
    total_memory: int
    name: str = "Pretended"
    major: int = 8  # knows fp16 and bf16; fp8 is for keeping weights only
    minor: int = 0
    multi_processor_count: int = 1


def install(cards: int = 1, gigabytes: float = 8.0) -> None:
    """Tells torch that there are so many cards, for the rest of the process."""
    MACHINE.cards = [Card(int(gigabytes * GIB)) for _ in range(cards)]
    torch._C._ensureCUDADeviceGuardSet()
    _answer_for_the_driver()
    _make_tensors_there()
    PretendMode().__enter__()
    _in_threads_too()


def _answer_for_the_driver() -> None:
    def card(device=None) -> Card:
        if device is None:
            return MACHINE.cards[MACHINE.current]
        return MACHINE.cards[device if isinstance(device, int) else _placed(device).index]

    def set_device(device) -> None:
        MACHINE.current = device if isinstance(device, int) else _placed(device).index

    def statistics(device=None) -> dict:
        return {"active_bytes.all.current": card(device).live,
                "reserved_bytes.all.current": card(device).live}

    registry = SimpleNamespace(cudaHostRegister=lambda *args: 0, cudaHostUnregister=lambda ptr: 0)
    answers = {
        "_lazy_init": lambda: None, "is_available": lambda: True, "is_initialized": lambda: True,
        "device_count": lambda: len(MACHINE.cards), "current_device": lambda: MACHINE.current,
        "set_device": set_device, "memory_stats": statistics,
        "mem_get_info": lambda device=None: (card(device).total - card(device).live,
                                             card(device).total),
        "get_device_properties": lambda device=None: Properties(card(device).total),
        "get_device_name": lambda device=None: Properties.__new__.__defaults__[0],
        "get_device_capability": lambda device=None: (8, 0),
        "get_allocator_backend": lambda: "native", "is_bf16_supported": lambda *args: True,
        "synchronize": lambda *args: None, "empty_cache": lambda: None,
        "ipc_collect": lambda: None, "cudart": lambda: registry, "Stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: Stream(device),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


def _make_tensors_there() -> None:
    """These look at their data without being dispatched."""
    tensor, as_tensor = torch.tensor, torch.as_tensor

    def made(data, *, dtype=None, device=None, **kwargs):
        data = tree_map(lambda one: one.tolist() if isinstance(one, PretendTensor) else one, data)
        there = tensor(data, dtype=dtype, **kwargs)
        return there if device is None else there.to(device)

    def taken_as(data, dtype=None, device=None):
        there = data if isinstance(data, PretendTensor) else as_tensor(data, dtype=dtype)
        return there.to(device=device or there.device, dtype=dtype or there.dtype)

    torch.tensor, torch.as_tensor, torch.Generator = made, taken_as, PretendGenerator
    attention = torch.nn.functional.scaled_dot_product_attention

    def attended(query, *args, **kwargs):  # one kernel on the cards; torch would ask the driver
        if not isinstance(query, PretendTensor):
            return attention(query, *args, **kwargs)
        MACHINE.add("launches")
        MACHINE.add("flops", 4 * query.numel() * args[0].shape[-2])  # queries, keys and values
        if MACHINE.hollow and MACHINE.inside:
            return PretendTensor(_zeros(query.shape, query.dtype), query.device.index)
        inner, named = tree_map(_widened, tree_map(_inner, ((query, *args), kwargs)))
        out = attention(*inner, **named)
        return PretendTensor(out.to(query.dtype), query.device.index)

    torch.nn.functional.scaled_dot_product_attention = attended
    same_kind = torch._has_compatible_shallow_copy_type
    # A module that is moved gets new parameters: `data =` would leave the numbers where they were.
    torch._has_compatible_shallow_copy_type = lambda *pair: same_kind(*pair) and not any(
        isinstance(one, PretendTensor) for one in pair)


def _in_threads_too() -> None:
    """Modes belong to a thread, cards to the process."""
    run = threading.Thread.run

    def with_the_device(self) -> None:
        # A card's tensors may be looked at from a thread with inference mode and one without;
        # those that pretend may not.
        with PretendMode(), torch.inference_mode():
            run(self)

    threading.Thread.run = with_the_device


@contextlib.contextmanager
def card_of(gigabytes: float):
    """All cards are this large for a while."""
    before = [card.total for card in MACHINE.cards]
    for card in MACHINE.cards:
        card.total = int(gigabytes * GIB)
    try:
        yield
    finally:
        for card, total in zip(MACHINE.cards, before, strict=True):
            card.total = total


class Counted(NamedTuple):
    """network: inside the calls of the network; outside: all else."""

    network: Counts
    outside: Counts


@contextlib.contextmanager
def counting(network: torch.nn.Module | None = None, hollow: bool = False):
    """A list that holds, at the end, what was Counted meanwhile. hollow: the network
    works nothing out, so that one of full size is counted in seconds."""
    found, handles = [], []

    def switched(inside: bool):
        def hook(*_) -> None:
            MACHINE.inside = inside
        return hook

    if network is not None:
        handles = [network.register_forward_pre_hook(switched(True)),
                   network.register_forward_hook(switched(False))]
    MACHINE.reset()
    MACHINE.hollow = hollow
    before = MACHINE.live
    try:
        yield found
    finally:
        MACHINE.inside = MACHINE.hollow = False
        for handle in handles:
            handle.remove()
    peak = MACHINE.counts["peak"] - before
    found.append(Counted(Counts(**MACHINE.network), Counts(**{**MACHINE.counts, "peak": peak})))
