"""Draw rows of a data set, and split them by group: on the CPU, so that a seed means the same on every device."""

from numbers import Integral, Real

import torch


def draw_rows(count, size=None, seed=0):
    """Return `size` of the rows 0 to count - 1, drawn without replacement: (size,) int64, ascending.

    size: None for all of them. seed: of the draw, not used where nothing is drawn.

    Raises `ValueError` for a bad `size` or `seed`.

    Source: ours.
    """
    if size is None:
        return torch.arange(count)
    if not is_int(size) or not 1 <= size <= count:
        raise ValueError(f"size is {size!r}, expected None or an integer from 1 to {count}")
    return torch.randperm(count, generator=generator(seed))[:size].sort().values


def split_by_group(groups, test_share=0.3, seed=0, name="groups"):
    """Split rows into train and test so that no group has rows on both sides.

    groups: (n,) integers, the group of each row, a list or a tensor.
    test_share: share of the groups for the test side, strictly between 0 and 1; rounded, at least one group on
        either side. The share of the rows differs a little, because groups are large or small.
    seed: of the draw, on the CPU: the same on every device.
    name: what the error messages call `groups`.
    Returns (train, test): ascending int64 indices on the CPU, (n_train,) and (n_test,), together all n.

    Raises `ValueError` for an argument that is none of this, and for fewer than two groups.

    Source: ours.
    """
    try:
        groups = torch.as_tensor(groups).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is a {type(groups).__name__} ({error}), expected (n,) integers") from error
    if groups.ndim != 1 or groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise ValueError(f"{name} is {tuple(groups.shape)} of type {groups.dtype}, expected (n,) integers")
    if not isinstance(test_share, Real) or not 0 < test_share < 1:
        raise ValueError(f"test_share is {test_share!r}, expected a number strictly between 0 and 1")
    rng = generator(seed)
    distinct, group = groups.unique(return_inverse=True)  # (G,), (n,)
    if len(distinct) < 2:
        raise ValueError(f"{name} has {len(distinct)} distinct {name}, expected 2 or more to split")

    test_count = min(max(round(test_share * len(distinct)), 1), len(distinct) - 1)
    in_test = torch.zeros(len(distinct), dtype=torch.bool)
    in_test[torch.randperm(len(distinct), generator=rng)[:test_count]] = True
    side = in_test[group]  # (n,)
    return (~side).nonzero().squeeze(1), side.nonzero().squeeze(1)


def generator(seed):
    """A generator of torch with this seed, or a `ValueError` where it is no integer."""
    if not is_int(seed):
        raise ValueError(f"seed is {seed!r}, expected an integer")
    return torch.Generator().manual_seed(int(seed))


def is_int(value):
    """Whether it is an integer of Python or numpy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)
