"""D15, D16: what a report of full codebook usage says and does not say, and what decides usage in training."""

from ..experiments import codebooks
from ..measures import min_separation, perplexity, usage
from ..prototypes import dense
from ..prototypes.training import draw_prototypes
from .decomposition import cloud
from .registry import Evidence, claim


@claim(
    "D15",
    "100% of the codebook is used from the first epoch (summary; against 18.8% for VQ-VAE).",
    "conditional",
    "Softmax weights are positive, so use in the sense of q > 0 is full by construction, and so is the perplexity of "
    "the mean weights in a bank that has collapsed. Report three numbers together: usage by argmax, perplexity of the "
    "argmax histogram, and the smallest distance in units of the tokens' standard deviation. The distance is the one "
    "that a bank of spread 1e-9 cannot pass. And usage before training measures the start: codes on distinct tokens "
    "are all used by argmax, soft or hard, before the first step.",
    1,
)
def full_usage_is_vacuous(seed, device, count=64):
    tokens, prototypes, generator = cloud(seed, device, tokens=4096, prototypes=count, dim=16)

    def bank(spread):
        collapsing = tokens.mean(0) + spread * prototypes
        return dense.assign(tokens, collapsing, 1.0), min_separation(collapsing, tokens)

    collapsed, separation = bank(0.0)
    tiny, tiny_separation = bank(1e-9)
    cold = dense.assign(tokens.float(), prototypes.float(), 0.1)
    drawn = draw_prototypes(tokens, count, generator=generator)
    return [
        Evidence("collapsed: separation in token standard deviations", separation, at_most=0.0),
        Evidence("collapsed: usage by q > 0", usage(collapsed, hard=False), at_least=1.0),
        Evidence("collapsed: perplexity of mean q / K", perplexity(collapsed, hard=False) / count, at_least=0.999),
        Evidence("collapsed: usage by argmax, times K", usage(collapsed) * count, at_most=1.0),
        Evidence("spread 1e-9: separation", tiny_separation, at_most=1e-8),
        Evidence("spread 1e-9: usage by argmax", usage(tiny), at_least=0.5),
        Evidence("codes on tokens, untrained: usage by argmax", usage(dense.assign(tokens, drawn, 1.0)), at_least=1.0),
        Evidence("float32, T = 0.1: share of weights that are 0", (cold == 0).double().mean().item(), at_least=0.1),
    ]


@claim(
    "D16",
    "A soft codebook uses more of its codes than hard vector quantisation (summary: 100% against 18.8%).",
    "measured",
    "For codes that learn by gradients the start decides, not the softness. On patches of photographs, with a "
    "warmed-up encoder and codes started on its tokens, soft codes and straight-through VQ use most of 64 codes; from "
    "normal codes far from the tokens, both use few. In short training the soft codes' error by nearest code is close "
    "to VQ's or below; decoded softly it is lower still.",
    8,
)
def start_decides(seed, device):
    pixels, test = (part.to(device) for part in codebooks.quick_images()[:2])
    warm = codebooks.warm_up(pixels, seed, epochs=10)

    def run(method, start, epochs=6):
        return codebooks.measure(codebooks.fit(method, warm, pixels, start, seed, epochs=epochs)[0], test)

    soft, hard = "soft, cooled", "VQ"
    ours, theirs = run(soft, "data"), run(hard, "data")
    few = {method: run(method, "normal", epochs=3)["usage by argmax"] for method in (soft, hard)}
    more = ours["usage by argmax"] - theirs["usage by argmax"]
    ratio = ours[codebooks.ERROR] / theirs[codebooks.ERROR]
    return [
        Evidence("soft, from data: usage by argmax", ours["usage by argmax"], at_least=0.8),
        Evidence("soft, from data: perplexity / K", ours["perplexity / K"], at_least=0.35),
        Evidence("VQ, from data: usage by argmax", theirs["usage by argmax"], at_least=0.6),
        Evidence("from data: usage by argmax, soft minus VQ", more),
        Evidence("soft, from normal, 3 epochs: usage by argmax", few[soft], at_most=0.25),
        Evidence("VQ, from normal, 3 epochs: usage by argmax", few[hard], at_most=0.25),
        Evidence("from data, nearest code: error, soft / VQ", ratio, at_least=0.7, at_most=1.15),
        Evidence("soft, from data: soft-to-hard gap, % of variance", ours["soft-to-hard gap"], at_least=0.0),
    ]
