"""The command line: python -m fleet --help."""

import sqlite3
import sys

from fleet import FleetError
from fleet.command import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (FleetError, OSError, sqlite3.Error) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
