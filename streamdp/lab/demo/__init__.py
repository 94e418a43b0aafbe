"""The demonstration: a made-up shop whose recommender learns privately, through the real service.

`world` invents visitors and keeps the score that only a simulator can know; `screen` draws the
terminal; `show` runs both beside the service as one of its faces. The service is the one that
`streamdp run` starts, with an ordinary configuration file.
"""
