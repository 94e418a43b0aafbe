"""Configuration: one TOML file, the environment over it, secrets from files.

`tables` says what the file may hold, `environment` how variables override it, `streams` and
`assembling` what tables become, `budgets` what streams may charge, `configuration` how all this is
read together, `complaints` how errors read. ``example.toml`` explains every key.

An error is raised with the key of its table as its place. The file, or the variable that set the
value, is added in one place: `Origins.placed`.
"""

from streamdp.service.config.configuration import TRANSPORTS, Configuration
from streamdp.service.config.streams import Seeds
from streamdp.service.config.tables import Tables

__all__ = ["TRANSPORTS", "Configuration", "Seeds", "Tables", "example"]


def example() -> str:
    """A complete configuration that explains every key."""
    from importlib.resources import files

    return files(__name__).joinpath("example.toml").read_text("utf-8")
