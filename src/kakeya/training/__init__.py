"""The programs that train what the package ships: verifier, drafter and f_θ.

Seeded and resumable; budgets are in tokens.  Nothing here runs in a node.
"""
