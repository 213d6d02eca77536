"""RMSNorm (arXiv 1910.07467), in fp32 inside, whatever the dtype outside."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x weight / sqrt(mean(x^2) + eps) over the last dimension, which is as wide as weight [width].

    For GPUs torch has a kernel; on the CPU it has a chain of nine, of which these are six.
    """
    if x.is_cuda:
        return functional.rms_norm(x, weight.shape, weight, eps)
    wide = x.float()
    scale = torch.linalg.vecdot(wide, wide).div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * scale.unsqueeze(-1)).mul_(weight).to(x.dtype)
