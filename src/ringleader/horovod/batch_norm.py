"""Batch normalization with the statistics of all processes."""

from __future__ import annotations

import torch

from ringleader import errors
from ringleader.horovod.gradients import allreduce
from ringleader.horovod.operations import Sum
from ringleader.horovod.session import size

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Batch normalization over the batches of all processes, which may be of different sizes.

    As Horovod's, but on any device. The gradient of the input is that of the sum of the processes' losses.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats
        As for ``torch.nn.BatchNorm1d``.

    Raises
    ------
    InvalidArgument
        An input of fewer than two dimensions.

    Examples
    --------
    >>> import torch, ringleader.horovod.torch as hvd
    >>> hvd.init(rank=0, size=1)
    >>> hvd.SyncBatchNorm(1)(torch.tensor([[1.0], [3.0]]))
    tensor([[-1.0000],
            [ 1.0000]], grad_fn=<NativeBatchNormBackward0>)
    >>> hvd.shutdown()
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise errors.InvalidArgument(f"the input has {input.dim()} dimensions; expected (batch, features, ...)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input, of the same shape."""
        own_statistics = self.training or self.running_mean is None
        if size() == 1 or not own_statistics:
            return super().forward(input)
        self._check_input_dim(input)
        dims = [d for d in range(input.dim()) if d != 1]
        wide = input.double() if input.dtype is torch.float64 else input.float()
        count = wide.new_tensor([input.numel() // input.shape[1]])
        told = allreduce(torch.cat([wide.sum(dims), count]), op=Sum, name="sync_batch_norm.mean")
        total = float(told[-1])
        shape = [1, -1] + [1] * (input.dim() - 2)
        centered = wide - (told[:-1] / total).view(shape)
        # In a second round, because the difference of two large sums of squares has no digits left.
        variance = allreduce(centered.square().sum(dims), op=Sum, name="sync_batch_norm.var") / total
        if self.training and self.track_running_stats:
            self._follow(told[:-1].detach() / total, variance.detach(), total)
        result = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor, total: float) -> None:
        """Let the running statistics follow; the variance among `total` values is the unbiased one, as in torch."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        unbiased = variance * (total / max(total - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)
