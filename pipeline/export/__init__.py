"""`layerbeam export`: a view in few large files, for other programs."""
