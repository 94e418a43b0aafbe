"""An example: a shop that learns which shelf to show, from what its visitors buy.

- `world`: products, and made-up visitors whose taste only the simulator knows.
- `score`: what other ways of choosing would have sold to the same visitors. NOT PRIVATE.
- `store`: the shop itself: it shows, sells, and writes requests and outcomes. Yours to copy.
- `page.html`: the storefront, and what goes on behind it.
- `__main__`: serves all of this.
"""
