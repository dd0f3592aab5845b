"""State dictionaries: arrays as tensors, for torch.save, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["arrays_to_tensors", "tensors_to_arrays"]


def arrays_to_tensors(value: Any) -> Any:
    """The same dictionaries and lists, with copies of arrays as tensors.

    Examples
    --------
    >>> arrays_to_tensors({"a": [np.ones(2, np.float32)]})
    {'a': [tensor([1., 1.])]}
    """
    if isinstance(value, dict):
        return {key: arrays_to_tensors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [arrays_to_tensors(item) for item in value]
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def tensors_to_arrays(value: Any) -> Any:
    """The same dictionaries and lists, with tensors as arrays.

    Examples
    --------
    >>> tensors_to_arrays({"a": [torch.ones(2)]})
    {'a': [array([1., 1.], dtype=float32)]}
    """
    if isinstance(value, Mapping):
        return {key: tensors_to_arrays(item) for key, item in value.items()}
    if isinstance(value, list):
        return [tensors_to_arrays(item) for item in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value
