"""The console: a page in the browser that shows a pipeline while it runs.

Start reading at `providers`: the contract for what can be shown, implemented for a session of this
process and for a data directory. `history` samples a provider once per second, `graph` builds and
lays out the graph, and `app` serves the page in `static/`. The package may import every other
package except `cli`.
"""
