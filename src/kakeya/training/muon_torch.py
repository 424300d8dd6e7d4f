"""Muon for matrices, AdamW for the rest; all state in plain tensors, so that it can be saved.

Muon: Jordan et al. 2024 (momentum orthogonalised by five Newton–Schulz steps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# The quintic's coefficients of the Muon write-up: singular values end near 1, not at it.
_QUINTIC = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
BETAS = (0.9, 0.95)
EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Rates:
    matrix: float = 0.02
    other: float = 3e-3


class Optimizer:
    """Takes steps on `params` (name → leaf tensor); `matrices` names those that Muon moves."""

    def __init__(self, params: Mapping[str, Tensor], matrices: frozenset[str]) -> None:
        self.params = dict(params)
        self._matrices = matrices
        self._moments = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self._squares = {
            name: torch.zeros_like(p) for name, p in self.params.items() if name not in matrices
        }
        self.num_steps = 0

    @torch.no_grad()
    def step(self, rates: Rates, *, scale: float) -> None:
        """Move every parameter along its .grad, which is cleared; `scale` is the schedule's."""
        self.num_steps += 1
        for name, param in self.params.items():
            grad = param.grad
            if grad is None:
                continue
            if name in self._matrices:
                self._muon(name, param, grad, rates.matrix * scale)
            else:
                self._adam(name, param, grad, rates.other * scale)
            param.grad = None

    def _muon(self, name: str, param: Tensor, grad: Tensor, rate: float) -> None:
        moment = self._moments[name].lerp_(grad, 1 - MOMENTUM)
        direction = orthogonal(grad.lerp(moment, MOMENTUM))
        stretch = max(1.0, param.shape[0] / param.shape[1]) ** 0.5
        param.add_(direction, alpha=-rate * stretch)

    def _adam(self, name: str, param: Tensor, grad: Tensor, rate: float) -> None:
        low, high = BETAS
        moment = self._moments[name].lerp_(grad, 1 - low)
        square = self._squares[name].lerp_(grad * grad, 1 - high)
        unbiased = (square / (1 - high**self.num_steps)).sqrt_().add_(EPS)
        param.addcdiv_(moment, unbiased, value=-rate / (1 - low**self.num_steps))

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, parameters included."""
        state = {f"param.{name}": p.detach() for name, p in self.params.items()}
        state |= {f"moment.{name}": m for name, m in self._moments.items()}
        state |= {f"square.{name}": s for name, s in self._squares.items()}
        return state

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor], num_steps: int) -> None:
        for kind, kept in (
            ("param", self.params),
            ("moment", self._moments),
            ("square", self._squares),
        ):
            for name, tensor in kept.items():
                tensor.copy_(state[f"{kind}.{name}"])
        self.num_steps = num_steps


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrix to [rows, columns], roughly."""
    a, b, c = _QUINTIC
    x = matrix / (matrix.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    turned: Tensor = x.T if is_tall else x
    return turned
