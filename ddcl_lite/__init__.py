"""ddcl_lite: prototypes that read tokens, tokens that attract each other, and what keeps either from collapsing."""

from .measures import (
    checkup,
    effective_rank,
    mean_cosine,
    min_separation,
    perplexity,
    resultant_length,
    spread,
    token_variance,
    tracking_distance,
    usage,
)
from .notebook import setup
from .prototypes.assignment import assign, soft_centroids
from .prototypes.dense import Decomposition
from .prototypes.layer import DDCLAttention, PrototypeReadout
from .prototypes.loss import (
    annealing_potential,
    certified_usage,
    critical_temperature,
    decompose,
    free_energy,
    splitting_temperatures,
)
from .prototypes.readouts import (
    AttentionPooling,
    FirstTokenReadout,
    MeanReadout,
    PerceiverReadout,
    SlotAttentionReadout,
)
from .prototypes.training import Run, draw_prototypes, em_step, fit, schedule, two_timescale_groups

__all__ = [
    "AttentionPooling",
    "DDCLAttention",
    "Decomposition",
    "FirstTokenReadout",
    "MeanReadout",
    "PerceiverReadout",
    "PrototypeReadout",
    "Run",
    "SlotAttentionReadout",
    "annealing_potential",
    "assign",
    "certified_usage",
    "checkup",
    "critical_temperature",
    "decompose",
    "draw_prototypes",
    "effective_rank",
    "em_step",
    "fit",
    "free_energy",
    "mean_cosine",
    "min_separation",
    "perplexity",
    "resultant_length",
    "schedule",
    "setup",
    "soft_centroids",
    "splitting_temperatures",
    "spread",
    "token_variance",
    "tracking_distance",
    "two_timescale_groups",
    "usage",
]
