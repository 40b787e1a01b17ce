"""What operators remember between epochs: its keys, its values and how both become bytes.

`backend` is the protocol of one key group's state of one operator. `files` is the one that
pipelines use: an immutable file per task and epoch, with an index for each key group. `memory` is
one for tests and for small things. `codec` is a stored value with version, fingerprint and checksum
around Arrow record batches. `keys` is the order-preserving encoding that makes a range of keys one
scan, and `values` the four shapes over a backend (value, list, map, reducing), for code that keeps
single keys; the operators of queries keep Arrow tables instead. Nothing is ever pickled. Imports
storage, errors, types and Arrow; knows no Spark and no operator.
"""
