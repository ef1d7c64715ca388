"""Pictures of tables as SVG, with one look everywhere: in reports, notebooks and files."""
