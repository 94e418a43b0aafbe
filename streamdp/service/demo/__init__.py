"""The demonstration: a made-up shop whose recommender learns privately, through the real service.

`world` makes people up and keeps the score that only a simulator can know, `screen` draws the
terminal, `show` runs both beside the service as one of its faces. The service itself is the one
that `streamdp run` starts, with a configuration file like anybody's.
"""
