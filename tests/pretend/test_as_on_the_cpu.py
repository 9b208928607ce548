"""Tests of the host tier that say nothing about a device, on one that pretends."""

from tests.host.test_bit_identity import *  # noqa: F403
from tests.host.test_packed_weights import *  # noqa: F403
