"""Status, metrics and health of streams and pipelines.

`status` has the snapshots that `Session.status` returns, `timeline` records the steps of epochs,
`prometheus` turns both into metrics, and `server` serves metrics and health over HTTP. `rendering`
converts values and rows to JSON and HTML. The runtime writes, all other packages read. The package
imports nothing from Tidegate but errors.
"""
