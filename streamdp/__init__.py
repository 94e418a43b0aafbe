"""streamdp: streaming, differentially private online learning."""

__version__ = "0.1.0"
