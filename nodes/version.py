"""The pack's version, which stands once: in pyproject.toml, where the registry reads it."""

import re
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PACK_VERSION = re.search(r'^version = "([^"]+)"', _PROJECT.read_text("utf-8"), re.M)[1]
