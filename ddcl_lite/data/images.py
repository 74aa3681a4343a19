"""Small colour patches cut out of photographs, split by image region."""

import hashlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .sampling import draw_rows, is_int

SKIMAGE, SKLEARN = "skimage", "sklearn"
PHOTOGRAPHS = {  # file -> (package, folder in it, sha256); the files are in the wheels, nothing is downloaded
    "astronaut.png": (SKIMAGE, "data", "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5"),
    "coffee.png": (SKIMAGE, "data", "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7"),
    "chelsea.png": (SKIMAGE, "data", "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"),
    "rocket.jpg": (SKIMAGE, "data", "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c"),
    "hubble_deep_field.jpg": (SKIMAGE, "data", "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4"),
    "retina.jpg": (SKIMAGE, "data", "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6"),
    "china.jpg": (SKLEARN, "datasets/images", "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29"),
    "flower.jpg": (SKLEARN, "datasets/images", "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638"),
}
CAPPED = "retina"  # nearly as large as the others together
TRAIN_SHARE = 0.7  # of the width, from the left
GAP = 32  # pixels between the regions, whatever the size of the patches
DARK = 10  # of 255: a patch with nothing brighter is left out


class Patches(NamedTuple):
    """Square patches of photographs, image by image.

    pixels: (n, 3, size, size) float32 in [0, 1], red, green, blue.
    image: (n,) int64, 0 to 7, the photograph of each patch, an index into names.
    names: list of 8 str, the photographs.
    """

    pixels: Tensor
    image: Tensor
    names: list


def patches(size=32, per_image=None, seed=0, split="train"):
    """Cut eight photographs into square patches that do not overlap: 1,743 to train on and 606 to test on.

    size: side of a patch in pixels, 1 to 104 (the counts above are those of 32).
    per_image: None for all patches of every photograph, else the number to draw at random of each.
    seed: of that draw, on the CPU: the same on every device.
    split: "train" for the left 70 % of every photograph, "test" for what lies more than 32 pixels to the right
        of that. No pixel is in both, also not of patches of different sizes.
    Returns a `Patches`.

    Patches without anything brighter than 10 of 255 are left out: they are the black frame of the retina, and a
    few others. Of the retina, nearly as large as the others together, no more patches are kept than the others
    have on average, drawn at random; hubble_deep_field is a third of what is left: `per_image` gives all of them
    the same weight. Neighbours are alike: patches are not independent of one another.

    Raises `ValueError` for a bad argument, also for more patches than the smallest photograph has, and
    `RuntimeError` when scikit-image is not installed or a photograph is not the pinned one.

    Source: the photographs of scikit-image (astronaut and hubble_deep_field: NASA; rocket: SpaceX; coffee: Rachel
    Michetti; chelsea: Stefan van der Walt; retina: Mikael Häggström; all public domain or CC0) and of
    scikit-learn (china: danielbuechele, flower: vultilion, both CC BY 2.0).
    """
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}, expected 'train' or 'test'")
    if not is_int(size) or size < 1:
        raise ValueError(f"size is {size!r}, expected an integer of at least 1")
    tiles = {Path(file).stem: _tiles(file, size, split) for file in PHOTOGRAPHS}

    others = [len(tile) for name, tile in tiles.items() if name != CAPPED]
    cap = min(round(sum(others) / len(others)), len(tiles[CAPPED]))
    tiles[CAPPED] = tiles[CAPPED][draw_rows(len(tiles[CAPPED]), cap, seed)]
    if per_image is not None:
        smallest = min(tiles, key=lambda name: len(tiles[name]))
        most = len(tiles[smallest])
        if not is_int(per_image) or not 1 <= per_image <= most:
            raise ValueError(
                f"per_image is {per_image!r}, expected None or an integer from 1 to {most}: "
                f"{smallest} has {most} patches of size {size} to {split} on"
            )
        tiles = {name: tile[draw_rows(len(tile), per_image, seed)] for name, tile in tiles.items()}

    pixels = torch.cat(list(tiles.values())).float() / 255  # (n, 3, size, size)
    image = torch.arange(len(tiles)).repeat_interleave(torch.tensor([len(tile) for tile in tiles.values()]))
    return Patches(pixels, image, list(tiles))


def _tiles(file, size, split):
    """All patches of one side of one photograph, (n, 3, size, size) uint8, row by row of the photograph."""
    photograph = torch.from_numpy(_read(file)).permute(2, 0, 1)  # (3, H, W)
    border = int(TRAIN_SHARE * photograph.shape[2])
    region = photograph[:, :, :border] if split == "train" else photograph[:, :, border + GAP :]
    if size > min(region.shape[1:]):
        height, width = region.shape[1:]
        raise ValueError(f"size is {size}, but {Path(file).stem} has only {height} x {width} pixels to {split} on")
    grid = region.unfold(1, size, size).unfold(2, size, size)  # (3, rows, columns, size, size)
    tiles = grid.permute(1, 2, 0, 3, 4).flatten(0, 1)  # (n, 3, size, size)
    return tiles[tiles.flatten(1).amax(1) > DARK]


def _read(file):
    """A photograph as (H, W, 3) uint8, after a look at its hash."""
    package, folder, sha256 = PHOTOGRAPHS[file]
    if importlib.util.find_spec(SKIMAGE) is None:
        raise RuntimeError(
            "patches needs scikit-image, which is not installed. Run this:\n    python -m pip install scikit-image"
        )
    from skimage.io import imread  # only here: everything else works without it

    path = Path(importlib.util.find_spec(package).origin).parent / folder / file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RuntimeError(f"cannot read the photograph {path} ({error}). Install {package} again.") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise RuntimeError(
            f"the photograph {path} is not the pinned one.\nexpected sha256 {sha256}\nfound    sha256 {found}"
        )
    return imread(path)
