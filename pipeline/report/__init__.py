"""`layerbeam report`: a section of the page in each of glance, layers, texts and senses; `write` puts them together."""
