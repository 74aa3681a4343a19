"""D19: the decomposition at every level of a stack, and at every head."""

import torch

from ..data import encode_long, speeches
from ..experiments.levels import account
from ..prototypes import dense
from ..prototypes.hierarchy import HierarchicalReadout
from ..prototypes.layer import DDCLAttention
from ..prototypes.training import draw_prototypes
from .decomposition import ROUNDING
from .registry import Evidence, claim

SIZES, HEADS = (16, 6, 3), 4


@claim(
    "D19",
    "In a stack, V >= 0 at every level (summary), and L_q = L_OLS + V at every level and every head.",
    "holds",
    "The identity holds for any tokens, so also for what a lower level hands up, and it can be summed over heads and, "
    "level by level with its own inputs, over levels. V >= 0 promises nothing about the code: a stack whose first bank "
    "has collapsed satisfies it at every level, and keeps nothing of a document but its mean.",
    9,
)
def at_every_level(seed, device, count=3):
    generator = torch.Generator().manual_seed(seed)
    texts = sorted(speeches().texts, key=lambda text: len(text.split()))[:count]  # the shortest
    documents = [states.double() for states in encode_long(texts, device=device)]
    pooled = torch.cat(documents)
    stack = HierarchicalReadout(384, SIZES, detach_assignment=True).double().to(device).requires_grad_(False)
    stack.start(pooled[torch.randperm(len(pooled), generator=generator)[:600].to(device)], 0.2, generator=generator)

    gaps, least, eigenvalues, against, means, variances, bounds = [], [], [], [], [], [], []
    for document in documents:
        inputs, mass = document, document.new_full((len(document),), 1 / len(document))
        for bank, temperature, level in zip(stack.banks, stack.temperature, stack.levels(document)):
            parts = dense.split(inputs, bank, dense.assign(inputs, bank, float(temperature)))
            gaps.append(((parts.total - parts.reconstruction - parts.variance) / parts.total).abs().max())
            least.append(((parts.total - parts.reconstruction) / parts.total).min())
            eigenvalues.append(least_eigenvalue(inputs, bank, float(temperature)))
            total = (mass * parts.total).sum()
            against.append((level.parts.total / total - 1).abs())
            means.append(((level.mass[:, None] * level.vectors).sum(0) - document.mean(0)).abs().max())
            inputs, mass = level.vectors, level.mass
        table = account(stack, document)
        variances.append((table["comes in"] - table["kept"] - table["lost"]).abs().max())
        bounds.append((table["L_q"] - table["lost"]).min())

    heads, sums = per_head(pooled[:500], seed, device)
    stack.banks[0].copy_(pooled.mean(0).expand_as(stack.banks[0]))
    loose, inputs = [], documents[0]
    for bank, temperature, level in zip(stack.banks, stack.temperature, stack.levels(documents[0])):
        parts = dense.split(inputs, bank, dense.assign(inputs, bank, float(temperature)))
        loose.append(((parts.total - parts.reconstruction) / parts.total).min().item())
        inputs = level.vectors
    nothing = account(stack, documents[0])["kept"].max()
    return [
        Evidence("every level: largest |L_q - L_OLS - V| / L_q of a vector", max(gaps).item(), at_most=ROUNDING),
        Evidence("every level: smallest (L_q - L_OLS) / L_q of a vector", min(least).item(), at_least=-ROUNDING),
        Evidence(
            "every level: smallest eigenvalue of Sigma_q / spread of the bank", min(eigenvalues), at_least=-ROUNDING
        ),
        Evidence("every level: L_q of the library / L_q summed here - 1", max(against).item(), at_most=1e-9),
        Evidence("every head: largest |L_q - L_OLS - V| / L_q", heads, at_most=ROUNDING),
        Evidence("sum over heads / L_q of the layer - 1", sums, at_most=1e-9),
        Evidence("every level: largest |sum of w x - mean of the tokens|", max(means).item(), at_most=ROUNDING),
        Evidence("every level: largest |variance in - kept - lost|", max(variances), at_most=ROUNDING),
        Evidence("every level: smallest L_q - lost", min(bounds), at_least=-ROUNDING),
        Evidence("first bank collapsed: smallest (L_q - L_OLS) / L_q", min(loose), at_least=-ROUNDING),
        Evidence("first bank collapsed: largest share of variance kept", nothing, at_most=ROUNDING),
    ]


def least_eigenvalue(inputs, bank, temperature, count=5):
    """The smallest eigenvalue of Sigma_q = sum_k q_k p_k p_k' - mu mu' of a few vectors, along the bank (across it, 0).

    In units of the bank's mean squared distance from its mean.
    """
    some = inputs[:count]
    weights = dense.assign(some, bank, temperature)
    origin = bank.mean(0)
    points = (bank - origin) @ torch.linalg.svd(bank - origin, full_matrices=False).Vh.mT
    means = weights @ points
    second = torch.einsum("nk,ki,kj->nij", weights, points, points)
    values = torch.linalg.eigvalsh(second - means[:, :, None] * means[:, None, :])
    return (values[:, 0] / bank.sub(origin).square().sum(-1).mean()).min().item()


def per_head(tokens, seed, device):
    """Two layers of four heads, one on the other: the largest relative gap of a head, and of the sum over heads."""
    gaps, sums, generator = [], [], torch.Generator().manual_seed(seed)
    for _ in range(2):
        layer = DDCLAttention(384, 8, HEADS).double().to(device).requires_grad_(False)
        for head, slice in enumerate(tokens.split(384 // HEADS, -1)):
            layer.prototypes[head] = draw_prototypes(slice, 8, generator=generator)
        layer.calibrate(tokens[None], 0.2)
        total = 0.0
        for bank, temperature, slice in zip(layer.prototypes, layer.temperature, tokens.split(384 // HEADS, -1)):
            parts = dense.decompose(slice, bank, float(temperature))
            gaps.append(((parts.total - parts.reconstruction - parts.variance) / parts.total).abs().item())
            total = total + parts.total
        sums.append((total / layer.decompose(tokens).total - 1).abs().item())
        tokens = layer(tokens)
    return max(gaps), max(sums)
