"""`layerbeam init`: a configuration to start from."""
