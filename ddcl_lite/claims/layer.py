"""D17 and D18: what the layer costs, and what it is in the language of attention."""

import torch
import torch.nn.functional as F

from ..experiments.cost import cost_of_length
from ..prototypes import dense
from ..prototypes.assignment import soft_centroids
from .decomposition import ROUNDING, cloud
from .registry import Evidence, claim

LENGTHS = [1024, 2048, 4096, 8192, 16384]


@claim(
    "D17",
    "The layer's cost is linear in the number of tokens, O(N K D), where self-attention's is quadratic.",
    "measured",
    "Counted operations grow with exponent 1, those of self-attention with an exponent near 2. Times follow on long "
    "sequences; on short ones overhead hides both. Averaging the tokens, or taking [CLS], is cheaper still.",
    2,
)
def linear_cost(seed, device):
    torch.manual_seed(seed)
    costs = cost_of_length(LENGTHS, device, repeats=3)
    ours, theirs = costs["prototypes"], costs["self-attention"]
    return [
        Evidence("exponent of operations, prototypes", ours.slope(ours.operations), 0.99, 1.01),
        Evidence("exponent of operations, self-attention", theirs.slope(theirs.operations), 1.8, 2.0),
        Evidence("exponent of time, prototypes", ours.slope(ours.seconds)),
        Evidence("exponent of time, self-attention", theirs.slope(theirs.seconds)),
        Evidence("time of self-attention / prototypes at N = 16384", theirs.seconds[-1] / ours.seconds[-1]),
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
