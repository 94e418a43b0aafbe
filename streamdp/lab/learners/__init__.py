"""Baselines without privacy, which no stream may run: found by the entry point of recipes.

As every recipe of another package: a name in the group ``streamdp.recipes``, and a decorator.
"""
