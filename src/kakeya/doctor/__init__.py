"""What `kakeya doctor` looks at: plain checks of facts, and the few places that gather those."""
