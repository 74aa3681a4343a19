"""The images of chapter 8: which patches codebooks train on, and which they never see."""

import warnings
from pathlib import Path

import torch
from torch import Tensor

from ..data import cache_folder, patches


def split(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels to train on, and a seventh held out, which chooses learning rates: the same for all seeds."""
    rows = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0)).to(pixels.device)
    return pixels[rows[len(rows) // 7 :]], pixels[rows[: len(rows) // 7]]


def quick_images() -> tuple[Tensor, Tensor, Tensor]:
    """Pixels to train on, to test on and held out of the training regions: 1,024 each of the photographs' 16 x 16
    patches, drawn once for all seeds."""
    draw = torch.Generator().manual_seed(0)
    train, test = (patches(16, split=part).pixels for part in ("train", "test"))
    rows, others = (torch.randperm(len(pixels), generator=draw) for pixels in (train, test))
    return train[rows[:1024]], test[others[:1024]], train[rows[1024:2048]]


def full_scale_images(folder: str | Path | None = None, count: int = 10_000) -> tuple[Tensor, Tensor, str]:
    """Pixels to train on and to test on, and their name: CIFAR-10 where torchvision is installed and the images can be
    had (folder: by default in the cache), of which `count` and a fifth as many are drawn; else, with a warning, every
    32 x 32 patch of the photographs."""
    photographs = patches(32).pixels, patches(32, split="test").pixels, "photographs, 32 x 32"
    try:
        from torchvision.datasets import CIFAR10  # only here: no dependency of this library
    except ImportError:
        warnings.warn("torchvision is not installed: the photographs stand in for CIFAR-10", stacklevel=2)
        return photographs
    try:
        root = Path(folder or cache_folder() / "cifar10").expanduser()
        sets = [CIFAR10(root, train, download=True).data for train in (True, False)]
    except (OSError, RuntimeError) as reason:  # no network; a broken file
        warnings.warn(f"the photographs stand in for CIFAR-10: {reason}", stacklevel=2)
        return photographs
    generator, parts = torch.Generator().manual_seed(0), []
    for data, number in zip(sets, (count, count // 5)):
        rows = torch.randperm(len(data), generator=generator)[:number]
        parts.append(torch.from_numpy(data)[rows].permute(0, 3, 1, 2).float() / 255)
    return *parts, f"CIFAR-10, {count} of the training images"
