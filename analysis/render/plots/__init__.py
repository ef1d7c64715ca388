"""Tables as SVG figures, with one look in reports, notebooks and files."""
