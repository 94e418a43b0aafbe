"""Technologies behind streamdp's ports: one file or folder each, found by entry point."""
