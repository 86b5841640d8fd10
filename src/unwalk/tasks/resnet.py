"""Residual networks for small pictures: ResNet-18 as the paper's App. D uses it, and a ResNet-9.

ResNet-18 (He, Zhang, Ren and Sun, 2016): the first layer is a 3x3 convolution of stride 1 with no
pool behind it, so that pictures of 32 x 32 pixels keep their size until the second stage.  Four
stages of two blocks follow, with 64, 128, 256 and 512 channels, then the mean over all places and a
linear layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn

Norm = Callable[[int], nn.Module]
"""Makes the normalisation layer for a number of channels."""

STAGES = (64, 128, 256, 512)
BLOCKS = 2


class Block(nn.Module):
    """Two 3x3 convolutions with a skip connection.

    Where the size changes, a 1x1 convolution brings the input to it.
    """

    def __init__(self, inner: int, outer: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Sequential(convolution(inner, outer, 3, stride), norm(outer))
        self.second = nn.Sequential(convolution(outer, outer, 3, 1), norm(outer))
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.around = nn.Sequential(convolution(inner, outer, 1, stride), norm(outer))
        self.activate = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A batch of (channels, height, width) activations, one block on."""
        inside = self.second(self.activate(self.first(x)))
        return cast(torch.Tensor, self.activate(inside + self.around(x)))


def resnet18(channels: int, classes: int, norm: Norm, *, he: bool = True) -> nn.Module:
    """ResNet-18 for pictures of any size with this number of channels.

    With ``he`` convolutions start with He's normal values, scaled by what goes out, as in the paper
    above; otherwise with PyTorch's own, which are 2.4 times smaller.  The normalisation behind each
    of them removes the scale, so smaller values mean larger steps.

    >>> sum(p.numel() for p in resnet18(3, 10, nn.BatchNorm2d).parameters())
    11173962
    """
    layers: list[nn.Module] = [convolution(channels, STAGES[0], 3, 1), norm(STAGES[0]), nn.ReLU()]
    inner = STAGES[0]
    for stage, outer in enumerate(STAGES):
        for block in range(BLOCKS):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Block(inner, outer, stride, norm))
            inner = outer
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes)]
    network = nn.Sequential(*layers)
    return _with_he(network) if he else network


def resnet9(channels: int, classes: int, norm: Norm) -> nn.Module:
    """A small fast network with two residual blocks, of the kind that CIFAR-10 is timed with.

    64 channels of full size, then 128 at half and 256 at a quarter of it, each with a block; then
    128, the mean over all places and a linear layer.

    >>> sum(p.numel() for p in resnet9(3, 10, nn.BatchNorm2d).parameters())
    2274890
    """
    layers: list[nn.Module] = [
        *(convolution(channels, 64, 3, 1), norm(64), nn.ReLU()),
        *(convolution(64, 128, 5, 2), norm(128), nn.ReLU()),
        Block(128, 128, 1, norm),
        *(convolution(128, 256, 3, 1), norm(256), nn.ReLU(), nn.MaxPool2d(2)),
        Block(256, 256, 1, norm),
        *(convolution(256, 128, 3, 1), norm(128), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)),
    ]
    return _with_he(nn.Sequential(*layers))


def _with_he(network: nn.Module) -> nn.Module:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return network


def convolution(inner: int, outer: int, size: int, stride: int) -> nn.Conv2d:
    """A convolution without a bias, which the normalisation behind it would remove."""
    return nn.Conv2d(inner, outer, size, stride, padding=size // 2, bias=False)
