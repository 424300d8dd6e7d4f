"""The composition root: builds everything, owns the nurseries, drains on a signal."""
