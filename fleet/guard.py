"""Runs a command that ends with us, and with who started us: then our stdin comes to its end.

    python guard.py FOLDER COMMAND ...

A worker that is killed (-9) cannot stop its server, nor remove that one's scratch folder; this
does. Where this is killed itself, as a machine that leaves a cluster does, the kernel ends the
server (Linux).
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

PATIENCE = 10  # seconds for a polite end
PR_SET_PDEATHSIG = 1


def main() -> int:
    folder, *command = sys.argv[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                             preexec_fn=_die_with_parent if sys.platform == "linux" else None)

    def end(*_) -> None:
        child.terminate()
        later = threading.Timer(PATIENCE, child.kill)
        later.daemon = True
        later.start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C: the worker decides
    alone = threading.Event()
    threading.Thread(target=_kill_when_alone, args=[child, alone], daemon=True).start()
    code = child.wait()
    if alone.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_when_alone(child: subprocess.Popen, alone: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):  # sys.stdin's own lock would break this one's end
        pass
    alone.set()
    child.kill()


if __name__ == "__main__":
    sys.exit(main())
