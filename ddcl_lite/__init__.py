"""ddcl_lite: prototypes that read tokens, tokens that attract each other, and what keeps either from collapsing."""

from .meanfield.coupled import Coupled, Repulsive, Toeplitz
from .meanfield.flow import Trajectory, integrate
from .meanfield.harmonic import Harmonic
from .meanfield.kernels import Exponential, Gauge, Rotary, RotaryQueriesKeys, SelfAttention, library_time
from .measures import (
    between_label_variance,
    checkup,
    circle_wasserstein,
    cluster_count,
    covariance_spectrum,
    effective_rank,
    mean_cosine,
    min_separation,
    perplexity,
    resultant_length,
    spread,
    token_variance,
    tracking_distance,
    usage,
    within_label_variance,
)
from .notebook import setup
from .prototypes.assignment import assign, soft_centroids
from .prototypes.codebook import Coded, HardCodebook, SoftCodebook
from .prototypes.dense import Decomposition
from .prototypes.hierarchy import HierarchicalReadout, Level
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
    "Coded",
    "Coupled",
    "DDCLAttention",
    "Decomposition",
    "Exponential",
    "FirstTokenReadout",
    "Gauge",
    "HardCodebook",
    "Harmonic",
    "HierarchicalReadout",
    "Level",
    "MeanReadout",
    "PerceiverReadout",
    "PrototypeReadout",
    "Repulsive",
    "Rotary",
    "RotaryQueriesKeys",
    "Run",
    "SelfAttention",
    "SlotAttentionReadout",
    "SoftCodebook",
    "Toeplitz",
    "Trajectory",
    "annealing_potential",
    "assign",
    "between_label_variance",
    "certified_usage",
    "checkup",
    "circle_wasserstein",
    "cluster_count",
    "covariance_spectrum",
    "critical_temperature",
    "decompose",
    "draw_prototypes",
    "effective_rank",
    "em_step",
    "fit",
    "free_energy",
    "integrate",
    "library_time",
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
    "within_label_variance",
]
