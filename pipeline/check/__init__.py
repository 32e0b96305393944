"""`layerbeam check`: whether an encoder, here or behind another engine, makes the vectors of a run."""
