"""The offline commands: one file each, in the form that `streamdp.cli` describes."""
