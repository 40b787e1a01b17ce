"""Manifests: what a pipeline has decided, epoch by epoch.

`manifest` is the content of one: offsets, where the state of every key group lies, tokens of sinks,
counters. `manifests` is the line of them in a folder: creating the next one is the commit of an
epoch, and only one process can do it. `forget` is what is left when a stream is dropped. `names`
keeps some manifests for good, `restore` goes back to one, `checkpoints` does both for all pipelines
of a data directory, and `inspect` tells what is in a manifest. Knows no Spark; imports storage and
errors.
"""
