"""Whether UCX is here, for the tests that need it."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

_TRY = """
from ringleader.runtime.config import Config
from ringleader.runtime.ucx import open_worker
try:
    open_worker(Config.from_environment())
except Exception as error:
    print(error)
"""


@lru_cache(maxsize=1)
def why_no_ucx() -> str:
    """Empty if UCX can be used here, else the reason. Tried in another process: UCX leaves threads behind."""
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=200, check=False)
    return done.stdout.strip() or ("" if done.returncode == 0 else done.stderr.strip())
