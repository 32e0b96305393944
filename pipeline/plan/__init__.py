"""`layerbeam plan`: what a run will read, write and take, estimated from a sample before it starts."""
