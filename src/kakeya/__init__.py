"""Kakeya Node: machines that draft tokens for one another."""
