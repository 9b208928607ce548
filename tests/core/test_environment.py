"""Set-up: what a user who has ComfyUI already gets, and what a failure says."""

import sys
from pathlib import Path

import pytest

from tools import environment


@pytest.fixture
def own_host(tmp_path, monkeypatch):
    """A ComfyUI of the user's, and nothing in the cache."""
    host = tmp_path / "ComfyUI"
    (host / "comfy").mkdir(parents=True)
    (host / "main.py").touch()
    monkeypatch.setenv("COMFYUI_PATH", str(host))
    monkeypatch.setenv("BAYESDIFF_CACHE", str(tmp_path / "cache"))
    return host


def test_who_has_comfyui_downloads_nothing(own_host, tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_PYTHON", sys.executable)
    assert environment.host_folder(None) == own_host
    assert environment.python_for(own_host) == Path(sys.executable)
    assert not (tmp_path / "cache").exists()


def test_a_python_that_cannot_run_comfyui_is_named(own_host, tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setenv("COMFYUI_PYTHON", str(bare))
    with pytest.raises(environment.SetupError, match="cannot import what ComfyUI needs"):
        environment.python_for(own_host)


def test_a_folder_without_comfyui_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    with pytest.raises(environment.SetupError, match="holds no ComfyUI"):
        environment.host_folder(None)


def test_what_pip_says_is_kept_and_its_last_error_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESDIFF_CACHE", str(tmp_path / "cache"))
    log = tmp_path / "cache" / "setup.log"
    with pytest.raises(environment.SetupError) as failed:
        environment._pip(sys.executable, "install", "--no-index", "there-is-no-such-package")
    assert "No matching distribution" in str(failed.value) and str(log) in str(failed.value)
    assert "there-is-no-such-package" in log.read_text()
