"""`layerbeam plan`: what a run will be, before it starts; `run` says its shorter word by the same estimate.

`sample` draws records, `estimate` tells the corpus from them, `burst` measures the encoder, `make` puts it together,
`text` prints it.
"""
