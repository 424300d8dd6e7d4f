"""From a checkpoint folder to a verifier in MLX.  Runs on the engine's own thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kakeya.compute.matmul_mlx import keeps_rows_apart
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import demand
from kakeya.verifying.checkpoint import read_checkpoint, stored_dtype
from kakeya.verifying.exactness import measure_exactness
from kakeya.verifying.model_mlx import MlxVerifier
from kakeya.verifying.weights_mlx import DTYPES, load_weights


def load_verifier(
    folder: Path,
    *,
    dtype: str,
    limits: VerifyingLimits,
    model_id: str,
    progress: Callable[[float], None],
) -> MlxVerifier:
    """The verifier of a Hugging Face layout folder, quantised in MLX's way or not.

    dtype: one of DTYPES, or "auto": the one most of its weights (or their scales) are stored in.
    progress gets the share done (0 … 1).  The last step measures whether blocks equal single
    steps to the bit, and sets margin_bound by it.  Raises Refused as checkpoint.read_checkpoint
    and weights_mlx.load_weights do.
    """
    demand(
        dtype in (*DTYPES, "auto"),
        "INVALID_ARGUMENT",
        f"dtype is {dtype!r}, supported are auto, {', '.join(DTYPES)}",
    )
    checkpoint = read_checkpoint(folder, limits)
    dtype = stored_dtype(checkpoint) if dtype == "auto" else dtype
    weights = load_weights(checkpoint, dtype=dtype, limits=limits, progress=progress)
    verifier = MlxVerifier(
        checkpoint.config, weights, model_id=model_id, dtype=dtype, limits=limits
    )
    found = measure_exactness(verifier)
    found = replace(found, is_exact=found.is_exact and keeps_rows_apart())
    verifier.margin_bound = found.margin_bound(dtype)
    return verifier
