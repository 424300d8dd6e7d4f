"""Small DFlash drafters with random weights, saved as published ones are, and the reference's
answers (the PyPI distribution `dflash`, built on transformers)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kakeya.compute.threads import prepare_environment

prepare_environment(os.environ)

import torch  # noqa: E402
from dflash.model import (  # noqa: E402
    DFlash2DraftModel,
    DFlashDraftModel,
    _crop_to,
    _make_cache,
)
from safetensors.torch import save_file  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import Qwen3Config  # noqa: E402

from kakeya.compute.torch_arrays import from_torch  # noqa: E402
from kakeya.config.drafter import DrafterLimits  # noqa: E402
from kakeya.drafting.dflash_config import VerifierShape  # noqa: E402
from kakeya.drafting.dflash_drafter_torch import DflashTorchDrafter  # noqa: E402
from kakeya.drafting.dflash_load_torch import VerifierPart, load_drafter  # noqa: E402
from kakeya.drafting.dflash_weights_torch import VerifierEnds  # noqa: E402
from kakeya.drafting.drafter import Context  # noqa: E402
from kakeya.wire.tensor import WireArray  # noqa: E402
from tests.drafting.dflash_shapes import (  # noqa: E402
    CONFIG,
    DRAFTERS,
    HIDDEN_SIZE,
    NUM_VERIFIER_LAYERS,
    VOCAB_SIZE,
)


@dataclass(frozen=True, eq=False)
class Pair:
    """One checkpoint, as we load it and as the reference does; the verifier's two ends."""

    folder: Path
    ours: DflashTorchDrafter
    theirs: DFlashDraftModel
    ends: VerifierEnds


@dataclass
class Reference:
    """A session of the reference implementation: its own cache, its own loop."""

    model: DFlashDraftModel
    ends: VerifierEnds
    cache: Any = field(init=False)
    context_len: int = 0
    waiting: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = _make_cache(self.model.config)

    def extend(self, aux: Tensor) -> None:
        """aux: [rows, num_aux * hidden_size]; it is taken in by the next draft."""
        self.waiting.append(aux)

    def hidden(self, bonus_id: int, block_len: int) -> Tensor:
        """The last hidden states of the masks: [block_len - 1, hidden_size]."""
        aux = torch.cat(self.waiting)[None]
        self.waiting.clear()
        first, start = self.context_len, self.context_len + aux.shape[1]
        ids = torch.full((1, block_len), self.model.mask_token_id)
        ids[0, 0] = bonus_id
        scale = self.model.config.dflash_config.get("input_embedding_scale", 1.0)
        with torch.no_grad():
            hidden = self.model(
                target_hidden=aux,
                noise_embedding=self.ends.embedding[ids] * scale,
                position_ids=torch.arange(first, start + block_len)[None],
                past_key_values=self.cache,
                use_cache=True,
            )
        _crop_to(self.cache, start)
        self.context_len = start
        return hidden[0, 1:]

    def draft(self, hidden: Tensor, bonus_id: int) -> list[int]:
        def head(x: Tensor) -> Tensor:
            return x @ self.ends.head.T

        with torch.no_grad():
            if isinstance(self.model, DFlash2DraftModel):
                return self.model.propose(hidden[None], torch.tensor([bonus_id]), head, 0.0)[0][
                    0
                ].tolist()
            return self.model.compute_logits(hidden, head).argmax(-1).tolist()


def verifier_ends(*, seed: int = 1) -> VerifierEnds:
    made = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=made)
    return VerifierEnds(embedding, torch.randn(VOCAB_SIZE, HIDDEN_SIZE, generator=made))


def verifier_part(ends: VerifierEnds, **shape: int) -> VerifierPart:
    found = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "num_layers": NUM_VERIFIER_LAYERS,
        **shape,
    }
    return VerifierPart(VerifierShape(**found), ends)


def write_drafter(folder: Path, name: str, *, seed: int = 7, **changes: Any) -> DFlashDraftModel:
    """Save a random drafter in the published layout; returns the reference's own, in float32."""
    config = {**CONFIG, **DRAFTERS[name], **changes}
    torch.manual_seed(seed)
    kind = DFlash2DraftModel if "DFlash2" in config["architectures"][0] else DFlashDraftModel
    model = kind(Qwen3Config(**config)).eval()
    with torch.no_grad():
        for each, weight in model.named_parameters():
            if weight.ndim == 1 or "norm" in each:
                weight.copy_(1 + 0.2 * torch.randn_like(weight))
            elif "base_kernel" in each:
                weight.copy_(0.4 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * 1.2 / weight.shape[-1] ** 0.5)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {each: weight.contiguous() for each, weight in model.state_dict().items()}
    save_file({published(each): w for each, w in weights.items()}, folder / "model.safetensors")
    return model


def published(name: str) -> str:
    """The codebooks are published as bare parameters."""
    return name.removesuffix(".weight") if "codebook" in name else name


def load(
    folder: Path, ends: VerifierEnds | None, *, dtype: str = "float32", **limits: Any
) -> DflashTorchDrafter:
    return load_drafter(
        folder,
        verifier=None if ends is None else verifier_part(ends),
        dtype=dtype,
        limits=DrafterLimits(num_threads=1, **limits),
        model_id="test",
        progress=lambda share: None,
    )


def write_pair(folder: Path, name: str, **changes: Any) -> Pair:
    theirs = write_drafter(folder, name, **changes)
    ends = verifier_ends()
    return Pair(folder, load(folder, ends), theirs, ends)


def some_aux(num_rows: int, num_aux: int, *, seed: int) -> Tensor:
    """[num_rows, num_aux * HIDDEN_SIZE], float32."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, num_aux * HIDDEN_SIZE, generator=made)


def wired(aux: Tensor) -> list[WireArray]:
    """The rows as they come off the wire: one array a tapped layer."""
    return [WireArray(*from_torch(part.contiguous())) for part in aux.split(HIDDEN_SIZE, dim=-1)]


def extended(
    drafter: DflashTorchDrafter,
    context: Context | None,
    context_len: int,
    aux: Tensor,
    chunk_lens: Sequence[int] = (),
) -> Context:
    """The context with `aux` appended in chunks of these lengths, then of the longest allowed."""
    at, lens = 0, list(chunk_lens)
    while at < len(aux):
        step = lens.pop(0) if lens else drafter.shape.max_extend_len
        context = drafter.extend(context, context_len + at, wired(aux[at : at + step]))
        at += step
    assert context is not None
    return context
