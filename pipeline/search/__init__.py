"""`layerbeam search`: the rows of a run nearest to a text or to another row."""
