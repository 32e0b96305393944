"""`layerbeam show`: what an output folder holds, in words."""
