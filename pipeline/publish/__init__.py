"""`layerbeam publish`: a run as a dataset on Hugging Face's Hub, with its card."""
