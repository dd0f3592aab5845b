"""Data parallel training with gradients in registered memory; see `DataParallel`."""

from ringleader.torch.data_parallel.module import DataParallel

__all__ = ["DataParallel"]
