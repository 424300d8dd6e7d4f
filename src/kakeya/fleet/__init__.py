"""Which nodes there are, what they offer, and which of them to ask.

`build_fleet` (membership.py) makes the one object the node holds; everything it decides is in
plain functions: card (one node's offer), registry (all of them), own (our own card), address,
peers (whom to call), placement (whom to ask for drafts).  Only gossip, service, calls, discovery
and store touch the world.  Rules F-01 … F-14: specs/fleet.md.
"""
