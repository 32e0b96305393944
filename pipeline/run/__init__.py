"""`layerbeam run` on this machine: its pipeline, its workers, its signals."""
