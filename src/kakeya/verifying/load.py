"""From a checkpoint folder to a verifier.  Runs on the engine's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kakeya.compute.matmul_torch import keeps_rows_apart, use_threads
from kakeya.compute.threads import usable_cores
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import demand
from kakeya.verifying.checkpoint import read_checkpoint
from kakeya.verifying.exactness import measure_exactness
from kakeya.verifying.model_torch import TorchVerifier
from kakeya.verifying.weights_torch import DTYPES, load_weights, resident_bytes


def load_verifier(
    folder: Path,
    *,
    dtype: str,
    limits: VerifyingLimits,
    model_id: str,
    progress: Callable[[float], None],
) -> TorchVerifier:
    """The verifier of a Hugging Face layout folder.

    dtype: "float32" or "bfloat16", whatever the folder stores.  progress gets the share done
    (0 … 1).  The last step measures whether blocks equal single steps to the bit (about forty
    passes), and sets margin_bound by it.  Raises Refused as checkpoint.read_checkpoint and
    weights_torch.load_weights do.
    """
    demand(
        dtype in DTYPES,
        "INVALID_ARGUMENT",
        f"dtype is {dtype!r}, supported are {', '.join(DTYPES)}",
    )
    checkpoint = read_checkpoint(folder, limits)
    is_small = resident_bytes(checkpoint.config, dtype) <= limits.one_thread_bytes
    use_threads(limits.num_threads or (1 if is_small else usable_cores()))
    weights = load_weights(checkpoint, dtype=dtype, limits=limits, progress=progress)
    verifier = TorchVerifier(
        checkpoint.config, weights, model_id=model_id, dtype=dtype, limits=limits
    )
    found = measure_exactness(verifier)
    found = replace(found, is_exact=found.is_exact and keeps_rows_apart())
    verifier.margin_bound = found.margin_bound(dtype)
    return verifier
