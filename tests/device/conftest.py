"""Tests on GPUs. Without one they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        here = [item for item in items if Path(__file__).parent in item.path.parents]
        for item in here:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU; torch finds none"))
