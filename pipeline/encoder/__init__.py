"""`layerbeam encoder`: the encoders that are known, and what one of them is."""
