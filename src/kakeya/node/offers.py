"""The models on our card, and their speeds as real traffic corrects them."""

from __future__ import annotations

from dataclasses import replace

from kakeya.fleet.card import Model
from kakeya.fleet.membership import Fleet

# Real generations differ among themselves; only a lasting change is worth a push to the fleet.
KEEP_RATIO = 0.8
NEWS_RATIO = 0.25


class Offers:
    """Keeps the card's models current."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._models: dict[tuple[str, int], Model] = {
            (model.model_id, model.role): model for model in fleet.own_card().offer.models
        }
        self._verifier: tuple[str, int] | None = None
        self._speed = 0.0

    def set_proposer(self, model: Model) -> None:
        self._set(model)

    def set_verifier(self, model: Model) -> None:
        self._verifier = (model.model_id, model.role)
        self._speed = model.tokens_per_second
        self._set(model)

    def note_verifier_speed(self, tokens_per_second: float) -> None:
        """A generation ran at this speed; the card follows when the average has moved enough."""
        if self._verifier is None:
            return
        announced = self._models[self._verifier]
        self._speed = KEEP_RATIO * self._speed + (1 - KEEP_RATIO) * tokens_per_second
        if (
            abs(self._speed - announced.tokens_per_second)
            > NEWS_RATIO * announced.tokens_per_second
        ):
            self._set(replace(announced, tokens_per_second=round(self._speed, 1)))

    def _set(self, model: Model) -> None:
        self._models[model.model_id, model.role] = model
        self._fleet.announce(tuple(self._models.values()))
