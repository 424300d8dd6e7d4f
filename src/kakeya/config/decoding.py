"""Limits and budgets of the speculative loop (host A); every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodingLimits:
    max_num_drafts: int = 16
    # Denoising steps asked of a proposer that iterates; 0: as many as suit it.
    num_steps: int = 0
    # A stop string longer than this would hold back more text than anyone wants to wait for.
    max_stop_len: int = 1024
    max_stops: int = 16
    # How long a draft is waited for, in one-token steps, with a floor and a ceiling.
    draft_wait_steps: float = 2.0
    min_draft_wait_s: float = 0.02
    max_draft_wait_s: float = 1.0
    # A proposer is left alone this long after a failure, doubled per failure up to the cap.
    circuit_backoff_s: float = 1.0
    max_circuit_backoff_s: float = 30.0
    # One late draft may be a hiccup, the second in a row is a slow proposer.
    max_late: int = 2
    # Probes cost no waiting, so the first few unanswered ones (a dial) are repeated at once.
    max_free_probes: int = 3
    # Steps shorter than min_draft_wait_s prove nothing one by one; so much of them counts as one
    # unanswered probe, or a proposer slower than a step would be probed at every step.
    cut_off_s: float = 0.1
    max_probes: int = 2
    max_circuits: int = 1024
    refresh_trip_s: float = 5.0
    places_every_s: float = 1.0
    # A text that needs banks waits this long until somebody who can make them is known, and looks
    # so often: what peers draft with is asked of them when it is first wanted.
    seek_banks_s: float = 2.0
    seek_banks_every_s: float = 0.05
    # Deadlines of a DFlash session's calls; a Restore or a long seed may wait behind other work.
    restore_s: float = 10.0
    seed_s: float = 5.0
    draft_s: float = 2.0
    close_s: float = 1.0
    # One message of aux, and what is kept of it for seeding another drafter.
    max_aux_message_bytes: int = 8 << 20
    max_aux_bytes: int = 64 << 20
    # Committed positions a session may lag behind before they are sent without a draft.
    max_lag_len: int = 64
    # Sessions this node holds on others at once.
    max_held_sessions: int = 64
    # What a node's drafters fit is asked again so often, sooner after no answer; one question's
    # deadline; questions at once.
    catalog_s: float = 60.0
    catalog_retry_s: float = 2.0
    catalog_ask_s: float = 2.0
    max_catalog_questions: int = 16
    # A session that failed is opened again beside the loop's work, which costs no waiting.
    session_backoff_s: float = 0.05
    max_session_backoff_s: float = 2.0
    # Speculation has to promise this much over plain decoding before it is used at all, because
    # the promise rests on noisy times.
    min_gain: float = 1.05
    # A proposer earlier in the order is kept while it promises this share of a later one's rate.
    prefer_earlier_ratio: float = 0.8
    # What a row more costs, in one-token steps, while nothing is measured: 4 rows 1.18, 8 rows
    # 1.42, 16 rows 1.9 on two CPU cores.
    prior_row_ratio: float = 0.06
    # Drafted blocks over which speculation must have paid, and the share of plain decoding's
    # rate below which it is switched off; for how many blocks, doubled up to the cap.
    window_blocks: int = 12
    min_realised_gain: float = 0.98
    off_blocks: int = 32
    max_off_blocks: int = 512
    # A one-token step older than this many blocks is measured again, unless the promised gain
    # is so large that its exact size does not matter.
    stale_blocks: int = 8
    clear_gain: float = 1.5


__all__ = ["DecodingLimits"]
