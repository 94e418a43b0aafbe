"""The part of scikit-learn that streamdp uses; the library ships no types."""
