"""Configuration: one TOML file, the environment over it, secrets from files.

`tables` says what the file may hold, `environment` how variables override it, `configuration` what
must hold for it as a whole and how it becomes streams and a transport, `complaints` how errors
read. ``example.toml`` explains every key.
"""

from streamdp.service.config.configuration import TRANSPORTS, Configuration, Seeds
from streamdp.service.config.tables import Tables

__all__ = ["TRANSPORTS", "Configuration", "Seeds", "Tables", "example"]


def example() -> str:
    """A complete configuration that explains every key."""
    from importlib.resources import files

    return files(__name__).joinpath("example.toml").read_text("utf-8")
