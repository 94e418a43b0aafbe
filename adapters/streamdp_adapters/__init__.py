"""The technologies behind streamdp's ports: one folder each, found by entry point."""
