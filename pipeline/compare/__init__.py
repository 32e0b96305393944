"""`layerbeam compare`: the vectors of the same texts in two runs."""
