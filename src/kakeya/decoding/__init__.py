"""The speculative loop on host A.

engine = engine_of(verifier, device)
async with contextlib.aclosing(
    decode(engine, prompt_ids, peers, max_tokens=256, stop_ids={2})
) as blocks:
    async for block in blocks:
        print(block.ids, block.drafted_on, block.num_accepted)
"""

from kakeya.decoding.block import Block, Tally
from kakeya.decoding.catalog import Catalog, VerifierFacts
from kakeya.decoding.failover import Circuits, Peers
from kakeya.decoding.keeper import Keeper
from kakeya.decoding.loop import Engine, decode, engine_of
from kakeya.decoding.penalties import Reshaping
from kakeya.decoding.remote import remote_sources
from kakeya.decoding.sampling import GREEDY, Sampling, Score
from kakeya.decoding.source import DflashFit, Place, PrefixFit
from kakeya.decoding.text import TextStream

__all__ = [
    "GREEDY",
    "Block",
    "Catalog",
    "Circuits",
    "DflashFit",
    "Engine",
    "Keeper",
    "Peers",
    "Place",
    "PrefixFit",
    "Reshaping",
    "Sampling",
    "Score",
    "Tally",
    "TextStream",
    "VerifierFacts",
    "decode",
    "engine_of",
    "remote_sources",
]
