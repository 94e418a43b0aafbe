"""Scikit-learn's handwritten digits: an image is a slot, a frozen model an action.

Eleven models are trained on the first 300 images and then never change. The other 1,497 images come
in their order; a model's loss is 1 where it is wrong. So a vector depends on its image alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamdp.lab.replay.datasets import Dataset, missing

TRAINING = 300
LICENCE = "scikit-learn's copy of the UCI digits (CC BY 4.0): Alpaydin & Kaynak 1998"


def load() -> Dataset:
    """The errors of the models, image by image."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing("scikit-learn") from None
    images, digits = load_digits(return_X_y=True)
    images = images / 16  # the pixels' range, a constant
    names, wrong = [], []
    for name, model in _models():
        model.fit(images[:TRAINING], digits[:TRAINING])
        names.append(name)
        wrong.append(model.predict(images[TRAINING:]) != digits[TRAINING:])
    losses = np.stack(wrong, axis=1).astype(np.float32)
    about = f"which of {len(names)} frozen models reads the next digit right"
    return Dataset("digits", tuple(names), losses, about, LICENCE)


def _models() -> Sequence[tuple[str, Any]]:
    """Models from bad to good, all with fixed seeds."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC
    from sklearn.tree import DecisionTreeClassifier

    return [
        ("majority", DummyClassifier()),
        ("tree, depth 3", DecisionTreeClassifier(max_depth=3, random_state=0)),
        ("tree", DecisionTreeClassifier(random_state=0)),
        ("naive Bayes", GaussianNB()),
        ("nearest neighbour", KNeighborsClassifier(1)),
        ("ridge", RidgeClassifier()),
        ("linear discriminant", LinearDiscriminantAnalysis()),
        ("logistic", LogisticRegression(max_iter=1000)),
        ("forest of 30", RandomForestClassifier(n_estimators=30, random_state=0)),
        ("3 neighbours", KNeighborsClassifier(3)),
        ("support vectors", SVC(gamma=0.1)),
    ]
