"""D17 and D18: what the layer costs, and what it is in the language of attention."""

import torch
import torch.nn.functional as F

from ..experiments.cost import cost_of_length
from ..prototypes import dense
from ..prototypes.assignment import soft_centroids
from ..prototypes.layer import DDCLAttention
from .decomposition import ROUNDING, cloud
from .registry import Evidence, claim

LENGTHS = [512, 1024, 2048, 4096, 8192]


@claim(
    "D17",
    "The layer's cost is linear in the number of tokens, where self-attention's is quadratic.",
    "measured",
    "Counted: with the output matrix the layer takes O(N D (K + D)) operations, exponent 1 in N; self-attention's "
    "exponent is near 2. Times are reported: overhead hides the growth on short sequences. A mean, or [CLS], is "
    "cheaper still.",
    2,
)
def linear_cost(seed, device):
    costs = cost_of_length(LENGTHS, device)
    ours, theirs = costs["prototypes"], costs["self-attention"]
    return [
        Evidence("exponent of operations, prototypes", ours.slope(ours.operations), 0.99, 1.01),
        Evidence("exponent of operations, self-attention", theirs.slope(theirs.operations), 1.8, 2.0),
        Evidence("exponent of time, prototypes", ours.slope(ours.seconds)),
        Evidence("exponent of time, self-attention", theirs.slope(theirs.seconds)),
        Evidence("time of self-attention / prototypes at N = 8192", theirs.seconds[-1] / ours.seconds[-1]),
    ]


@claim(
    "D18",
    "Reading with prototypes is cross-attention with keys = values = P and a bias -|p_k|^2/T on each key (ours).",
    "holds",
    "|z|^2 is the same for every prototype and cancels in the softmax. What is special is not the arithmetic but the "
    "bank: learned, few, and the same for every input.",
    2,
)
def is_cross_attention(seed, device):
    tokens, prototypes, _ = cloud(seed, device)
    temperature = 0.7
    bias = -prototypes.square().sum(-1) / temperature
    scores = 2 * tokens @ prototypes.T / temperature
    weights = dense.assign(tokens, prototypes, temperature)
    attention = F.scaled_dot_product_attention(
        tokens[None], prototypes[None], prototypes[None], attn_mask=bias[None, None], scale=2 / temperature
    )[0]
    reference = dense.soft_centroids(tokens, prototypes, temperature)
    fused = soft_centroids(tokens, prototypes, temperature)
    biased, unbiased = torch.softmax(scores + bias, -1), torch.softmax(scores, -1)

    def largest(difference):
        return difference.abs().max().item()

    return [
        Evidence("largest difference of weights", largest(biased - weights), at_most=ROUNDING),
        Evidence("of centroids from PyTorch's attention", largest(attention - reference), at_most=ROUNDING),
        Evidence("of centroids from the library", largest(fused - reference), at_most=ROUNDING),
        Evidence("of weights when the bias is left out", largest(unbiased - weights), at_least=0.05),
    ]


@claim(
    "D23",
    "Outputs are convex combinations of prototypes, and hence explainable (summary).",
    "conditional",
    "The soft centroid mu is such a combination, and q are weights of it: not the only ones for K > D + 1, and near "
    "1/K when T is high. The layer's output is not: the token reaches LN(z + W_O mu) without passing the bank.",
    2,
)
def mixture_is_convex(seed, device):
    tokens, prototypes, generator = cloud(seed, device, prototypes=8, dim=5)
    weights = dense.assign(tokens, prototypes, 10.0)
    mixture_and_sum = torch.cat([prototypes, torch.ones_like(prototypes[:, :1])], 1).T  # (D + 1, K)
    kernel = torch.linalg.svd(mixture_and_sum).Vh[-1]  # changes neither
    step = 0.5 * (weights / kernel.abs()).min(-1, keepdim=True).values  # half way to the nearest face of the simplex
    others = weights + step * kernel
    hot = dense.assign(tokens, prototypes, 1e6)

    layer = DDCLAttention(5, 3).double().to(device)
    draw = torch.randn(3, 5, generator=generator, dtype=torch.float64).to(device)
    layer.prototypes.data.copy_(draw)
    aside = torch.linalg.svd(draw - draw.mean(0)).Vh[-1]  # orthogonal to every difference of prototypes
    moved = tokens + 2 * aside
    with torch.no_grad():
        mixture = layer.decompose(moved).centroids - layer.decompose(tokens).centroids
        output = layer(moved) - layer(tokens)
    return [
        Evidence("smallest weight", weights.min().item(), at_least=0.0),
        Evidence("largest |sum of weights - 1|", (weights.sum(-1) - 1).abs().max().item(), at_most=ROUNDING),
        Evidence("another set of weights: smallest", others.min().item(), at_least=0.0),
        Evidence("its mixture differs by", ((others - weights) @ prototypes).abs().max().item(), at_most=ROUNDING),
        Evidence("its weights differ by up to", (others - weights).abs().max().item(), at_least=1e-3),
        Evidence("largest |weight - 1/K| at T = 10^6", (hot - 1 / 8).abs().max().item(), at_most=1e-3),
        Evidence("token moved past the bank: mixture moves by", mixture.abs().max().item(), at_most=ROUNDING),
        Evidence("and the output by up to", output.abs().max().item(), at_least=0.1),
    ]
