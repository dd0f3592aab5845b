"""What all tests share: a clean environment, and marks for what a machine cannot run."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from ucx_support import why_no_ucx

# Variables of launchers: set by an outer torchrun or mpirun they would make every rl.init() of a test join that job.
_LAUNCHER_PREFIXES = ("RINGLEADER_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL")
_LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def _is_launcher_variable(name: str) -> bool:
    return name.startswith(_LAUNCHER_PREFIXES) or name in _LAUNCHER_NAMES


@pytest.fixture(autouse=True, scope="session")
def _no_outer_job() -> Iterator[None]:
    """Tests see no launcher variables but their own. Kept are RINGLEADER_ISA, to run all tests on other kernels, and
    RINGLEADER_UCX_LIBRARY, which tells where UCX is."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if _is_launcher_variable(name) and name not in ("RINGLEADER_ISA", "RINGLEADER_UCX_LIBRARY"):
                patch.delenv(name)
        patch.setenv("RINGLEADER_TUNING_FILE", "none")  # what somebody has tuned here must not decide a test
        yield


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_others() -> None:
    """A file begins without what another has left to the garbage collector: communicators, descriptors, memory."""
    gc.collect()


def pytest_configure() -> None:
    """Tests interrupt their processes, which must not inherit an ignored signal (as jobs in the background do)."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two parts of the suite; without either option all tests run."""
    parts = parser.getgroup("parts of the suite").addoption
    parts("--quick", action="store_const", const="quick", dest="part", help="every test not marked slow, in few cases")
    parts("--rest", action="store_const", const="rest", dest="part", help="what --quick leaves out")


# Of a parametrised test whose cases start processes, one in so many runs in the quick part.
_ONE_IN = 8


def _quick_part(items: list[pytest.Item]) -> set[pytest.Item]:
    """The quick part: no test marked `slow`, all cases of tests in `tests/pure`, and a sample of the others' cases.

    A sample is taken by a hash of the names: it follows no order of parameters, and a new case changes no other.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    quick: set[pytest.Item] = set()
    pure = Path(__file__).parent / "pure"
    for same in cases.values():
        kept = len(same) if pure in same[0].path.parents else -(-len(same) // _ONE_IN)
        quick.update(sorted(same, key=lambda item: zlib.crc32(item.nodeid.encode()))[:kept])
    return quick


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the part that is asked for; skip tests of several hosts where network namespaces cannot be made."""
    if (part := config.getoption("part")) is not None:
        quick = _quick_part(items)
        left_out = [item for item in items if (item in quick) is not (part == "quick")]
        items[:] = [item for item in items if (item in quick) is (part == "quick")]
        config.hook.pytest_deselected(items=left_out)
    if os.geteuid() == 0 and shutil.which("ip") is not None:
        return
    skip = pytest.mark.skip(reason="network namespaces need root and iproute2")
    hosts = Path(__file__).parent / "hosts"
    for item in items:
        if hosts in item.path.parents:
            item.add_marker(skip)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `ucx` where libucp is missing."""
    if item.get_closest_marker("ucx") is not None and (reason := why_no_ucx()):
        pytest.skip(reason)
