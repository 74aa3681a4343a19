"""D15: what a report of full codebook usage says, and what it does not."""

from ..measures import min_separation, perplexity, usage
from ..prototypes import dense
from .decomposition import cloud
from .registry import Evidence, claim


@claim(
    "D15",
    "100% of the codebook is used from the first epoch (summary; against 18.8% for VQ-VAE).",
    "conditional",
    "Softmax weights are positive, so use in the sense of q > 0 is full by construction, and so is the perplexity of "
    "the mean weights in a bank that has collapsed. Report three numbers together: usage by argmax, perplexity of the "
    "argmax histogram, and the smallest distance in units of the tokens' standard deviation. The distance is the one "
    "that a bank of spread 1e-9 cannot pass.",
    1,
)
def full_usage_is_vacuous(seed, device, count=64):
    tokens, prototypes, _ = cloud(seed, device, tokens=4096, prototypes=count, dim=16)

    def bank(spread):
        collapsing = tokens.mean(0) + spread * prototypes
        return dense.assign(tokens, collapsing, 1.0), min_separation(collapsing, tokens)

    collapsed, separation = bank(0.0)
    tiny, tiny_separation = bank(1e-9)
    cold = dense.assign(tokens.float(), prototypes.float(), 0.1)
    return [
        Evidence("collapsed: separation in token standard deviations", separation, at_most=0.0),
        Evidence("collapsed: usage by q > 0", usage(collapsed, hard=False), at_least=1.0),
        Evidence("collapsed: perplexity of mean q / K", perplexity(collapsed, hard=False) / count, at_least=0.999),
        Evidence("collapsed: usage by argmax, times K", usage(collapsed) * count, at_most=1.0),
        Evidence("spread 1e-9: separation", tiny_separation, at_most=1e-8),
        Evidence("spread 1e-9: usage by argmax", usage(tiny), at_least=0.5),
        Evidence("float32, T = 0.1: share of weights that are 0", (cold == 0).double().mean().item(), at_least=0.1),
    ]
