"""`layerbeam extract-features`: a folder of documents as google-research's extract_features.py would write it."""
