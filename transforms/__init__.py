"""The library: stages as Beam transforms, in the order in which data flows.

`slice` -> `read` -> `tokenize` -> `encode` -> `write`, one folder each: the package wires the Beam transform, its
modules do the work. `flow` has what flows between them, `views` what they are asked for, `layerbeam` exports the
transforms.
"""
