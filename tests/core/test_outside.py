"""What others look at before they install the pack: the registry, Manager, pip."""

import json
import pkgutil
import re
import subprocess
import sys

import bayesdiff_core
from tools.places import REPOSITORY


def run(*command):
    return subprocess.run([sys.executable, "-m", *command], cwd=REPOSITORY, text=True,
                          capture_output=True)


def test_the_registrys_rules_and_all_other_security_rules_hold():
    """The registry refuses exec, eval and several statements on a line; S are ruff's others."""
    done = run("ruff", "check", "--isolated", "--no-cache", "--select", "S,E701,E702,E703",
               "__init__.py", "nodes", "bayesdiff_core")
    assert done.returncode == 0, done.stdout + done.stderr


def test_installing_the_requirements_changes_nothing():
    done = run("pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check", "--report",
               "-", "-r", "requirements.txt")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["install"] == []
    assert re.search(r"^dependencies = \[\]$", (REPOSITORY / "pyproject.toml").read_text(), re.M)
    assert not (REPOSITORY / "install.py").exists()  # Manager would run it


def test_the_pack_has_no_way_to_the_network_to_programs_or_to_pickles():
    """It never imports what these take; of aiohttp only the part that answers."""
    names = (r"socket|http|urllib|requests|aiohttp(?! import web$)|subprocess|pickle|shelve|marshal"
             r"|ctypes|importlib")
    for path in [*(REPOSITORY / "nodes").rglob("*.py"),
                 *(REPOSITORY / "bayesdiff_core").rglob("*.py"), REPOSITORY / "__init__.py"]:
        text = path.read_text()
        assert not re.search(rf"^\s*(import|from)\s+({names})\b", text, re.M), path
        assert not re.search(r"torch\.load\b|os\.system|weights_only", text), path


def test_the_readers_index_of_the_core_names_what_is_there():
    """Every module by its name, and every function by one that leads to it."""
    index = bayesdiff_core.__doc__
    for name in re.findall(r"\b[a-z_]+(?:\.\w+)+", index):
        pkgutil.resolve_name(f"bayesdiff_core.{name}")
    folder = REPOSITORY / "bayesdiff_core"
    modules = [".".join(path.relative_to(folder).with_suffix("").parts)
               for path in folder.rglob("*.py") if path.stem != "__init__"]
    missing = [name for name in modules if not re.search(rf"\b{re.escape(name)}\b", index)]
    assert not missing and len(modules) > 15
