"""Reports: one page for every kind, `report.html`, which draws what `--json` writes.

The page is a template with the figures inside it as JSON. Its own script draws them, so it needs no
network and no other file. Names of actions, keys and files are the user's: they stand in the JSON,
where no `<` is left that could end it, and the script only ever makes text of them.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Literal

Kind = Literal["losses", "feedback", "simulation", "claims"]
"""What the figures are of: the template has a function for each."""


def page(kind: Kind, figures: object) -> str:
    """The report of these figures, as one page.

    >>> '"kind": "claims"' in page("claims", {"</script>": "<b>"})
    True
    >>> "<b>" in page("claims", {"</script>": "<b>"})
    False
    """
    report = json.dumps({"kind": kind, "figures": figures}, allow_nan=False)
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return template.replace("{{report}}", report.replace("<", "\\u003c"))
