"""Runs a command that ends with us, and with who started us: then our stdin comes to its end.

    python guard.py COMMAND ...

A worker that is killed (-9) cannot stop its server; this does.
"""

import signal
import subprocess
import sys
import threading

PATIENCE = 10  # seconds for a polite end


def main() -> int:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def end(*_) -> None:
        child.terminate()
        later = threading.Timer(PATIENCE, child.kill)
        later.daemon = True
        later.start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C: the worker decides
    threading.Thread(target=_kill_when_alone, args=[child], daemon=True).start()
    return child.wait()


def _kill_when_alone(child: subprocess.Popen) -> None:
    sys.stdin.buffer.read()
    child.kill()


if __name__ == "__main__":
    sys.exit(main())
