"""The inputs that audits of learners with a crowd compare."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np

EPSILON = Fraction(2)

TWO = ("a", "b")

VERTICES = np.array(list(product((0, 1), repeat=2)), np.float32)
