"""Many pictures on many machines: ComfyUI servers with this pack, driven by Ray.

The pack never imports this package, and only `cluster.py` imports Ray. docs/fleet.md is the manual.

    plan.py      a workflow and what is varied of it -> numbered jobs
    ledger.py    what is to be done and what was done, in SQLite
    worker.py    one ComfyUI server and how a job is drawn on it; guard.py ends it in any case
    cluster.py   workers as Ray actors: started, watched, replaced
    driver.py    hands jobs out, takes results in
    choosing.py  which pictures of a ledger are kept; gallery.py shows them
    staged.py    all seeds to a step, the best ones to the end
    fitting.py   a posterior fitted in parts
    command.py   the command line
"""


class FleetError(Exception):
    """Something the user can mend; shown without a traceback."""
