"""What operators remember between epochs: its keys, its values and how both become bytes.

`backend` is the protocol of one key group's state of one operator. `keys` is the order-preserving
encoding that makes a range of key groups one scan, and `values` the four shapes over a backend
(value, list, map, reducing): the memory backend has them for code that keeps single keys; the
operators of queries keep Arrow tables instead. `memory` is a backend for tests and for small
things, `codec` a stored value with version, fingerprint and checksum around Arrow record batches.
Nothing is ever pickled. Imports only errors, types and Arrow; knows no Spark and no operator.
"""
