"""``python -m ringleader`` is the command ``ringleader``."""

import sys

from ringleader.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
