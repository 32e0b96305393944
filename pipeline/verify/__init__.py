"""`layerbeam verify`: rows recomputed with the reference implementation, and compared."""
