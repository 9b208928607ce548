"""Finds a Chromium for the browser tests, or installs Debian's. Standard library only."""

import os
import shutil
import subprocess

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]


class BrowserMissing(Exception):
    """No browser, and none can be installed here."""


def chromium() -> str:
    """BAYESDIFF_CHROMIUM, else one on the PATH, else Debian's package where we may install it."""
    if chosen := os.environ.get("BAYESDIFF_CHROMIUM"):
        if not os.path.isfile(chosen):
            raise BrowserMissing(f"BAYESDIFF_CHROMIUM is {chosen}, which is not a file")
        return chosen
    found = _on_path()
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        print("[set-up] installing Debian's chromium", flush=True)
        quiet = {"stdout": subprocess.DEVNULL, "env": {**os.environ,
                                                       "DEBIAN_FRONTEND": "noninteractive"}}
        subprocess.run(["apt-get", "update", "-q"], **quiet)
        subprocess.run(["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium",
                        "fonts-dejavu-core"], **quiet)
        found = _on_path()
    if found is None:
        raise BrowserMissing("the browser tests need Chromium and found none: install it"
                             " (Debian: apt-get install chromium), or name one in"
                             " BAYESDIFF_CHROMIUM, or leave these tests out with --no-browser")
    return found


def _on_path() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)
