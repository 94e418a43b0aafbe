"""What every test stands on: which streamdp is tested, and that nothing is left out in silence."""

import os
import sys
from pathlib import Path

import streamdp

pytest_plugins = ("pytester", "tests.left_out")

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # `tests` itself, behind everything installed

if "STREAMDP_WHEEL" in os.environ and not Path(streamdp.__file__).is_relative_to(
    os.environ["STREAMDP_WHEEL"]
):
    raise RuntimeError(f"the built wheel was to be tested, but streamdp is {streamdp.__file__}")
