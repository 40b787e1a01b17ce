"""What operators remember between epochs: its keys, its values and how both become bytes.

`backend` is the protocol of one key group's state of one operator, `keys` the order-preserving
encoding that makes a range of key groups one scan, `values` the four shapes over a backend (value,
list, map, reducing), `memory` a backend for tests and for small things, `codec` a stored value with
version, fingerprint and checksum around Arrow record batches. Nothing is ever pickled. Imports only
errors, types and Arrow; knows no Spark and no operator.
"""
