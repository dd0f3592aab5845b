"""DataParallel against training in one process and against torch's own DDP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from data_parallel_support import compare_with_one_process
from torch_support import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(3)
    yield group
    group.close()


# ------------------------------------------------------------------------------------------ as in one process


@pytest.mark.parametrize("backend", ["ringleader", "gloo"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.002},
        {"overlap": "off", "bucket_cap_mb": 0.002},
        {"gradient_as_bucket_view": False, "bucket_cap_mb": 0.002},
        {"static_graph": True, "bucket_cap_mb": 0.002},
    ],
    ids=["one-bucket", "small-buckets", "off", "copies", "static"],
)
@pytest.mark.parametrize("to_none", [True, False], ids=["none", "zero"])
def test_training_equals_one_process(ranks: Ranks, backend: str, options: dict[str, Any], to_none: bool) -> None:
    for difference in ranks.run(compare_with_one_process, backend, options, to_none):
        assert difference < 1e-6
