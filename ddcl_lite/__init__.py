"""ddcl_lite: prototypes that read tokens, tokens that attract each other, and what keeps either from collapsing."""

from .measures import checkup, effective_rank, mean_cosine, min_separation, perplexity, resultant_length, usage
from .notebook import setup
from .prototypes.assignment import assign, soft_centroids
from .prototypes.dense import Decomposition
from .prototypes.layer import DDCLAttention, PrototypeReadout
from .prototypes.loss import critical_temperature, decompose, free_energy
from .prototypes.readouts import (
    AttentionPooling,
    FirstTokenReadout,
    MeanReadout,
    PerceiverReadout,
    SlotAttentionReadout,
)

__all__ = [
    "AttentionPooling",
    "DDCLAttention",
    "Decomposition",
    "FirstTokenReadout",
    "MeanReadout",
    "PerceiverReadout",
    "PrototypeReadout",
    "SlotAttentionReadout",
    "assign",
    "checkup",
    "critical_temperature",
    "decompose",
    "effective_rank",
    "free_energy",
    "mean_cosine",
    "min_separation",
    "perplexity",
    "resultant_length",
    "setup",
    "soft_centroids",
    "usage",
]
