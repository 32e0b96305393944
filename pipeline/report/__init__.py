"""`layerbeam report`: a section of the page in each of glance, layers, texts and senses; `write` puts them together."""

# In the output folder, unless --to says otherwise.
REPORT = "report.html"
