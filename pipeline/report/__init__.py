"""`layerbeam report`: sections compute the data, `page.html.j2` shows them, `page` writes the file."""
